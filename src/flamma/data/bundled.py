"""Datasets that need no download: scikit-learn's digits, and a synthetic one of any size."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flamma.data.records import Dataset, GeneratedSamples
from flamma.errors import DataError
from flamma.numerics import normal, normal_float32, totals
from flamma.seeding import stream
from flamma.types import Ints

SYNTHETIC_FEATURES, SYNTHETIC_CLASSES = 20, 5
SYNTHETIC_SEPARATION = 0.2
MOST_SYNTHETIC_SAMPLES = 50_000_000
SYNTHETIC_TEST_SAMPLES = 2_000
SAMPLES_PER_STREAM = 65_536
"""Samples drawn from one random stream, so that a larger set begins with the smaller one."""


def load_digits(_folder: Path, _samples: int) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits, 28x28, values 0 to 16.

    Each of the 8x8 pixels becomes 3x3, with a margin of 2, so that LeNet-5 can be used. The test
    set is every fifth image of each class in the order of the file: it is fixed and has images of
    all writers.
    """
    table = _digits_table()
    images = table[:, :-1].reshape(-1, 1, 8, 8)
    enlarged = images.repeat(3, axis=2).repeat(3, axis=3)
    x = np.pad(enlarged, ((0, 0), (0, 0), (2, 2), (2, 2)))
    y = table[:, -1].astype(np.int64)
    test = every_fifth_of_each_class(y)
    return Dataset(
        "digits",
        x[~test],
        y[~test],
        x[test],
        y[test],
        tuple("0123456789"),
        full_scale=16,
        mean=(0.2242,),
        std=(0.3494,),
    )


def _digits_table() -> NDArray[np.uint8]:
    """Return a row for each digit: 64 pixels and the label.

    They are read from scikit-learn's own file, since to import the package takes a second or two.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("the digits dataset needs scikit-learn: pip install scikit-learn.")
    file = Path(spec.origin).with_name("datasets") / "data" / "digits.csv.gz"
    if file.exists():
        return np.loadtxt(file, delimiter=",", dtype=np.uint8)
    pixels, labels = importlib.import_module("sklearn.datasets").load_digits(return_X_y=True)
    return np.column_stack([pixels, labels]).astype(np.uint8)


def every_fifth_of_each_class(labels: Ints) -> NDArray[np.bool_]:
    """Return a mask of the fifth, tenth, ... sample of each class.

    Examples
    --------
    >>> every_fifth_of_each_class(np.array([0, 0, 1, 0, 0, 0])).astype(int)
    array([0, 0, 0, 0, 0, 1])
    """
    chosen = np.zeros(labels.size, dtype=bool)
    for label in np.unique(labels):
        chosen[np.flatnonzero(labels == label)[4::5]] = True
    return chosen


def load_synthetic(_folder: Path, samples: int) -> Dataset:
    """Return the synthetic dataset with at least this many training samples.

    Raises
    ------
    DataError
        If there would be more than ``MOST_SYNTHETIC_SAMPLES``.
    """
    if samples > MOST_SYNTHETIC_SAMPLES:
        raise DataError(
            f"synthetic makes at most {MOST_SYNTHETIC_SAMPLES:,} samples: use fewer clients or "
            f"samples."
        )
    return synthetic(max(samples, SYNTHETIC_CLASSES), SYNTHETIC_TEST_SAMPLES)


def synthetic(
    samples: int,
    test_samples: int,
    features: int = SYNTHETIC_FEATURES,
    classes: int = SYNTHETIC_CLASSES,
    separation: float = SYNTHETIC_SEPARATION,
) -> Dataset:
    """Return classes that are Gaussian clouds around random centres; every call returns the same.

    The centres have mean 0 and variance ``separation`` in each feature, the clouds variance
    1 - ``separation``, so all samples together are standardised. Labels alternate, so any number
    of samples is balanced.
    """
    rng = stream(0, "synthetic-centres")
    centres = normal(rng, classes * features).reshape(classes, features)
    centres -= totals(centres.T) / classes
    centres *= np.sqrt(separation / (totals(np.square(centres).T) / classes))
    train = Clouds("synthetic-train", samples, centres, separation)
    test = Clouds("synthetic-test", test_samples, centres, separation)
    names = tuple(f"class {label}" for label in range(classes))
    return Dataset("synthetic", train, train.labels, np.asarray(test), test.labels, names)


class Clouds(GeneratedSamples):
    """The samples of the synthetic dataset, of which no more than a block is ever held here."""

    block_size = SAMPLES_PER_STREAM

    def __init__(
        self, purpose: str, samples: int, centres: NDArray[np.float64], separation: float
    ) -> None:
        super().__init__((samples, centres.shape[1]))
        self.purpose = purpose
        self.labels: Ints = np.arange(samples, dtype=np.int64) % len(centres)
        self.scale = np.float32(np.sqrt(1 - separation))
        self.centres = centres.astype(np.float32)

    def block(self, number: int) -> NDArray[np.float32]:
        """Return the samples of one stream."""
        labels = self.labels[number * self.block_size : (number + 1) * self.block_size]
        rng = stream(0, self.purpose, number)
        x = normal_float32(rng, labels.size * self.shape[1]).reshape(labels.size, -1)
        x *= self.scale
        x += self.centres[labels]
        return x

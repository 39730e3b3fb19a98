"""The registry of datasets, and loading and fetching them by name.

Another package adds a dataset by an entry point of the group ``flamma.datasets`` that names a
:class:`~flamma.data.records.DatasetEntry`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flamma.data.fetch import Delivery, Say, data_folder, fetch, looks_present, missing
from flamma.data.images import CIFAR10, DIGIT_NAMES, FASHION_MNIST, MNIST
from flamma.data.records import Dataset, DatasetEntry, GeneratedSamples
from flamma.data.tables_bundled import ADULT, FLIGHTS, INSTEVAL
from flamma.data.text import BIBLE
from flamma.errors import DataError
from flamma.numerics import exp, normal, normal_float32, power, totals
from flamma.registry import Registry
from flamma.seeding import stream
from flamma.types import Ints

# Datasets that need no download: scikit-learn's digits, and a synthetic one of any size.

SYNTHETIC_FEATURES, SYNTHETIC_CLASSES = 20, 5
_SYNTHETIC_SEPARATION = 0.2
_MOST_SYNTHETIC_SAMPLES = 50_000_000
_SYNTHETIC_TEST_SAMPLES = 2_000
_SAMPLES_PER_STREAM = 65_536
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
    test = _every_fifth_of_each_class(y)
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


def _every_fifth_of_each_class(labels: Ints) -> NDArray[np.bool_]:
    """Return a mask of the fifth, tenth, ... sample of each class.

    Examples
    --------
    >>> _every_fifth_of_each_class(np.array([0, 0, 1, 0, 0, 0])).astype(int)
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
        If there would be more than ``_MOST_SYNTHETIC_SAMPLES``.
    """
    if samples > _MOST_SYNTHETIC_SAMPLES:
        raise DataError(
            f"synthetic makes at most {_MOST_SYNTHETIC_SAMPLES:,} samples: use fewer clients or "
            f"samples."
        )
    return synthetic(max(samples, SYNTHETIC_CLASSES), _SYNTHETIC_TEST_SAMPLES)


def synthetic(
    samples: int,
    test_samples: int,
    features: int = SYNTHETIC_FEATURES,
    classes: int = SYNTHETIC_CLASSES,
    separation: float = _SYNTHETIC_SEPARATION,
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
    train = _Clouds("synthetic-train", samples, centres, separation)
    test = _Clouds("synthetic-test", test_samples, centres, separation)
    names = tuple(f"class {label}" for label in range(classes))
    return Dataset("synthetic", train, train.labels, np.asarray(test), test.labels, names)


class _Clouds(GeneratedSamples):
    """The samples of the synthetic dataset, of which no more than a block is ever held here."""

    block_size = _SAMPLES_PER_STREAM

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


# Synthetic(α, β): devices that differ in what they see and in what they make of it.
#
# The recipe of Shamir, Srebro and Zhang ("Communication-efficient distributed optimization using
# an approximate Newton-type method", 2014) as Li et al. extended it ("Federated Optimization in
# Heterogeneous Networks", MLSys 2020) and used for q-FFL ("Fair Resource Allocation in Federated
# Learning", ICLR 2020).

DEVICES, DEVICE_FEATURES, DEVICE_CLASSES = 100, 60, 10
_DEVICE_TEST_SAMPLES = 10
"""Samples of each device in the common test set."""
_TRAINING_SAMPLES = 63_648
"""What :func:`_device_sizes` adds up to."""


def _device_sizes(devices: int = DEVICES) -> Ints:
    """Return how many training samples each device has: few have many.

    50 and the whole part of exp(4 + 2 z) with z normal, as in Li et al.'s generator.
    """
    rng = stream(0, "devices-sizes")
    return 50 + np.floor(exp(4 + 2 * normal(rng, devices))).astype(np.int64)


def device_samples(
    device: int, count: int, alpha: float, beta: float
) -> tuple[NDArray[np.float32], Ints]:
    """Return the first samples of a device, with their labels.

    y = argmax(W x + b), where x is normal around v with variances j^-1.2 for j = 1, 2, ...; all of
    W and b are normal around u with variance 1, and v around B; u is normal around 0 with variance
    α, and B with variance β.
    """
    rng = stream(0, "devices-model", client=device)
    labelling, seeing = normal(rng, 2)
    weights = normal(rng, (DEVICE_FEATURES + 1) * DEVICE_CLASSES).reshape(-1, DEVICE_CLASSES)
    weights += np.sqrt(alpha) * labelling
    centre = normal(rng, DEVICE_FEATURES) + np.sqrt(beta) * seeing
    noise = normal(stream(0, "devices-samples", client=device), count * DEVICE_FEATURES)
    spread = np.sqrt(power(np.arange(1.0, DEVICE_FEATURES + 1), -1.2))
    samples = (noise.reshape(count, -1) * spread + centre).astype(np.float32)
    scores = np.tile(weights[-1], (count, 1))  # b is the last row of the weights
    for feature, row in zip(samples.T.astype(np.float64), weights[:-1], strict=True):
        scores += feature[:, None] * row  # one by one, for the same bits everywhere
    return samples, scores.argmax(axis=1)


def load_devices(_folder: Path, _samples: int, *, name: str, alpha: float, beta: float) -> Dataset:
    """Return Synthetic(α, β) with every device a natural group."""
    sizes = _device_sizes()
    train, test = [], []
    for device, size in enumerate(sizes.tolist()):
        x, y = device_samples(device, size + _DEVICE_TEST_SAMPLES, alpha, beta)
        test.append((x[:_DEVICE_TEST_SAMPLES], y[:_DEVICE_TEST_SAMPLES]))
        train.append((x[_DEVICE_TEST_SAMPLES:], y[_DEVICE_TEST_SAMPLES:]))
    return Dataset(
        name,
        np.concatenate([x for x, _ in train]),
        np.concatenate([y for _, y in train]),
        np.concatenate([x for x, _ in test]),
        np.concatenate([y for _, y in test]),
        _CLASS_NAMES,
        groups=np.repeat(np.arange(DEVICES), sizes),
    )


def _entry(name: str, alpha: float, beta: float) -> DatasetEntry:
    load: Callable[[Path, int], Dataset] = partial(load_devices, name=name, alpha=alpha, beta=beta)
    return DatasetEntry(
        about=f"100 devices of Synthetic({alpha:g}, {beta:g}) (Li et al. 2020)",
        shape=(DEVICE_FEATURES,),
        class_names=_CLASS_NAMES,
        train=_TRAINING_SAMPLES,
        test=DEVICES * _DEVICE_TEST_SAMPLES,
        load=load,
    )


_CLASS_NAMES = tuple(f"class {label}" for label in range(DEVICE_CLASSES))
_SYNTHETIC_00 = _entry("synthetic-00", 0.0, 0.0)
_SYNTHETIC_11 = _entry("synthetic-11", 1.0, 1.0)


DIGITS = DatasetEntry(
    about="handwritten digits, 8x8 enlarged to 28x28, inside scikit-learn",
    shape=(1, 28, 28),
    class_names=DIGIT_NAMES,
    train=1_442,
    test=355,
    load=load_digits,
)
SYNTHETIC = DatasetEntry(
    about="Gaussian clouds, as many samples as are asked for",
    shape=(SYNTHETIC_FEATURES,),
    class_names=tuple(f"class {label}" for label in range(SYNTHETIC_CLASSES)),
    train=10_000,
    test=_SYNTHETIC_TEST_SAMPLES,
    load=load_synthetic,
    generated=True,
)

DATASETS: Registry[DatasetEntry] = Registry(
    "dataset",
    "flamma.datasets",
    {
        "digits": DIGITS,
        "mnist": MNIST,
        "fashion-mnist": FASHION_MNIST,
        "cifar10": CIFAR10,
        "adult": ADULT,
        "flights": FLIGHTS,
        "insteval": INSTEVAL,
        "bible": BIBLE,
        "synthetic": SYNTHETIC,
        "synthetic-00": _SYNTHETIC_00,
        "synthetic-11": _SYNTHETIC_11,
    },
)


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    samples: int | None = None,
    task: str | None = None,
) -> Dataset:
    """Return a dataset from this machine; nothing is downloaded here.

    Parameters
    ----------
    name : str
        One of :data:`DATASETS`.
    data_dir : Path, optional
        The folder of all datasets, instead of ``FLAMMA_DATA`` or the user's cache.
    samples : int, optional
        How many training samples a generated dataset makes; other datasets ignore it.
    task : str, optional
        What is to be predicted, if the dataset has several tasks.

    Raises
    ------
    DataError
        If there is no such dataset, or its files are missing or damaged.

    Examples
    --------
    >>> digits = load_dataset("digits")
    >>> digits.train_x.shape, digits.test_x.shape, digits.classes
    ((1442, 1, 28, 28), (355, 1, 28, 28), 10)
    """
    entry = DATASETS[name].for_task(task)
    return entry.load(data_folder(data_dir) / name, entry.train if samples is None else samples)


def check_fetched(name: str, data_dir: Path | None = None) -> None:
    """Refuse a dataset whose files are not on this machine, without reading any.

    Raises
    ------
    DataError
        With the command that fetches it.
    """
    folder = data_folder(data_dir) / name
    if not all((folder / file.name).exists() for file in DATASETS[name].files):
        raise DataError(missing(name, folder))


def fetch_dataset(
    name: str,
    data_dir: Path | None = None,
    from_folder: Path | None = None,
    say: Say = lambda _: None,
) -> list[Delivery]:
    """Fetch a dataset to this machine, from a folder or from its sources in order.

    Returns what came from each source; the list is empty if all files were there already.
    """
    entry = DATASETS[name]
    if not entry.files:
        raise DataError(f"{name} needs no download: it can be used as it is.")
    return fetch(name, entry, data_folder(data_dir) / name, from_folder, say)


def availability(name: str, data_dir: Path | None = None) -> str:
    """Return ``built in``, ``here`` or ``not fetched``, without reading files."""
    entry = DATASETS[name]
    if not entry.files:
        return "built in"
    here = looks_present(data_folder(data_dir) / name, entry.files)
    return "here" if here else "not fetched"

"""What a dataset is, before it is loaded and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError
from flamma.types import Ints

if TYPE_CHECKING:
    from flamma.data.sources import Source

Pixels = NDArray[np.uint8] | NDArray[np.float32]


@dataclass(frozen=True)
class Recipe:
    """How a file can be put together from others, where a source has it in another form."""

    ingredients: tuple[str, ...]
    assemble: Callable[[Sequence[bytes]], bytes]


@dataclass(frozen=True)
class DataFile:
    """One decoded file of a dataset: any source that delivers these very bytes will do."""

    name: str
    sha256: str
    size: int
    recipe: Recipe | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded dataset: samples as they are stored, and what makes them float32 around zero.

    Images have shape (samples, channels, height, width), other samples (samples, features).
    ``full_scale`` is the largest stored value; ``mean`` and ``std`` are those of the training
    set divided by it, one number per channel, fixed here so that they depend on no seed.
    ``groups`` numbers the natural group of each training sample (its writer, hospital, airline).

    Raises
    ------
    DataError
        If samples, labels and groups are not equally many, or a label is none of the classes.
    """

    name: str
    train_x: Pixels
    train_y: Ints
    test_x: Pixels
    test_y: Ints
    class_names: tuple[str, ...]
    full_scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    groups: Ints | None = None

    def __post_init__(self) -> None:
        for part, x, y in (
            ("training", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            if len(x) != len(y) or not len(y):
                raise DataError(f"{self.name} has {len(x)} {part} samples, but {len(y)} labels.")
            if y.min() < 0 or y.max() >= self.classes:
                raise DataError(
                    f"{self.name} has {self.classes} classes, but {part} labels from {y.min()} "
                    f"to {y.max()}."
                )

        groups = self.groups
        if groups is not None and (groups.shape != self.train_y.shape or groups.min() < 0):
            raise DataError(f"{self.name} needs one group from 0 on for each training sample.")

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def standardised(self, samples: Pixels) -> NDArray[np.float32]:
        """Return (samples / full_scale - mean) / std as float32, channel by channel.

        Examples
        --------
        >>> import numpy as np
        >>> black, label = np.zeros((1, 1, 2, 2), dtype=np.uint8), np.array([0])
        >>> grey = Dataset("grey", black, label, black, label, ("a",), 255, (0.5,), (0.25,))
        >>> grey.standardised(black).ravel()
        array([-2., -2., -2., -2.], dtype=float32)
        """
        column = (1, -1, *([1] * (samples.ndim - 2)))
        mean = np.asarray(self.mean, dtype=np.float32).reshape(column)
        std = np.asarray(self.std, dtype=np.float32).reshape(column)
        scaled = samples.astype(np.float32)
        scaled /= np.float32(self.full_scale)
        scaled -= mean
        scaled /= std
        return scaled


@dataclass(frozen=True)
class DatasetEntry:
    """A dataset by name: what it is, where its files come from, and how it is loaded.

    ``load`` takes the folder with the dataset's files and how many training samples are wanted
    at least; only a generated dataset heeds the number. Without ``files`` nothing is fetched.
    """

    about: str
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    train: int
    test: int
    load: Callable[[Path, int], Dataset]
    files: tuple[DataFile, ...] = ()
    sources: tuple[Source, ...] = field(default=())
    generated: bool = False

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

"""The records of a dataset: its entry in the registry, its files, and its loaded samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flamma.data.tables import Array
from flamma.errors import DataError, Key
from flamma.processes import shared_zeros
from flamma.tasks import DEFAULT_TASK, TASKS
from flamma.tasks.base import MAX_CLASSES
from flamma.types import Inputs, Ints, Targets

if TYPE_CHECKING:
    from flamma.data.fetch import Source

_StoredSamples = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
_SAMPLES_AT_ONCE = 16_384
"""Stored samples that are standardised at a time."""


class GeneratedSamples(ABC):
    """Samples that are computed block by block where they are wanted, and not kept.

    ``numpy.asarray`` makes all of them, and indexing makes those that are asked for.
    """

    block_size: ClassVar[int]
    dtype = np.dtype(np.float32)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    @abstractmethod
    def block(self, number: int) -> NDArray[np.float32]:
        """Return the samples from ``number * block_size`` on, ``block_size`` or what is left."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        wanted = np.arange(len(self))[rows]
        out = np.empty((wanted.size, *self.shape[1:]), dtype=np.float32)
        for places, found in self.parts(wanted.reshape(-1)):
            out[places] = found
        return out.reshape(*wanted.shape, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or np.float32, copy=False)

    def parts(self, rows: Ints) -> Iterator[tuple[Ints, NDArray[np.float32]]]:
        """Yield some of the wanted rows, by their places in ``rows``, until all were there."""
        owner = rows // self.block_size
        small = np.min_scalar_type(len(self) // self.block_size)  # which numpy sorts much faster
        order = np.argsort(owner.astype(small), kind="stable")
        counts = np.bincount(owner, minlength=1)
        del owner  # as large as the labels
        for number in np.flatnonzero(counts).tolist():
            first = int(counts[:number].sum())
            places = order[first : first + int(counts[number])]
            yield places, self.block(number)[rows[places] - number * self.block_size]


@dataclass(frozen=True)
class Recipe:
    """How to build a file from other files, for a source that has it in another form."""

    ingredients: tuple[str, ...]
    assemble: Callable[[Sequence[bytes]], bytes]


@dataclass(frozen=True)
class DataFile:
    """One decoded file of a dataset, identified by its checksum, from whichever source."""

    name: str
    sha256: str
    size: int
    recipe: Recipe | None = None


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded dataset: the samples as stored, and the constants that standardise them.

    Images have shape (samples, channels, height, width), other samples (samples, features).
    ``full_scale`` is the largest stored value; ``mean`` and ``std`` are those of the training
    set divided by it, one number per channel. They are constants, so they depend on no seed.
    ``groups`` numbers the natural group of each training sample (its writer, hospital, airline),
    and ``group_names`` are what they are called.
    ``task`` is what is to be predicted. Samples that are stored as int64 are token ids, which are
    not standardised.

    Raises
    ------
    DataError
        If samples, labels and groups are not equally many, a label is none of the classes, or
        there are more than :data:`~flamma.tasks.base.MAX_CLASSES`.
    """

    name: str
    train_x: _StoredSamples | GeneratedSamples
    train_y: Targets
    test_x: _StoredSamples
    test_y: Targets
    class_names: tuple[str, ...]
    full_scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    groups: Ints | None = None
    task: str = DEFAULT_TASK
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= MAX_CLASSES:
            raise DataError(
                f"{self.name} has {self.classes} classes, but there may be 1 to {MAX_CLASSES}."
            )
        for part, x, y in (
            ("training", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            if len(x) != len(y) or not len(y):
                raise DataError(f"{self.name} has {len(x)} {part} samples, but {len(y)} labels.")
            if TASKS[self.task].target_type is np.int64:
                self._check_labels(part, y)
        groups = self.groups
        if groups is not None and (groups.shape != self.train_y.shape[:1] or groups.min() < 0):
            raise DataError(f"{self.name} needs one group from 0 on for each training sample.")
        if self.group_names and (groups is None or groups.max() >= len(self.group_names)):
            raise DataError(f"{self.name} has groups without a name.")

    def _check_labels(self, part: str, y: Targets) -> None:
        if not np.issubdtype(y.dtype, np.integer):
            raise DataError(f"{self.name} has {part} labels of {y.dtype}, not whole numbers.")
        ignored = TASKS[self.task].ignored
        if ignored is not None:
            y = y[y != ignored]
        if y.size and (y.min() < 0 or y.max() >= self.classes):
            raise DataError(
                f"{self.name} has {self.classes} classes, but {part} labels from {y.min()} "
                f"to {y.max()}."
            )

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def training_samples(self, rows: Ints) -> Inputs:
        """Return some training samples, standardised, in memory that forked processes share.

        They are copied in parts, so that samples are nowhere twice.
        """
        kind = np.int64 if self.train_x.dtype == np.int64 else np.float32
        chosen: Inputs = shared_zeros((rows.size, *self.train_x.shape[1:]), kind)
        if isinstance(self.train_x, GeneratedSamples):
            for places, found in self.train_x.parts(rows):
                chosen[places] = self.standardised(found)
            return chosen
        for first in range(0, rows.size, _SAMPLES_AT_ONCE):
            own = slice(first, first + _SAMPLES_AT_ONCE)
            chosen[own] = self.standardised(self.train_x[rows[own]])
        return chosen

    def standardised(self, samples: _StoredSamples) -> Inputs:
        """Return (samples / full_scale - mean) / std as float32, channel by channel.

        Token ids, which are int64, stay as they are.

        Examples
        --------
        >>> import numpy as np
        >>> black, label = np.zeros((1, 1, 2, 2), dtype=np.uint8), np.array([0])
        >>> grey = Dataset("grey", black, label, black, label, ("a",), 255, (0.5,), (0.25,))
        >>> grey.standardised(black).ravel()
        array([-2., -2., -2., -2.], dtype=float32)
        """
        if samples.dtype == np.int64:
            return samples
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
    """The entry of a dataset in the registry: its properties, its files, and how to load it.

    ``load`` takes the folder of the dataset's files and the number of training samples that are
    wanted; only a generated dataset uses the number. A dataset without ``files`` is not fetched.
    ``task`` is what is to be predicted; where that is no class, ``class_names`` has a name for each
    number that a model gives: the tokens, or one name for regression. ``defaults`` are settings of
    a configuration, such as ``model.name``, that fit the dataset where nothing else is asked for.
    ``other_tasks`` are what else can be predicted, each with its own entry.
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
    task: str = DEFAULT_TASK
    defaults: Mapping[str, Any] = field(default_factory=dict)
    other_tasks: Mapping[str, DatasetEntry] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def for_task(self, task: str | None) -> DatasetEntry:
        """Return the entry with what is to be predicted; itself if nothing is asked for.

        Raises
        ------
        DataError
            If the dataset has no such task.
        """
        if task in (None, self.task):
            return self
        if task not in self.other_tasks:
            tasks = " or ".join((self.task, *self.other_tasks))
            raise DataError(
                f"the task of this dataset is {tasks}, not {task}: set ", Key("data.task"), "."
            )
        return self.other_tasks[task]

"""The data of a federation: one array for all clients, cut by offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from flamma._renamed import renamed
from flamma.data.encoding import SampleEncoding
from flamma.data.tables import Array, Label
from flamma.errors import DataError
from flamma.seeding import stream
from flamma.tasks import DEFAULT_TASK, TASKS, Task
from flamma.types import Inputs, Ints, Targets

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__)


@dataclass(frozen=True)
class DataDescription:
    """What data are called, what is predicted of them, and how their samples were made.

    Attributes
    ----------
    name : str
        What the data are called.
    labels : tuple
        The classes as the user calls them, in the order of their numbers; empty for numbers only.
    client_names : tuple of str
        The clients by name; empty where they have numbers only.
    task : str
        An entry of :data:`~flamma.tasks.TASKS`, which says what targets are: int64 labels for
        ``classification``, float32 numbers for ``regression``, int64 of shape (samples, length)
        for ``next-token``.
    encoding : SampleEncoding, optional
        What was done to the samples; None for nothing.
    sha256 : str
        The checksum of the file that they were read from.
    """

    name: str = "data"
    labels: tuple[Label, ...] = ()
    client_names: tuple[str, ...] = ()
    task: str = DEFAULT_TASK
    encoding: SampleEncoding | None = None
    sha256: str = ""


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The training and held-out data of every client, the test set and the server's data.

    Client ``i`` owns ``train_x[train_offsets[i]:train_offsets[i + 1]]``, and the same of
    ``held``. Samples are float32 of shape (samples, channels, height, width) or (samples,
    features), or int64 where they may be token ids. ``test`` is the common test set,
    ``validation`` the server's own set, which may be empty. ``classes`` is how many numbers a model
    gives for each prediction: one per class or token, and 1 for regression. The fields of
    ``about`` can be read from here, too.
    """

    train_x: Inputs
    train_y: Targets
    train_offsets: Ints
    held_x: Inputs
    held_y: Targets
    held_offsets: Ints
    test_x: Inputs
    test_y: Targets
    validation_x: Inputs
    validation_y: Targets
    classes: int
    about: DataDescription = DataDescription()

    @property
    def name(self) -> str:
        """What the data are called."""
        return self.about.name

    @property
    def labels(self) -> tuple[Label, ...]:
        """The classes as the user calls them."""
        return self.about.labels

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients by name."""
        return self.about.client_names

    @property
    def task(self) -> str:
        """What is predicted."""
        return self.about.task

    @property
    def encoding(self) -> SampleEncoding | None:
        """What was done to the samples."""
        return self.about.encoding

    @property
    def sha256(self) -> str:
        """The checksum of the file that the samples were read from."""
        return self.about.sha256

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return int(self.train_offsets.size) - 1

    @cached_property
    def samples(self) -> Ints:
        """How many training samples each client has."""
        return np.diff(self.train_offsets)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train_x.shape[1:])

    def encode(self, x: Any) -> Array:
        """Return new samples as a model of these data takes them."""
        kind = "int64" if self.train_x.dtype.kind == "i" else "float32"
        return (self.encoding or SampleEncoding(self.shape, kind)).encode(x)

    def class_counts(self) -> Ints:
        """Return how many training samples of each class each client has.

        There are no columns if the targets of the task are not classes.
        """
        if not TASKS[self.task].labels_samples:
            return np.zeros((self.clients, 0), dtype=np.int64)
        cell = np.repeat(self.classes * np.arange(self.clients), self.samples)
        cell += self.train_y
        counts = np.bincount(cell, minlength=self.clients * self.classes)
        return counts.reshape(self.clients, self.classes)

    def held_out_of(self, clients: Ints) -> tuple[Inputs, Targets, Ints]:
        """Return the held-out samples, labels and offsets of some clients alone."""
        counts = np.diff(self.held_offsets)[clients]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        rows = np.arange(offsets[-1])
        rows += np.repeat(self.held_offsets[clients] - offsets[:-1], counts)
        return self.held_x[rows], self.held_y[rows], offsets


_Pair = tuple[ArrayLike, ArrayLike]
"""Samples and their targets."""


def from_arrays(
    clients: Sequence[_Pair],
    held_out: Sequence[_Pair],
    test: _Pair | None = None,
    validation: _Pair | None = None,
    name: str = "arrays",
    task: str = DEFAULT_TASK,
) -> FederatedData:
    """Return a federation of arrays: (x, y) of each client, and its held-out (x, y).

    Without a test set, the held-out data of all clients are the test set. Samples become float32;
    whole numbers of 32 or 64 bits stay whole, for they may be token ids, and a model that cannot
    take them gets them as float32 after all.

    Parameters
    ----------
    clients, held_out : sequence of (x, y)
        The samples and targets of each client.
    test, validation : (x, y), optional
        The common test set, and the server's own set.
    name : str
        What the data are called.
    task : str
        What is to be predicted: ``classification`` (y are labels: whole numbers from 0),
        ``regression`` (a number each) or ``next-token`` (y are token ids of shape (samples,
        length), and so are the samples).

    Raises
    ------
    DataError
        If samples and targets do not fit together or the task.
    """
    for name, parts in (("clients", clients), ("held_out", held_out)):
        if not isinstance(parts, Sequence) or isinstance(parts, str | bytes):
            raise DataError(
                f"{name} must be a list of (x, y), one for each client, not a "
                f"{type(parts).__name__}."
            )
    if not clients or len(clients) != len(held_out):
        raise DataError(
            f"every client needs training and held-out data, but there are {len(clients)} and "
            f"{len(held_out)}."
        )
    kind = TASKS[task]
    train_x, train_y, train_offsets = _joined(kind, clients, "training")
    held_x, held_y, held_offsets = _joined(kind, held_out, "held-out")
    test_x, test_y, _ = (held_x, held_y, ()) if test is None else _joined(kind, [test], "test")
    validation_x, validation_y = train_x[:0], train_y[:0]
    if validation is not None:
        validation_x, validation_y, _ = _joined(kind, [validation], "validation")
    xs = _of_one_type([train_x, held_x, test_x, validation_x])
    ys = (train_y, held_y, test_y, validation_y)
    found = [kind.outputs(x, y) for x, y in zip(xs, ys, strict=True) if len(y)]
    if not found:
        raise DataError("there are no samples.")
    return FederatedData(
        xs[0],
        train_y,
        train_offsets,
        xs[1],
        held_y,
        held_offsets,
        xs[1] if test is None else xs[2],
        test_y,
        xs[3],
        validation_y,
        max(found),
        DataDescription(name, task=task),
    )


def pooled(data: FederatedData) -> FederatedData:
    """Return the federation with all training data at client 0; held-out data are unchanged."""
    everything = np.full(data.clients, len(data.train_y), dtype=np.int64)
    return replace(data, train_offsets=np.concatenate(([0], everything)))


def without_held_out(data: FederatedData, share: float, seed: int) -> FederatedData:
    """Return a federation whose held-out data are a share of each client's training data.

    Options are tuned on it, so that the real held-out data, on which results are reported, are
    not used. The new held-out data are also the test set.
    """
    train, held = [], []
    for client, (start, stop) in enumerate(pairwise(data.train_offsets.tolist())):
        order = start + stream(seed, "tune", client).permutation(stop - start)
        cut = round(share * (stop - start))
        held.append(np.sort(order[:cut]))
        train.append(np.sort(order[cut:]))
    kept, scored = np.concatenate(train), np.concatenate(held)
    held_x, held_y = data.train_x[scored], data.train_y[scored]
    return replace(
        data,
        train_x=data.train_x[kept],
        train_y=data.train_y[kept],
        train_offsets=_offsets(train),
        held_x=held_x,
        held_y=held_y,
        held_offsets=_offsets(held),
        test_x=held_x,
        test_y=held_y,
    )


def _offsets(parts: Sequence[Array]) -> Ints:
    return np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)


def _joined(task: Task, parts: Sequence[_Pair], what: str) -> tuple[Inputs, Targets, Ints]:
    xs, ys = [], []
    for number, (x, y) in enumerate(parts):
        samples = task.inputs(x)
        targets = task.targets(y, f"{what} labels of client {number}")
        if samples.shape[:1] != targets.shape[:1] or (task.labels_samples and targets.ndim != 1):
            raise DataError(
                f"{what} data of client {number} must be as many samples as labels, but their "
                f"shapes are {samples.shape} and {targets.shape}."
            )
        if not np.isfinite(samples).all():
            raise DataError(f"{what} data of client {number} have a value that is not finite.")
        xs.append(samples)
        ys.append(targets)
    if len({x.shape[1:] for x in xs}) > 1 or len({y.shape[1:] for y in ys}) > 1:
        raise DataError(f"{what} samples of all clients must have the same shape.")
    return np.concatenate(_of_one_type(xs)), np.concatenate(ys), _offsets(ys)


def _of_one_type(parts: Sequence[Inputs]) -> list[Inputs]:
    """Return samples that are whole numbers everywhere, or float32 everywhere."""
    whole = all(part.dtype.kind == "i" for part in parts if len(part))
    return [part.astype(np.int64 if whole else np.float32, copy=False) for part in parts]

"""The data of a federation: one array for all clients, cut by offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.data.encoding import SampleEncoding
from flamma.data.labels import whole_labels
from flamma.errors import DataError
from flamma.seeding import stream
from flamma.types import Ints

Images = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The training and held-out data of every client, the test set and the server's data.

    Client ``i`` owns ``train_x[train_offsets[i]:train_offsets[i + 1]]``, and the same of
    ``held``. Samples are float32 of shape (samples, channels, height, width) or (samples,
    features), labels int64. ``test`` is the common test set, ``validation`` the server's own set,
    which may be empty.

    ``labels`` has the classes as the user calls them, in the order of their numbers, and
    ``client_names`` the clients; either is empty where numbers are all there is. ``encoding`` is
    what was done to the samples, None for nothing, and ``sha256`` the checksum of the file that
    they were read from.
    """

    train_x: Images
    train_y: Ints
    train_offsets: Ints
    held_x: Images
    held_y: Ints
    held_offsets: Ints
    test_x: Images
    test_y: Ints
    validation_x: Images
    validation_y: Ints
    classes: int
    name: str = "data"
    labels: tuple[str | int | float | bool, ...] = ()
    client_names: tuple[str, ...] = ()
    task: str = "classification"
    encoding: SampleEncoding | None = None
    sha256: str = ""

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

    def encode(self, x: Any) -> NDArray[Any]:
        """Return new samples as a model of these data takes them."""
        kind = "int64" if self.train_x.dtype.kind == "i" else "float32"
        return (self.encoding or SampleEncoding(self.shape, kind)).encode(x)

    def class_counts(self) -> Ints:
        """Return how many training samples of each class each client has."""
        cell = np.repeat(self.classes * np.arange(self.clients), self.samples)
        cell += self.train_y
        counts = np.bincount(cell, minlength=self.clients * self.classes)
        return counts.reshape(self.clients, self.classes)

    def held_out_of(self, clients: Ints) -> tuple[Images, Ints, Ints]:
        """Return the held-out samples, labels and offsets of some clients alone."""
        counts = np.diff(self.held_offsets)[clients]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        rows = np.arange(offsets[-1])
        rows += np.repeat(self.held_offsets[clients] - offsets[:-1], counts)
        return self.held_x[rows], self.held_y[rows], offsets


def federated_from_arrays(
    clients: Sequence[tuple[Any, Any]],
    held_out: Sequence[tuple[Any, Any]],
    test: tuple[Any, Any] | None = None,
    validation: tuple[Any, Any] | None = None,
    name: str = "arrays",
) -> FederatedData:
    """Return a federation of arrays: (x, y) of each client, and its held-out (x, y).

    Without a test set, the held-out data of all clients are the test set.

    Raises
    ------
    DataError
        If samples and labels do not fit together, or labels are not whole numbers from 0 to
        below :data:`~flamma.data.labels.MOST_CLASSES`.
    """
    if not clients or len(clients) != len(held_out):
        raise DataError(
            f"every client needs training and held-out data, but there are {len(clients)} and "
            f"{len(held_out)}."
        )
    train_x, train_y, train_offsets = _joined(clients, "training")
    held_x, held_y, held_offsets = _joined(held_out, "held-out")
    test_x, test_y = (held_x, held_y) if test is None else _joined([test], "test")[:2]
    if validation is None:
        validation_x, validation_y = train_x[:0], train_y[:0]
    else:
        validation_x, validation_y, _ = _joined([validation], "validation")
    labels = np.concatenate([train_y, held_y, test_y, validation_y])
    if not labels.size:
        raise DataError("there are no samples.")
    return FederatedData(
        train_x,
        train_y,
        train_offsets,
        held_x,
        held_y,
        held_offsets,
        test_x,
        test_y,
        validation_x,
        validation_y,
        classes=int(labels.max()) + 1,
        name=name,
    )


def pooled(data: FederatedData) -> FederatedData:
    """Return the federation with all training data at client 0; held-out data are unchanged."""
    everything = np.full(data.clients, data.train_y.size, dtype=np.int64)
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


def _offsets(parts: Sequence[NDArray[Any]]) -> Ints:
    return np.concatenate(([0], np.cumsum([part.size for part in parts]))).astype(np.int64)


def _joined(parts: Sequence[tuple[Any, Any]], what: str) -> tuple[Images, Ints, Ints]:
    xs, ys = [], []
    for number, (x, y) in enumerate(parts):
        images = np.asarray(x, dtype=np.float32)
        labels = whole_labels(y, f"{what} labels of client {number}")
        if labels.ndim != 1 or images.shape[:1] != labels.shape:
            raise DataError(
                f"{what} data of client {number} must be as many samples as labels, but their "
                f"shapes are {images.shape} and {labels.shape}."
            )
        if not np.isfinite(images).all():
            raise DataError(f"{what} data of client {number} have a value that is not finite.")
        xs.append(images)
        ys.append(labels)
    if len({x.shape[1:] for x in xs}) > 1:
        raise DataError(f"{what} samples of all clients must have the same shape.")
    return np.concatenate(xs), np.concatenate(ys), _offsets(ys)

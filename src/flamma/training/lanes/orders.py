"""The mini-batches of all clients of a job, drawn in pieces or, of small clients, all at once.

Where samples are augmented, a piece is an epoch, and is drawn when the client has its turn.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flamma.seeding import StreamKey
from flamma.training.augmentations import Augment, augmented
from flamma.training.jobs import (
    Floats32,
    TrainingJob,
    augmentation_stream,
    batch_count,
    stream_of,
)
from flamma.training.lanes.library import accepted, library
from flamma.types import Ints

ORDER_PIECE = 2**14
"""Samples of a client's mini-batches that are drawn at a time, or one epoch if that is more."""

TRIED_KEY, TRIED_SAMPLES, TRIED_EPOCHS = StreamKey(1, 2, 3, 4), 11, 3
"""Orders that the kernels and numpy must agree on before the kernels draw any."""


def samples_to_train(job: TrainingJob, batch_size: int) -> int:
    """Return how many samples all mini-batches of a job have together."""
    samples = int(job.y.size)
    epoch = -(-samples // batch_size)
    batches = batch_count(job.task, samples, batch_size)
    whole, rest = divmod(batches, epoch) if epoch else (0, 0)
    return whole * samples + rest * batch_size


class Orders:
    """Gives every job of a table its mini-batches, and keeps the memory that they are in.

    Parameters
    ----------
    table : ndarray of JOB
        The jobs as the kernels read them.
    jobs : sequence of TrainingJob
        The same jobs.
    lengths : sequence of int
        How many samples each has to train.
    changes : Augmenting, optional
        How samples are augmented.
    """

    def __init__(
        self,
        table: NDArray[np.void],
        jobs: Sequence[TrainingJob],
        lengths: Sequence[int],
        changes: Augmenting | None = None,
    ) -> None:
        self.errors: dict[int, Exception] = {}
        self._table = table
        self._pieces: dict[int, _Pieces] = {}
        self._drawn: dict[int, Drawn] = {}
        if changes is not None:
            for place, (job, length) in enumerate(zip(jobs, lengths, strict=True)):
                self._pieces[place] = _AugmentedPieces(job, length, changes)
                table["more"][place] = length > 0
            return
        together: list[int] = []
        kernels_draw = agree_with_numpy()
        for place, (job, length) in enumerate(zip(jobs, lengths, strict=True)):
            key = job.rng
            small = isinstance(key, StreamKey) and key.is_short and length <= ORDER_PIECE
            if small and kernels_draw:
                together.append(place)
            else:
                self._pieces[place] = _Pieces(stream_of(job), int(job.y.size), length)
                self.give(place)
        if together:
            self._together = self._give_together(together, jobs, lengths)

    def give(self, place: int) -> None:
        """Give a job the next piece of its order."""
        pieces, row = self._pieces[place], self._table[place]
        try:
            order, shown = self._drawn[place] = pieces.next()
        except Exception as error:  # of an augmentation, which ends the training of this client
            self.errors[place] = error
            row["left"], row["place"], row["more"] = 0, 0, False
            return
        row["order"] = order.__array_interface__["data"][0]
        row["shown"] = 0 if shown is None else shown.__array_interface__["data"][0]
        row["left"], row["place"], row["more"] = order.size, 0, pieces.left > 0

    def forget(self, place: int) -> None:
        """Free the memory of a job that is done."""
        self._drawn.pop(place, None)
        self._pieces.pop(place, None)

    def _give_together(
        self, places: list[int], jobs: Sequence[TrainingJob], lengths: Sequence[int]
    ) -> Ints:
        """Give some jobs all their mini-batches; return the memory that they are in."""
        samples = np.array([jobs[place].y.size for place in places], dtype=np.int64)
        left = np.array([lengths[place] for place in places], dtype=np.int64)
        epochs = -(-left // np.maximum(samples, 1))
        orders = drawn_orders([_key(jobs[place]) for place in places], samples, epochs)
        ends = np.cumsum(samples * epochs)
        begins = (ends - samples * epochs) * orders.itemsize
        self._table["order"][places] = begins.astype(np.uintp) + np.uintp(orders.ctypes.data)
        self._table["left"][places] = left
        return orders


class Drawn(NamedTuple):
    """A piece of an order, and what all samples look like in it where they are augmented."""

    order: Ints
    shown: Floats32 | None = None


class Augmenting(NamedTuple):
    """How samples are augmented: by what, and how many at once."""

    augment: Augment
    batch_size: int


class _Pieces:
    """Draws the mini-batches of one client, epoch after epoch, in pieces."""

    def __init__(self, rng: np.random.Generator, samples: int, left: int) -> None:
        self.rng = rng
        self.samples = samples
        self.left = left

    def next(self) -> Drawn:
        """Return the samples of the next mini-batches; none if all were drawn."""
        return Drawn(self.order(max(self.samples, ORDER_PIECE)))

    def order(self, most: int) -> Ints:
        """Return the next samples in their order, whole epochs of them but for the last."""
        samples = self.samples
        count = min(self.left, most // samples * samples if samples else 0)
        epochs = -(-count // samples) if samples else 0
        order = np.empty((epochs, samples), dtype=np.int64)
        order[:] = np.arange(samples)
        self.rng.permuted(order, axis=1, out=order)  # as `epochs` permutations, but quicker
        self.left -= count
        return order.reshape(-1)[:count]


class _AugmentedPieces(_Pieces):
    """Draws them one epoch at a time, and what the samples look like in it."""

    def __init__(self, job: TrainingJob, left: int, changes: Augmenting) -> None:
        self.noise = augmentation_stream(job)
        super().__init__(stream_of(job), int(job.y.size), left)
        self.x = job.x
        self.changes = changes

    def next(self) -> Drawn:
        order, size = self.order(self.samples), self.changes.batch_size
        shown = np.empty_like(self.x)
        for start in range(0, order.size, size):
            chosen = order[start : start + size]
            shown[chosen] = augmented(self.changes.augment, self.x[chosen], self.noise)
        return Drawn(order, shown)


def drawn_orders(keys: Sequence[StreamKey], samples: Ints, epochs: Ints) -> Ints:
    """Return the shuffled epochs of several clients, one after the other, as numpy draws them.

    Parameters
    ----------
    keys : sequence of StreamKey
        The clients' streams, which must be short.
    samples, epochs : ndarray
        Of each client.
    """
    words = np.array(keys, dtype=np.uint32)
    orders = np.empty(int((samples * epochs).sum()), dtype=np.int64)
    sizes: tuple[ctypes.c_void_p | int, ...] = (samples.ctypes.data, epochs.ctypes.data, len(keys))
    accepted(library().lanes_orders(words.ctypes.data, *sizes, orders.ctypes.data, orders.size))
    return orders


@cache
def agree_with_numpy() -> bool:
    """Return whether the kernels draw what numpy does, which may change its generators some day."""
    samples, epochs = np.array([TRIED_SAMPLES]), np.array([TRIED_EPOCHS])
    drawn = drawn_orders([TRIED_KEY], samples, epochs)
    rng = TRIED_KEY.generator()
    expected = [rng.permutation(TRIED_SAMPLES) for _ in range(TRIED_EPOCHS)]
    return np.array_equal(drawn, np.concatenate(expected))


def _key(job: TrainingJob) -> StreamKey:
    assert isinstance(job.rng, StreamKey)
    return job.rng

"""Local training of many clients at once, with plain SGD."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flamma.errors import FlammaError
from flamma.seeding import StreamKey
from flamma.tasks.base import SampleMarks
from flamma.training import (
    Floats32,
    TooSlow,
    Trained,
    TrainingJob,
    augmentation_stream,
    batch_count,
    check_job,
    check_sgd,
    scores_start,
    stream_of,
)
from flamma.training.augmentations import Augment, augmented
from flamma.training.lanes.library import (
    FINISHED,
    INSTRUCTION_SETS,
    JOB,
    LATE,
    NEEDS_ORDER,
    WRONG_SAMPLE,
    accepted,
    chosen_set,
    instruction_sets,
    library,
    memory_of_machine,
    refusal,
)
from flamma.training.optimisers import PLAIN_RULE, UpdateRule
from flamma.types import NO_VECTORS, Ints, Params, TaskVectors

if TYPE_CHECKING:
    from torch import nn


# The mini-batches of all clients of a job, drawn in pieces or, of small clients, all at once.
#
# Where samples are augmented, a piece is an epoch, and is drawn when the client has its turn.

_ORDER_PIECE = 2**14
"""Samples of a client's mini-batches that are drawn at a time, or one epoch if that is more."""

_TRIED_KEY, _TRIED_SAMPLES, _TRIED_EPOCHS = StreamKey(1, 2, 3, 4), 11, 3
"""Orders that the kernels and numpy must agree on before the kernels draw any."""


class _Orders:
    """Gives every job of a table its mini-batches, and keeps the memory that they are in.

    Parameters
    ----------
    table : ndarray of JOB
        The jobs as the kernels read them.
    jobs : sequence of TrainingJob
        The same jobs.
    lengths : sequence of int
        How many samples each has to train.
    batch_size : int
        The samples that are augmented at once.
    augment : callable, optional
        Changes samples at random.
    """

    def __init__(
        self,
        table: NDArray[np.void],
        jobs: Sequence[TrainingJob],
        lengths: Sequence[int],
        batch_size: int,
        augment: Augment | None = None,
    ) -> None:
        self.errors: dict[int, Exception] = {}
        self._table = table
        self._pieces: dict[int, _Pieces] = {}
        self._drawn: dict[int, _Drawn] = {}
        if augment is not None:
            for place, (job, length) in enumerate(zip(jobs, lengths, strict=True)):
                self._pieces[place] = _AugmentedPieces(job, length, augment, batch_size)
                table["more"][place] = length > 0
            return
        together: dict[int, StreamKey] = {}
        kernels_draw = _agree_with_numpy()
        for place, (job, length) in enumerate(zip(jobs, lengths, strict=True)):
            key = job.rng
            small = kernels_draw and length <= _ORDER_PIECE
            if small and isinstance(key, StreamKey) and key.is_short:
                together[place] = key
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
        self, keys: dict[int, StreamKey], jobs: Sequence[TrainingJob], lengths: Sequence[int]
    ) -> Ints:
        """Give some jobs all their mini-batches; return the memory that they are in."""
        places = list(keys)
        samples = np.array([jobs[place].y.size for place in places], dtype=np.int64)
        left = np.array([lengths[place] for place in places], dtype=np.int64)
        epochs = -(-left // np.maximum(samples, 1))
        orders = _drawn_orders([*keys.values()], samples, epochs)
        ends = np.cumsum(samples * epochs)
        begins = (ends - samples * epochs) * orders.itemsize
        self._table["order"][places] = begins.astype(np.uintp) + np.uintp(orders.ctypes.data)
        self._table["left"][places] = left
        return orders


_Drawn = tuple[Ints, Floats32 | None]
"""A piece of an order, and the augmented samples in it where they are augmented."""


class _Pieces:
    """Draws the mini-batches of one client, epoch after epoch, in pieces."""

    def __init__(self, rng: np.random.Generator, samples: int, left: int) -> None:
        self.rng = rng
        self.samples = samples
        self.left = left

    def next(self) -> _Drawn:
        """Return the samples of the next mini-batches; none if all were drawn."""
        return self.order(max(self.samples, _ORDER_PIECE)), None

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
    """Draws them one epoch at a time, with the augmented samples."""

    def __init__(self, job: TrainingJob, left: int, augment: Augment, batch_size: int) -> None:
        self.noise = augmentation_stream(job)
        super().__init__(stream_of(job), int(job.y.size), left)
        self.x = job.x
        self.augment, self.batch_size = augment, batch_size

    def next(self) -> _Drawn:
        order, size = self.order(self.samples), self.batch_size
        shown = np.empty_like(self.x)
        for start in range(0, order.size, size):
            chosen = order[start : start + size]
            shown[chosen] = augmented(self.augment, self.x[chosen], self.noise)
        return order, shown


def _drawn_orders(keys: Sequence[StreamKey], samples: Ints, epochs: Ints) -> Ints:
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
def _agree_with_numpy() -> bool:
    """Return whether the kernels draw what numpy does, which may change its generators some day."""
    samples, epochs = np.array([_TRIED_SAMPLES]), np.array([_TRIED_EPOCHS])
    drawn = _drawn_orders([_TRIED_KEY], samples, epochs)
    rng = _TRIED_KEY.generator()
    expected = [rng.permutation(_TRIED_SAMPLES) for _ in range(_TRIED_EPOCHS)]
    return np.array_equal(drawn, np.concatenate(expected))


_SECONDS_PER_CALL = 0.1
"""How long the kernels train before Python can react to Ctrl-C."""

_SCORED_PER_CALL = 256
"""Samples that the kernels score before Python can react: seconds, with the largest networks."""

_WORDS_OF_HEADER = 5
"""A plan begins with the channels, height, width, classes and the number of operations."""


class LanesTrainer:
    """Trains each client in eight lanes of vector registers, and several one after the other.

    It does what :class:`~flamma.training.torch_trainer.TorchTrainer` does, with the same
    mini-batches in the same order; the weights differ by rounding only. A client's result has the
    same bits beside any clients, in any order of the jobs and with any instruction set.

    Parameters
    ----------
    model : torch.nn.Sequential, or a plan
        Only the structure of a model is used. A plan is what
        :func:`~flamma.training.lanes.plan.plan_of` returns; with one, torch is not imported.
    shape : sequence of int
        The shape of one sample.
    batch_size : int
        Samples of a mini-batch; the last one of an epoch may be smaller.
    momentum : float
        Momentum of SGD, from zero velocity for every client.
    rule : UpdateRule
        Weight decay and clipping; the optimiser must be SGD.
    mark : callable, optional
        Makes the marks of samples for a metric from their losses and labels; without it they are
        whether a sample is classified right.
    augment : callable, optional
        Changes the samples of every mini-batch at random; see :mod:`flamma.training.augmentations`.
    instructions : {"portable", "avx2", "avx512"}, optional
        Which instruction set to use; by default what ``FLAMMA_LANES`` names, else the widest of
        the processor. The bits do not depend on it.

    Raises
    ------
    FlammaError
        If the kernels are not compiled, or do not support a layer of the model.
    """

    name = "lanes"

    def __init__(
        self,
        model: nn.Sequential | Ints,
        shape: Sequence[int],
        batch_size: int,
        momentum: float = 0.0,
        instructions: str | None = None,
        rule: UpdateRule = PLAIN_RULE,
        mark: Callable[[Params, Ints], SampleMarks] | None = None,
        augment: Augment | None = None,
    ) -> None:
        check_sgd(batch_size, momentum)
        if not rule.is_sgd:
            raise FlammaError("lanes train with sgd only: use another trainer.")
        if isinstance(model, np.ndarray):
            plan = model
        else:
            from flamma.training.lanes.plan import plan_of

            found, reason = plan_of(model, shape)
            if found is None:
                raise FlammaError(f"the model cannot be trained in lanes: {reason}; use torch.")
            plan = found
        if plan.ndim != 1 or plan.dtype != np.int64 or plan.size < _WORDS_OF_HEADER:
            raise FlammaError("a plan is a list of 64-bit whole numbers; make it with plan_of.")
        if math.prod(plan[:3].tolist()) != math.prod(shape):
            raise FlammaError(f"the plan is not for samples of shape {tuple(shape)}.")
        plan = np.ascontiguousarray(plan)  # the kernels check its numbers themselves
        self._kernels = kernels = library()
        self.instructions = chosen_set() if instructions is None else instructions
        if self.instructions not in instruction_sets():
            raise FlammaError(f"this processor has no {self.instructions}; use another.")
        number = INSTRUCTION_SETS.index(self.instructions)
        self.width: int = kernels.lanes_seats(number)
        self.shape = tuple(shape)
        self.batch_size = batch_size
        self.momentum = momentum
        self.rule = rule
        self._mark = mark
        self._augment = augment
        self._classes = int(plan[3])
        made = ctypes.c_void_p()
        sizes = (plan.ctypes.data, plan.size, batch_size, memory_of_machine())
        accepted(kernels.lanes_new(number, *sizes, ctypes.byref(made)))
        self._trainer = made.value
        weakref.finalize(self, kernels.lanes_delete, self._trainer)
        self.size = accepted(kernels.lanes_params(self._trainer))
        self._rows = np.empty((0, self.size), dtype=np.float32)

    def train_many(
        self, params: Params, jobs: Sequence[TrainingJob], time_limit: float | None = None
    ) -> list[Trained]:
        """Train all jobs and return their results in the order of the jobs.

        Parameters
        ----------
        params : Params
            The weights that all clients receive.
        jobs : sequence of TrainingJob
            The clients to train, independent of each other.
        time_limit : float, optional
            Seconds after which a client's training ends with the error
            :class:`~flamma.training.TooSlow`.
        """
        results = {}
        for number, trained in self.train_each(params, jobs, time_limit):
            own = None if trained.params is None else trained.params.copy()
            results[number] = trained._replace(params=own)
        return [results[number] for number in range(len(jobs))]

    def train_each(
        self, params: Params, jobs: Sequence[TrainingJob], time_limit: float | None = None
    ) -> Iterator[tuple[int, Trained]]:
        """Yield the number and the result of every job as soon as it is done.

        The largest jobs start first, and the next one starts whenever a seat is free. Exhaust or
        drop the iterator before you use the trainer again.
        """
        params = self._checked(params)
        able: list[tuple[int, TrainingJob, int]] = []
        for number, job in enumerate(jobs):
            try:
                check_job(job, self.size, self.size)
                laid = self._laid_out(job)
            except FlammaError as error:
                yield number, Trained(None, error=error)
            else:
                samples = int(laid.y.size)
                epoch = -(-samples // self.batch_size)
                batches = batch_count(laid.task, samples, self.batch_size)
                whole, rest = divmod(batches, epoch) if epoch else (0, 0)
                able.append((number, laid, whole * samples + rest * self.batch_size))
        able.sort(key=lambda entry: -entry[2])
        numbers, ready = [entry[0] for entry in able], [entry[1] for entry in able]
        if len(self._rows) < len(able):  # the memory is reused, for new memory takes long
            self._rows = np.empty((len(able), self.size), dtype=np.float32)
        trained = self._rows[: len(able)]
        table = self._table(ready, trained)
        lengths = [entry[2] for entry in able]
        orders = _Orders(table, ready, lengths, self.batch_size, self._augment)
        vector = (params.ctypes.data, params.size)
        accepted(self._kernels.lanes_begin(self._trainer, *vector, table.ctypes.data, table.size))
        try:
            for place, done in self._results(table, trained, orders, time_limit):
                yield numbers[place], done
        finally:
            self._kernels.lanes_end(self._trainer)

    def _results(
        self,
        table: NDArray[np.void],
        trained: NDArray[np.float32],
        orders: _Orders,
        time_limit: float | None,
    ) -> Iterator[tuple[int, Trained]]:
        """Run the kernels until every job of the table is done."""
        limit = math.inf if time_limit is None else time_limit
        states = table["state"]
        open_jobs = np.arange(table.size)
        while open_jobs.size:
            accepted(self._kernels.lanes_run(self._trainer, _SECONDS_PER_CALL, limit))
            for place in open_jobs[states[open_jobs] == NEEDS_ORDER].tolist():
                orders.give(place)
            done = (states[open_jobs] >= FINISHED) | (states[open_jobs] < 0)
            ended, open_jobs = open_jobs[done], open_jobs[~done]
            columns = (table[name][ended].tolist() for name in ("state", "loss", "seconds"))
            for place, state, loss, seconds in zip(ended.tolist(), *columns, strict=True):
                orders.forget(place)
                if error := orders.errors.get(place):
                    yield place, Trained(None, loss, seconds, error)
                elif state == FINISHED:
                    yield place, Trained(trained[place], loss, seconds)
                elif state == LATE:
                    yield place, Trained(None, loss, seconds, TooSlow())
                else:
                    error = self._wrong_labels() if state == WRONG_SAMPLE else refusal(state)
                    yield place, Trained(None, loss, seconds, error)

    def _table(self, jobs: Sequence[TrainingJob], trained: NDArray[np.float32]) -> NDArray[np.void]:
        """Return the jobs as the kernels read them, as yet without their mini-batches."""
        table = np.zeros(len(jobs), dtype=JOB)
        if not jobs:
            return table
        table["x"] = [job.x.__array_interface__["data"][0] for job in jobs]
        table["y"] = [job.y.__array_interface__["data"][0] for job in jobs]
        table["trained"] = trained.ctypes.data + trained.strides[0] * np.arange(len(jobs))
        table["numbers"] = [job.x.size for job in jobs]
        table["samples"] = [job.y.size for job in jobs]
        table["vector"] = self.size
        if any(job.vectors is not NO_VECTORS for job in jobs):
            for name in ("received", "start", "correction"):
                vectors = [getattr(job.vectors, name) for job in jobs]
                table[name] = [
                    0 if v is None else v.__array_interface__["data"][0] for v in vectors
                ]
        table["wants_loss"] = [scores_start(job.task) for job in jobs]
        table["wants_trained_loss"] = [job.task.terms.report_loss == "trained" for job in jobs]
        table["loss"] = math.nan
        table["learning_rate"] = [job.task.learning_rate for job in jobs]
        table["momentum"] = self.momentum
        table["proximal"] = [job.task.terms.objective.proximal for job in jobs]
        table["loss_bound"] = [job.task.terms.objective.bound for job in jobs]
        table["tilt"] = [job.task.terms.objective.tilt for job in jobs]
        table["weight_decay"] = self.rule.weight_decay
        table["clip"] = math.inf if self.rule.clip is None else self.rule.clip
        return table

    def predict(self, params: Params, x: Floats32, y: Ints) -> tuple[Floats32, SampleMarks]:
        """Return each sample's loss under the given weights, and its mark for the metric."""
        params = self._checked(params)
        x, y = self._arrays(x, y)
        accepted(self._kernels.lanes_load(self._trainer, params.ctypes.data, params.size))
        losses, right = self._score(x, y)
        return losses, right if self._mark is None else self._mark(losses, y)

    def _score(self, x: Floats32, y: Ints) -> tuple[Floats32, NDArray[np.bool_]]:
        losses = np.empty(y.size, dtype=np.float32)
        right = np.empty(y.size, dtype=np.bool_)
        for first in range(0, y.size, _SCORED_PER_CALL):
            own = slice(first, first + _SCORED_PER_CALL)
            samples = (x[own].ctypes.data, x[own].size, y[own].ctypes.data, y[own].size)
            results = (losses[own].ctypes.data, right[own].ctypes.data)
            status = self._kernels.lanes_score(self._trainer, *samples, *results)
            if status == WRONG_SAMPLE:
                raise self._wrong_labels()
            accepted(status)
        return losses, right

    def _laid_out(self, job: TrainingJob) -> TrainingJob:
        """Return a job in the memory layout of the kernels, which check its labels themselves."""
        x, y = self._arrays(job.x, job.y)
        if x is job.x and y is job.y and job.vectors is NO_VECTORS:
            return job
        given = (job.vectors.received, job.vectors.start, job.vectors.correction)
        parts = (None if one is None else np.ascontiguousarray(one) for one in given)
        vectors = job.vectors if job.vectors is NO_VECTORS else TaskVectors(*parts)
        return job._replace(x=x, y=y, vectors=vectors)

    def _arrays(self, x: Floats32, y: Ints) -> tuple[Floats32, Ints]:
        if x.shape != (y.size, *self.shape):
            raise FlammaError(
                f"{y.size} samples of shape {self.shape} were expected, not {x.shape}."
            )
        return np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, np.int64)

    def _wrong_labels(self) -> FlammaError:
        return FlammaError(f"labels must be from 0 to {self._classes - 1}.")

    def _checked(self, params: Params) -> Params:
        if params.shape != (self.size,):
            raise FlammaError(
                f"the model is a vector of {self.size} numbers, "
                f"but weights of shape {params.shape} were given."
            )
        return np.ascontiguousarray(params, np.float32)

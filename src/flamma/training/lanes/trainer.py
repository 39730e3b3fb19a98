"""Local training of many clients at once, with plain SGD."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flamma.errors import FlammaError
from flamma.tasks.contract import SampleMarks
from flamma.training.augmentations import Augment
from flamma.training.jobs import (
    Floats32,
    TooSlow,
    Trained,
    TrainingJob,
    check_job,
    check_sgd,
    scores_start,
)
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
from flamma.training.lanes.orders import Augmenting, Orders, samples_to_train
from flamma.training.optimisers import PLAIN_RULE, UpdateRule
from flamma.types import NO_VECTORS, Ints, Params, TaskVectors

if TYPE_CHECKING:
    from torch import nn

SECONDS_PER_CALL = 0.1
"""How long the kernels train before Python can react to Ctrl-C."""

SCORED_PER_CALL = 256
"""Samples that the kernels score before Python can react: seconds, with the largest networks."""

WORDS_OF_HEADER = 5
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
        plan = _checked_plan(model if isinstance(model, np.ndarray) else _plan(model, shape), shape)
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
        self._changes = None if augment is None else Augmenting(augment, batch_size)
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
            :class:`~flamma.training.jobs.TooSlow`.
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
                able.append((number, laid, samples_to_train(laid, self.batch_size)))
        able.sort(key=lambda entry: -entry[2])
        numbers, ready = [entry[0] for entry in able], [entry[1] for entry in able]
        trained = self._rows_for(len(able))
        table = self._table(ready, trained)
        orders = Orders(table, ready, [entry[2] for entry in able], self._changes)
        vector = (params.ctypes.data, params.size)
        accepted(self._kernels.lanes_begin(self._trainer, *vector, table.ctypes.data, table.size))
        try:
            for place, done in self._results(table, trained, orders, time_limit):
                yield numbers[place], done
        finally:
            self._kernels.lanes_end(self._trainer)

    def _rows_for(self, count: int) -> NDArray[np.float32]:
        """Return memory for so many models, the same again and again: new memory takes long."""
        if len(self._rows) < count:
            self._rows = np.empty((count, self.size), dtype=np.float32)
        return self._rows[:count]

    def _results(
        self,
        table: NDArray[np.void],
        trained: NDArray[np.float32],
        orders: Orders,
        time_limit: float | None,
    ) -> Iterator[tuple[int, Trained]]:
        """Run the kernels until every job of the table is done."""
        limit = math.inf if time_limit is None else time_limit
        states = table["state"]
        open_jobs = np.arange(table.size)
        while open_jobs.size:
            accepted(self._kernels.lanes_run(self._trainer, SECONDS_PER_CALL, limit))
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
                else:
                    yield place, Trained(None, loss, seconds, self._error(state))

    def _error(self, state: int) -> Exception:
        if state == LATE:
            return TooSlow()
        return self._wrong_labels() if state == WRONG_SAMPLE else refusal(state)

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
                table[name] = [_address(getattr(job.vectors, name)) for job in jobs]
        table["wants_loss"] = [scores_start(job.task) for job in jobs]
        table["wants_trained_loss"] = [job.task.wants_trained_loss for job in jobs]
        table["loss"] = math.nan
        table["learning_rate"] = [job.task.learning_rate for job in jobs]
        table["momentum"] = self.momentum
        table["proximal"] = [job.task.proximal for job in jobs]
        table["loss_bound"] = [job.task.loss_bound for job in jobs]
        table["tilt"] = [job.task.tilt for job in jobs]
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
        for first in range(0, y.size, SCORED_PER_CALL):
            own = slice(first, first + SCORED_PER_CALL)
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
        return job._replace(x=x, y=y, vectors=_contiguous(job.vectors))

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


def _contiguous(vectors: TaskVectors) -> TaskVectors:
    """Return vectors in the memory layout of the kernels."""
    if vectors is NO_VECTORS:
        return vectors
    parts = (vectors.received, vectors.start, vectors.correction)
    return TaskVectors(*(None if one is None else np.ascontiguousarray(one) for one in parts))


def _address(vector: Params | None) -> int:
    return 0 if vector is None else int(vector.__array_interface__["data"][0])


def _checked_plan(plan: Ints, shape: Sequence[int]) -> Ints:
    """Return a plan in the memory layout of the kernels, which check its numbers themselves."""
    if plan.ndim != 1 or plan.dtype != np.int64 or plan.size < WORDS_OF_HEADER:
        raise FlammaError("a plan is a list of 64-bit whole numbers; make it with plan_of.")
    if math.prod(plan[:3].tolist()) != math.prod(shape):
        raise FlammaError(f"the plan is not for samples of shape {tuple(shape)}.")
    return np.ascontiguousarray(plan)


def _plan(model: nn.Sequential, shape: Sequence[int]) -> Ints:
    from flamma.training.lanes.plan import plan_of

    plan, reason = plan_of(model, shape)
    if plan is None:
        raise FlammaError(f"the model cannot be trained in lanes: {reason}; use torch.")
    return plan

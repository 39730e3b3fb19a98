"""Trains many clients at once with torch: one step of all of them is one call per layer."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

from flamma.errors import ConfigError, FlammaError
from flamma.models.flat import FlatModel
from flamma.tasks.measures import PLAIN_MEASURES, Measures
from flamma.training.jobs import (
    TooSlow,
    Trained,
    TrainingJob,
    batch_count,
    batches_of,
    check_job,
    scores_start,
)
from flamma.training.memory import (
    FREE_MEMORY_SHARE,
    free_bytes,
    out_of_memory,
    release_cache,
)
from flamma.training.optimisers import PLAIN_RULE, UpdateRule
from flamma.training.precision import SINGLE_PRECISION, Precision
from flamma.training.stack import Stack, StackedClient
from flamma.training.stack_trial import TRIAL_BATCH_SIZE, first_line, trial_jobs, why_different
from flamma.training.stacked_model import StackedModel
from flamma.training.torch_trainer import TorchTrainer
from flamma.types import Params

_Result = tuple[int, Trained]

MOST_STACKED_CLIENTS = 256
"""Clients that are trained at once if the memory does not set a lower limit."""

SAMPLES_EXPECTED = 512
"""Samples that a client is expected to have at most, before the clients are known."""


class StackedTrainer(TorchTrainer):
    """Trains the clients of a round at once, their weights stacked.

    It does what :class:`~flamma.training.torch_trainer.TorchTrainer` does, with the same
    mini-batches in the same order; the weights differ by rounding only, and so do they between
    stacks of different sizes. It is made for GPUs, which one small mini-batch leaves idle.

    The size of a stack is limited by an estimate of the memory that a client takes. If a device
    runs out of memory nevertheless, the stack is halved, and both halves go on where they were.
    A client that raises an error is separated from the others in the same way.

    Parameters
    ----------
    model : callable or FlatModel
        The model, or a function that makes its module.
    shape : sequence of int
        The shape of one sample.
    batch_size, momentum, device, precision, measures, rule
        As in :class:`~flamma.training.torch_trainer.TorchTrainer`.
    most : int
        The largest number of clients to train at once.
    sharing : int
        How many processes share the memory of the device.

    Raises
    ------
    ConfigError
        If the model cannot be stacked: ``torch.func.vmap`` does not support it, or a trial gives
        other weights than training one client after the other (batch norm, for example).
    """

    name = "stacked"

    def __init__(
        self,
        model: Callable[[], nn.Module] | FlatModel,
        shape: Sequence[int],
        batch_size: int,
        momentum: float = 0.0,
        device: str = "cpu",
        precision: Precision = SINGLE_PRECISION,
        most: int = MOST_STACKED_CLIENTS,
        sharing: int = 1,
        measures: Measures = PLAIN_MEASURES,
        rule: UpdateRule = PLAIN_RULE,
    ) -> None:
        super().__init__(model, batch_size, momentum, device, precision, measures, rule)
        self.shape = tuple(shape)
        self._most, self._sharing = most, sharing
        self._common = self.model.read()
        self._client_bytes = self._sample_bytes = 0
        self._classes = 1
        if reason := self._why_not():
            raise ConfigError(f"the trainer stacked cannot be used: {reason}.")
        self._stacked = StackedModel(self.model, momentum, precision, measures, rule)
        self._set_mode(training=True)
        self._client_bytes, self._sample_bytes = self._stacked.bytes_per_client(self.shape)
        self.width = self._fitting([])

    def train_each(
        self, params: Params, jobs: Sequence[TrainingJob], time_limit: float | None = None
    ) -> Iterator[tuple[int, Trained]]:
        """Yield the number and the result of every job as soon as it is done.

        Jobs of about the same length are trained together, the longest first. Exhaust or drop
        the iterator before you use the trainer again.
        """
        self.model.load(params)
        self._common = params
        members = []
        for number, job in enumerate(jobs):
            try:
                members.append(self._member(number, job))
            except Exception as error:  # the failure of this client alone
                yield number, Trained(None, error=error)
        members.sort(key=lambda m: -batch_count(m.job.task, len(m.job.y), self.batch_size))
        while members:
            try:
                stack = self._start(members)
            except Exception as error:  # such as one client that does not fit into the memory
                yield members[0].number, Trained(None, members[0].loss, error=error)
                members = members[1:]
                continue
            members = members[len(stack) :]
            waiting = deque([stack])
            del stack  # one that was halved must not stay in memory
            while waiting:
                yield from self._train(waiting, time_limit)

    def _train(self, waiting: deque[Stack], time_limit: float | None) -> Iterator[_Result]:
        """Train the first of the waiting stacks; if it fails, its halves wait in its place."""
        stack = waiting.popleft().to(self.model.device)
        begin = time.monotonic() - stack.seconds
        while len(stack):
            going = [member.draw() for member in stack.members]
            seconds = self._elapsed(begin, time_limit)
            if time_limit is not None and seconds > time_limit:
                yield from _failed(stack, seconds, TooSlow())
                return
            if not all(going):
                yield from self._finished(stack, going, begin)
                stack = stack.rows([row for row, goes in enumerate(going) if goes])
                continue
            error = self._step(stack)
            if error is not None and len(stack) > 1:
                self._note(error, len(stack))
                waiting.extendleft(reversed(stack.halves(time.monotonic() - begin)))
                return
            if error is not None:
                yield from _failed(stack, time.monotonic() - begin, error)
                return

    def _start(self, members: Sequence[StackedClient]) -> Stack:
        """Return a stack of the first members, as many as fit."""
        while True:
            count = self._fitting(members)
            try:
                return self._stacked.start(members[:count])
            except Exception as error:
                if count == 1 or not out_of_memory(error):
                    raise
                self._note(error, count)

    def _note(self, error: Exception, clients: int) -> None:
        """Make later stacks smaller if so many clients did not fit into the memory."""
        if out_of_memory(error):
            self._most = clients // 2
            release_cache(self.model.device)

    def _step(self, stack: Stack) -> Exception | None:
        """Take a step; return what went wrong, without the frames that hold its memory."""
        self._set_mode(training=True)
        try:
            self._stacked.step(stack)
        except Exception as error:
            return error.with_traceback(None)
        return None

    def _finished(self, stack: Stack, going: Sequence[bool], begin: float) -> Iterator[_Result]:
        rows = [row for row, goes in enumerate(going) if not goes]
        vectors = self._stacked.read(stack, rows)
        for row, vector in zip(rows, vectors, strict=True):
            member = stack.members[row]
            try:
                if member.job.task.wants_trained_loss:
                    member.loss = self._loss_of(vector, member.job)
                trained = Trained(vector, member.loss)
            except Exception as error:  # the failure of this client alone
                trained = Trained(None, error=error)
            yield member.number, trained._replace(seconds=time.monotonic() - begin)

    def _loss_of(self, weights: Params, job: TrainingJob) -> float:
        """Return the loss of some weights on a client's samples; the model has the common ones."""
        if not len(job.y):
            return math.nan
        try:
            losses, _ = self.predict(weights, job.x, job.y)
        finally:
            self.model.load(self._common)
        return float(np.mean(losses, dtype=np.float64))

    def _elapsed(self, begin: float, time_limit: float | None) -> float:
        if time_limit is not None and self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)  # else steps would only have been queued
        return time.monotonic() - begin

    def _member(self, number: int, job: TrainingJob) -> StackedClient:
        """Return a client that is ready to train, with its loss if the task wants it."""
        check_job(job, self.model.layout.size, self.model.layout.trainable_size)
        # A wrong label would abort the whole stack, and on a GPU the process.
        if job.x.shape != (len(job.y), *self.shape):
            raise FlammaError(
                f"{len(job.y)} samples of shape {self.shape} were expected, not {job.x.shape}."
            )
        labels = job.y if job.y.dtype.kind == "i" else job.y[:0]
        labels = labels[labels != self.measures.task.ignored]
        if labels.size and not (labels.min() >= 0 and labels.max() < self._classes):
            raise FlammaError(f"labels must be from 0 to {self._classes - 1}.")
        job = job._replace(x=self._inputs(job.x))
        loss = math.nan
        if scores_start(job.task):
            loss = self._loss_of(job.start(self._common), job)
        return StackedClient(number, job, loss, batches_of(job, self.batch_size))

    def _fitting(self, members: Sequence[StackedClient]) -> int:
        """Return how many clients fit into the free memory, at least one."""
        data = max((member.nbytes for member in members), default=0)
        samples = max((len(m.job.y) for m in members), default=SAMPLES_EXPECTED)
        activations = self._sample_bytes * min(self.batch_size, samples)
        each = max(1, self._client_bytes + activations + data)
        free = free_bytes(self.model.device) * FREE_MEMORY_SHARE / self._sharing
        return max(1, min(self._most, int(free / each)))

    def _why_not(self) -> str:
        """Return why the model cannot be stacked, empty if it can; the weights stay as they are.

        Two clients of different size are trained in a stack and one after the other.
        """
        received = self.model.read()
        batch_size, precision = self.batch_size, self.precision
        self.batch_size, self.precision = TRIAL_BATCH_SIZE, SINGLE_PRECISION
        self._stacked = StackedModel(
            self.model, self.momentum, SINGLE_PRECISION, self.measures, self.rule
        )
        try:
            self._classes = self._logits()
            jobs = trial_jobs(self.measures.task, self.shape)
            stacked = dict(self.train_each(received, jobs))
            single = {
                number: trained._replace(
                    params=None if trained.params is None else trained.params.copy()
                )
                for number, trained in super().train_each(received, jobs)
            }
        except Exception as error:  # whatever a module may raise
            return f"the model cannot be tried ({first_line(error)})"
        finally:
            self.batch_size, self.precision = batch_size, precision
            self.model.load(received)
        return why_different(self.model.layout.trainable_size, received, stacked, single)

    def _logits(self) -> int:
        self._set_mode(training=False)
        with torch.inference_mode():
            samples, _ = self.measures.task.blank(TRIAL_BATCH_SIZE, self.shape)
            return int(self.model.module(self._tensor(samples)).shape[-1])


def _failed(stack: Stack, seconds: float, error: Exception) -> Iterator[_Result]:
    for member in stack.members:
        yield member.number, Trained(None, member.loss, seconds, error)

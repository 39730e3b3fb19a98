"""The work itself: one client's training, one span of samples judged, in whichever process."""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from flamma.data.federated import FederatedData, Images
from flamma.engines.outcomes import late, one_line
from flamma.seeding import stream
from flamma.training.jobs import TooSlow, Trained, Trainer, TrainingJob
from flamma.training.torch_trainer import CHUNK
from flamma.types import Ints, LocalTask, Params

ROOM = 2**25
"""Bytes that the weights of a batch may take, if it is of more clients than there are lanes."""

Kind = TypeVar("Kind", bound=np.generic)


Weights = NDArray[np.float32]
"""A row of weights for each part of a job."""


class Span(NamedTuple):
    """Samples of one of the workbench's data sets, to be judged."""

    part: int
    start: int
    stop: int


class Outcome(NamedTuple):
    """What became of a job; the weights or scores themselves are in shared memory."""

    loss: float = math.nan
    seconds: float = 0.0
    failure: str = ""


class Batch(NamedTuple):
    """Clients that are trained together."""

    tasks: tuple[LocalTask, ...]


Job = Batch | Span
Keep = Callable[[int, Params], None]
"""Called with a task's place in its batch and its weights, which are gone after the call."""

Done = Callable[[int, list[Outcome], Weights], None]
"""Called for each finished job with its number, the outcomes of its parts, and their weights.

The weights are those of a training only, one row each, and are gone after the call: copy them.
"""


class Workbench:
    """All that is needed to do any job: data, model, seed and time limit.

    Parameters
    ----------
    data : FederatedData
        Whose training data are trained on.
    trainer : Trainer
        What trains and judges.
    seed : int
        A client's stream is ``stream(seed, "train", round, client)``, wherever it runs.
    time_limit : float or None
        Seconds after which a client is late.
    judged : sequence of (x, y)
        The data sets that spans speak of.
    size : int
        How many numbers the weights are.
    device : str
        Where the trainer trains.
    """

    def __init__(
        self,
        data: FederatedData,
        trainer: Trainer,
        seed: int,
        time_limit: float | None,
        judged: Sequence[tuple[Images, Ints]],
        size: int,
        device: str,
    ) -> None:
        self.data = data
        self.trainer = trainer
        self.seed = seed
        self.time_limit = time_limit
        self.judged = judged
        self.size = size
        self.device = device
        self.room = 1 if trainer.width == 1 else max(trainer.width, ROOM // (4 * size))
        self._first = np.concatenate(([0], np.cumsum([y.size for _, y in judged]))).tolist()
        self._losses = shared_zeros(self._first[-1], np.float32)
        self._right = shared_zeros(self._first[-1], np.bool_)

    def do(self, job: Job, params: Params, keep: Keep) -> list[Outcome]:
        """Do one job; what it raises becomes the failure of its parts."""
        begin = time.monotonic()
        if isinstance(job, Batch):
            return self._train(job, params, keep)
        failure = ""
        try:
            self.judge(job, params)
        except Exception as error:
            failure = one_line(error)
        return [Outcome(seconds=time.monotonic() - begin, failure=failure)]

    def judge(self, span: Span, params: Params) -> None:
        """Judge a span of samples, in the chunks it is made of."""
        x, y = self.judged[span.part]
        losses, right = self.scores(span.part)
        where = slice(span.start, span.stop)
        losses[where], right[where] = self.trainer.predict(params, x[where], y[where])

    def scores(self, part: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the losses of one data set's samples, and which of them are classified right."""
        where = slice(self._first[part], self._first[part + 1])
        return self._losses[where], self._right[where]

    def spans(self, parts: Sequence[int], wanted: int) -> list[Span]:
        """Cut data sets into about as many spans as wanted, each of whole chunks.

        The chunks, and so the results, are the same however many spans there are.
        """
        sizes = {part: self.judged[part][1].size for part in parts}
        chunks = sum(-(-size // CHUNK) for size in sizes.values())
        length = CHUNK * max(1, -(-chunks // wanted))
        return [
            Span(part, start, min(start + length, size))
            for part, size in sizes.items()
            for start in range(0, size, length)
        ]

    def _train(self, batch: Batch, params: Params, keep: Keep) -> list[Outcome]:
        outcomes = [Outcome()] * len(batch.tasks)
        jobs = [self._job(task) for task in batch.tasks]
        for number, trained in self.trainer.train_each(params, jobs, self.time_limit):
            if trained.params is not None:
                keep(number, trained.params)
            outcomes[number] = Outcome(trained.loss, trained.seconds, self._failure(trained))
        return outcomes

    def _job(self, task: LocalTask) -> TrainingJob:
        start, stop = self.data.train_offsets[task.client : task.client + 2]
        return TrainingJob(
            task,
            self.data.train_x[start:stop],
            self.data.train_y[start:stop],
            stream(self.seed, "train", task.round, task.client),
        )

    def _failure(self, trained: Trained) -> str:
        if trained.error is None:
            return ""
        if isinstance(trained.error, TooSlow):
            return late(self.time_limit)
        return one_line(trained.error)


class InProcess:
    """Does the jobs here, one after the other."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.processes = 1

    def run(self, params: Params, jobs: Sequence[Job], done: Done) -> None:
        """Do all jobs with the given weights."""
        with one_thread():
            for number, job in enumerate(jobs):
                parts = len(job.tasks) if isinstance(job, Batch) else 0
                weights = np.empty((parts, params.size), dtype=np.float32)
                done(number, self.bench.do(job, params, weights.__setitem__), weights)

    def close(self) -> None:
        """There is nothing to give back."""


def stay_on_one_thread() -> None:
    """Keep PyTorch on this thread for good, in a process that was forked.

    It would wait for ever for the threads of the process it was forked from.
    """
    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, as every worker process does, so that the bits are the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def shared_zeros(size: int, kind: type[Kind]) -> NDArray[Kind]:
    """Return an array that forked processes share; the memory is freed with its last user."""
    memory = mmap.mmap(-1, max(1, size * np.dtype(kind).itemsize))
    return np.frombuffer(memory, dtype=kind, count=size)

"""The contract of trainers: what they are given and what they return."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flamma.errors import ConfigError, FlammaError
from flamma.seeding import StreamKey
from flamma.types import DataUse, Ints, LocalTask, Params

Floats32 = NDArray[np.float32]

PrecisionName = Literal["float32", "bfloat16", "float16"]

LARGEST_COUNT = 2**63 - 1
"""The largest number of samples, epochs or steps that the trainers can count."""


class TooSlow(Exception):  # noqa: N818 - the failure of a client, not an error of the user
    """A client's training took longer than the time limit."""


class TrainingJob(NamedTuple):
    """The training of one client: its task, its data, and the stream that shuffles them.

    The stream may be given by its key: for very small clients it takes long to make.
    """

    task: LocalTask
    x: Floats32
    y: Ints
    rng: np.random.Generator | StreamKey


class Trained(NamedTuple):
    """The result of a job: the trained weights, or the error that ended the training.

    ``loss`` is that of the received weights, NaN if the task did not want it. The memory of
    ``params`` may be used again for the next job: copy it.
    """

    params: Params | None
    loss: float = math.nan
    seconds: float = 0.0
    error: Exception | None = None


class Trainer(Protocol):
    """Trains clients from the same received weights, and scores weights."""

    batch_size: int

    @property
    def name(self) -> str:
        """The name in configurations and records."""
        ...

    @property
    def width(self) -> int:
        """How many clients are trained at once."""
        ...

    def train_each(
        self, params: Params, jobs: Sequence[TrainingJob], time_limit: float | None = None
    ) -> Iterator[tuple[int, Trained]]:
        """Yield the number and the result of every job as soon as it is done."""
        ...

    def predict(self, params: Params, x: Floats32, y: Ints) -> tuple[Floats32, NDArray[np.bool_]]:
        """Return each sample's loss under the given weights, and whether it is classified right."""
        ...


def used_samples(use: DataUse, x: Floats32, y: Ints, classes: int) -> tuple[Floats32, Ints]:
    """Return the samples that a client trains on, of its own and their labels."""
    if use.share < 1:
        count = use.samples_of(y.size)
        x, y = x[:count], y[:count]
    return x, (classes - 1 - y if use.flips_labels else y)


def stream_of(job: TrainingJob) -> np.random.Generator:
    """Return the stream that shuffles the data of a job."""
    return job.rng.generator() if isinstance(job.rng, StreamKey) else job.rng


def batches_of(job: TrainingJob, batch_size: int) -> Iterator[Ints]:
    """Yield the samples of each mini-batch, shuffled anew for every epoch."""
    samples, task = job.y.size, job.task
    size = max(1, min(batch_size, samples))
    per_epoch = -(-samples // size)
    rng = stream_of(job)
    left = task.epochs * per_epoch if task.iterations is None else task.iterations
    while left > 0:
        order = rng.permutation(samples)[: left * size]
        for start in range(0, order.size, size):
            yield order[start : start + size]
        left -= per_epoch


def check_sgd(batch_size: int, momentum: float) -> None:
    """Refuse a batch size or a momentum that no trainer can train with.

    Raises
    ------
    ConfigError
        If one of them is out of its range.
    """
    if batch_size < 1:
        raise ConfigError(f"the batch size must be at least 1, not {batch_size}.")
    if batch_size > LARGEST_COUNT:
        raise ConfigError("the batch size is too large: use one of at most 2^63 - 1.")
    if not 0 <= momentum < 1:
        raise ConfigError(f"momentum must be at least 0 and below 1, not {momentum:g}.")


def check_job(job: TrainingJob) -> None:
    """Refuse a task that no trainer can do, such as one of a server that this client distrusts.

    Raises
    ------
    FlammaError
        If a number is out of its range, or there are no data to train on.
    """
    task = job.task
    for name, count in (("epochs", task.epochs), ("iterations", task.iterations)):
        # A plain int first: asking an abstract class takes long where there are many jobs.
        whole = isinstance(count, (int, numbers.Integral)) and 0 <= count <= LARGEST_COUNT
        if not whole and not (name == "iterations" and count is None):
            raise FlammaError(f"{name} must be a whole number from 0 to 2^63 - 1.")
    for name, rate in (("step size", task.learning_rate), ("proximal weight", task.proximal)):
        # A whole number beyond all floats would raise where it is converted.
        if isinstance(rate, int) and abs(rate) > LARGEST_COUNT:
            raise FlammaError(f"the {name} is too large.")
    if not job.y.size and not task.abstains:
        raise FlammaError(f"client {task.client} has no training data.")

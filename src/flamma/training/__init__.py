"""Trains clients on their data: one by one, stacked, or in lanes of vector registers.

A :class:`Trainer` takes a :class:`TrainingJob` per client and yields a :class:`Trained` for each.
:func:`~flamma.training.config.pick_trainer` chooses one for a model.

Examples
--------
>>> from flamma.models import build_model
>>> from flamma.training import TorchTrainer
>>> from flamma.types import LocalWork, Terms
>>> trainer = TorchTrainer(lambda: build_model("logistic", (2,), 2, seed=0), batch_size=4)
>>> task = LocalWork(Terms(client=0, round=1), epochs=2, learning_rate=0.1)
>>> x, y = np.ones((8, 2), dtype=np.float32), np.zeros(8, dtype=np.int64)
>>> job = TrainingJob(task, x, y, np.random.default_rng(0))
>>> [(number, done.params.shape) for number, done in trainer.train_each(np.zeros(6, "f4"), [job])]
[(0, (6,))]
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flamma.errors import ConfigError, FlammaError
from flamma.seeding import StreamKey
from flamma.tasks.base import SampleMarks
from flamma.types import (
    NO_VECTORS,
    DataUse,
    Inputs,
    Ints,
    LocalWork,
    Objective,
    Params,
    Targets,
    TaskVectors,
)

if TYPE_CHECKING:
    from flamma.training.stacked import StackedTrainer as StackedTrainer
    from flamma.training.torch_trainer import TorchTrainer as TorchTrainer

__all__ = [
    "StackedTrainer",
    "TooSlow",
    "TorchTrainer",
    "Trained",
    "Trainer",
    "TrainingJob",
]


# The contract of trainers: their jobs and their results.

Floats32 = NDArray[np.float32]

PrecisionName = Literal["float32", "bfloat16", "float16"]

_LARGEST_COUNT = 2**63 - 1
"""The largest number of samples, epochs or steps that the trainers can count."""

_AUGMENTATION_PURPOSE = StreamKey.of(0, "augment").purpose
"""Changes the key of a client's stream into that of its augmentation."""


class TooSlow(Exception):  # noqa: N818 - the failure of a client, not an error of the user
    """A client's training took longer than the time limit."""


class TrainingJob(NamedTuple):
    """The training of one client: its task, its data, and the stream that shuffles them.

    The stream may be given by its key: for very small clients it takes long to make. ``vectors``
    has what the client trains with besides the weights that all clients received.
    """

    task: LocalWork
    x: Inputs
    y: Targets
    rng: np.random.Generator | StreamKey
    vectors: TaskVectors = NO_VECTORS

    def received(self, common: Params) -> Params:
        """Return the weights that the client received: its own, or those of all clients."""
        return common if self.vectors.received is None else self.vectors.received

    def start(self, common: Params) -> Params:
        """Return the weights from which the client trains."""
        return self.received(common) if self.vectors.start is None else self.vectors.start


class Trained(NamedTuple):
    """The result of a job: the trained weights, or the error that ended the training.

    ``loss`` is that of the weights where the training started, or of the trained ones if the task
    says so; NaN if it did not want any. The memory of ``params`` may be used again for the next
    job: copy it.
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

    def predict(self, params: Params, x: Inputs, y: Targets) -> tuple[Floats32, SampleMarks]:
        """Return each sample's loss under the given weights, and its mark for the metric.

        The mark is whether the sample is classified right, unless the trainer was made for another
        metric; see :class:`~flamma.tasks.ClientMetric`.
        """
        ...


def used_samples(use: DataUse, x: Inputs, y: Targets, classes: int) -> tuple[Inputs, Targets]:
    """Return the samples that a client trains on, and their labels.

    Flipped labels are ``classes - 1 - k`` for class k, and a number its negative. A token that is
    not predicted, which is negative, stays as it is.
    """
    if use.share < 1:
        count = use.samples_of(len(y))
        x, y = x[:count], y[:count]
    if use.flips_labels and y.dtype.kind == "f":
        y = -y
    elif use.flips_labels:
        y = np.where(y < 0, y, classes - 1 - y) if y.ndim > 1 else classes - 1 - y
    return x, y


def scores_start(task: LocalWork) -> bool:
    """Return whether a task wants the loss of the weights from which it starts."""
    told = task.terms.report_loss
    return told == "received" or (told == "no" and not task.terms.train)


def batch_count(task: LocalWork, samples: int, batch_size: int) -> int:
    """Return the number of mini-batches of a task on this number of samples."""
    if not task.terms.train:
        return 0
    planned = task.terms.batches
    return task.epochs * -(-samples // batch_size) if planned is None else planned


def training_stream(seed: int, task: LocalWork) -> StreamKey:
    """Return the key of the random stream that shuffles the samples of a task."""
    purpose = "train-own" if task.personal else "train"
    return StreamKey.of(seed, purpose, task.round, task.owner)


def stream_of(job: TrainingJob) -> np.random.Generator:
    """Return the stream that shuffles the data of a job."""
    return job.rng.generator() if isinstance(job.rng, StreamKey) else job.rng


def augmentation_stream(job: TrainingJob) -> np.random.Generator:
    """Return the stream by which the samples of a job are augmented, beside that of their order."""
    if isinstance(job.rng, StreamKey):
        return job.rng._replace(purpose=job.rng.purpose ^ _AUGMENTATION_PURPOSE).generator()
    return job.rng.spawn(1)[0]


def batches_of(job: TrainingJob, batch_size: int) -> Iterator[Ints]:
    """Yield the samples of each mini-batch, shuffled again for every epoch."""
    samples = len(job.y)
    size = max(1, min(batch_size, samples))
    per_epoch = -(-samples // size)
    rng = stream_of(job)
    left = batch_count(job.task, samples, size)
    while left > 0:
        order = rng.permutation(samples)[: left * size]
        for start in range(0, order.size, size):
            yield order[start : start + size]
        left -= per_epoch


def check_sgd(batch_size: int, momentum: float) -> None:
    """Refuse a batch size or a momentum that no trainer can train with."""
    if batch_size < 1:
        raise ConfigError(f"the batch size must be at least 1, not {batch_size}.")
    if batch_size > _LARGEST_COUNT:
        raise ConfigError("the batch size is too large: use one of at most 2^63 - 1.")
    if not 0 <= momentum < 1:
        raise ConfigError(f"momentum must be at least 0 and below 1, not {momentum:g}.")


def check_job(job: TrainingJob, size: int, trainable_size: int) -> None:
    """Refuse a task that no trainer can do, such as one of a server that this client distrusts.

    Parameters
    ----------
    job : TrainingJob
        The task, its data and its vectors.
    size, trainable_size : int
        How many weights the model has, and how many of them are trained.
    """
    task = job.task
    for name, count in (("epochs", task.epochs), ("batches", task.terms.batches)):
        # A plain int first: asking an abstract class takes long where there are many jobs.
        whole = isinstance(count, (int, numbers.Integral)) and 0 <= count <= _LARGEST_COUNT
        if not whole and not (name == "batches" and count is None):
            raise FlammaError(f"{name} must be a whole number from 0 to 2^63 - 1.")
    _check_size("learning rate", task.learning_rate)
    _check_size("proximal weight", task.terms.objective.proximal)
    _check_transforms(task.terms.objective)
    if not len(job.y) and not task.abstains:
        raise FlammaError(f"client {task.client} has no training data.")
    if job.vectors is not NO_VECTORS:
        _check_vectors(job.vectors, size, trainable_size)


def _check_size(name: str, rate: float) -> None:
    # A whole number beyond all floats would raise where it is converted.
    if isinstance(rate, int) and abs(rate) > _LARGEST_COUNT:
        raise FlammaError(f"the {name} is too large.")


def _check_transforms(wanted: Objective) -> None:
    if wanted.tilt == 0 and wanted.bound == math.inf:
        return
    _check_size("bound of the loss", wanted.bound)
    _check_size("tilt of the loss", wanted.tilt)
    if not wanted.bound > 0:
        raise FlammaError(f"the bound of the loss must be above 0, not {wanted.bound:g}.")
    if not math.isfinite(wanted.tilt):
        raise FlammaError(f"the tilt of the loss must be a finite number, not {wanted.tilt:g}.")
    if wanted.tilt and wanted.bound < math.inf:
        raise FlammaError("the loss can be tilted or bounded, not both: leave one of them out.")


def _check_vectors(vectors: TaskVectors, size: int, trainable_size: int) -> None:
    wanted = (
        ("received weights", vectors.received, size),
        ("weights to start from", vectors.start, size),
        ("correction of the gradient", vectors.correction, trainable_size),
    )
    for name, vector, length in wanted:
        if vector is None:
            continue
        if vector.shape != (length,) or vector.dtype != np.float32:
            raise FlammaError(f"the {name} must be a vector of {length} float32 numbers.")
        if not np.isfinite(vector).all():
            raise FlammaError(f"the {name} must be finite numbers.")


def __getattr__(name: str) -> type[TorchTrainer]:
    # torch takes seconds to import and is not needed to train in lanes.
    modules = {"StackedTrainer": "stacked", "TorchTrainer": "torch_trainer"}
    if name in modules:
        trainer: type[TorchTrainer] = getattr(
            import_module(f"flamma.training.{modules[name]}"), name
        )
        return trainer
    raise AttributeError(f"module 'flamma.training' has no attribute {name!r}")

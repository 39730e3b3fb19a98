"""The contract of trainers: what they are given and what they return."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flamma.types import Ints, LocalTask, Params

Floats32 = NDArray[np.float32]


class TooSlow(Exception):  # noqa: N818 - the failure of a client, not an error of the user
    """A client's training took longer than the time limit."""


class TrainingJob(NamedTuple):
    """The training of one client: its task, its data, and the stream that shuffles them."""

    task: LocalTask
    x: Floats32
    y: Ints
    rng: np.random.Generator


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

"""What every trainer is given and gives back; the two trainers keep this one contract."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flamma.types import Ints, LocalTask, Params

Floats32 = NDArray[np.float32]


class TooSlow(Exception):  # noqa: N818 - a client's fate, not the user's mistake
    """The time limit passed before the training was done."""


class TrainingJob(NamedTuple):
    """One client's training: what to do, its samples and labels, and what shuffles them."""

    task: LocalTask
    x: Floats32
    y: Ints
    rng: np.random.Generator


class Trained(NamedTuple):
    """What became of a job: the weights and the loss of the received ones, or what went wrong.

    The weights may be overwritten by the next job: copy them.
    """

    params: Params | None
    loss: float = math.nan
    seconds: float = 0.0
    error: Exception | None = None


class Trainer(Protocol):
    """Trains clients from the same received weights, and judges weights."""

    batch_size: int

    @property
    def name(self) -> str:
        """What the records call it."""
        ...

    @property
    def width(self) -> int:
        """How many clients are trained at once."""
        ...

    def train_each(
        self, params: Params, jobs: Sequence[TrainingJob], time_limit: float | None = None
    ) -> Iterator[tuple[int, Trained]]:
        """Yield every job's number and what became of it, as soon as it is done."""
        ...

    def predict(self, params: Params, x: Floats32, y: Ints) -> tuple[Floats32, NDArray[np.bool_]]:
        """Return each sample's loss under the given weights, and whether it is classified right."""
        ...

"""What a strategy is told before the first round: the plan, and who the clients are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flamma.types.arrays import Floats, Ints


class Schedule(Protocol):
    """How the step size changes from round to round."""

    def factor(self, round: int, rounds: int) -> float:  # noqa: A002
        """Return what the learning rate is multiplied by in a round, counted from 1."""
        ...


SMALLEST_FACTOR = 1e-9
"""The least that a schedule multiplies by: strategies divide by the step size."""


@dataclass(frozen=True)
class Plan:
    """What every strategy is told about the experiment.

    ``budget`` is the most that clients may be paid in all rounds, in units of utility; None for no
    limit. ``momentum`` is that of the clients' SGD. ``schedule`` multiplies the learning rate; None
    leaves it as it is.
    """

    rounds: int
    per_round: int
    epochs: int = 5
    learning_rate: float = 0.05
    batch_size: int = 32
    budget: float | None = None
    momentum: float = 0.0
    schedule: Schedule | None = None

    def factor(self, round: int) -> float:  # noqa: A002
        """Return what the schedule multiplies the learning rate by in a round."""
        if self.schedule is None:
            return 1.0
        return max(SMALLEST_FACTOR, self.schedule.factor(round, self.rounds))

    def step_size(self, round: int) -> float:  # noqa: A002
        """Return the learning rate of a round, before what a client's terms make of it."""
        return self.learning_rate * self.factor(round)


@dataclass(frozen=True, eq=False)
class Population:
    """What the server knows of the clients: how much data each has and, perhaps, its cost.

    Costs are NaN for clients that do not tell theirs. ``trainable_size`` is how many of the
    model's weights are trained. ``names`` are given where clients are more than numbers.
    ``trainable_sizes`` are the lengths of the parts that the trained weights are made of, in order;
    empty where they are not known.
    """

    samples: Ints
    costs: Floats | None
    trainable_size: int
    held_out: Ints | None = None
    names: tuple[str, ...] = ()
    trainable_sizes: tuple[int, ...] = ()

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return int(self.samples.size)

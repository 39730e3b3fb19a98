"""Schedules of the step size over rounds: what the learning rate of each round is multiplied by.

Another package adds one by an entry point of the group ``flamma.schedules`` that names a frozen
dataclass with a method ``factor(round, rounds)``. Its fields are the options.
"""

from __future__ import annotations

from dataclasses import dataclass

from flamma.errors import ConfigError
from flamma.numerics import cosine_of_half_turns, power
from flamma.registry import Registry
from flamma.types import Schedule


@dataclass(frozen=True)
class ConstantSchedule:
    """The same step size in every round."""

    def factor(self, round: int, rounds: int) -> float:  # noqa: A002
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class WarmUpSchedule:
    """Rises in equal steps to the full step size, and stays there.

    Goyal et al., Accurate, large minibatch SGD, arXiv:1706.02677, section 2.2 (gradual warm-up).

    Parameters
    ----------
    warm_up : int
        Rounds below the full step size: round t of them has t / (warm_up + 1) of it.
    """

    warm_up: int = 5

    def __post_init__(self) -> None:
        if self.warm_up < 0:
            raise ConfigError(f"warm_up of the schedule must be at least 0, not {self.warm_up}.")

    def factor(self, round: int, rounds: int) -> float:  # noqa: A002
        """Return the rise, and then what :meth:`after` says of the rounds that are left."""
        if round <= self.warm_up:
            return max(1, round) / (self.warm_up + 1)
        return self.after(max(1, round) - self.warm_up, max(1, rounds - self.warm_up))

    def after(self, round: int, rounds: int) -> float:  # noqa: A002
        """Return the factor of a round after the warm-up, counted from 1; here 1."""
        return 1.0


@dataclass(frozen=True)
class CosineSchedule(WarmUpSchedule):
    """Falls along half a cosine, from the full step size towards a floor.

    The factor of round t of T is floor + (1 - floor) (1 + cos(π (t - 1) / T)) / 2, counted from the
    end of the warm-up: Loshchilov and Hutter, SGDR, ICLR 2017, equation 5, without restarts.

    Parameters
    ----------
    floor : float
        The share of the step size that it falls to after the last round.
    warm_up : int
        Rounds in which it rises first.
    """

    warm_up: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor <= 1:
            raise ConfigError(f"floor of the schedule must lie in [0, 1], not {self.floor:g}.")

    def after(self, round: int, rounds: int) -> float:  # noqa: A002
        """Return the cosine's share."""
        fallen = min(round - 1, rounds) / rounds
        return self.floor + (1 - self.floor) * (1 + cosine_of_half_turns(fallen)) / 2


@dataclass(frozen=True)
class StepSchedule(WarmUpSchedule):
    """Multiplies the step size by a factor every few rounds.

    Parameters
    ----------
    every : int
        After how many rounds.
    ratio : float
        The factor, above 0 and at most 1.
    warm_up : int
        Rounds in which it rises first.
    """

    warm_up: int = 0
    every: int = 10
    ratio: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ConfigError(f"every of the schedule must be at least 1, not {self.every}.")
        if not 0 < self.ratio <= 1:
            raise ConfigError(
                f"ratio of the schedule must be above 0 and at most 1, not {self.ratio:g}."
            )

    def after(self, round: int, rounds: int) -> float:  # noqa: A002
        """Return ratio to the power of how often it was applied before this round."""
        return float(power(self.ratio, (round - 1) // self.every))


SCHEDULES: Registry[type[Schedule]] = Registry(
    "schedule",
    "flamma.schedules",
    {
        "constant": ConstantSchedule,
        "cosine": CosineSchedule,
        "step": StepSchedule,
        "warm-up": WarmUpSchedule,
    },
)
"""All schedules by name."""

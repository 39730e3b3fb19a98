"""The table ``[privacy]`` of a configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from flamma.errors import ConfigError


@dataclass(frozen=True)
class PrivacyConfig:
    """How far updates are clipped, how much noise is added to them, and where.

    Parameters
    ----------
    clip : float, optional
        The longest update that counts in full, in the Euclidean norm over all weights: longer ones
        are cut to this length. Without it there is no differential privacy.
    noise_multiplier : float
        The standard deviation of the noise, in units of how far the release moves at most if one
        client's update is set to zero.
    delta : float
        The probability with which epsilon need not hold; below one over the number of clients.
    noise_on : {"mean", "updates"}
        Noise is added once, to the mean update of a round, which is all that the strategy then
        sees; or to each client's update, for strategies that compare clients. That costs √K times
        the noise in a mean of K.
    samples_cap : int
        A client counts in the mean by its number of samples, but by no more than this. With 1 all
        clients count alike.
    """

    clip: float | None = None
    noise_multiplier: float = 1.0
    delta: float = 1e-5
    noise_on: Literal["mean", "updates"] = "mean"
    samples_cap: int = 1

    def __post_init__(self) -> None:
        if self.clip is None:
            if any(getattr(self, f.name) != f.default for f in fields(self)):
                raise ConfigError(
                    "privacy.clip is missing, without which nothing bounds what a client can "
                    "change: set it to the length of a usual update."
                )
            return
        for name in ("clip", "noise_multiplier"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"privacy.{name} must be above 0, not {value:g}.")
        if not 0 < self.delta < 1:
            raise ConfigError(f"privacy.delta must lie between 0 and 1, not {self.delta:g}.")
        if self.samples_cap < 1:
            raise ConfigError(f"privacy.samples_cap must be at least 1, not {self.samples_cap}.")

    @property
    def is_on(self) -> bool:
        """Whether there is differential privacy at all."""
        return self.clip is not None

    @property
    def longest(self) -> float:
        """The longest update that counts in full, without end if there is no privacy."""
        return math.inf if self.clip is None else self.clip


def losses_refused(strategy: str) -> str:
    """Return the sentence that refuses a strategy that asks for losses."""
    return (
        f"{strategy} asks clients for their losses, which no noise hides: leave out the table "
        f"[privacy], or choose another strategy."
    )

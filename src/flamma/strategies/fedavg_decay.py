"""FedAvg with FLamma's decay of the step: γ as FLamma's server finds it, and nothing else of it.

The row that tells whether a gain is the decay's: clients are drawn at random and do a fixed
number of epochs, whatever the γ that their step is scaled with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from flamma.strategies.base import MOST_EPOCHS, Offer, Strategy
from flamma.strategies.flamma import Flamma
from flamma.strategies.knowledge import FlammaState
from flamma.types import Ints, LocalTask, Profile, Terms


@dataclass(frozen=True)
class FedAvgDecay(Flamma):
    """Random clients, E epochs each with step η γ, the mean of their models."""

    name: ClassVar[str] = "fedavg-decay"
    label: ClassVar[str] = "FedAvg + decay"
    summary: ClassVar[str] = "FedAvg whose step decays as FLamma's does"
    family: ClassVar[str] = "optimisation"

    selection: Literal["top", "sample", "uniform"] = "uniform"

    def offer(self, state: FlammaState, available: Ints, rng: np.random.Generator) -> Offer:
        """Solve FLamma's game for γ; no client plays it, so there is nothing to certify."""
        return replace(super().offer(state, available, rng), game=None)

    def respond(self, terms: Terms, profile: Profile) -> LocalTask:
        """Do the epochs that the plan fixes."""
        return Strategy.respond(self, terms, profile)

    def epoch_range(self, terms: Terms) -> tuple[int, int]:
        """Return the one number of epochs that the plan fixes; a warm-up has none."""
        fixed = self.plan.epochs
        return (fixed, fixed) if terms.iterations is None else (0, MOST_EPOCHS)

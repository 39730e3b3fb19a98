"""FedFair³: loss, speed and past selections decide who takes part.

A reconstruction. Javaherian et al., "FedFair³: Unlocking Threefold Fairness in Federated Learning",
ICC 2024, has no public code, and goes by properties of devices (energy, power) that clients do not
have here. What is built are its three aims: clients with a large loss are preferred, as in Oort,
slow ones are penalised, and whoever was selected often waits until the others had their rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.numerics import power
from flamma.strategies.base import Answers, weighted_choice
from flamma.strategies.utility import (
    ByUtility,
    UtilityState,
    check_shares,
    nearest_rank,
    nothing_known,
)
from flamma.types import Floats, Ints, Params, Population


@dataclass(frozen=True, eq=False)
class FedFair3State(UtilityState):
    """``selections`` is how often each client was selected."""

    selections: Ints


@dataclass(frozen=True)
class FedFair3(ByUtility[FedFair3State]):
    """Draw K clients in proportion to |B| F clipped, times (T / t_k)^α, times λ^s.

    s is how much oftener a client was selected than the one that was least often. A client that has
    not answered yet counts as having the largest utility known.

    Parameters
    ----------
    preferred : float
        T, as a quantile of the clients' durations.
    repeat : float
        λ, what the chance of a client is multiplied with for every selection that it is ahead.
    """

    name: ClassVar[str] = "fedfair3"
    label: ClassVar[str] = "FedFair³ (reconstruction)"
    summary: ClassVar[str] = "loss, speed and past selections decide (reconstruction)"
    family: ClassVar[str] = "selection"

    preferred: float = 0.5
    repeat: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self, "preferred", "repeat")

    def init(self, params: Params, population: Population) -> FedFair3State:
        """Start with nobody selected."""
        utility, last_round = nothing_known(population)
        return FedFair3State(
            params, 0, population.samples, utility, last_round, np.zeros_like(last_round)
        )

    def select(self, state: FedFair3State, available: Ints, rng: np.random.Generator) -> Ints:
        """Draw by the three factors."""
        chances = self.chances(state, available)
        return weighted_choice(available, chances, self.plan.per_round, rng)

    def chances(self, state: FedFair3State, available: Ints) -> Floats:
        """Return what the available clients are drawn in proportion to."""
        heard = state.last_round[available] > 0
        known = state.utility[available][heard]
        most = nearest_rank(known, self.clip) if known.size else 1.0
        utility = np.where(heard, np.minimum(state.utility[available], most), most)
        selections = state.selections[available]
        ahead = selections - selections.min()
        factors = self.speed_factors(state, available, self.preferred)
        result: Floats = utility * factors * power(self.repeat, ahead)
        return result

    def combine(self, state: FedFair3State, answers: Answers) -> FedFair3State:
        """Take the mean, note utilities, and count who was selected."""
        state = super().combine(state, answers)
        selections = state.selections.copy()
        selections[list(answers.offer.selected)] += 1
        return replace(state, selections=selections)

"""AdaFL: few clients in the first rounds, more later.

Li et al., "AdaFL: Adaptive Client Selection and Dynamic Contribution Evaluation for Efficient
Federated Learning", ICASSP 2024. What is built is its growing number of participants; its
evaluation of contributions is not public in enough detail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.strategies.base import State, uniform_choice
from flamma.strategies.fedavg import Averaging
from flamma.types import Ints, Params, Population


@dataclass(frozen=True)
class AdaFL(Averaging[State]):
    """FedAvg whose number of clients grows from a share of K to K, in equal steps.

    Parameters
    ----------
    first_share : float
        The share of ``per_round`` that is selected in round 1, at least one client; with 1 this is
        FedAvg.
    grown_at : float
        The share of the rounds after which all of ``per_round`` are selected.
    """

    name: ClassVar[str] = "adafl"
    label: ClassVar[str] = "AdaFL (growing number)"
    summary: ClassVar[str] = "FedAvg with few clients at first and more later"
    family: ClassVar[str] = "selection"
    varies_selection: ClassVar[bool] = True

    first_share: float = 0.2
    grown_at: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("first_share", "grown_at"):
            if not 0 < getattr(self, option) <= 1:
                raise StrategyError(f"{option} must lie in (0, 1], not {getattr(self, option):g}.")

    def init(self, params: Params, population: Population) -> State:
        """Start with the given weights."""
        return State(params, 0, population.samples)

    def select(self, state: State, available: Ints, rng: np.random.Generator) -> Ints:
        """Draw as many as it is the round's turn for."""
        return uniform_choice(available, self.participants(state.round + 1), rng)

    def participants(self, number: int) -> int:
        """Return how many clients a round has."""
        most, growing = self.plan.per_round, self.grown_at * self.plan.rounds - 1
        grown = min(1.0, (number - 1) / growing) if growing > 0 else 1.0
        share = self.first_share + (1 - self.first_share) * grown
        return min(most, max(1, math.floor(share * most + 0.5)))

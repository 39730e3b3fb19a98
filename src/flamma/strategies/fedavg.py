"""FedAvg: clients at random, a fixed number of epochs, the mean of their models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.strategies.base import (
    Answers,
    Offer,
    State,
    Strategy,
    data_shares,
    uniform_choice,
    weighted_mean,
)
from flamma.types import Ints, Terms


@dataclass(frozen=True)
class FedAvg(Strategy):
    """K clients uniformly, E epochs each, w ← Σ p_k w_k with p by data size."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "random clients, fixed epochs, mean by data size"

    def offer(self, state: State, available: Ints, rng: np.random.Generator) -> Offer:
        """Select uniformly without replacement."""
        number = state.round + 1
        chosen = uniform_choice(available, self.plan.per_round, rng)
        return Offer(number, tuple(self.terms(int(client), number) for client in chosen))

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return one client's terms; variants change them."""
        return Terms(client, round)

    def combine(self, state: State, answers: Answers) -> State:
        """Take the mean of the models, weighted by data size."""
        reports = answers.accepted
        if not reports:
            return state
        return replace(state, params=weighted_mean(reports, data_shares(reports)))

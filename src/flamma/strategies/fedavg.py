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
    S,
    ServerReads,
    State,
    Strategy,
    data_shares,
    uniform_choice,
)
from flamma.types import Ints, Params, Population, Terms


@dataclass(frozen=True)
class Averaging(Strategy[S]):
    """What FedAvg and its variants share, whatever their state."""

    @property
    def wants_losses(self) -> bool:
        """Whether clients must tell the loss of a model on their data."""
        terms = self.terms(0, 1)
        return super().wants_losses or terms.wants_loss or terms.wants_trained_loss

    def offer(self, state: S, available: Ints, rng: np.random.Generator) -> Offer:
        """Select clients, and offer each its terms."""
        number = state.round + 1
        chosen = self.select(state, available, rng)
        return Offer(number, tuple(self.terms(int(client), number) for client in chosen))

    def select(self, state: S, available: Ints, rng: np.random.Generator) -> Ints:
        """Return the clients of the next round, in order: here a uniform draw."""
        return uniform_choice(available, self.plan.per_round, rng)

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return one client's terms; variants change them."""
        return Terms(client, round)

    def combine(self, state: S, answers: Answers) -> S:
        """Take the mean of the models, weighted by data size."""
        reports = answers.accepted
        if not reports:
            return state
        return replace(state, params=self.average(reports, data_shares(reports), answers.reference))


@dataclass(frozen=True)
class FedAvg(Averaging[State]):
    """K clients uniformly, E epochs each, w ← Σ p_k w_k with p by data size."""

    name: ClassVar[str] = "fedavg"
    label: ClassVar[str] = "FedAvg"
    summary: ClassVar[str] = "random clients, fixed epochs, mean by data size"
    family: ClassVar[str] = "reference"
    server_reads: ClassVar[ServerReads] = "mean"

    def init(self, params: Params, population: Population) -> State:
        """Start with the given weights."""
        return State(params, 0, population.samples)

"""FairFedCS: good reputation, and a queue for those who have waited.

Shi et al., "Fairness-Aware Client Selection for Federated Learning", ICME 2023. The authors measure
contributions by a Shapley value; only their sign counts, and it is taken from leaving one client
out here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.strategies.base import Answers, State, largest
from flamma.strategies.fedavg import Averaging
from flamma.strategies.marginal import marginal_gains
from flamma.types import Floats, Ints, Params, Population


@dataclass(frozen=True, eq=False)
class FairFedCSState(State):
    """How often each client's answer helped and did not, and how long its queue is."""

    helped: Ints
    harmed: Ints
    queue: Floats

    @property
    def reputation(self) -> Floats:
        """The mean of the Beta distribution after these answers, 1/2 before the first."""
        result: Floats = (self.helped + 1) / (self.helped + self.harmed + 2)
        return result


@dataclass(frozen=True)
class FairFedCS(Averaging[FairFedCSState]):
    """Select the K largest σ r_k + Q_k, with Q_k ← max(0, Q_k + (K/N) r_k (1 - x_k) - x_k).

    r_k = (a + 1) / (a + b + 2), with a and b how often the answer of client k lowered the
    validation loss and did not; x_k is 1 if it was selected. No client is ruled out by its
    reputation: the queue brings it back.

    Parameters
    ----------
    sigma : float
        σ, the weight of the reputation beside the queue.
    """

    name: ClassVar[str] = "fairfedcs"
    label: ClassVar[str] = "FairFedCS"
    summary: ClassVar[str] = "reputation, and a queue for those who wait (needs validation)"
    family: ClassVar[str] = "selection"
    needs_validation: ClassVar[bool] = True

    sigma: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.sigma < math.inf:
            raise StrategyError(f"sigma must be at least 0, not {self.sigma:g}.")

    def init(self, params: Params, population: Population) -> FairFedCSState:
        """Start with no reputation and empty queues."""
        none = np.zeros(population.clients, dtype=np.int64)
        queue = np.zeros(population.clients)
        return FairFedCSState(params, 0, population.samples, none, none, queue)

    def select(self, state: FairFedCSState, available: Ints, rng: np.random.Generator) -> Ints:
        """Return the K largest priorities; ties are broken at random."""
        priority = (self.sigma * state.reputation + state.queue)[available]
        count = min(self.plan.per_round, available.size)
        return np.sort(available[largest(priority, count, rng)])

    def combine(self, state: FairFedCSState, answers: Answers) -> FairFedCSState:
        """Take the mean, move the queues, and note whose answer helped."""
        chosen = np.zeros(state.queue.size)
        chosen[list(answers.offer.selected)] = 1
        waiting = self.plan.per_round / state.queue.size * state.reputation * (1 - chosen)
        state = replace(state, queue=np.maximum(0.0, state.queue + waiting - chosen))
        if not answers.accepted:
            return state
        helped, harmed = state.helped.copy(), state.harmed.copy()
        gains = marginal_gains(self, state.params, answers)
        for report, gain in zip(answers.accepted, gains, strict=True):
            (helped if gain > 0 else harmed)[report.client] += 1
        return replace(super().combine(state, answers), helped=helped, harmed=harmed)

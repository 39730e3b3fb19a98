"""Incentivization: clients whose updates improve the model are preferred.

A reconstruction. The paper's baseline (Wu et al. 2023) has no public code; it is described as
evaluating each client's marginal contribution to the global model and giving priority to clients
whose updates improve accuracy. That is what this does, by leave-one-out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import exp, total
from flamma.strategies.base import Answers, State, data_shares, weighted_choice
from flamma.strategies.fedavg import Averaging
from flamma.strategies.marginal import marginal_gains
from flamma.types import Floats, Ints, Params, Population


@dataclass(frozen=True, eq=False)
class IncentiveState(State):
    """The moving average of every client's marginal contribution (gain in validation loss)."""

    gain: Floats


@dataclass(frozen=True)
class Incentive(Averaging[IncentiveState]):
    """Marginal contribution on the server's validation set decides selection and weight.

    The contribution of client k is the loss of the aggregate without it minus the loss with it.
    Selection draws without replacement, in proportion to the softmax of the standardised moving
    average, mixed with ``floor`` of the uniform distribution so that no client starves. Updates
    weigh by data size times the positive part of this round's contribution; if no client has a
    positive one, by data size alone.

    Parameters
    ----------
    memory : float
        The weight of the past in the moving average of a client's contribution.
    floor : float
        The share of the uniform distribution in the selection.
    """

    name: ClassVar[str] = "incentive"
    label: ClassVar[str] = "Incentivization"
    summary: ClassVar[str] = "marginal contribution decides selection and weight (reconstruction)"
    family: ClassVar[str] = "incentive"
    needs_validation: ClassVar[bool] = True

    memory: float = 0.5
    floor: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("memory", "floor"):
            if not 0 <= getattr(self, option) <= 1:
                raise StrategyError(f"{option} must lie in [0, 1], not {getattr(self, option):g}.")

    def init(self, params: Params, population: Population) -> IncentiveState:
        """Start with no client's contribution known."""
        return IncentiveState(params, 0, population.samples, np.zeros(population.clients))

    def select(self, state: IncentiveState, available: Ints, rng: np.random.Generator) -> Ints:
        """Draw clients by their moving average, each with a floor."""
        gain = state.gain[available]
        offset = gain - total(gain) / gain.size
        spread = math.sqrt(total(np.square(offset)) / gain.size)
        score = exp(offset / spread) if spread > 0 else np.ones(gain.size)
        chance = (1 - self.floor) * score / total(score) + self.floor / score.size
        return weighted_choice(available, chance, self.plan.per_round, rng)

    def combine(self, state: IncentiveState, answers: Answers) -> IncentiveState:
        """Weigh by what leaving each client out would cost."""
        accepted, reference = answers.accepted, answers.reference
        if not accepted:
            return state
        gains, shares = marginal_gains(self, state.params, answers), data_shares(accepted)
        average = state.gain.copy()
        for report, gain in zip(accepted, gains, strict=True):
            if np.isfinite(gain):
                kept = self.memory * average[report.client]
                average[report.client] = kept + (1 - self.memory) * gain
        weights = [
            share * max(gain, 0.0) if np.isfinite(gain) else 0.0
            for share, gain in zip(shares, gains, strict=True)
        ]
        params = self.average(accepted, weights if sum(weights) > 0 else shares, reference)
        return replace(state, params=params, gain=average)

"""MaxFL: clients count that might come to prefer the common model to their own.

Cho et al., "Maximizing Global Model Appeal in Federated Learning", TMLR 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import exp, total
from flamma.strategies.base import MOST_EPOCHS, Answers, State
from flamma.strategies.fedavg import Averaging
from flamma.types import Floats, Ints, Params, Population, Terms


@dataclass(frozen=True, eq=False)
class MaxFLState(State):
    """ρ, the loss that each client reached alone; NaN where that is not known."""

    alone: Floats


@dataclass(frozen=True)
class MaxFL(Averaging[MaxFLState]):
    """Step by Σ q_k u_k / (Σ q_k + ε), q_k = σ(x) (1 - σ(x)), x = F_k(w) - ρ_k.

    q is the slope of a smooth count of the clients with F_k(w) above ρ_k: largest for those that
    the model serves about as well as they serve themselves, small for those it has won or lost.
    ρ_k comes from a warm-up in which every client trains alone from the first weights, and the
    model stays. A client whose ρ is not known weighs as much as the others on average.

    Parameters
    ----------
    warmup_epochs : int
        Epochs that every client trains alone before round 1.
    epsilon : float
        ε: with weights that add up to much less, the step becomes smaller.
    """

    name: ClassVar[str] = "maxfl"
    label: ClassVar[str] = "MaxFL"
    summary: ClassVar[str] = "clients near to preferring the common model weigh more"
    family: ClassVar[str] = "incentive"

    warmup_epochs: int = 5
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.warmup_epochs <= MOST_EPOCHS:
            raise StrategyError(
                f"warmup_epochs must be 1 to {MOST_EPOCHS:,}, not {self.warmup_epochs}."
            )
        if not 0 < self.epsilon <= 1:
            raise StrategyError(f"epsilon must lie in (0, 1], not {self.epsilon:g}.")

    def init(self, params: Params, population: Population) -> MaxFLState:
        """Start before the warm-up, without anybody's ρ."""
        return MaxFLState(params, -1, population.samples, np.full(population.clients, np.nan))

    def select(self, state: MaxFLState, available: Ints, rng: np.random.Generator) -> Ints:
        """Let everybody take part in the warm-up, and draw uniformly afterwards."""
        return available if state.round < 0 else super().select(state, available, rng)

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Ask for ρ_k in the warm-up, and for F_k(w) in all other rounds."""
        if round == 0:
            return Terms(client, 0, epochs=self.warmup_epochs, wants_trained_loss=True)
        return replace(super().terms(client, round), wants_loss=True)

    def combine(self, state: MaxFLState, answers: Answers) -> MaxFLState:
        """Note who reached what alone, or step by the weighted updates."""
        usable = tuple(report for report in answers.accepted if np.isfinite(report.loss))
        clients = [report.client for report in usable]
        losses = np.array([report.loss for report in usable])
        if answers.offer.round == 0:
            alone = state.alone.copy()
            alone[clients] = losses
            return replace(state, alone=alone)
        weights = appeal_slopes(losses - state.alone[clients])
        whole = total(weights)
        if not whole > 0:
            return state
        mean = self.average(usable, weights.tolist(), answers.reference)
        step = mean.astype(np.float64) - state.params
        moved = state.params + whole / (whole + self.epsilon) * step
        return replace(state, params=moved.astype(np.float32))


def appeal_slopes(gaps: Floats) -> Floats:
    """Return σ(x) (1 - σ(x)) of each gap x; of one that is NaN, the mean of the others.

    Examples
    --------
    >>> appeal_slopes(np.array([0.0, np.nan]))
    array([0.25, 0.25])
    """
    known = np.isfinite(gaps)
    small = exp(-np.abs(gaps[known]))  # of either sign: the slope is even
    result = np.ones(gaps.size)
    result[known] = small / np.square(1 + small)
    if known.any():
        result[~known] = total(result[known]) / known.sum()
    return result

"""Power-of-Choice: of a few candidates, those whom the model serves worst train.

Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning",
AISTATS 2022 (π_pow-d).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.strategies.base import Answers, State, largest, weighted_choice
from flamma.strategies.fedavg import Averaging
from flamma.types import Floats, Ints, Params, Population


@dataclass(frozen=True, eq=False)
class SurveyState(State):
    """The loss that each candidate of the next round told, -inf for all others."""

    losses: Floats


@dataclass(frozen=True)
class PowerOfChoice(Averaging[SurveyState]):
    """d candidates by data share tell F_k(w); the K with the largest loss train, and weigh alike.

    The data sizes are in the draw of the candidates, so the mean of the models is the plain one.
    A candidate that tells no loss counts as having the smallest, and so do the clients that were
    not asked, which take part only where fewer than K candidates answer.

    Parameters
    ----------
    candidates : int, optional
        d, how many clients are asked for their loss, at least ``per_round``; twice that by default.
        With ``per_round`` itself the losses decide nothing: it is a draw by data share.
    """

    name: ClassVar[str] = "power-of-choice"
    label: ClassVar[str] = "Power-of-Choice"
    summary: ClassVar[str] = "of d candidates by data share, those with the largest loss"
    family: ClassVar[str] = "selection"

    candidates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fewest = self.plan.per_round
        if self.candidates is not None and self.candidates < fewest:
            raise StrategyError(
                f"candidates must be at least per_round, which is {fewest}, not {self.candidates}."
            )

    def init(self, params: Params, population: Population) -> SurveyState:
        """Start without any loss."""
        losses = np.full(population.clients, -np.inf)
        return SurveyState(params, 0, population.samples, losses)

    def survey(self, state: SurveyState, available: Ints, rng: np.random.Generator) -> Ints:
        """Draw the candidates by data share, without replacement."""
        asked = 2 * self.plan.per_round if self.candidates is None else self.candidates
        shares = state.samples[available].astype(np.float64)
        return weighted_choice(available, shares, asked, rng)

    def hear(self, state: SurveyState, losses: Mapping[int, float]) -> SurveyState:
        """Note the candidates' losses, and forget those of the round before."""
        told = np.full_like(state.losses, -np.inf)
        for client, loss in losses.items():
            told[client] = loss if np.isfinite(loss) else -np.inf
        return replace(state, losses=told)

    def select(self, state: SurveyState, available: Ints, rng: np.random.Generator) -> Ints:
        """Return the K largest losses; ties are broken at random."""
        count = min(self.plan.per_round, available.size)
        return np.sort(available[largest(state.losses[available], count, rng)])

    def combine(self, state: SurveyState, answers: Answers) -> SurveyState:
        """Take the plain mean of the models."""
        reports = answers.accepted
        if not reports:
            return state
        params = self.average(reports, [1.0] * len(reports), answers.reference)
        return replace(state, params=params)

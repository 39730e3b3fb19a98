"""CFFL: who does well on the server's validation set receives more of the model.

Lyu et al., "Collaborative fairness in federated learning", in: Federated Learning, Springer LNCS
12500, 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import exp, total
from flamma.strategies.base import Answers, Offer, ServerReads, Validate, data_shares, model_of
from flamma.strategies.fedavg import Averaging
from flamma.strategies.own_models import (
    OwnModels,
    carried_along,
    combined_step,
    of_largest,
    rewarded,
    shares_among,
    with_reputations,
)
from flamma.types import Download, Floats, Ints, Params, Population, Report

MOST_STEEPNESS = 100.0
"""Beyond this the smallest lead takes all."""

SMALLEST_STEEPNESS = 1e-8
"""Below this sinh α r is α r to double precision for every r up to 1."""


@dataclass(frozen=True)
class CFFL(Averaging[OwnModels]):
    """Reputation by validation accuracy, made steeper by sinh, decides what a client receives.

    Every client has a model of its own, from which it trains, and keeps what it trained. Among
    those that answer, whose reputations r add up to 1, r ← m r + (1 - m) A_i / Σ A with A the
    validation accuracy of the model that a client sends, then r ← sinh(α r) / Σ sinh(α r). Who
    falls below ``threshold`` over the number of them loses its reputation for good: it is not
    asked again and receives nothing. The step is the mean of the others' updates by data size. Each
    client receives the share r_i / max r of it, the largest entries, less its own part of those.

    Parameters
    ----------
    memory : float
        m, the weight of the past in a reputation.
    steepness : float
        α: the larger, the more a small lead in accuracy counts.
    threshold : float
        The share of an equal reputation below which a client is dropped; 0 drops nobody.
    """

    name: ClassVar[str] = "cffl"
    label: ClassVar[str] = "CFFL"
    summary: ClassVar[str] = "clients receive the more of a step the better their own models are"
    family: ClassVar[str] = "incentive"
    server_reads: ClassVar[ServerReads] = "plain"
    needs_validation: ClassVar[bool] = True
    varies_selection: ClassVar[bool] = True

    memory: float = 0.8
    steepness: float = 5.0
    threshold: float = 1 / 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.memory <= 1:
            raise StrategyError(f"memory must lie in [0, 1], not {self.memory:g}.")
        if not 0 < self.steepness <= MOST_STEEPNESS:
            raise StrategyError(
                f"steepness must be positive and at most {MOST_STEEPNESS:g}, not "
                f"{self.steepness:g}."
            )
        if not 0 <= self.threshold < 1:
            raise StrategyError(f"threshold must lie in [0, 1), not {self.threshold:g}.")

    def init(self, params: Params, population: Population) -> OwnModels:
        """Start with one model and one reputation for all."""
        return OwnModels.first(params, population)

    def download(self, state: OwnModels) -> Download:
        """Return each client's own model."""
        return state.download()

    def offer(self, state: OwnModels, available: Ints, rng: np.random.Generator) -> Offer:
        """Select uniformly among those that have a reputation."""
        return super().offer(state, available[state.reputations[available] > 0], rng)

    def combine(self, state: OwnModels, answers: Answers) -> OwnModels:
        """Learn reputations, step by the updates of those that keep one, and share it out."""
        if not answers.accepted:
            return state
        clients = [report.client for report in answers.accepted]
        among = self._reputations(state, answers.accepted, answers.validate)
        state = replace(state, reputations=with_reputations(state, clients, among))
        kept = [r for r, own in zip(answers.accepted, among.tolist(), strict=True) if own > 0]
        updates, weights = state.updates(kept), np.array(data_shares(kept))
        step = combined_step(self, state, updates, weights, answers.reference)
        own = {
            report.client: (update, weight)
            for report, update, weight in zip(
                kept, updates, (weights / total(weights)).tolist(), strict=True
            )
        }
        carried = carried_along(self, state, kept, answers.reference)
        return rewarded(state, step, carried, of_largest(state.reputations), own)

    def _reputations(
        self, state: OwnModels, accepted: Sequence[Report], validate: Validate | None
    ) -> Floats:
        """Return the new reputations of those that answered, 0 for whom is dropped."""
        if validate is None:
            raise StrategyError("cffl needs a validation set: set data.validation_samples.")
        scores = np.array([validate(model_of(report))[1] for report in accepted])
        # A score below 0, which R² can be, earns nothing.
        scores = np.maximum(np.where(np.isfinite(scores), scores, 0.0), 0.0)
        together = total(scores)
        now = scores / together if together > 0 else np.full(scores.size, 1 / scores.size)
        before = shares_among(state, [report.client for report in accepted])
        mixed = self.memory * before + (1 - self.memory) * now
        if self.steepness >= SMALLEST_STEEPNESS:  # below it sinh is linear, and rounded to 0
            mixed = hyperbolic_sine(self.steepness * mixed)
        shares: Floats = mixed / total(mixed)
        return np.where(shares < self.threshold / shares.size, 0.0, shares)


def hyperbolic_sine(x: Floats) -> Floats:
    """Return sinh x, with the same bits everywhere."""
    sine: Floats = (exp(x) - exp(-x)) / 2
    return sine

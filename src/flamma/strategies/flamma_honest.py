"""FLamma-honest: FLamma-plus for clients that may lie, so that honesty is best for them.

What a client is offered depends on the others alone, its cost is never asked for, and what it
claims to have done is compared with what it sent. What cannot be seen from an answer is inspected:
training is the same to the last bit on every machine, so an inspector at the client can do the
claimed work again and compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from flamma.contributions import CONTRIBUTIONS
from flamma.errors import StrategyError
from flamma.numerics import norm
from flamma.registry import Choice
from flamma.strategies.base import Answers, Inspect, Offer, Screened, Strategy, model_of
from flamma.strategies.flamma_plus import MemoryState, MemoryStrategy, levelled
from flamma.strategies.plausibility import (
    RECENT_ROUNDS,
    capped_losses,
    capped_samples,
    looks_like,
    pace_of,
)
from flamma.types import Floats, Ints, LocalTask, Params, Population, Profile, Report, Terms

SAME_UPDATE = 1e-3
"""How far an update may be from the inspector's, as a share of its length: torch rounds."""


@dataclass(frozen=True, eq=False)
class HonestState(MemoryState):
    """What FLamma-plus knows of every client, and how far each one is trusted.

    Attributes
    ----------
    pace : ndarray
        How far each client's last update went for the work claimed, NaN before the first.
    inspections : ndarray
        How often each client was inspected.
    unchecked : ndarray
        What each client has earned since it was last inspected.
    suspended : ndarray
        1 for a client that was caught, which is not selected any more.
    """

    pace: Floats
    inspections: Ints
    unchecked: Floats
    suspended: Ints


@dataclass(frozen=True)
class FlammaHonest(MemoryStrategy[HonestState]):
    """FLamma-plus without what makes lying pay.

    Parameters
    ----------
    inspection_rate : float
        How likely an answer is to be inspected; a client's first one always is. 0 for never.
    fine : "deterring" or float
        What a client that is caught pays, as a multiple of what it would have earned in the round,
        besides what it has earned since it was last inspected. ``deterring`` is (1 - a) / a at the
        inspection rate a: then cheating does not pay on average, whatever it would have gained.
    weight_cap : float
        The multiple of the median data size that a client's counts for at most.
    """

    server_costs: Literal["given", "revealed"] = "revealed"
    pricing: Literal["common", "others"] = "others"
    contribution: Annotated[Choice, CONTRIBUTIONS] = Choice("distance")
    inspection_rate: float = 0.1
    fine: float | Literal["deterring"] = "deterring"
    weight_cap: float = 3.0

    name: ClassVar[str] = "flamma-honest"
    label: ClassVar[str] = "FLamma-honest"
    summary: ClassVar[str] = "FLamma-plus for clients that may lie: offers without one's own say"
    family: ClassVar[str] = "flamma"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.inspection_rate <= 1:
            raise StrategyError(
                f"inspection_rate must lie in [0, 1], not {self.inspection_rate:g}."
            )
        if not isinstance(self.fine, str) and not 0 <= self.fine < math.inf:
            raise StrategyError(f"fine must be at least 0, not {self.fine:g}.")
        if not self.weight_cap >= 1:
            raise StrategyError(f"weight_cap must be at least 1, not {self.weight_cap:g}.")

    def init(self, params: Params, population: Population) -> HonestState:
        """Start without having heard from any client, and without trust in any."""
        state = self.first_memory(params, population)
        known = {field.name: getattr(state, field.name) for field in fields(state)}
        n = population.clients
        return HonestState(
            **known,
            pace=np.full(n, np.nan),
            inspections=np.zeros(n, dtype=np.int64),
            unchecked=np.zeros(n),
            suspended=np.zeros(n, dtype=np.int64),
        )

    def select(self, state: HonestState, available: Ints, rng: np.random.Generator) -> Ints:
        """Select among those that were not caught."""
        trusted = available[state.suspended[available] == 0]
        return super().select(state, trusted if trusted.size else available, rng)

    def offer(self, state: HonestState, available: Ints, rng: np.random.Generator) -> Offer:
        """Draw, too, whose answers will be inspected."""
        made = super().offer(state, available, rng)
        if not made.round or self.inspection_rate == 0:
            return made
        drawn = rng.random(len(made.terms)) < self.inspection_rate
        inspected = tuple(
            terms.client
            for terms, visited in zip(made.terms, drawn.tolist(), strict=True)
            if visited or state.inspections[terms.client] == 0
        )
        return replace(made, inspected=inspected)

    def screen(
        self,
        state: HonestState,
        offer: Offer,
        answers: tuple[Report, ...],
        inspect: Inspect | None,
    ) -> Screened:
        """Credit the work that an answer looks like; refuse and fine what inspection disproves."""
        if offer.game is None:
            return Screened(answers)
        caught = self._caught(state, offer, answers, inspect)
        credited, flags, fines, kept = [], dict(caught), {}, []
        paces = self._paces(state, offer, answers)
        for terms, report in zip(offer.terms, answers, strict=True):
            client = report.client
            epochs = self._credited(state, offer, report, paces)
            if client in caught:
                fines[client] = self._fine(state, terms, epochs)
                report = replace(report, params=None, epochs=0, failure=caught[client])
                epochs = 0.0
            elif epochs < report.epochs:
                flags[client] = f"{report.epochs} epochs claimed look like {epochs:.2g}"
            credited.append(epochs)
            kept.append(report)
        return Screened(tuple(kept), tuple(credited), fines, flags)

    def combine(self, state: HonestState, answers: Answers) -> HonestState:
        """Remember paces, inspections, earnings and who was caught."""
        offer, screened = answers.offer, answers.screened
        if offer.game is not None and screened is not None and screened.credited is not None:
            pace, unchecked = state.pace.copy(), state.unchecked.copy()
            inspections, suspended = state.inspections.copy(), state.suspended.copy()
            for terms, epochs in zip(offer.terms, screened.credited, strict=True):
                unchecked[terms.client] += terms.decay_factor * terms.contribution * epochs
            for client, own in self._paces(state, offer, answers.accepted).items():
                pace[client] = own
            visited = list(offer.inspected)
            inspections[visited] += 1
            unchecked[visited] = 0.0
            suspended[list(screened.fines)] = 1
            state = replace(
                state,
                pace=pace,
                unchecked=unchecked,
                inspections=inspections,
                suspended=suspended,
            )
        return super().combine(state, answers)

    def weights(self, samples: Ints, losses: Floats, decay_factor: float) -> Floats:
        """Return weights by data size and loss, neither beyond what the others' make plausible."""
        exponent = self.levelling * (1 - decay_factor)
        return levelled(capped_samples(samples, self.weight_cap), capped_losses(losses), exponent)

    def _paces(
        self, state: HonestState, offer: Offer, answers: tuple[Report, ...]
    ) -> Mapping[int, float]:
        terms = {own.client: own for own in offer.terms}
        batch = self.plan.batch_size
        return {
            report.client: pace_of(report, terms[report.client], state.params, batch)
            for report in answers
            if report.params is not None
        }

    def _credited(
        self, state: HonestState, offer: Offer, report: Report, paces: Mapping[int, float]
    ) -> float:
        """Return the epochs that a report is paid for."""
        if report.params is None:
            return 0.0
        client = report.client
        recent = (state.heard >= offer.round - RECENT_ROUNDS) & (state.heard > 0)
        known = np.where(recent, state.pace, np.nan)
        own = float(known[client])
        for other, pace in paces.items():
            known[other] = pace
        known[client] = np.nan
        return looks_like(report.epochs, paces[client], known[np.isfinite(known)], own)

    def _caught(
        self,
        state: HonestState,
        offer: Offer,
        answers: tuple[Report, ...],
        inspect: Inspect | None,
    ) -> dict[int, str]:
        """Return what the inspector found out about clients that did not do what they claim."""
        visited = [
            (self._claimed(terms, report), report)
            for terms, report in zip(offer.terms, answers, strict=True)
            if report.client in offer.inspected and report.params is not None
        ]
        if inspect is None or not visited:
            return {}
        found = inspect([task for task, _ in visited])
        reasons = {
            report.client: _difference(report, truth, state.params)
            for (_, report), truth in zip(visited, found, strict=True)
        }
        return {client: reason for client, reason in reasons.items() if reason}

    def _claimed(self, terms: Terms, report: Report) -> LocalTask:
        """Return the work that a report says was done."""
        nobody = Profile(report.client, math.nan, report.samples)
        return replace(Strategy.respond(self, terms, nobody), epochs=report.epochs)

    def _fine(self, state: HonestState, terms: Terms, epochs: float) -> float:
        rate = self.inspection_rate
        factor = (1 - rate) / rate if isinstance(self.fine, str) else self.fine
        earned = terms.decay_factor * terms.contribution * epochs
        return factor * earned + float(state.unchecked[terms.client])


def _difference(report: Report, truth: Report, received: Params) -> str:
    """Return how a report differs from what the inspector got; empty if it does not."""
    if truth.params is None:
        return ""  # the inspector failed, not the client
    if report.samples > truth.samples:
        return f"inspected: it has {truth.samples} samples, not {report.samples}"
    moved = norm(truth.params - received)
    if norm(model_of(report) - truth.params) > SAME_UPDATE * moved:
        return f"inspected: its update is not that of {report.epochs} epochs on its data"
    if report.loss > truth.loss * (1 + SAME_UPDATE):
        return f"inspected: its loss is {truth.loss:.4g}, not {report.loss:.4g}"
    return ""

"""FLamma-honest: FLamma-plus for clients that may lie, so that honesty is best for them.

What a client is offered depends on the others alone, its cost is never asked for, and what it
claims to have done is compared with what it sent, and with what inspections have shown; see
:mod:`flamma.strategies.inspection`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from flamma.contributions import CONTRIBUTIONS
from flamma.errors import StrategyError
from flamma.registry import Choice
from flamma.strategies.base import Answers, Inspect, Offer, Screened, ServerReads, Strategy
from flamma.strategies.flamma_plus import PlusStrategy
from flamma.strategies.inspection import (
    MOST_UNVERIFIED,
    difference,
    inspector_failure,
    proven_epochs,
    with_verified,
)
from flamma.strategies.plausibility import (
    RECENT_ROUNDS,
    believed_share,
    capped_losses,
    capped_samples,
    looks_like,
    pace_of,
)
from flamma.strategies.plus_state import PlusState
from flamma.types import Floats, Ints, LocalTask, Params, Population, Profile, Report, Terms


@dataclass(frozen=True, eq=False, kw_only=True)
class HonestState(PlusState):
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
    largest_costs : ndarray
        The largest cost that explains the work that inspections have shown; infinite before.
    unverified : ndarray
        How many inspections of each client have failed since the last one that succeeded.
    withheld : ndarray
        What the answers of these inspections claimed to have earned.
    """

    pace: Floats
    inspections: Ints
    unchecked: Floats
    suspended: Ints
    largest_costs: Floats
    unverified: Ints
    withheld: Floats


@dataclass(frozen=True)
class FlammaHonest(PlusStrategy[HonestState]):
    """FLamma-plus without what makes lying pay.

    Parameters
    ----------
    inspection_rate : float
        How likely any answer is to be inspected; besides, a client's first one always is, the one
        after an inspection that failed, and those that claim more than inspections have shown, or
        look too short or too long for what they claim. 0 for no inspections at all.
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
    summary: ClassVar[str] = "FLamma for clients that may lie: offers without one's own say"
    family: ClassVar[str] = "flamma"
    server_reads: ClassVar[ServerReads] = "plain"

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
        n = population.clients
        return HonestState(
            **self.first_path(params, population),
            pace=np.full(n, np.nan),
            inspections=np.zeros(n, dtype=np.int64),
            unchecked=np.zeros(n),
            suspended=np.zeros(n, dtype=np.int64),
            largest_costs=np.full(n, np.inf),
            unverified=np.zeros(n, dtype=np.int64),
            withheld=np.zeros(n),
        )

    def offer(self, state: HonestState, available: Ints, rng: np.random.Generator) -> Offer:
        """Select among those that are not suspended, and draw whose answers will be inspected."""
        trusted = available[state.suspended[available] == 0]
        if not trusted.size:  # the round goes without clients
            return Offer(state.round + 1, ())
        made = super().offer(state, trusted, rng)
        if not made.round or self.inspection_rate == 0:
            return made
        drawn = rng.random(len(made.terms)) < self.inspection_rate
        inspected = tuple(
            terms.client
            for terms, visited in zip(made.terms, drawn.tolist(), strict=True)
            if visited or state.inspections[terms.client] == 0 or state.unverified[terms.client] > 0
        )
        return replace(made, inspected=inspected)

    def screen(
        self,
        state: HonestState,
        offer: Offer,
        answers: tuple[Report, ...],
        inspect: Inspect | None,
    ) -> Screened:
        """Inspect what is doubtful, refuse and fine what is disproved, credit what is plausible.

        Where nobody can inspect, an answer is credited with the work that it looks like. Where an
        inspection fails, the answer is neither used nor paid for until a later one succeeds.
        """
        if offer.game is None:
            return Screened(answers)
        looks, plausible = self._plausible(state, offer, answers)
        inspected, failed = self._inspected(state, offer, answers, plausible, inspect)
        credited, flags, fines, kept = [], {}, {}, []
        for terms, report in zip(offer.terms, answers, strict=True):
            client, epochs = report.client, float(report.epochs)
            introduced = int(state.samples[client])
            if report.params is not None and self._misstates(state, report):
                flags[client] = f"{report.samples} samples of a client that had {introduced}"
                report = replace(report, samples=introduced)
            if why := failed.get(client, ""):
                flags[client] = f"unverified: its inspection failed ({why})"
                report, epochs = replace(report, params=None, failure=flags[client]), 0.0
            elif reason := inspected.get(client, ""):
                flags[client], fines[client] = reason, self._fine(state, terms, looks[client])
                report, epochs = replace(report, params=None, epochs=0, failure=reason), 0.0
            elif client in inspected:
                epochs += self._released(state, terms, epochs)
            elif plausible[client] < epochs:
                epochs = plausible[client]
                flags[client] = f"{report.epochs} epochs claimed look like {epochs:.2g}"
                if epochs < looks[client]:
                    flags[client] = f"its update is too long for {report.epochs} epochs"
            credited.append(epochs)
            kept.append(report)
        return Screened(tuple(kept), tuple(credited), fines, flags, tuple(inspected), tuple(failed))

    def combine(self, state: HonestState, answers: Answers) -> HonestState:
        """Remember paces, inspections, earnings and who was caught."""
        offer, screened = answers.offer, answers.screened
        if offer.game is not None and screened is not None and screened.credited is not None:
            pace, unchecked = state.pace.copy(), state.unchecked.copy()
            inspections, suspended = state.inspections.copy(), state.suspended.copy()
            for terms, epochs in zip(offer.terms, screened.credited, strict=True):
                unchecked[terms.client] += _rate(terms) * epochs
            for client, own in self._paces(state, offer, answers.accepted).items():
                pace[client] = own
            visited, failed = list(screened.inspected), list(screened.unverified)
            inspections[visited] += 1
            unchecked[visited] = 0.0
            unverified, withheld = state.unverified.copy(), state.withheld.copy()
            unverified[failed] += 1
            for terms, report in zip(offer.terms, screened.answers, strict=True):
                if terms.client in failed:
                    withheld[terms.client] += _rate(terms) * report.epochs
            unverified[visited], withheld[visited] = 0, 0.0
            suspended[list(screened.fines)] = 1
            suspended[unverified >= MOST_UNVERIFIED] = 1
            verified = {r.client: r.epochs for r in answers.accepted if r.client in visited}
            state = replace(
                state,
                pace=pace,
                unchecked=unchecked,
                inspections=inspections,
                suspended=suspended,
                unverified=unverified,
                withheld=withheld,
                largest_costs=with_verified(
                    state.largest_costs, offer.terms, verified, self.epoch_limits
                ),
            )
        return super().combine(state, answers)

    def sizes(self, samples: Ints | Floats, clients: Ints) -> Floats:
        """Return what data sizes count for, none beyond what the others' make plausible."""
        return super().sizes(capped_samples(samples, self.weight_cap), clients)

    def loss_factors(self, losses: Floats, decay_factor: float) -> Floats:
        """Return what losses count for, none beyond what the others' make plausible."""
        return super().loss_factors(capped_losses(losses), decay_factor)

    def _paces(
        self, state: HonestState, offer: Offer, answers: tuple[Report, ...]
    ) -> Mapping[int, float]:
        terms = {own.client: own for own in offer.terms}
        batch, factor = self.plan.batch_size, self.plan.factor(offer.round)
        return {
            report.client: pace_of(
                report,
                terms[report.client],
                state.params,
                batch,
                int(state.samples[report.client]) if _introduced(state) else report.samples,
            )
            / factor
            for report in answers
            if report.params is not None
        }

    def _plausible(
        self, state: HonestState, offer: Offer, answers: tuple[Report, ...]
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Return the epochs that each answer looks like, at most those claimed, and to be credited.

        The latter are fewer for an update that is too long.
        """
        paces = self._paces(state, offer, answers)
        recent = (state.heard >= offer.round - RECENT_ROUNDS) & (state.heard > 0)
        earlier = np.where(recent, state.pace, np.nan)
        looks, plausible = {}, {}
        for report in answers:
            known, own = earlier.copy(), float(earlier[report.client])
            known[list(paces)] = list(paces.values())
            known[report.client] = np.nan
            others, pace = known[np.isfinite(known)], paces.get(report.client, 0.0)
            epochs = looks_like(report.epochs, pace, others, own)
            looks[report.client] = epochs
            plausible[report.client] = epochs * believed_share(pace, others, own)
        return looks, plausible

    def _inspected(
        self,
        state: HonestState,
        offer: Offer,
        answers: tuple[Report, ...],
        plausible: Mapping[int, float],
        inspect: Inspect | None,
    ) -> tuple[dict[int, str], dict[int, str]]:
        """Return what inspections found wrong with answers, and why others found out nothing.

        An empty text of the first is an answer that was verified.
        """
        visited = [
            (self._claimed(terms, report), report)
            for terms, report in zip(offer.terms, answers, strict=True)
            if report.params is not None
            and (
                report.client in offer.inspected
                or self._misstates(state, report)
                or plausible[report.client] < report.epochs
                or report.epochs
                > proven_epochs(terms, state.largest_costs[report.client], self.epoch_limits)
            )
        ]
        if inspect is None or self.inspection_rate == 0 or not visited:
            return {}, {}
        verdicts, failed = {}, {}
        found = {truth.client: truth for truth in inspect([task for task, _ in visited])}
        for _, report in visited:
            truth = found.get(report.client)
            if why := inspector_failure(report, truth):
                failed[report.client] = why
            elif truth is not None:
                verdicts[report.client] = difference(report, truth, state.params)
        return verdicts, failed

    def _misstates(self, state: HonestState, report: Report) -> bool:
        """Return whether a client names other samples than when it introduced itself."""
        return _introduced(state) and report.samples != state.samples[report.client]

    def _released(self, state: HonestState, terms: Terms, epochs: float) -> float:
        """Return the epochs of unverified answers that are paid for now that one was verified."""
        client, rate = terms.client, _rate(terms)
        if not (state.withheld[client] > 0 and rate > 0):
            return 0.0
        return float(min(state.withheld[client] / rate, state.unverified[client] * epochs))

    def _claimed(self, terms: Terms, report: Report) -> LocalTask:
        """Return the work that a report says was done."""
        nobody = Profile(report.client, math.nan, report.samples)
        return replace(Strategy.respond(self, terms, nobody), epochs=report.epochs)

    def _fine(self, state: HonestState, terms: Terms, epochs: float) -> float:
        rate = self.inspection_rate
        factor = (1 - rate) / rate if isinstance(self.fine, str) else self.fine
        earned = _rate(terms) * epochs
        return factor * earned + float(state.unchecked[terms.client])


def _rate(terms: Terms) -> float:
    """Return what an epoch earns, γ ω."""
    return terms.decay_factor * terms.contribution


def _introduced(state: HonestState) -> bool:
    """Return whether clients said how many samples they have; else they have one sample each."""
    return bool((state.samples > 1).any())

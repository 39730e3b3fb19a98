"""FLamma-honest: FLamma-plus for clients that may lie, so that honesty is best for them.

What a client is offered depends on the others alone, its cost is never asked for, and what it
claims to have done is compared with what it sent, and with what inspections have shown; see
:mod:`flamma.strategies.flamma_honest`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np

from flamma.contributions import CONTRIBUTIONS
from flamma.game import Game, best_response
from flamma.game.costs import cost_interval
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.numerics import norm, power
from flamma.registry import Between, Choice, at_least
from flamma.strategies.base import (
    Inspect,
    Needs,
    Offer,
    Round,
    Strategy,
    Verdict,
    model_of,
)
from flamma.strategies.flamma_plus import PlusState, PlusStrategy
from flamma.types import Floats, Ints, LocalWork, Params, Population, Profile, Terms, Update

# Inspections: whose claimed work is done once more at the client, and what that finds out.
#
# Training is the same to the last bit on every machine, so an inspector at the client can repeat
# the claimed work and compare. An answer is inspected
#
# - if the client was never inspected before,
# - by chance, which the client is not told,
# - if it claims more epochs than inspected work proves: a client that did τ epochs at a rate of pay
#   γ ω has a cost of at most γ ω / (2 τ - 1), and does at least the best response at that cost for
#   every other rate. So whoever claims more epochs than are best for it is inspected, always,
# - if its update is implausibly short or long for what it claims, or it names other samples than
#   the client introduced itself with,
# - if the client's last inspection failed.
#
# An inspection that fails (the inspector is late, or its training ends with an error or with
# numbers that are not finite) verifies nothing. The answer is not used, its pay is withheld, and
# the client's next answer is inspected. Once an inspection succeeds the withheld pay is paid, for
# each answer at most what the verified one earns. After three failed inspections in a row the
# client is not selected any more, and nothing is paid.

_SAME_UPDATE = 1e-3
"""How far an update may be from the inspector's, as a share of its length: torch rounds."""

_MOST_UNVERIFIED = 3
"""After so many failed inspections in a row a client is not selected any more."""


def proven_epochs(terms: Terms, largest_cost: float, epoch_bounds: tuple[int, int]) -> int:
    """Return the epochs that are best for a client of the largest cost it may have."""
    if not math.isfinite(largest_cost):
        return 0
    cost = float(np.clip(largest_cost, SMALLEST_COST, LARGEST_COST))
    game = Game([terms.contribution], [cost], epoch_bounds=epoch_bounds)
    return int(best_response(game, terms.decay_factor)[0])


def with_verified(
    largest_costs: Floats,
    terms: Sequence[Terms],
    verified: Mapping[int, int],
    epoch_bounds: tuple[int, int],
) -> Floats:
    """Return the largest costs that clients may have, now that these epochs were verified."""
    found = largest_costs.copy()
    for own in terms:
        if own.client in verified:
            pull = np.array([own.decay_factor * own.contribution])
            epochs = np.array([float(verified[own.client])])
            _, [at_most], _ = cost_interval(pull, epochs, epoch_bounds, whole=True)
            found[own.client] = min(found[own.client], at_most)
    return found


def _inspector_failure(update: Update, truth: Update | None) -> str:
    """Return why an inspection cannot tell whether a report is true; empty if it can."""
    if truth is None or truth.params is None or truth.failure:
        return (truth and truth.failure) or "no result"
    if update.params is None or truth.params.shape != update.params.shape:
        return "weights of another shape"
    if truth.samples < 1:
        return "no samples"
    if not np.isfinite(truth.params).all():
        return "weights that are not finite"
    if math.isfinite(update.loss) and not math.isfinite(truth.loss):
        return "no loss to compare"
    return ""


def difference(update: Update, truth: Update, received: Params) -> str:
    """Return how a report differs from what the inspector got; empty if it does not."""
    if update.samples > truth.samples:
        return f"inspected: it has {truth.samples} samples, not {update.samples}"
    verified = model_of(truth)
    moved = norm(verified - received)
    if norm(model_of(update) - verified) > _SAME_UPDATE * moved:
        return f"inspected: its update is not that of {update.epochs} epochs on its data"
    if update.loss > truth.loss * (1 + _SAME_UPDATE):
        return f"inspected: its loss is {truth.loss:.4g}, not {update.loss:.4g}"
    return ""


# Is an answer plausible? Compares work claimed with how far an update went, losses with others'.
#
# With plain SGD the length of an update grows with the steps taken, less than in proportion. How
# far a client gets per unit of that, its pace, is compared with that of other clients and with
# its own earlier one. An update that is much too short for the epochs claimed is credited with as
# many epochs as it looks like, and one that is much too long with the fewer epochs the longer it
# is. Steps are counted by the samples with which the client introduced itself, not by those that
# an answer names.

_WORK_EXPONENT = 0.7
"""The length of an update grows about as steps^0.7: less than straight on, more than at random."""

_PLAUSIBLE_PACE = 1 / 3
"""The share of the others' median pace, or of its own, below which an update is too short."""

_IMPLAUSIBLE_PACE = 8.0
"""The multiple of the others' median pace, or else of its own, above which an update is too long.
Of 2,160 honest answers on digits (IID, two and one classes per client) the largest had 7.5."""

_FEWEST_PACES = 2
"""How many other clients' paces it takes to judge one."""

_RECENT_ROUNDS = 10
"""For how many rounds a pace can be compared: updates get shorter as the model gets better."""


def pace_of(update: Update, terms: Terms, received: Params, batch_size: int, samples: int) -> float:
    """Return how far an update went per unit of the work that is claimed; NaN without a step.

    ``samples`` are those with which the client introduced itself.
    """
    assert update.params is not None
    steps = update.epochs * -(-samples // batch_size)
    if steps < 1 or not terms.step_scale > 0:
        return math.nan
    with np.errstate(over="ignore"):
        length = norm(update.params - received)
    return length / (terms.step_scale * float(power(np.array(float(steps)), _WORK_EXPONENT)))


def looks_like(epochs: int, pace: float, others: Floats, own: float) -> float:
    """Return the epochs that an update of this pace looks like, at most those claimed.

    Parameters
    ----------
    epochs : int
        The epochs claimed.
    pace : float
        As if they had been done.
    others : ndarray
        Recent paces of other clients.
    own : float
        The client's own earlier one, NaN if there is none.
    """
    least = _PLAUSIBLE_PACE * max(_expected(others, own), default=0.0)
    if not math.isfinite(pace) or pace >= least:
        return float(epochs)
    return epochs * float(power(np.array(pace / least), 1 / _WORK_EXPONENT))


def believed_share(pace: float, others: Floats, own: float) -> float:
    """Return the share of its epochs that an update is credited with: below 1 if it is too long.

    The arguments are those of :func:`looks_like`. To have been long before is no excuse, so a
    client's own earlier pace counts only where there are too few others.
    """
    expected = _expected(others, own)
    most = _IMPLAUSIBLE_PACE * expected[0] if expected else math.inf
    if math.isnan(pace) or pace <= most:
        return 1.0
    return float(power(np.array(most / pace), 1 / _WORK_EXPONENT))


def _expected(others: Floats, own: float) -> list[float]:
    """Return the paces to compare with: the others' median, and the client's own earlier one."""
    usual = [float(np.median(others))] if others.size >= _FEWEST_PACES else []
    return usual + ([own] if math.isfinite(own) else [])


def capped_samples(samples: Ints | Floats, most: float) -> Floats:
    """Return data sizes of at most a multiple of their median, so that no claim counts for all."""
    return np.minimum(samples.astype(np.float64), most * float(np.median(samples)))


def capped_losses(losses: Floats) -> Floats:
    """Return losses with the largest one counting at most as the largest of the others."""
    told = np.flatnonzero(np.isfinite(losses))
    if told.size < 2:
        return losses
    second = np.partition(losses[told], told.size - 2)[told.size - 2]
    return np.where(np.isfinite(losses), np.minimum(losses, second), losses)


@dataclass(frozen=True, eq=False, kw_only=True)
class _HonestState(PlusState):
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
class FlammaHonest(PlusStrategy[_HonestState]):
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
    inspection_rate: Annotated[float, Between(0, 1)] = 0.1
    fine: Annotated[float | Literal["deterring"], at_least(0)] = "deterring"
    weight_cap: Annotated[float, at_least(1)] = 3.0

    name: ClassVar[str] = "flamma-honest"
    label: ClassVar[str] = "FLamma-honest"
    summary: ClassVar[str] = "FLamma for clients that may lie: offers without one's own say"
    family: ClassVar[str] = "flamma"
    needs: ClassVar[Needs] = Needs(server_reads="plain")

    def init(self, params: Params, population: Population) -> _HonestState:
        """Start without having heard from any client, and without trust in any."""
        n = population.clients
        make = partial(
            _HonestState,
            pace=np.full(n, np.nan),
            inspections=np.zeros(n, dtype=np.int64),
            unchecked=np.zeros(n),
            suspended=np.zeros(n, dtype=np.int64),
            largest_costs=np.full(n, np.inf),
            unverified=np.zeros(n, dtype=np.int64),
            withheld=np.zeros(n),
        )
        return self.first_state(make, params, population)

    def offer(self, state: _HonestState, available: Ints, rng: np.random.Generator) -> Offer:
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
        state: _HonestState,
        offer: Offer,
        answers: tuple[Update, ...],
        inspect: Inspect | None,
    ) -> Verdict:
        """Inspect what is doubtful, refuse and fine what is disproved, credit what is plausible.

        Where nobody can inspect, an answer is credited with the work that it looks like. Where an
        inspection fails, the answer is neither used nor paid for until a later one succeeds.
        """
        if offer.game is None:
            return Verdict(answers)
        looks, plausible = self._plausible(state, offer, answers)
        inspected, failed = self._inspected(state, offer, answers, plausible, inspect)
        credited, flags, fines, kept = [], {}, {}, []
        for terms, update in zip(offer.terms, answers, strict=True):
            client, epochs = update.client, float(update.epochs)
            introduced = int(state.samples[client])
            if update.params is not None and self._misstates(state, update):
                flags[client] = f"{update.samples} samples of a client that had {introduced}"
                update = replace(update, samples=introduced)
            if why := failed.get(client, ""):
                flags[client] = f"unverified: its inspection failed ({why})"
                update, epochs = replace(update, params=None, failure=flags[client]), 0.0
            elif reason := inspected.get(client, ""):
                flags[client], fines[client] = reason, self._fine(state, terms, looks[client])
                update, epochs = replace(update, params=None, epochs=0, failure=reason), 0.0
            elif client in inspected:
                epochs += self._released(state, terms, epochs)
            elif plausible[client] < epochs:
                epochs = plausible[client]
                flags[client] = f"{update.epochs} epochs claimed look like {epochs:.2g}"
                if epochs < looks[client]:
                    flags[client] = f"its update is too long for {update.epochs} epochs"
            credited.append(epochs)
            kept.append(update)
        return Verdict(tuple(kept), tuple(credited), fines, flags, tuple(inspected), tuple(failed))

    def step(self, state: _HonestState, round: Round) -> _HonestState:
        """Remember paces, inspections, earnings and who was caught."""
        offer, verdict = round.offer, round.verdict
        if offer.game is not None and verdict.credited is not None:
            pace, unchecked = state.pace.copy(), state.unchecked.copy()
            inspections, suspended = state.inspections.copy(), state.suspended.copy()
            for terms, epochs in zip(offer.terms, verdict.credited, strict=True):
                unchecked[terms.client] += _rate(terms) * epochs
            for client, own in self._paces(state, offer, round.updates).items():
                pace[client] = own
            visited, failed = list(verdict.inspected), list(verdict.unverified)
            inspections[visited] += 1
            unchecked[visited] = 0.0
            unverified, withheld = state.unverified.copy(), state.withheld.copy()
            unverified[failed] += 1
            for terms, update in zip(offer.terms, verdict.updates, strict=True):
                if terms.client in failed:
                    withheld[terms.client] += _rate(terms) * update.epochs
            unverified[visited], withheld[visited] = 0, 0.0
            suspended[list(verdict.fines)] = 1
            suspended[unverified >= _MOST_UNVERIFIED] = 1
            verified = {r.client: r.epochs for r in round.updates if r.client in visited}
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
        return super().step(state, round)

    def sizes(self, samples: Ints | Floats, clients: Ints) -> Floats:
        """Return what data sizes count for, none beyond what the others' make plausible."""
        return super().sizes(capped_samples(samples, self.weight_cap), clients)

    def loss_factors(self, losses: Floats, decay_factor: float) -> Floats:
        """Return what losses count for, none beyond what the others' make plausible."""
        return super().loss_factors(capped_losses(losses), decay_factor)

    def _paces(
        self, state: _HonestState, offer: Offer, answers: tuple[Update, ...]
    ) -> Mapping[int, float]:
        terms = {own.client: own for own in offer.terms}
        batch, factor = self.plan.batch_size, self.plan.factor(offer.round)
        return {
            update.client: pace_of(
                update,
                terms[update.client],
                state.params,
                batch,
                int(state.samples[update.client]) if _introduced(state) else update.samples,
            )
            / factor
            for update in answers
            if update.params is not None
        }

    def _plausible(
        self, state: _HonestState, offer: Offer, answers: tuple[Update, ...]
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Return the epochs that each answer looks like, at most those claimed, and to be credited.

        The latter are fewer for an update that is too long.
        """
        paces = self._paces(state, offer, answers)
        recent = (state.heard >= offer.round - _RECENT_ROUNDS) & (state.heard > 0)
        earlier = np.where(recent, state.pace, np.nan)
        looks, plausible = {}, {}
        for update in answers:
            known, own = earlier.copy(), float(earlier[update.client])
            known[list(paces)] = list(paces.values())
            known[update.client] = np.nan
            others, pace = known[np.isfinite(known)], paces.get(update.client, 0.0)
            epochs = looks_like(update.epochs, pace, others, own)
            looks[update.client] = epochs
            plausible[update.client] = epochs * believed_share(pace, others, own)
        return looks, plausible

    def _inspected(
        self,
        state: _HonestState,
        offer: Offer,
        answers: tuple[Update, ...],
        plausible: Mapping[int, float],
        inspect: Inspect | None,
    ) -> tuple[dict[int, str], dict[int, str]]:
        """Return what inspections found wrong with answers, and why others found out nothing.

        An empty text of the first is an answer that was verified.
        """
        visited = [
            (self._claimed(terms, update), update)
            for terms, update in zip(offer.terms, answers, strict=True)
            if update.params is not None
            and (
                update.client in offer.inspected
                or self._misstates(state, update)
                or plausible[update.client] < update.epochs
                or update.epochs
                > proven_epochs(terms, state.largest_costs[update.client], self.epoch_limits)
            )
        ]
        if inspect is None or self.inspection_rate == 0 or not visited:
            return {}, {}
        verdicts, failed = {}, {}
        found = {truth.client: truth for truth in inspect([task for task, _ in visited])}
        for _, update in visited:
            truth = found.get(update.client)
            if why := _inspector_failure(update, truth):
                failed[update.client] = why
            elif truth is not None:
                verdicts[update.client] = difference(update, truth, state.params)
        return verdicts, failed

    def _misstates(self, state: _HonestState, update: Update) -> bool:
        """Return whether a client names other samples than when it introduced itself."""
        return _introduced(state) and update.samples != state.samples[update.client]

    def _released(self, state: _HonestState, terms: Terms, epochs: float) -> float:
        """Return the epochs of unverified answers that are paid for now that one was verified."""
        client, rate = terms.client, _rate(terms)
        if not (state.withheld[client] > 0 and rate > 0):
            return 0.0
        return float(min(state.withheld[client] / rate, state.unverified[client] * epochs))

    def _claimed(self, terms: Terms, update: Update) -> LocalWork:
        """Return the work that a report says was done."""
        nobody = Profile(update.client, math.nan, update.samples)
        return replace(Strategy.respond(self, terms, nobody), epochs=update.epochs)

    def _fine(self, state: _HonestState, terms: Terms, epochs: float) -> float:
        rate = self.inspection_rate
        factor = (1 - rate) / rate if isinstance(self.fine, str) else self.fine
        earned = _rate(terms) * epochs
        return factor * earned + float(state.unchecked[terms.client])


def _rate(terms: Terms) -> float:
    """Return what an epoch earns, γ ω."""
    return terms.decay_factor * terms.contribution


def _introduced(state: _HonestState) -> bool:
    """Return whether clients said how many samples they have; else they have one sample each."""
    return bool((state.samples > 1).any())

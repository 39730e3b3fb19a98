"""The contract every strategy keeps: pure functions over a state that can be saved.

``init`` makes the state, ``offer`` selects clients and sets each one's terms, ``respond`` runs on
the client and decides what it does, ``aggregate`` turns what came back into the next state. A
strategy never mutates itself or a state, and knows nothing of engines, files or terminals.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.game import Game
from flamma.types import (
    Floats,
    Ints,
    LocalTask,
    Params,
    Plan,
    Population,
    Profile,
    Report,
    RoundOutcome,
    Terms,
)

MOST_EPOCHS = 1_000_000
"""More local epochs than anybody does in a round; who claims more is not believed."""

Judge = Callable[[Params], tuple[float, float]]
"""Scores weights on the server's own validation set: (loss, accuracy in percent)."""


@dataclass(frozen=True, eq=False)
class State:
    """What a strategy remembers between rounds: arrays and numbers only, so it can be saved.

    ``round`` is the last finished round, -1 before a warm-up.
    """

    params: Params
    round: int
    samples: Ints


@dataclass(frozen=True, eq=False)
class Offer:
    """Who is selected, in client order, on which terms, and the game the server has solved."""

    round: int
    terms: tuple[Terms, ...]
    decay_factor: float = 1.0
    game: Game | None = None

    @property
    def selected(self) -> tuple[int, ...]:
        """The selected clients, in order."""
        return tuple(terms.client for terms in self.terms)


@dataclass(frozen=True, eq=False)
class Answers:
    """What came back in a round: the usable reports in client order, and who abstained.

    ``judge`` scores weights on the server's validation set; None where there is none.
    """

    offer: Offer
    accepted: tuple[Report, ...]
    abstained: tuple[int, ...]
    judge: Judge | None = None


@dataclass(frozen=True)
class Strategy(ABC):
    """One federated algorithm. A new one overrides what differs from FedAvg, and nothing else."""

    plan: Plan

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needs_validation: ClassVar[bool] = False
    pools_data: ClassVar[bool] = False

    def init(self, params: Params, population: Population) -> State:
        """Return the state before the first round."""
        return State(params, 0, population.samples)

    @abstractmethod
    def offer(self, state: State, available: Ints, rng: np.random.Generator) -> Offer:
        """Select among the available clients and say on which terms."""

    def respond(self, terms: Terms, profile: Profile) -> LocalTask:
        """Decide, on the client, what it does: here the epochs that the plan fixes."""
        return LocalTask(
            client=terms.client,
            round=terms.round,
            epochs=self.plan.epochs if terms.epochs is None else terms.epochs,
            iterations=terms.iterations,
            learning_rate=self.plan.learning_rate * terms.step_scale,
            proximal=terms.proximal,
            wants_loss=terms.wants_loss,
        )

    def epoch_range(self, terms: Terms) -> tuple[int, int]:
        """Return the fewest and the most epochs that a client may report with its weights.

        Where clients decide as :meth:`respond` does here, there is one number. A strategy that
        lets them choose says how far. Terms that count mini-batches say nothing of epochs.
        """
        if terms.iterations is not None or type(self).respond is not Strategy.respond:
            return 0, MOST_EPOCHS
        fixed = self.plan.epochs if terms.epochs is None else terms.epochs
        return fixed, fixed

    def aggregate(
        self, state: State, offer: Offer, reports: Sequence[Report], judge: Judge | None = None
    ) -> tuple[State, RoundOutcome]:
        """Return the state after the round, and what came of it.

        Reports may come in any order and are reduced in client order. An update that is not
        finite, or not of the model's size, or of epochs that were not on offer, is left out and
        recorded with its reason.
        """
        answers = [
            _inspected(report, state.params.size, self.epoch_range(terms))
            for report, terms in zip(_one_each(offer, reports), offer.terms, strict=True)
        ]
        accepted = tuple(r for r in answers if r.params is not None)
        abstained = tuple(r.client for r in answers if r.abstained)
        after = self.combine(state, Answers(offer, accepted, abstained, judge))
        outcome = RoundOutcome(
            round=offer.round,
            selected=offer.selected,
            abstained=abstained,
            failed={r.client: r.failure for r in answers if r.failure},
            local_epochs=tuple(r.epochs for r in answers),
            decay_factor=offer.decay_factor,
            contributions=tuple(terms.contribution for terms in offer.terms),
        )
        return replace(after, round=offer.round), outcome

    @abstractmethod
    def combine(self, state: State, answers: Answers) -> State:
        """Return the next state; without accepted reports the weights stay as they are."""


def uniform_choice(available: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Return ``count`` of the available clients (all if there are fewer), in order."""
    return np.sort(rng.choice(available, size=min(count, available.size), replace=False))


def largest(values: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Return the places of the ``count`` largest values, ties broken at random."""
    bar = np.partition(values, values.size - count)[values.size - count]
    above = np.flatnonzero(values > bar)
    ties = np.flatnonzero(values == bar)
    return np.concatenate((above, rng.choice(ties, count - above.size, replace=False)))


def weighted_mean(accepted: Sequence[Report], weights: Sequence[float]) -> Params:
    """Return Σ p_k w_k with p in proportion to the weights, summed in double precision."""
    total = math.fsum(weights)
    mean = np.zeros(_params(accepted[0]).size)
    for report, weight in zip(accepted, weights, strict=True):
        mean += (weight / total) * _params(report)
    return mean.astype(np.float32)


def data_shares(accepted: Sequence[Report]) -> list[float]:
    """Return each report's number of training samples, the weights of FedAvg."""
    return [float(report.samples) for report in accepted]


def _params(report: Report) -> Params:
    assert report.params is not None
    return report.params


def _one_each(offer: Offer, reports: Sequence[Report]) -> list[Report]:
    """Return one report for each selected client, in order; who sent nothing is not forgotten."""
    by_client: dict[int, Report] = {}
    for report in sorted(reports, key=lambda r: r.client):
        by_client.setdefault(report.client, report)
    missing = "no answer"
    return [
        by_client.get(c) or Report(c, params=None, samples=0, epochs=0, failure=missing)
        for c in offer.selected
    ]


def _inspected(report: Report, size: int, epochs: tuple[int, int]) -> Report:
    """Return the report as it is, or without its weights and with the reason.

    The epochs of a refused report are not to be believed either: they become 0.
    """
    reason = ""
    fewest, most = epochs
    if report.failure:
        return replace(report, params=None)
    if report.params is None:
        return replace(report, epochs=0)
    if report.params.shape != (size,) or report.params.dtype != np.float32:
        reason = f"refused: {report.params.dtype} weights of shape {report.params.shape}"
    elif not np.isfinite(report.params).all():
        reason = "refused: weights that are not finite"
    elif report.samples <= 0:
        reason = f"refused: {report.samples} samples"
    elif not fewest <= report.epochs <= most:
        allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        reason = f"refused: {report.epochs} epochs where {allowed} were on offer"
    elif report.loss < 0:
        reason = f"refused: a loss of {report.loss:g}"
    return replace(report, params=None, epochs=0, failure=reason) if reason else report

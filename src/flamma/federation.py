"""The round loop: the same for every strategy and every engine, on one screen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from flamma import metrics
from flamma.clients.faults import Faults
from flamma.game import certify, client_utility, server_utility
from flamma.seeding import stream
from flamma.strategies.base import Offer, State, Strategy
from flamma.types import Floats, Params, Report, RoundOutcome, Scores, Terms


class Clients(Protocol):
    """Where the clients are, however near or far: they answer terms, and judge a model."""

    def play(self, params: Params, terms: Sequence[Terms]) -> list[Report]:
        """Let each client respond to its terms and train; return what comes back."""

    def evaluate(self, params: Params) -> Scores:
        """Score the model on every client's own held-out data and on the test set."""

    def validate(self, params: Params) -> tuple[float, float]:
        """Score the model on the server's validation set: loss, and accuracy in percent."""


@runtime_checkable
class FarClients(Clients, Protocol):
    """Clients to whom the way is long, so that they judge the model they are sent to train.

    The scores of a round then come with the answers of the next one, in one message each.
    """

    def play_and_evaluate(
        self, params: Params, terms: Sequence[Terms]
    ) -> tuple[list[Report], Scores]:
        """Do what ``play`` and ``evaluate`` do, with the same weights and at one go."""


@dataclass(frozen=True, eq=False)
class Finished:
    """One finished round: the state to go on from, its record, and the scores if judged."""

    state: State
    record: dict[str, Any]
    scores: Scores | None


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything a run needs besides its state.

    ``costs`` are the clients' true ones, for the certificate; None where nobody knows them, NaN
    where one is not known.
    """

    strategy: Strategy
    clients: Clients
    population: int
    costs: Floats | None
    seed: int
    faults: Faults = field(default_factory=Faults)
    evaluate_every: int = 1

    def rounds(self, state: State) -> Iterator[Finished]:
        """Go on from a state until the plan's last round, yielding every finished round."""
        warmup: dict[str, Any] | None = None
        unjudged: _Unjudged | None = None
        while state.round < self.strategy.plan.rounds:
            started = time.perf_counter()
            number = state.round + 1
            present = np.flatnonzero(self.faults.available(self.seed, number, self.population))
            rng = stream(self.seed, "select", number)
            offer = self.strategy.offer(state, present, rng)
            offered = time.perf_counter()
            reports, scores = self._answers(state.params, offer, judge=unjudged is not None)
            trained = time.perf_counter()
            if unjudged:
                yield unjudged.finished(scores)
                unjudged = None
            resumed = time.perf_counter()
            judge = self.clients.validate if self.strategy.needs_validation else None
            state, outcome = self.strategy.aggregate(state, offer, reports, judge)
            last: dict[str, Any] = {
                "seconds_train": trained - offered,
                "seconds_evaluate": 0.0,
                "seconds": trained - started,
            }
            if offer.round > 0 and warmup:
                last["warmup"], warmup = warmup, None
            done = _Unjudged(
                state,
                describe(outcome),
                {
                    **certificate(offer, outcome, self.costs),
                    **_traffic(outcome, state.params),
                    **last,
                },
            )
            due, scores = self._due(offer.round), None
            if due and isinstance(self.clients, FarClients) and number < self.strategy.plan.rounds:
                unjudged = done
            elif due:
                begun = time.perf_counter()
                scores = self.clients.evaluate(state.params)
                done.last["seconds_evaluate"] = time.perf_counter() - begun
            done.last["seconds"] += time.perf_counter() - resumed
            if offer.round == 0:  # told with the first round, so that there is one line a round
                record = done.finished(None).record
                warmup = {
                    **{key: record[key] for key in ("failed", "bytes_up", "bytes_down", "seconds")},
                    "epochs": self._warmup_epochs(offer, outcome, state),
                }
            elif not unjudged:
                yield done.finished(scores)

    def _warmup_epochs(self, offer: Offer, outcome: RoundOutcome, state: State) -> float:
        """Return the work of a warm-up in epochs, so that it can be counted with the rest."""
        batch = self.strategy.plan.batch_size
        return sum(
            (terms.iterations or 0) * min(batch, own) / own
            for terms in offer.terms
            if terms.client not in outcome.failed and (own := int(state.samples[terms.client]))
        )

    def _due(self, number: int) -> bool:
        last = number == self.strategy.plan.rounds
        return number > 0 and (number % self.evaluate_every == 0 or last)

    def _answers(
        self, params: Params, offer: Offer, judge: bool
    ) -> tuple[list[Report], Scores | None]:
        """Let the clients play, but for those whom simulated faults keep from answering."""
        number, selected = offer.round, np.array(offer.selected, dtype=np.int64)
        late = self.faults.late(self.seed, number, selected)
        fails = self.faults.fails(self.seed, number, selected)
        reasons = {
            int(client): "late (simulated)" if is_late else "failed (simulated)"
            for client, is_late, is_broken in zip(selected, late, fails, strict=True)
            if is_late or is_broken
        }
        kept = [terms for terms in offer.terms if terms.client not in reasons]
        lost = [Report(c, None, 0, 0, failure=reason) for c, reason in reasons.items()]
        if judge and isinstance(self.clients, FarClients):
            reports, scores = self.clients.play_and_evaluate(params, kept)
            return [*reports, *lost], scores
        return [*self.clients.play(params, kept), *lost], None


CERTIFICATE = (
    "follower_gap",
    "leader_regret",
    "leader_regret_uncertainty",
    "individual_rationality_slack",
    "server_utility",
    "client_utilities",
    "price",
)


def certificate(offer: Offer, outcome: RoundOutcome, costs: Floats | None) -> dict[str, Any]:
    """Certify the game of those who answered, with their true costs where they are known.

    Everything is None where there was no game, or nobody answered.
    """
    answered = [k for k, c in enumerate(outcome.selected) if c not in outcome.failed]
    if offer.game is None or not answered:
        return dict.fromkeys(CERTIFICATE)
    taken = offer.game.costs[answered]
    true = taken if costs is None else costs[np.array(outcome.selected)[answered]]
    game = offer.game.replace(
        contributions=offer.game.contributions[answered],
        costs=np.where(np.isnan(true), taken, true),
        whole_epochs=True,  # what clients really play, whatever the server took it for
    )
    epochs = np.array(outcome.local_epochs)[answered]
    gamma = outcome.decay_factor
    found = certify(game, gamma, epochs)
    utilities: list[float | None] = [None] * len(outcome.selected)
    for k, utility in zip(answered, client_utility(game, gamma, epochs), strict=True):
        utilities[k] = float(utility)
    return {
        "follower_gap": found.follower_gap,
        "leader_regret": found.leader_regret,
        "leader_regret_uncertainty": found.leader_regret_uncertainty,
        "individual_rationality_slack": found.individual_rationality_slack,
        "server_utility": float(server_utility(game, gamma, epochs)),
        "client_utilities": utilities,
        "price": game.price,
    }


@dataclass(frozen=True, eq=False)
class _Unjudged:
    """A round whose model is yet to be judged: its state, and its record in two parts."""

    state: State
    first: dict[str, Any]
    last: dict[str, Any]

    def finished(self, scores: Scores | None) -> Finished:
        return Finished(self.state, {**self.first, **_judgement(scores), **self.last}, scores)


def describe(outcome: RoundOutcome) -> dict[str, Any]:
    """Return what happened in a round as a record has it."""
    failed = outcome.failed
    done = [
        0 if c in failed else e for c, e in zip(outcome.selected, outcome.local_epochs, strict=True)
    ]
    known = [omega for omega in outcome.contributions if omega == omega]
    return {
        "round": outcome.round,
        "selected": list(outcome.selected),
        "abstained": list(outcome.abstained),
        "failed": {str(client): reason for client, reason in failed.items()},
        "decay_factor": outcome.decay_factor,
        "local_epochs": list(outcome.local_epochs),
        "contributions": list(outcome.contributions) if known else None,
        "epochs_total": sum(done),
    }


def _judgement(scores: Scores | None) -> dict[str, Any]:
    if scores is None:
        return dict.fromkeys(("accuracy", "test_accuracy", "accuracy_variance", "loss"))
    summary = metrics.summarise(scores.accuracy, scores.samples)
    scored = scores.loss[~np.isnan(scores.accuracy)]
    return {name: _finite(value) for name, value in summary.items()} | {
        "test_accuracy": _finite(scores.test_accuracy),
        "loss": _finite(float(np.mean(scored))) if scored.size else None,
        **_unscored(scores),
    }


def _unscored(scores: Scores) -> dict[str, Any]:
    """Return who gave no score and why, so that nobody takes the mean for that of all."""
    missing = {str(client): reason for client, reason in sorted(scores.missing.items())}
    return {"unscored": missing} if missing else {}


def _finite(value: float) -> float | None:
    """Return the value, or None where JSON has no number for it."""
    return float(value) if np.isfinite(value) else None


def _traffic(outcome: RoundOutcome, params: Params) -> dict[str, int]:
    answered = len(outcome.selected) - len(outcome.failed) - len(outcome.abstained)
    return {
        "bytes_up": answered * params.nbytes,
        "bytes_down": len(outcome.selected) * params.nbytes,
    }

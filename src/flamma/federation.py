"""The rounds of a run: the same loop for every strategy and every engine.

A round has four moves. The strategy makes an *offer*: which clients, on which terms. The clients
answer the *broadcast* model with *updates*. The strategy *aggregates* these into its next state.
The clients *evaluate* the new model. All else here is about who fails to answer, and what is
written down: a strategy is a pure function of its state, so a run goes on from any saved one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, Protocol

import numpy as np

from flamma.clients.time import Faults, Traffic, VirtualClock
from flamma.clients.truth import TrueClients
from flamma.errors import StrategyError
from flamma.game import certify, client_utility, server_utility
from flamma.metrics import evaluate
from flamma.privacy import PrivateRounds, losses_refused
from flamma.records import CostRecord, GameRecord, RoundRecord, Survey, Warmup
from flamma.seeding import stream
from flamma.strategies.asynchronous import AsyncState
from flamma.strategies.base import Offer, S, ServerSide, Strategy
from flamma.types import Broadcast, Floats, Ints, LocalWork, Params, Scores, Scoring, Terms, Update

# The round loop.


class Clients(Protocol):
    """Where the clients are, near or behind a network: they answer terms, and evaluate a model."""

    def play(self, broadcast: Broadcast, terms: Sequence[Terms]) -> list[Update]:
        """Let each client respond to its terms and train; return what comes back."""

    def evaluate(self, broadcast: Broadcast) -> Scoring:
        """Begin to score the model on every client's held-out data and on the test set."""

    def validate(self, params: Params) -> tuple[float, float]:
        """Score the model on the server's validation set: loss, and accuracy in percent."""

    def train_server(self, params: Params, task: LocalWork) -> Params:
        """Return the trainable weights after training on the server's validation set."""

    @property
    def inspect(self) -> Callable[[Params, Sequence[LocalWork]], list[Update]] | None:
        """What does claimed work once more at the clients; None where they cannot be visited."""


@dataclass(frozen=True, eq=False)
class FinishedRound(Generic[S]):
    """One finished round: the state to go on from, its record, and its evaluation if it is due."""

    state: S
    record: RoundRecord
    scoring: Scoring | None

    def evaluated(self) -> tuple[RoundRecord, Scores | None]:
        """Return the record with its evaluation, and the scores it was made from."""
        if self.scoring is None:
            return self.record, None
        begun = time.perf_counter()
        scores = self.scoring()
        waited = time.perf_counter() - begun
        cost = replace(
            self.record.cost,
            seconds_evaluate=self.record.cost.seconds_evaluate + waited,
            seconds=self.record.cost.seconds + waited,
        )
        return replace(self.record, evaluation=evaluate(scores), cost=cost), scores


@dataclass(frozen=True, eq=False)
class Federation(Generic[S]):
    """Everything a run needs besides its state.

    ``truth`` is what the clients are and do, for the record and the certificate: the costs are None
    where none is known, NaN where one is not. ``privacy`` is what stands between the clients'
    updates and the strategy, None where nothing does. ``clock`` tells the virtual time that clients
    take, None where there is none; an asynchronous strategy needs one.
    """

    strategy: Strategy[S]
    clients: Clients
    truth: TrueClients
    seed: int
    faults: Faults = field(default_factory=Faults)
    evaluate_every: int = 1
    privacy: PrivateRounds | None = None
    clock: VirtualClock | None = None

    def rounds(self, state: S, elapsed: float = 0.0) -> Iterator[FinishedRound[S]]:
        """Play every round after a state, and yield each one when it is finished.

        The caller records, checkpoints and decides when to stop. ``elapsed`` is the virtual time at
        the state.
        """
        strategy, clients, plan = self.strategy, self.clients, self.strategy.plan
        population, seed = self.truth.population, self.seed
        warmup: Warmup | None = None
        while state.round < plan.rounds:
            started, number = time.perf_counter(), state.round + 1
            available = np.flatnonzero(self.faults.available(seed, number, population.clients))

            state, survey, surveying = self._hear_losses(state, available)  # most ask for none
            state = self._advance(state, available)  # asynchronous strategies only
            offer = strategy.offer(state, available, stream(seed, "select", number))
            broadcast = strategy.broadcast(state)

            offered = time.perf_counter()
            failures = self._failures(broadcast, offer)
            updates = clients.play(broadcast, [t for t in offer.terms if t.client not in failures])
            updates += [Update.missing(client, reason) for client, reason in failures.items()]
            elapsed = self._elapsed(state, elapsed + surveying, broadcast, offer)
            trained = time.perf_counter()

            state, record = strategy.aggregate(state, offer, updates, self._server(state.params))
            record = self._with_traffic(record, broadcast, survey)
            record = self._with_true_efforts(record, offer, failures)
            record = certified(record, offer, population.costs)
            if number == 0:
                warmup = self._warmup(offer, record, state, time.perf_counter() - started)
                continue

            begun = time.perf_counter()
            due = number % self.evaluate_every == 0 or number == plan.rounds
            scoring = clients.evaluate(strategy.serving(state)) if due else None
            ended = time.perf_counter()
            cost = replace(
                record.cost,
                virtual_seconds=None if self.clock is None else elapsed,
                seconds_train=trained - offered,
                seconds_evaluate=ended - begun if scoring else 0.0,
                seconds=ended - started,
            )
            spent = None if self.privacy is None else self.privacy.spent(number)
            record = replace(record, warmup=warmup, privacy=spent, cost=cost)
            yield FinishedRound(state, record, scoring)
            warmup = None

    def _hear_losses(self, state: S, available: Ints) -> tuple[S, Survey | None, float]:
        """Return the state that knows the losses it asked for, who was asked, and its seconds."""
        number, strategy = state.round + 1, self.strategy
        asked = strategy.survey(state, available, stream(self.seed, "survey", number))
        if not asked.size:
            return state, None, 0.0
        terms = (Terms(int(c), number, report_loss="received", train=False) for c in asked)
        broadcast, offer = strategy.broadcast(state), Offer(number, tuple(terms))
        failed = self._failures(broadcast, offer)
        reachable = [terms for terms in offer.terms if terms.client not in failed]
        losses = {}
        for update in self.clients.play(broadcast, reachable):
            if not update.failure and math.isfinite(update.loss) and update.loss >= 0:
                losses[update.client] = update.loss
            else:
                reason = update.failure or f"refused: a loss of {update.loss:g}"
                failed[update.client] = reason
        survey = Survey(
            int(asked.size), dict(sorted(failed.items())), int(asked.size) * state.params.nbytes
        )
        seconds = self._elapsed(state, 0.0, broadcast, offer)
        return strategy.hear(state, dict(sorted(losses.items()))), survey, seconds

    def _server(self, received: Params) -> ServerSide:
        """Return what the server can do in a round in which clients received these weights.

        What an inspection finds at a client is not private, so there is none under privacy.
        """
        needs, clients, privacy = self.strategy.component_that_needs, self.clients, self.privacy
        inspector = None if privacy is not None else clients.inspect
        return ServerSide(
            validate=clients.validate if needs("validation") else None,
            train=clients.train_server if needs("server_update") else None,
            inspect=None if inspector is None else partial(inspector, received),
            release=None if privacy is None else privacy.release,
        )

    # Who answers an offer and when, by simulated faults and the virtual clock.

    def _advance(self, state: S, available: Ints) -> S:
        """Return the state in which clients have answered that need not wait for each other."""
        if not self.strategy.needs.clock:
            return state
        assert self.clock is not None
        waited, sent = self.clock.waited, self._traffic(self.strategy.broadcast(state))
        rng = stream(self.seed, "select", state.round + 1)
        return self.strategy.advance(state, available, rng, lambda terms: waited(terms, sent))

    def _failures(self, broadcast: Broadcast, offer: Offer) -> dict[int, str]:
        """Return who gives no answer by simulated faults or the virtual clock, and why."""
        asks = any(terms.report_loss != "no" for terms in offer.terms)
        if asks and self.privacy is not None:
            raise StrategyError(losses_refused(self.strategy.name))
        sent = self._traffic(broadcast)
        late = {} if self.clock is None else self.clock.late(offer.terms, sent)
        return late | self.faults.simulated_failures(self.seed, offer.round, offer.selected)

    def _elapsed(self, state: S, before: float, broadcast: Broadcast, offer: Offer) -> float:
        """Return the virtual time when the updates of an offer have come, from that before it."""
        if isinstance(state, AsyncState):
            return state.now
        if self.clock is None:
            return before
        failed = self.faults.simulated_failures(self.seed, offer.round, offer.selected)
        return before + self.clock.round_seconds(offer.terms, failed, self._traffic(broadcast))

    def _traffic(self, broadcast: Broadcast) -> Traffic:
        """Return the bytes of weights that one client receives, and those that it sends back."""
        if not self.strategy.needs.sends_models:
            return Traffic(0, 0)
        size = broadcast.params.nbytes
        return Traffic(size + (0 if broadcast.extra is None else broadcast.extra.nbytes), size)

    # What is recorded of a round beside what the strategy knows.

    def _with_traffic(
        self, record: RoundRecord, broadcast: Broadcast, survey: Survey | None
    ) -> RoundRecord:
        """Return the record with its traffic: vectors of weights, not the few numbers beside."""
        down, up = self._traffic(broadcast)
        surveyed = 0 if survey is None else survey.bytes_down
        cost = CostRecord(record.used * up, len(record.selected) * down + surveyed)
        return replace(record, survey=survey, cost=cost)

    def _with_true_efforts(
        self, record: RoundRecord, offer: Offer, failures: Mapping[int, str]
    ) -> RoundRecord:
        """Return the record with what clients really did, where some need not tell the truth.

        Those whom a simulated failure kept from answering did nothing.
        """
        if not self.truth.behaviours:
            return record
        present = tuple(client for client in offer.selected if client not in failures)
        done = [
            self.truth.effort(terms, present) if terms.client in present else None
            for terms in offer.terms
        ]
        efforts = zip(done, record.outcome.local_epochs, strict=True)
        true = tuple(float(t * t if e is None else e) for e, t in efforts)
        return replace(record, outcome=replace(record.outcome, efforts=true))

    def _warmup(self, offer: Offer, record: RoundRecord, state: S, seconds: float) -> Warmup:
        """Return what the warm-up took; its work in epochs, to be counted with the rest."""
        batch, outcome = self.strategy.plan.batch_size, record.outcome
        epochs = sum(
            done if terms.batches is None else terms.batches * min(batch, own) / own
            for terms, done in zip(offer.terms, outcome.local_epochs, strict=True)
            if terms.client not in outcome.failed and (own := int(state.samples[terms.client]))
        )
        sent = record.cost
        return Warmup(outcome.failed, sent.bytes_up, sent.bytes_down, seconds, epochs)


# The game of a round in its record, certified by what clients answered.


def certified(record: RoundRecord, offer: Offer, costs: Floats | None) -> RoundRecord:
    """Return the record with the game of the round, certified for the clients that answered.

    Their true costs are used where they are known. Where clients have decay factors of their own,
    each is measured by its own, and the leader's regret is what these cost the server against the
    best common one. Without a game, or without an answer, there is nothing to certify.
    """
    game, offered, outcome = offer.game, record.offer, record.outcome
    if game is None:
        paid = _paid_utilities(record, costs)
        return replace(record, outcome=replace(outcome, client_utilities=paid))
    told = GameRecord(
        price=game.price,
        decay_bounds=game.decay_bounds,
        epoch_bounds=game.epoch_bounds,
        whole_epochs=game.whole_epochs,
        costs=tuple(game.costs.tolist()),
        effective=offer.effective,
        measure=offer.measure,
    )
    answered = [k for k, c in enumerate(record.selected) if c not in outcome.failed]
    if not answered:
        return replace(record, game=told)
    taken = game.costs[answered]
    true = taken if costs is None else costs[np.array(record.selected)[answered]]
    played = game.replace(
        contributions=game.contributions[answered],
        costs=np.where(np.isnan(true), taken, true),
        whole_epochs=True,  # what clients really play, whatever the server solved for
    )
    epochs = np.array(outcome.local_epochs)[answered]
    own = offered.decay_factors is not None
    gamma = np.array(offered.decay_factors)[answered] if own else np.array(offered.decay_factor)
    utilities: list[float | None] = [None] * len(record.selected)
    worth = client_utility(played, gamma, epochs, one_each=own)
    for k, utility in zip(answered, worth, strict=True):
        utilities[k] = float(utility)
    if outcome.credited or outcome.efforts or outcome.fines:
        for k, cost in zip(answered, played.costs, strict=True):
            utilities[k] = record.payment(k) - float(cost) * record.effort(k)
    return replace(
        record,
        game=replace(
            told,
            certificate=certify(played, gamma, epochs),
            server_utility=float(server_utility(played, gamma, epochs, one_each=own)),
        ),
        outcome=replace(outcome, client_utilities=tuple(utilities)),
    )


def _paid_utilities(record: RoundRecord, costs: Floats | None) -> tuple[float | None, ...] | None:
    """Return what clients earn less their cost where they are paid without a game of epochs.

    None where nobody is paid, or where no cost is known.
    """
    if record.outcome.payments is None or costs is None:
        return None
    utilities = (
        record.payment(place) - float(costs[client]) * record.effort(place)
        for place, client in enumerate(record.selected)
    )
    return tuple(
        None if client in record.outcome.failed or math.isnan(utility) else utility
        for client, utility in zip(record.selected, utilities, strict=True)
    )

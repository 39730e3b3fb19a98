"""The clients of a run at the other end of Flower's messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from flwr.app import Message, MessageType, RecordDict

from flamma.clients.trust import Trust
from flamma.engines.flower.codec import pack_order, read_report, read_score
from flamma.engines.flower.messages import MessageError, Order, OrderContent, Score
from flamma.engines.flower.payload import read_reply
from flamma.engines.flower.quorum import NOT_CONNECTED, AnswerOrReason, Quorum
from flamma.engines.flower.roster import Request, Roster, exchange
from flamma.engines.flower.told_events import tell_orders
from flamma.simulation.runner import ClientRunner
from flamma.types import (
    Broadcast,
    Floats,
    Ints,
    LocalWork,
    Params,
    Population,
    Scores,
    Scoring,
    Terms,
    Update,
)

Inspector = Callable[[Params, Sequence[LocalWork]], list[Update]]
_Found = TypeVar("_Found", Update, Score)


@dataclass(eq=False)
class _Evaluation:
    """What clients are to score, and the scores or reasons once they were asked."""

    broadcast: Broadcast
    answers: Mapping[int, Score | str] | None = None


@dataclass(eq=False)
class GridClients:
    """Clients behind a network: keeps :class:`~flamma.federation.Clients`.

    A request to evaluate waits until the same weights are sent out for training or a survey, and
    goes along in the same message; if the scores are needed before that, it is sent by itself. A
    client scores what it received, or what it had kept, before it trains. A client that
    does not answer, or not with what was asked, gets a report or a score that says why. Replies
    are taken in the order of the clients, so that results do not depend on timing.

    Parameters
    ----------
    roster : Roster
        Which client is at which node.
    order : Order
        What all orders have in common.
    runner : ClientRunner
        The server's own: evaluates on the test and validation sets.
    population : Population
        What the clients said at the beginning.
    wait : float
        Seconds that the server waits for the answers of a round.
    evaluated : ndarray, optional
        The clients that score models, if not all do.
    own_costs : ndarray, optional
        The costs that clients are told in their orders, by default those that they told: in a
        simulation clients play by their true costs, whatever they told.
    inspect : callable, optional
        Does claimed work once more at the clients; None where nobody can visit them.
    trust : Trust, optional
        What looks at the answers of sites; None in a simulation, whose clients are our own.
    quorum : Quorum, optional
        How many clients must be connected; without it, the run never waits for any.
    late : frozenset of int
        The clients that were not there at the beginning.
    """

    roster: Roster
    order: Order
    runner: ClientRunner
    population: Population
    wait: float
    evaluated: Ints | None = None
    own_costs: Floats | None = None
    inspect: Inspector | None = None
    trust: Trust | None = None
    quorum: Quorum | None = None
    late: frozenset[int] = frozenset()
    _pending: _Evaluation | None = field(default=None, init=False)

    def play(self, broadcast: Broadcast, terms: Sequence[Terms]) -> list[Update]:
        """Let each client respond to its terms and train; send a waiting evaluation along."""
        pending, self._pending = self._pending, None
        tell_orders(self.order.run, terms)
        # Clients that receive the same of both are of one and the same state.
        if (
            pending is None
            or pending.broadcast.params is not broadcast.params
            or pending.broadcast.round != broadcast.round
        ):
            return self._ask(broadcast, terms, evaluate=False)[0]
        reports, pending.answers = self._ask(broadcast, terms, evaluate=True)
        return reports

    def evaluate(self, broadcast: Broadcast) -> Scoring:
        """Score the model on every client's held-out data and on the test set."""
        evaluation = self._pending = _Evaluation(broadcast)
        return lambda: self._scores(evaluation)

    def sync(self) -> None:
        """Do nothing: clients keep what they keep where they are."""

    def prune(self, earliest: int) -> None:
        """Let clients know, with their next orders, what they need not keep any more."""
        self.order = replace(self.order, earliest=earliest)

    def validate(self, params: Params) -> tuple[float, float]:
        """Score the model on the server's validation set."""
        return self.runner.validate(params)

    def train_server(self, params: Params, task: LocalWork) -> Params:
        """Return the trainable weights after training on the server's validation set."""
        return self.runner.train_server(params, task)

    def _ask(
        self, broadcast: Broadcast, terms: Sequence[Terms], evaluate: bool
    ) -> tuple[list[Update], dict[int, Score | str]]:
        """Return a report for every client with terms, and a score or reason of all if asked."""
        offers = {t.client: t for t in terms}
        clients = sorted(offers.keys() | self._scoring) if evaluate else sorted(offers)
        params = broadcast.params
        trains = any(offer.train for offer in terms)
        largest = params.nbytes if trains else 0  # who does not train sends no weights

        def content(client: int) -> RecordDict:
            scores = evaluate and client in self._scoring
            return self._content(client, offers.get(client), broadcast, scores)

        kinds = dict.fromkeys(clients, MessageType.EVALUATE)
        kinds |= dict.fromkeys(offers, MessageType.TRAIN)
        quorum = self.quorum or Quorum(self.roster)
        answers: dict[int, AnswerOrReason] = {}
        everybody, again = clients, False
        while clients:
            quorum.wait(broadcast.round + 1)
            answers |= self._answers({c: kinds[c] for c in clients}, content, largest)
            clients = quorum.lost(answers)
            if not clients and not again and quorum.silent(answers):
                clients, again = everybody, True
        reports = [self._report(offer, answers[c], params.size) for c, offer in offers.items()]
        if self.trust is not None:
            reports = self.trust.screened(reports, terms, broadcast.model)
        asked = self._scoring if evaluate else ()
        scores = {c: self._score(c, answer) for c, answer in answers.items() if c in asked}
        return reports, scores

    def _answers(
        self, kinds: Mapping[int, str], content: Callable[[int], RecordDict], largest: int
    ) -> dict[int, AnswerOrReason]:
        """Send each client a message and return what they answer, or why one was not asked."""
        nodes = {client: self.roster.node(client) for client in kinds}
        requests = [
            Request(node, kinds[client], content(client))
            for client, node in nodes.items()
            if node is not None
        ]
        replies = exchange(self.roster.grid, requests, self.wait, largest)
        return {
            c: NOT_CONNECTED if node is None else replies.get(node) for c, node in nodes.items()
        }

    def _content(
        self, client: int, terms: Terms | None, broadcast: Broadcast, evaluate: bool
    ) -> RecordDict:
        costs = self.population.costs if self.own_costs is None else self.own_costs
        order = replace(
            self.order,
            client=client,
            name=self.roster.names[client],
            evaluate=evaluate,
            cost=math.nan if costs is None else float(costs[client]),
            round=broadcast.round,
            earliest=min(self.order.earliest, broadcast.round),
            evaluates_kept=broadcast.evaluates_kept,
        )
        trains = terms is not None and terms.train
        extra = broadcast.extra if trains else None
        return pack_order(OrderContent(order, terms, broadcast.model(client), extra))

    def _report(self, terms: Terms, answer: Message | str | None, size: int) -> Update:
        client = terms.client
        name, samples = self.roster.names[client], int(self.population.samples[client])

        def read(content: RecordDict) -> Update:
            return read_report(content, name, terms, samples, size)

        found = self._read(answer, read)
        return Update(client, None, samples, 0, failure=found) if isinstance(found, str) else found

    def _score(self, client: int, answer: Message | str | None) -> Score | str:
        name, held = self.roster.names[client], int(self._held_out[client])
        metric = self.runner.measures.metric
        found = self._read(answer, lambda content: read_score(content, name, held, metric))
        if self.trust is None or isinstance(found, str) or not held or math.isfinite(found.loss):
            return found
        return f"refused: a loss of {found.loss:g}"

    def _read(
        self, answer: Message | str | None, read: Callable[[RecordDict], _Found]
    ) -> _Found | str:
        """Return what an answer says, or the reason why it cannot be used."""
        if answer is None:
            return f"no answer in {self.wait:g} s"
        if isinstance(answer, str):
            return answer
        try:
            return read_reply(answer, read)
        except MessageError as error:
            return error.reason

    def _scores(self, evaluation: _Evaluation) -> Scores:
        """Return the scores of a model, asking for them if they did not come with the training."""
        if evaluation.answers is None:
            self._pending = None
            evaluation.answers = self._ask(evaluation.broadcast, (), evaluate=True)[1]
        found, broadcast = evaluation.answers, evaluation.broadcast
        own = self.runner.evaluate(broadcast.params)
        accuracy = np.full(self.population.clients, math.nan)
        loss = accuracy.copy()
        for client, score in found.items():
            if isinstance(score, Score):
                accuracy[client], loss[client] = score.accuracy, score.loss
        kept = slice(None) if self.evaluated is None else self.evaluated
        return Scores(
            accuracy=accuracy[kept],
            loss=loss[kept],
            samples=self._held_out[kept],
            test_accuracy=own.test_accuracy,
            test_loss=own.test_loss,
            missing={c: reason for c, reason in found.items() if isinstance(reason, str)},
            clients=self.evaluated,
            personal=broadcast.evaluates_kept or broadcast.per_client is not None,
            kind=own.kind,
            is_share=own.is_share,
        )

    @cached_property
    def _scoring(self) -> frozenset[int]:
        """The clients that are asked to score a model."""
        every = range(self.population.clients)
        return frozenset(every if self.evaluated is None else self.evaluated.tolist())

    @property
    def _held_out(self) -> Ints:
        held = self.population.held_out
        held = np.zeros(self.population.clients, dtype=np.int64) if held is None else held
        if self.late:
            held = held.copy()
            for client in self.late & self.roster.profiles.keys():
                held[client] = self.roster.profiles[client].held_out
        return held

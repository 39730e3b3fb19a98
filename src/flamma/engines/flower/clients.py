"""The clients of a federation at the other end of Flower's messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from flwr.app import Message, MessageType, RecordDict

from flamma.engines import Engine
from flamma.engines.flower.roster import Letter, Roster, exchange, why_failed
from flamma.engines.flower.wire import (
    ClientError,
    Order,
    Score,
    WireError,
    pack_order,
    read_report,
    read_score,
)
from flamma.types import Floats, Ints, Params, Report, Scores, Terms

NOT_THERE = "not connected"
Found = TypeVar("Found", Report, Score)


@dataclass(frozen=True, eq=False)
class GridClients:
    """Keeps :class:`~flamma.federation.FarClients`: plays and judges in one message each.

    Nobody is forgotten: a client that does not answer, or not with what was asked, has a report
    or a score that says why. Replies are sorted by client, so results do not depend on timing.

    Parameters
    ----------
    roster : Roster
        Who is where.
    order : Order
        What all orders have in common.
    engine : Engine
        The server's own: judges on the test and validation sets.
    samples, held_out, costs : arrays
        What the clients said at the beginning; an answer that says otherwise is refused.
    wait : float
        Seconds that the server waits for the answers of a round.
    """

    roster: Roster
    order: Order
    engine: Engine
    samples: Ints
    held_out: Ints
    costs: Floats
    wait: float

    def play(self, params: Params, terms: Sequence[Terms]) -> list[Report]:
        """Let each client respond to its terms and train."""
        return self._ask(params, terms, judge=False)[0]

    def evaluate(self, params: Params) -> Scores:
        """Score the model on every client's held-out data and on the test set."""
        return self._scores(params, self._ask(params, (), judge=True)[1])

    def play_and_evaluate(
        self, params: Params, terms: Sequence[Terms]
    ) -> tuple[list[Report], Scores]:
        """Do both at one go: who is not to train only judges."""
        reports, scores = self._ask(params, terms, judge=True)
        return reports, self._scores(params, scores)

    def validate(self, params: Params) -> tuple[float, float]:
        """Score the model on the server's validation set."""
        return self.engine.validate(params)

    def _ask(
        self, params: Params, terms: Sequence[Terms], judge: bool
    ) -> tuple[list[Report], dict[int, Score | str]]:
        """Return a report for every client with terms and, to judge, a score or reason of all."""
        offers = {t.client: t for t in terms}
        clients = range(self.samples.size) if judge else sorted(offers)
        self.roster.look()
        nodes = {client: self.roster.node(client) for client in clients}
        letters = [
            Letter(
                node,
                MessageType.TRAIN if client in offers else MessageType.EVALUATE,
                self._content(client, offers.get(client), params, judge),
            )
            for client, node in nodes.items()
            if node is not None
        ]
        replies = exchange(self.roster.grid, letters, self.wait)
        answers = {c: NOT_THERE if node is None else replies.get(node) for c, node in nodes.items()}
        reports = [self._report(offer, answers[c], params.size) for c, offer in offers.items()]
        scores = {c: self._score(c, answer) for c, answer in answers.items()} if judge else {}
        return reports, scores

    def _content(self, client: int, terms: Terms | None, params: Params, judge: bool) -> RecordDict:
        order = replace(
            self.order,
            client=client,
            name=self.roster.names[client],
            judge=judge,
            cost=float(self.costs[client]),
        )
        return pack_order(order, terms, params)

    def _report(self, terms: Terms, answer: Message | str | None, size: int) -> Report:
        client = terms.client
        name, samples = self.roster.names[client], int(self.samples[client])

        def read(content: RecordDict) -> Report:
            return read_report(content, name, terms, samples, size)

        found = self._read(answer, read)
        return Report(client, None, samples, 0, failure=found) if isinstance(found, str) else found

    def _score(self, client: int, answer: Message | str | None) -> Score | str:
        name, held = self.roster.names[client], int(self.held_out[client])
        return self._read(answer, lambda content: read_score(content, name, held))

    def _read(
        self, answer: Message | str | None, read: Callable[[RecordDict], Found]
    ) -> Found | str:
        """Return what an answer says, or why it says nothing."""
        if answer is None:
            return f"no answer in {self.wait:g} s"
        if isinstance(answer, str):
            return answer
        if answer.has_error():
            return why_failed(answer)
        try:
            return read(answer.content)
        except ClientError as error:
            return str(error)
        except WireError as error:
            return f"refused: {error}"

    def _scores(self, params: Params, found: Mapping[int, Score | str]) -> Scores:
        own = self.engine.evaluate(params)
        accuracy = np.full(self.samples.size, math.nan)
        loss = accuracy.copy()
        for client, score in found.items():
            if isinstance(score, Score):
                accuracy[client], loss[client] = score.accuracy, score.loss
        return Scores(
            accuracy=accuracy,
            loss=loss,
            samples=self.held_out,
            test_accuracy=own.test_accuracy,
            test_loss=own.test_loss,
            missing={c: reason for c, reason in found.items() if isinstance(reason, str)},
        )

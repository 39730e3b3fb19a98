"""Clients on this machine: each decides what to do with its terms, trains, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from flamma.clients.behaviours import Notes
from flamma.clients.truth import TrueClients
from flamma.simulation.client_side import ClientSide
from flamma.simulation.runner import ClientRunner
from flamma.types import Broadcast, LocalWork, Params, Scores, Scoring, Terms, Update


@dataclass(frozen=True, eq=False)
class LocalClients:
    """Clients that know their cost and answer every offer with what is best for themselves.

    ``truth`` has those that are not honest, and ``notes`` what these keep between rounds. ``side``
    is what clients do with vectors, None for a strategy that needs nothing of it.
    """

    truth: TrueClients
    runner: ClientRunner
    notes: Notes = field(default_factory=Notes)
    side: ClientSide | None = None

    def play(self, broadcast: Broadcast, terms: Sequence[Terms]) -> list[Update]:
        """Let each client decide, train and report."""
        true, departing = self.truth, self.truth.behaviours
        met = {t.client: true.encounter(t) for t in terms if t.client in departing}
        clients = [t.client for t in terms]
        tasks = [true.task(t) for t in terms]
        if self.side is None or self.side.is_plain(broadcast):
            updates = self.runner.train(broadcast.params, tasks)
        else:
            train = partial(self.runner.train, broadcast.params)
            updates = self.side.carry_out(broadcast, tasks, train)
        return [
            departing[client].send(update, met[client], broadcast.model(client), self.notes)
            if client in met
            else update
            for client, update in zip(clients, updates, strict=True)
        ]

    def evaluate(self, broadcast: Broadcast) -> Scoring:
        """Score the model on every client's held-out data."""
        scores = self._scores(broadcast)
        return lambda: scores

    def _scores(self, broadcast: Broadcast) -> Scores:
        side = self.side
        if side is None or not (broadcast.evaluates_kept or broadcast.per_client):
            return self.runner.evaluate(broadcast.params)
        return self.runner.evaluate_each(
            broadcast.params, lambda client: side.model_of(client, broadcast)
        )

    def validate(self, params: Params) -> tuple[float, float]:
        """Score the model on the server's validation set."""
        return self.runner.validate(params)

    def train_server(self, params: Params, task: LocalWork) -> Params:
        """Return the trainable weights after training on the server's validation set."""
        return self.runner.train_server(params, task)

    def inspect(self, params: Params, tasks: Sequence[LocalWork]) -> list[Update]:
        """Do clients' claimed work once more on their true data, as an inspector at the site."""
        return self.runner.train(params, tasks)

"""Clients on this machine: each decides what to do with its terms, trains, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flamma.clients.behaviours import Notes, TrueClients
from flamma.engines.runner import ClientRunner
from flamma.types import LocalTask, Params, Report, Scoring, Terms


@dataclass(frozen=True, eq=False)
class RationalClients:
    """Clients that know their cost and answer every offer with what is best for themselves.

    ``truth`` has those that are not honest, and ``notes`` what these keep between rounds.
    """

    truth: TrueClients
    runner: ClientRunner
    notes: Notes = field(default_factory=Notes)

    def play(self, params: Params, terms: Sequence[Terms]) -> list[Report]:
        """Let each client decide, train and report."""
        true, departing = self.truth, self.truth.behaviours
        met = {t.client: true.encounter(t) for t in terms if t.client in departing}
        tasks = [
            departing[t.client].act(met[t.client]) if t.client in met else true.honest_task(t)
            for t in terms
        ]
        return [
            departing[report.client].send(report, met[report.client], params, self.notes)
            if report.client in met
            else report
            for report in self.runner.train(params, tasks)
        ]

    def evaluate(self, params: Params) -> Scoring:
        """Score the model on every client's held-out data."""
        scores = self.runner.evaluate(params)
        return lambda: scores

    def validate(self, params: Params) -> tuple[float, float]:
        """Score the model on the server's validation set."""
        return self.runner.validate(params)

    def train_server(self, params: Params, task: LocalTask) -> Params:
        """Return the trainable weights after training on the server's validation set."""
        return self.runner.train_server(params, task)

    def inspect(self, params: Params, tasks: Sequence[LocalTask]) -> list[Report]:
        """Do clients' claimed work once more on their true data, as an inspector at the site."""
        return self.runner.train(params, tasks)

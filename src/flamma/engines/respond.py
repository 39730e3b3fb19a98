"""Clients on this machine: each decides what to do with its terms, trains, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flamma.clients.behaviours import Behaviour, Notes, TrueClients
from flamma.engines.runner import ClientRunner
from flamma.types import LocalTask, Params, Report, Scoring, Terms

HONEST = Behaviour()


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
        encounters = [self.truth.encounter(t) for t in terms]
        behaviours = [self.truth.behaviours.get(t.client, HONEST) for t in terms]
        tasks = [b.act(e) for b, e in zip(behaviours, encounters, strict=True)]
        reports = self.runner.train(params, tasks)
        return [
            behaviour.send(report, encounter, params, self.notes)
            for behaviour, encounter, report in zip(behaviours, encounters, reports, strict=True)
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

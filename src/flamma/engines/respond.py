"""Clients on this machine: each decides what to do with its terms, trains, and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flamma.clients.behaviours import Notes, TrueClients
from flamma.engines.client_side import ClientSide
from flamma.engines.runner import ClientRunner
from flamma.types import (
    ClientVectors,
    Download,
    LocalTask,
    Params,
    Report,
    Scores,
    Scoring,
    Terms,
)


@dataclass(frozen=True, eq=False)
class RationalClients:
    """Clients that know their cost and answer every offer with what is best for themselves.

    ``truth`` has those that are not honest, and ``notes`` what these keep between rounds. ``side``
    is what clients do with vectors, None for a strategy that needs nothing of it.
    """

    truth: TrueClients
    runner: ClientRunner
    notes: Notes = field(default_factory=Notes)
    side: ClientSide | None = None

    def play(self, download: Download, terms: Sequence[Terms]) -> list[Report]:
        """Let each client decide, train and report."""
        true, departing = self.truth, self.truth.behaviours
        met = {t.client: true.encounter(t) for t in terms if t.client in departing}
        clients = [t.client for t in terms]
        tasks = [
            departing[t.client].act(met[t.client]) if t.client in met else true.honest_task(t)
            for t in terms
        ]
        return [
            departing[client].send(report, met[client], download.model(client), self.notes)
            if client in met
            else report
            for client, report in zip(clients, self._trained(download, tasks), strict=True)
        ]

    def _trained(self, download: Download, tasks: Sequence[LocalTask]) -> list[Report]:
        """Return what honest clients report of these tasks."""
        side, common = self.side, download.params
        if side is None or side.is_plain(download):
            return self.runner.train(common, tasks)
        at_hand = [side.vectors(t, download.model(t.client), download.extra) for t in tasks]
        prepared = [side.prepared(t, v, common) for t, v in zip(tasks, at_hand, strict=True)]
        reports = self.runner.train(common, tasks, prepared)
        own = self._own(side, common, tasks, at_hand, reports)
        return [
            side.settle(task, vectors, report, own.get(task.client))
            for task, vectors, report in zip(tasks, at_hand, reports, strict=True)
        ]

    def _own(
        self,
        side: ClientSide,
        common: Params,
        tasks: Sequence[LocalTask],
        at_hand: Sequence[ClientVectors],
        reports: Sequence[Report],
    ) -> dict[int, Params]:
        """Return what clients trained for themselves; those that fail at it have nothing."""
        wanted = [
            own
            for task, vectors, report in zip(tasks, at_hand, reports, strict=True)
            if report.params is not None
            and (own := side.own_training(task, vectors, common)) is not None
        ]
        if not wanted:
            return {}
        own_tasks, prepared = zip(*wanted, strict=True)
        trained = self.runner.train(common, own_tasks, prepared)
        return {report.client: report.params for report in trained if report.params is not None}

    def evaluate(self, download: Download) -> Scoring:
        """Score the model on every client's held-out data."""
        scores = self._scores(download)
        return lambda: scores

    def _scores(self, download: Download) -> Scores:
        side = self.side
        if side is None or not (download.scores_kept or download.model_for):
            return self.runner.evaluate(download.params)
        return self.runner.evaluate_each(
            download.params, lambda client: side.model_of(client, download)
        )

    def validate(self, params: Params) -> tuple[float, float]:
        """Score the model on the server's validation set."""
        return self.runner.validate(params)

    def train_server(self, params: Params, task: LocalTask) -> Params:
        """Return the trainable weights after training on the server's validation set."""
        return self.runner.train_server(params, task)

    def inspect(self, params: Params, tasks: Sequence[LocalTask]) -> list[Report]:
        """Do clients' claimed work once more on their true data, as an inspector at the site."""
        return self.runner.train(params, tasks)

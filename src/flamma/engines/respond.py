"""Clients on this machine: each decides what to do with its terms, trains, and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flamma.clients.behaviours import Behaviour
from flamma.engines.runner import ClientRunner
from flamma.strategies.base import Strategy
from flamma.types import LocalTask, Params, Population, Profile, Report, Scoring, Terms

HONEST = Behaviour()


@dataclass(frozen=True, eq=False)
class RationalClients:
    """Clients that know their cost and answer every offer with what is best for themselves.

    ``behaviours`` has those that are not honest, by client.
    """

    strategy: Strategy[Any]
    runner: ClientRunner
    population: Population
    behaviours: Mapping[int, Behaviour] = field(default_factory=dict)

    def play(self, params: Params, terms: Sequence[Terms]) -> list[Report]:
        """Let each client decide, train and report."""
        respond = self.strategy.respond
        tasks = [self._behaviour(t.client).act(respond, t, self._profile(t.client)) for t in terms]
        reports = self.runner.train(params, tasks)
        return [self._behaviour(report.client).send(report, params) for report in reports]

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

    def _behaviour(self, client: int) -> Behaviour:
        return self.behaviours.get(client, HONEST)

    def _profile(self, client: int) -> Profile:
        costs, samples = self.population.costs, self.population.samples
        cost = float("nan") if costs is None else float(costs[client])
        return Profile(client, cost, int(samples[client]))

"""Clients on this machine: each decides by the strategy's ``respond``, then trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flamma.engines.runner import ClientRunner
from flamma.strategies.base import Strategy
from flamma.types import Params, Population, Profile, Report, Scoring, Terms


@dataclass(frozen=True, eq=False)
class RationalClients:
    """Clients that know their cost and answer every offer with what is best for themselves."""

    strategy: Strategy[Any]
    runner: ClientRunner
    population: Population

    def play(self, params: Params, terms: Sequence[Terms]) -> list[Report]:
        """Let each client decide and train."""
        tasks = [self.strategy.respond(t, self._profile(t.client)) for t in terms]
        return self.runner.train(params, tasks)

    def evaluate(self, params: Params) -> Scoring:
        """Score the model on every client's held-out data."""
        scores = self.runner.evaluate(params)
        return lambda: scores

    def validate(self, params: Params) -> tuple[float, float]:
        """Score the model on the server's validation set."""
        return self.runner.validate(params)

    def _profile(self, client: int) -> Profile:
        costs, samples = self.population.costs, self.population.samples
        cost = float("nan") if costs is None else float(costs[client])
        return Profile(client, cost, int(samples[client]))

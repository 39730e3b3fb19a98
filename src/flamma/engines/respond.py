"""Clients on this machine: each decides by the strategy's ``respond``, then an engine trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flamma.engines import Engine
from flamma.strategies.base import Strategy
from flamma.types import Floats, Ints, Params, Profile, Report, Scores, Terms


@dataclass(frozen=True, eq=False)
class RationalClients:
    """Clients that know their cost and answer every offer with what is best for themselves."""

    strategy: Strategy
    engine: Engine
    costs: Floats
    samples: Ints

    def play(self, params: Params, terms: Sequence[Terms]) -> list[Report]:
        """Let each client decide and train."""
        tasks = [self.strategy.respond(t, self._profile(t.client)) for t in terms]
        return self.engine.train(params, tasks)

    def evaluate(self, params: Params) -> Scores:
        """Score the model on everybody's held-out data."""
        return self.engine.evaluate(params)

    def validate(self, params: Params) -> tuple[float, float]:
        """Score the model on the server's validation set."""
        return self.engine.validate(params)

    def _profile(self, client: int) -> Profile:
        return Profile(client, float(self.costs[client]), int(self.samples[client]))

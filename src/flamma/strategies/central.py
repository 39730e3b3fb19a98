"""The ceiling: the same net trained centrally on all clients' data, with as many sample-steps.

Not a federated algorithm. With one class per client its variance over clients is the spread of the
class accuracies, which no federated strategy can honestly undercut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.strategies.base import Answers, Offer, ServerReads, State, Strategy
from flamma.types import Ints, Params, Population, Terms


@dataclass(frozen=True)
class Central(Strategy[State]):
    """Each round as many mini-batches of the pooled data as K average clients have in E epochs."""

    name: ClassVar[str] = "central"
    label: ClassVar[str] = "Central (ceiling)"
    summary: ClassVar[str] = "not federated: the pooled data, as the ceiling"
    family: ClassVar[str] = "reference"
    server_reads: ClassVar[ServerReads] = "plain"
    pools_data: ClassVar[bool] = True

    def init(self, params: Params, population: Population) -> State:
        """Start with the given weights."""
        return State(params, 0, population.samples)

    def offer(self, state: State, available: Ints, rng: np.random.Generator) -> Offer:
        """Let client 0, which holds all clients' data, train as much as K clients would."""
        number, clients = state.round + 1, state.samples.size
        epochs = self.plan.epochs * min(self.plan.per_round, clients)
        batches = -(-int(state.samples.sum()) // (clients * self.plan.batch_size))
        return Offer(number, (Terms(0, number, epochs=epochs, iterations=epochs * batches),))

    def combine(self, state: State, answers: Answers) -> State:
        """Take what was trained."""
        params = [report.params for report in answers.accepted if report.params is not None]
        return replace(state, params=params[0]) if params else state

"""Everybody alone: the row that tells whether joining pays.

Not a federated algorithm. Each client trains a model of its own on its own data, as often and as
long as FedAvg would have it train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flamma.strategies.base import Answers, KeepingState, ServerReads
from flamma.strategies.ditto import PersonalStrategy
from flamma.types import ClientVectors, LocalTask, Params, TaskVectors


@dataclass(frozen=True)
class Local(PersonalStrategy):
    """Those whom FedAvg would ask go on with their own models, which they keep and evaluate.

    A client starts from the initial weights, which never change, and evaluates them until it is
    first asked. No model travels.
    """

    name: ClassVar[str] = "local"
    label: ClassVar[str] = "Alone"
    summary: ClassVar[str] = "not federated: every client trains alone on its own data"
    sends_models: ClassVar[bool] = False
    server_reads: ClassVar[ServerReads] = "plain"

    def prepare(self, task: LocalTask, vectors: ClientVectors) -> TaskVectors:
        """Start from the own model."""
        return TaskVectors(start=vectors.kept)

    def keep(self, task: LocalTask, vectors: ClientVectors, trained: Params) -> Params:
        """Keep the own model."""
        return trained

    def combine(self, state: KeepingState, answers: Answers) -> KeepingState:
        """Leave the server's model as it is."""
        return state

"""What strategies share whose weights go by the clients' losses of the received model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from flamma.strategies.base import Answers, ServerReads, State, with_losses
from flamma.strategies.fedavg import FedAvg
from flamma.types import Report, Terms


@dataclass(frozen=True)
class ByLoss(FedAvg):
    """FedAvg whose weights go by losses; a client without a usable loss is left out."""

    name: ClassVar[str] = ""
    family: ClassVar[str] = "fairness"
    server_reads: ClassVar[ServerReads] = "updates"

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return FedAvg's terms, asking for the loss of the received model."""
        return replace(super().terms(client, round), wants_loss=True)

    def combine(self, state: State, answers: Answers) -> State:
        """Take the mean of the models by the weights."""
        reports = with_losses(answers.accepted)
        if not reports:
            return state
        params = self.average(reports, self.weights(reports), answers.reference)
        return replace(state, params=params)

    @abstractmethod
    def weights(self, reports: Sequence[Report]) -> list[float]:
        """Return what each of the reports, all of which have a loss, weighs."""

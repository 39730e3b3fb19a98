"""Ditto: FedAvg, and beside it a model of each client's own that is held near the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.strategies.base import KeepingState, ServerReads
from flamma.strategies.fedavg import Averaging
from flamma.types import Download, LocalTask, Params, Population


@dataclass(frozen=True)
class PersonalStrategy(Averaging[KeepingState]):
    """What strategies share whose clients keep a model of their own, which is evaluated."""

    family: ClassVar[str] = "personal"
    server_reads: ClassVar[ServerReads] = "mean"
    clients_keep: ClassVar[bool] = True

    def init(self, params: Params, population: Population) -> KeepingState:
        """Start with the given weights; no client has a model of its own."""
        unheard = np.zeros(population.clients, dtype=np.int64)
        return KeepingState(params, 0, population.samples, unheard)

    def download(self, state: KeepingState) -> Download:
        """Send the global model, and let clients evaluate their own."""
        return replace(super().download(state), scores_kept=True)


@dataclass(frozen=True)
class Ditto(PersonalStrategy):
    """A client that was asked also trains its own v_k on F_k(v) + (λ/2) ‖v - w‖².

    It starts from the v_k that it kept, at first from the received w. The global model is FedAvg's
    to the last bit. Clients evaluate v_k, those without one the global model.

    Parameters
    ----------
    proximal : float
        λ, how strongly a client's own model is held near the global one; 0 is training alone.
    own_epochs : int
        Local epochs of the own model in each round; as many as of the global one if left out.
    """

    name: ClassVar[str] = "ditto"
    label: ClassVar[str] = "Ditto"
    summary: ClassVar[str] = "FedAvg, and a model of each client's own held near it"

    proximal: float = 1.0
    own_epochs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.proximal >= 0:
            raise StrategyError(f"proximal must be at least 0, not {self.proximal:g}.")
        if self.own_epochs is not None and self.own_epochs < 1:
            raise StrategyError(f"own_epochs must be at least 1, not {self.own_epochs}.")

    def own_task(self, task: LocalTask) -> LocalTask:
        """Train the own model on the same data, held near the received one."""
        epochs = task.epochs if self.own_epochs is None else self.own_epochs
        return replace(task, epochs=epochs, proximal=self.proximal)

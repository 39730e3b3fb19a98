"""Ditto: FedAvg, and beside it a model of each client's own that is held near the global one.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from flamma.registry import at_least
from flamma.strategies.base import KeepingState, Needs, Round
from flamma.strategies.fedavg import Averaging
from flamma.types import Broadcast, ClientVectors, LocalWork, Params, Population, TaskVectors


@dataclass(frozen=True)
class _PersonalStrategy(Averaging[KeepingState]):
    """What strategies share whose clients keep a model of their own, which is evaluated."""

    family: ClassVar[str] = "personal"
    needs: ClassVar[Needs] = Needs(server_reads="mean", client_memory=True)

    def init(self, params: Params, population: Population) -> KeepingState:
        """Start with the given weights; no client has a model of its own."""
        unheard = np.zeros(population.clients, dtype=np.int64)
        return KeepingState(params, 0, population.samples, unheard)

    def broadcast(self, state: KeepingState) -> Broadcast:
        """Send the global model, and let clients evaluate their own."""
        return replace(super().broadcast(state), evaluates_kept=True)


@dataclass(frozen=True)
class Ditto(_PersonalStrategy):
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

    proximal: Annotated[float, at_least(0)] = 1.0
    own_epochs: Annotated[int | None, at_least(1)] = None

    def personal_work(self, task: LocalWork) -> LocalWork:
        """Train the own model on the same data, held near the received one."""
        epochs = task.epochs if self.own_epochs is None else self.own_epochs
        near = replace(task.terms.objective, proximal=self.proximal)
        return replace(task, epochs=epochs, terms=replace(task.terms, objective=near))


# Everybody alone: the row that tells whether joining pays.
#
# Not a federated algorithm. Each client trains a model of its own on its own data, as often and
# as long as FedAvg would have it train.


@dataclass(frozen=True)
class Local(_PersonalStrategy):
    """Those whom FedAvg would ask go on with their own models, which they keep and evaluate.

    A client starts from the initial weights, which never change, and evaluates them until it is
    first asked. No model travels.
    """

    name: ClassVar[str] = "local"
    label: ClassVar[str] = "Alone"
    summary: ClassVar[str] = "not federated: every client trains alone on its own data"
    needs: ClassVar[Needs] = Needs(sends_models=False, server_reads="plain", client_memory=True)

    def prepare(self, task: LocalWork, vectors: ClientVectors) -> TaskVectors:
        """Start from the own model."""
        return TaskVectors(start=vectors.kept)

    def keep(self, task: LocalWork, vectors: ClientVectors, trained: Params) -> Params:
        """Keep the own model."""
        return trained

    def step(self, state: KeepingState, round: Round) -> KeepingState:
        """Leave the server's model as it is."""
        return state

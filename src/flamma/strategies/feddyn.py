"""FedDyn: clients' losses are bent until their minima are that of the whole.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.strategies.base import Answers, KeepingState, ServerReads
from flamma.strategies.fedavg import Averaging
from flamma.strategies.server_steps import change, require_positive, stepped
from flamma.types import (
    ClientVectors,
    Floats,
    LocalTask,
    Params,
    Population,
    TaskVectors,
    Terms,
)


@dataclass(frozen=True, eq=False)
class DynamicState(KeepingState):
    """``drift`` is -h / α: (1/N) Σ u_k over all answers so far, of the trainable weights."""

    drift: Floats


@dataclass(frozen=True)
class FedDyn(Averaging[DynamicState]):
    """Clients minimise F_k(v) - ⟨h_k, v⟩ + (α/2) ‖v - w‖² and keep h_k ← h_k - α u_k.

    The server has h ← h - (α/N) Σ_S u_k and w ← mean w_k - h / α. Means are plain, as in the paper,
    whatever the data sizes.

    Parameters
    ----------
    alpha : float
        α, the weight of the dynamic regulariser.
    """

    name: ClassVar[str] = "feddyn"
    label: ClassVar[str] = "FedDyn"
    summary: ClassVar[str] = "dynamic regularisation aligns local with global minima (alpha)"
    family: ClassVar[str] = "optimisation"
    server_reads: ClassVar[ServerReads] = "mean"
    clients_keep: ClassVar[bool] = True

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(alpha=self.alpha)

    def init(self, params: Params, population: Population) -> DynamicState:
        """Start with h = 0, and clients with h_k = 0."""
        unheard = np.zeros(population.clients, dtype=np.int64)
        drift = np.zeros(population.trainable_size)
        return DynamicState(params, 0, population.samples, unheard, drift)

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return FedAvg's terms with α as the proximal weight."""
        return replace(super().terms(client, round), proximal=self.alpha)

    def prepare(self, task: LocalTask, vectors: ClientVectors) -> TaskVectors:
        """Correct gradients by -h_k."""
        kept = vectors.kept
        return TaskVectors() if kept is None else TaskVectors(correction=-kept)

    def keep(self, task: LocalTask, vectors: ClientVectors, trained: Params) -> Params:
        """Keep h_k - α u_k."""
        moved = self.alpha * change(vectors.received, trained, vectors.trainable_size)
        return (-moved if vectors.kept is None else vectors.kept - moved).astype(np.float32)

    def combine(self, state: DynamicState, answers: Answers) -> DynamicState:
        """Take the mean of the models, less h / α."""
        reports = answers.accepted
        if not reports:
            return state
        mean = self.average(reports, [1.0] * len(reports), answers.reference)
        update = change(state.params, mean, state.drift.size)
        drift: Floats = state.drift + len(reports) / state.samples.size * update
        return replace(state, params=stepped(state.params, mean, update + drift), drift=drift)

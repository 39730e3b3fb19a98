"""FedVARP: those who were not asked stand in by their last update.

Jhunjhunwala et al., "FedVARP: Tackling the Variance Due to Partial Client Participation in
Federated Learning", UAI 2022.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.numerics import total
from flamma.strategies.base import Answers, data_shares, model_of
from flamma.strategies.fedavg import Averaging
from flamma.strategies.memory import Remembering, combined_rows, empty_memory
from flamma.strategies.rows import RowFormat
from flamma.strategies.server_steps import change, check_positive, stepped
from flamma.types import Floats, Ints, Params, Population


@dataclass(frozen=True)
class FedVarp(Averaging[Remembering]):
    """w ← w + η_s (Σ_S p_k (u_k - y_k) + Σ_all q_i y_i), then y_k ← u_k for those in S.

    y_i is client i's last update, 0 before it has sent one; p and q are in proportion to the data
    sizes, over those who answered and over all clients. If all take part and η_s = 1, it is FedAvg.

    Parameters
    ----------
    server_rate : float
        η_s, the server's step size.
    rows : {"auto", "float32", "float16"}
        How updates are kept on disk; ``auto`` is float32 up to 256 MiB for all clients, else
        float16.
    """

    name: ClassVar[str] = "fedvarp"
    label: ClassVar[str] = "FedVARP"
    summary: ClassVar[str] = "FedAvg where the last updates of absent clients stand in for them"
    family: ClassVar[str] = "optimisation"

    server_rate: float = 1.0
    rows: RowFormat = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(server_rate=self.server_rate)

    def init(self, params: Params, population: Population) -> Remembering:
        """Start with no update of any client."""
        size = population.trainable_size
        memory = empty_memory(self, population.clients, size, fading=1.0, kept_as=self.rows)
        return Remembering(params, 0, population.samples, size, *memory)

    def combine(self, state: Remembering, answers: Answers) -> Remembering:
        """Step by this round's mean update, with that of the remembered ones put right."""
        reports, size = answers.accepted, state.trainable_size
        if not reports:
            return state
        clients = np.array([report.client for report in reports])
        shares = data_shares(reports)
        mean = self.average(reports, shares, answers.reference)
        everybody = np.arange(state.samples.size)
        of_all = self._mean_row(state, everybody, state.samples.astype(np.float64), answers)
        of_these = self._mean_row(state, clients, np.array(shares), answers)
        update = change(state.params, mean, size) + (of_all - of_these)
        received = state.params[:size]
        updates = (model_of(report)[:size] - received for report in reports)
        heard = state.heard.copy()
        heard[clients] = answers.offer.round
        return replace(
            state,
            params=stepped(state.params, mean, self.server_rate * update),
            kept=state.kept.updated(clients.tolist(), updates, np.zeros(0, dtype=np.int64)),
            heard=heard,
        )

    def _mean_row(
        self, state: Remembering, clients: Ints, samples: Floats, answers: Answers
    ) -> Floats:
        """Return the mean of clients' last updates by data size; that of strangers is 0."""
        known = state.kept.slots[clients] >= 0
        size = state.trainable_size
        if not known.any():
            return np.zeros(size)
        weights = (samples / total(samples))[known]
        reference = answers.reference
        reference = None if reference is None else reference.of_trained(size)
        still = np.zeros(size)
        return combined_rows(self, state.kept, clients[known], weights, still, reference)

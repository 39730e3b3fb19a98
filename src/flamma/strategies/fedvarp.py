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
from flamma.strategies.memory import Remembering, empty_memory
from flamma.strategies.rows import RowFormat
from flamma.strategies.server_steps import change, require_positive, stepped
from flamma.strategies.stand_ins import of_all, of_these, shares_of_data
from flamma.types import Params, Population


@dataclass(frozen=True)
class FedVarp(Averaging[Remembering]):
    """w ← w + η_s (Σ_S p_k (u_k - y_k) + Σ_all q_i y_i), then y_k ← u_k for those in S.

    y_i is client i's last update, 0 before it has sent one; p and q are in proportion to the data
    sizes, over those who answered and over all clients. If all take part and η_s = 1, it is FedAvg.

    Parameters
    ----------
    server_step : float
        η_s, the server's step size.
    rows : {"auto", "float32", "float16"}
        How updates are kept on disk; ``auto`` is float32 up to 256 MiB for all clients, else
        float16.
    """

    name: ClassVar[str] = "fedvarp"
    label: ClassVar[str] = "FedVARP"
    summary: ClassVar[str] = "FedAvg where the last updates of absent clients stand in for them"
    family: ClassVar[str] = "optimisation"

    server_step: float = 1.0
    rows: RowFormat = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(server_step=self.server_step)

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
        mean = self.average(reports, data_shares(reports), answers.reference)
        kept, known = state.kept, state.kept.known
        every = (state.samples / total(state.samples))[known]
        shares = shares_of_data(reports)
        others = of_all(self, kept, known, every, answers.reference)
        stand_ins = others - of_these(self, kept, reports, shares, mean, answers.reference)
        update = change(state.params, mean, size) + stand_ins
        clients = [report.client for report in reports]
        received = state.params[:size]
        updates = (model_of(report)[:size] - received for report in reports)
        heard = state.heard.copy()
        heard[clients] = answers.offer.round
        return replace(
            state,
            params=stepped(state.params, mean, self.server_step * update),
            kept=state.kept.updated(clients, updates, np.zeros(0, dtype=np.int64)),
            heard=heard,
        )

"""FedNova: who has done more local steps does not pull harder for that.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.aggregators import aggregated
from flamma.numerics import total
from flamma.strategies.base import Answers, data_shares
from flamma.strategies.fedavg import Averaging
from flamma.strategies.gradients import GradientState
from flamma.strategies.server_steps import gradient_weight, scaled_models
from flamma.types import Floats, Params, Population


@dataclass(frozen=True)
class FedNova(Averaging[GradientState]):
    """w ← w + (Σ p_k a_k) Σ p_k u_k / a_k, with a_k the gradients in client k's update.

    That is the mean of the models that clients would have sent had each done the same, effective
    number of steps. Where all did, it is FedAvg. a_k counts mini-batches, and with
    ``training.momentum`` what each gradient adds to the steps after its own.
    """

    name: ClassVar[str] = "fednova"
    label: ClassVar[str] = "FedNova"
    summary: ClassVar[str] = "FedAvg with updates divided by the local steps they took"
    family: ClassVar[str] = "optimisation"

    def init(self, params: Params, population: Population) -> GradientState:
        """Start with the given weights."""
        return GradientState(params, 0, population.samples, population.trainable_size)

    def combine(self, state: GradientState, answers: Answers) -> GradientState:
        """Take the mean of the models at an equal number of steps."""
        reports = answers.accepted
        if not reports:
            return state
        samples = np.array(data_shares(reports))
        done = np.array([gradient_weight(self.plan, r.samples, r.epochs) for r in reports])
        factors = [total(samples * (done / own)) / total(samples) for own in done]
        models = scaled_models(reports, state.params, factors, state.trainable_size)
        shares: Floats = samples / total(samples)
        params = aggregated(self.aggregator, models, shares, answers.reference)
        return replace(state, params=params.astype(np.float32))

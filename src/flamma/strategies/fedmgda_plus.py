"""FedMGDA+: the shortest combination of gradients near the mean.

Hu et al., "Federated learning meets multi-objective optimization", IEEE Transactions on Network
Science and Engineering 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flamma.aggregators import aggregated
from flamma.errors import StrategyError
from flamma.strategies.base import data_shares
from flamma.strategies.gradients import ByUnitGradients, GradientState, Moves, inner_products
from flamma.strategies.quadratics import least_norm_weights
from flamma.types import Floats


@dataclass(frozen=True)
class FedMgdaPlus(ByUnitGradients):
    """The step is η_s Σ λ_k g_k, of gradients of length 1, with λ the least ‖Σ λ_k g_k‖.

    λ lies on the simplex with |λ_k - p_k| ≤ ε for every k. Along the shortest combination of all
    (ε = 1) no client's loss grows, to first order; ε = 0 is the mean by data size of gradients of
    length 1. An aggregator other than ``mean`` combines the models that gradients of length 1 lead
    to, with weights λ.

    Parameters
    ----------
    epsilon : float
        ε, how far a client's weight may be from its share of the data.
    """

    name: ClassVar[str] = "fedmgda+"
    label: ClassVar[str] = "FedMGDA+"
    summary: ClassVar[str] = "the shortest combination of unit gradients near the mean"
    family: ClassVar[str] = "fairness"

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.epsilon <= 1:
            raise StrategyError(f"epsilon must lie in [0, 1], not {self.epsilon:g}.")

    def moved(self, state: GradientState, moves: Moves) -> Floats:
        """Step along the shortest combination."""
        units = moves.of_length_1()
        samples = data_shares(moves.reports)
        shares = np.array([count / math.fsum(samples) for count in samples])
        weights = least_norm_weights(inner_products(units), shares, self.epsilon)
        models = [moves.received + unit for unit in units]
        there = aggregated(self.aggregator, models, weights, moves.reference)
        step = self.step_length(state)
        return there if step == 1 else moves.received + step * (there - moves.received)

"""AdaFed: a common direction along which the larger losses fall faster.

Hamidi and Yang, "AdaFed: fair federated learning via adaptive common descent direction", TMLR 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.aggregators import AGGREGATORS, weighted_mean
from flamma.errors import StrategyError
from flamma.numerics import power, weighted_sum
from flamma.strategies.base import with_losses
from flamma.strategies.gradients import (
    ByUnitGradients,
    GradientState,
    Moves,
    inner_products,
)
from flamma.strategies.qffl import SMALLEST_LOSS_SHIFT
from flamma.strategies.quadratics import weights_of_rates
from flamma.types import Floats, Report, Terms


@dataclass(frozen=True)
class AdaFed(ByUnitGradients):
    """The step is η_s d with ⟨d, g_k⟩ = F_k^γ ‖d‖² for every client, d in the span of all g_k.

    The gradients g_k have length 1, and losses are in units of the largest one. The paper comes to
    d by orthogonal vectors g̃_k and the shortest of their convex combinations; these equations
    have the same solution, and nothing in them is divided by a difference that could be 0.

    Parameters
    ----------
    gamma : float
        γ, how much faster a larger loss falls; 0 for all alike.
    """

    name: ClassVar[str] = "adafed"
    label: ClassVar[str] = "AdaFed"
    summary: ClassVar[str] = "a common direction along which larger losses fall faster (gamma)"
    family: ClassVar[str] = "fairness"

    server_step: float = 0.5
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 10:
            raise StrategyError(f"gamma must lie in [0, 10], not {self.gamma:g}.")
        if AGGREGATORS[self.aggregator.name] is not weighted_mean:
            raise StrategyError(
                f"adafed solves for one direction from all gradients, and the aggregator "
                f"{self.aggregator.name} has nothing to combine: leave it at mean."
            )

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return FedAvg's terms, asking for the loss of the received model."""
        return replace(super().terms(client, round), wants_loss=True)

    def usable(self, accepted: Sequence[Report]) -> Sequence[Report]:
        """Return the reports that have a usable loss."""
        return with_losses(accepted)

    def moved(self, state: GradientState, moves: Moves) -> Floats:
        """Step along the common direction."""
        units = moves.of_length_1()
        losses = np.array([report.loss + SMALLEST_LOSS_SHIFT for report in moves.reports])
        rates = power(losses / losses.max(), self.gamma)
        weights = weights_of_rates(inner_products(units), rates)
        return moves.received + self.step_length(state) * weighted_sum(units, weights)

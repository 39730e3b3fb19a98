"""GIFAIR-FL: weights by the rank of the loss.

Yue, Nouiehed and Al Kontar, "GIFAIR-FL: a framework for group and individual fairness in federated
learning", INFORMS Journal on Data Science 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.strategies.base import data_shares
from flamma.strategies.by_loss import ByLoss
from flamma.types import Report


@dataclass(frozen=True)
class Gifair(ByLoss):
    """Clients weigh p_k + λ r_k, the gradient of Σ p_k F_k + λ Σ_(i<j) |F_i - F_j|.

    r_k is how many of the others have a smaller loss, less how many have a larger one. No weight is
    negative as long as λ is at most min p_k / (n - 1), for n clients that answered.

    Parameters
    ----------
    strength : float
        λ as a share of that largest value; 0 is FedAvg.
    """

    name: ClassVar[str] = "gifair"
    label: ClassVar[str] = "GIFAIR"
    summary: ClassVar[str] = "weights by data size and the rank of the loss"

    strength: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.strength < 1:
            raise StrategyError(f"strength must lie in [0, 1), not {self.strength:g}.")

    def weights(self, reports: Sequence[Report]) -> list[float]:
        """Return n_k + λ r_k in units of samples."""
        losses = np.array([report.loss for report in reports])
        below = np.searchsorted(np.sort(losses), losses, side="left")
        above = losses.size - np.searchsorted(np.sort(losses), losses, side="right")
        samples = data_shares(reports)
        price = self.strength * min(samples) / max(losses.size - 1, 1)
        weights: list[float] = (np.array(samples) + price * (below - above)).tolist()
        return weights

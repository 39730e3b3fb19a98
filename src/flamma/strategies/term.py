"""TERM: weights by the exponential of the loss.

Li et al., "Tilted empirical risk minimization", ICLR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import exp
from flamma.strategies.base import data_shares
from flamma.strategies.by_loss import ByLoss
from flamma.types import Report, Terms


@dataclass(frozen=True)
class Term(ByLoss):
    """Clients weigh p_k exp(t F_k), the gradient of (1/t) log Σ p_k exp(t F_k); t = 0 is FedAvg.

    Parameters
    ----------
    t : float
        How much more a client with a larger loss weighs: towards the largest loss alone as it
        grows. Below 0 clients with a larger loss weigh less, as outliers.
    sample_tilt : float
        The same among the samples of a client's mini-batches; 0 is their mean.
    """

    name: ClassVar[str] = "term"
    label: ClassVar[str] = "TERM"
    summary: ClassVar[str] = "weights by data size times exp(t loss)"

    t: float = 1.0
    sample_tilt: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("t", "sample_tilt"):
            if not math.isfinite(getattr(self, option)):
                raise StrategyError(
                    f"{option} must be a finite number, not {getattr(self, option):g}."
                )

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return FedAvg's terms, asking for the loss, with the tilt among samples."""
        return replace(super().terms(client, round), tilt=self.sample_tilt)

    def weights(self, reports: Sequence[Report]) -> list[float]:
        """Return n_k exp(t F_k), but for a common factor that keeps them finite."""
        losses = np.array([report.loss for report in reports])
        largest_exponent = losses.max() if self.t > 0 else losses.min()
        with np.errstate(over="ignore"):
            exponents = self.t * (losses - largest_exponent)
        weights: list[float] = (exp(exponents) * data_shares(reports)).tolist()
        return weights

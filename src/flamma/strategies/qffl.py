"""q-FFL (q-FedAvg): clients with a larger loss weigh more.

Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flamma.aggregators import AGGREGATORS, Reference, aggregated, weighted_mean
from flamma.errors import StrategyError
from flamma.numerics import dot, power, total
from flamma.strategies.base import Answers, data_shares, loss_unit, model_of, with_losses
from flamma.strategies.fedavg import Averaging
from flamma.strategies.gradients import GradientState
from flamma.types import Params, Population, Report, Terms

SMALLEST_LOSS_SHIFT = 1e-10
"""Added to every loss, so that a power of 0 is defined."""


@dataclass(frozen=True)
class QFFL(Averaging[GradientState]):
    """Step by Σ Δ_k / Σ h_k, with F_k the loss of the *received* model on client k's data.

    L = 1/η, g_k = L (w - w_k), Δ_k = F_k^q g_k, h_k = q F_k^(q-1) ‖g_k‖² + L F_k^q. With q = 0
    this is the plain mean of the models, whatever the data sizes. What is not trained, such as a
    batch norm's running means, has no gradient: it becomes the mean by data size. With an
    aggregator other than ``mean``, its centre of the models, with weights F_k^q, takes the place of
    every w_k.

    Parameters
    ----------
    q : float
        How much more a client with a larger loss weighs; 0 is the plain mean.
    """

    name: ClassVar[str] = "qffl"
    label: ClassVar[str] = "q-FFL"
    summary: ClassVar[str] = "q-FFL: clients with a larger loss weigh more (q)"
    family: ClassVar[str] = "fairness"

    q: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.q >= 0:
            raise StrategyError(f"q must be at least 0, not {self.q:g}.")

    def init(self, params: Params, population: Population) -> GradientState:
        """Start with the given weights."""
        return GradientState(params, 0, population.samples, population.trainable_size)

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return FedAvg's terms, asking for the loss of the received model."""
        return replace(super().terms(client, round), wants_loss=True)

    def combine(self, state: GradientState, answers: Answers) -> GradientState:
        """Take the q-FedAvg step; a client without a usable loss is left out of it."""
        usable = with_losses(answers.accepted)
        if not usable:
            return state
        trained = slice(state.trainable_size)
        received = state.params[trained].astype(np.float64)
        lipschitz = 1 / self.plan.step_size(answers.offer.round)
        step, scale = np.zeros(received.size), 0.0
        unit = loss_unit([report.loss + SMALLEST_LOSS_SHIFT for report in usable], self.q)
        losses = [(report.loss + SMALLEST_LOSS_SHIFT) / unit for report in usable]
        weights, slopes = (power(losses, exponent).tolist() for exponent in (self.q, self.q - 1))
        models = self._models(usable, weights, answers.reference, state.trainable_size)
        for model, weight, slope in zip(models, weights, slopes, strict=True):
            gradient = lipschitz * (received - model)
            step += weight * gradient
            scale += self.q * slope * dot(gradient, gradient) / unit
            scale += lipschitz * weight
        params = self.average(usable, data_shares(usable), answers.reference)
        params[trained] = (received - step / scale).astype(np.float32)
        return replace(state, params=params)

    def _models(
        self,
        reports: Sequence[Report],
        weights: Sequence[float],
        reference: Reference | None,
        size: int,
    ) -> list[NDArray[np.floating]]:
        """Return the trained weights that each client counts with: its own, under the mean.

        Any other aggregator's centre stands for all of them. The length of one client's gradient
        could otherwise make the step as small as it likes.
        """
        own: list[NDArray[np.floating]] = [model_of(report)[:size] for report in reports]
        if AGGREGATORS[self.aggregator.name] is weighted_mean:
            return own
        if reference is not None:
            reference = reference.of_trained(size)
        sums = aggregated(self.aggregator, own, np.array(weights), reference)
        return [sums / total(weights)] * len(own)

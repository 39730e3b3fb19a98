"""What a mini-batch minimises: its mean loss, or a function of its samples' losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from flamma.tasks.measures import PLAIN_MEASURES, Measures
from flamma.training.jobs import BOUND_MARGIN
from flamma.types import LocalTask


def transforms(task: LocalTask) -> bool:
    """Return whether a task minimises something else than the mean loss."""
    return task.tilt != 0 or task.loss_bound < math.inf


def objective(
    outputs: Tensor, targets: Tensor, task: LocalTask, measures: Measures = PLAIN_MEASURES
) -> Tensor:
    """Return a number whose gradient is that of a task's objective on a mini-batch."""
    if not transforms(task):
        return measures.mean_loss(outputs, targets)
    losses = measures.losses(outputs, targets)
    shares = torch.full_like(losses, 1 / losses.numel())
    [weights] = sample_weights(losses.detach()[None], shares[None], [task])
    total: Tensor = (losses * weights).sum()
    return total


def sample_weights(losses: Tensor, shares: Tensor, tasks: Sequence[LocalTask]) -> Tensor:
    """Return the weight of each sample's gradient in that of its client's objective.

    A tilt t weights them by the softmax of t times their losses, the gradient of the tilted loss
    (1/t) log mean exp(t ℓ_j) (Li et al., Tilted empirical risk minimization, ICLR 2021). A bound M
    multiplies them by M / (M - ℓ) with their mean loss ℓ, the gradient of -M log(1 - ℓ / M)
    (PropFair; see :data:`~flamma.training.jobs.BOUND_MARGIN`).

    Parameters
    ----------
    losses, shares : Tensor
        A row per client: the losses, and the weights in the mean loss, 0 for padding.
    tasks : sequence of LocalTask
        Those of the clients.
    """

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=losses.dtype, device=losses.device)[:, None]

    tilts = column([task.tilt for task in tasks])
    bounds = column([task.loss_bound for task in tasks])
    # Relative to the loss with the largest weight, no exponent is above 0.
    padding = torch.where(tilts > 0, -math.inf, math.inf)
    real = torch.where(shares > 0, losses, padding)
    extreme = torch.where(tilts > 0, real.amax(1, keepdim=True), real.amin(1, keepdim=True))
    powers = torch.where(shares > 0, (tilts * (losses - extreme)).exp(), 0.0)
    tilted = powers / powers.sum(1, keepdim=True)
    factors = bounds / (bounds - (losses * shares).sum(1, keepdim=True)).clamp(min=BOUND_MARGIN)
    weighted = shares * torch.where(bounds < math.inf, factors, 1.0)
    return torch.where(tilts != 0, tilted, weighted)

"""The steps of one client's training, on the flat vector of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flamma.training.optimisers import UpdateRule


class FlatSteps:
    """Makes steps of the gradients that backward passes leave in a vector.

    Parameters
    ----------
    rule : UpdateRule
        How.
    momentum : float
        Of SGD, from zero velocity.
    weights, gradient : Tensor
        The trained weights, and what backward passes add to.
    scale : float
        By which the loss, and so the gradient, is multiplied.
    """

    def __init__(
        self, rule: UpdateRule, momentum: float, weights: Tensor, gradient: Tensor, scale: float
    ) -> None:
        self._rule, self._momentum, self._scale = rule, momentum, scale
        self._weights, self._gradient = weights, gradient
        self._memory = [torch.zeros_like(weights) for _ in range(rule.optimiser.vectors)]
        # Unless it is clipped, the gradient doubles as the velocity: a backward pass adds to it.
        apart = momentum and rule.clip is not None
        self._velocity = torch.zeros_like(weights) if apart else None
        self._steps = 0
        gradient.zero_()

    def prepare(self) -> None:
        """Make the gradient ready for a backward pass."""
        if self._momentum and self._velocity is None:
            self._gradient.mul_(self._momentum)
        else:
            self._gradient.zero_()

    def clip(self) -> None:
        """Scale the gradient of a mini-batch down to the largest norm that it may have."""
        if self._rule.clip is None:
            return
        clip_rows([self._gradient[None]], self._rule.clip * self._scale)
        if self._velocity is not None:
            self._gradient.add_(self._velocity, alpha=self._momentum)

    def take(self, rate: float) -> None:
        """Take the step."""
        self._steps += 1
        self._rule.step(
            self._weights, self._gradient, self._memory, self._steps, float(rate), self._scale
        )
        if self._velocity is not None:
            self._velocity.copy_(self._gradient)


def clip_rows(parts: Sequence[Tensor], longest: float) -> None:
    """Scale the gradients of stacked clients down to the largest norm, each by itself, in place.

    Parameters
    ----------
    parts : sequence of Tensor
        A tensor per part of the model, with a row per client.
    longest : float
        The largest norm over all parts of a client.
    """
    precise = _precise(parts[0])
    norms = torch.stack(
        [torch.linalg.vector_norm(p.flatten(1), dim=1, dtype=precise) for p in parts]
    )
    factors = (longest / torch.linalg.vector_norm(norms, dim=0)).clamp(max=1.0).float()
    for part in parts:
        part.mul_(factors.view(-1, *[1] * (part.dim() - 1)))


def _precise(tensor: Tensor) -> torch.dtype:
    # No square of a float32 overflows in double precision, which Apple's GPUs do not have.
    return torch.float32 if tensor.device.type == "mps" else torch.float64

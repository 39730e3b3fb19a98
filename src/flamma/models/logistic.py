"""Multinomial logistic regression, which is convex, so that theorems can be checked on it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def logistic(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return logistic regression on the flattened sample."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))

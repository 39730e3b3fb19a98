"""Contribution measures: how much of the new global model is a client's, from 0 to 1.

A measure looks at one client's update and returns ω. Another package adds one by an entry point of
the group ``flamma.contributions``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flamma.numerics import dot, norm
from flamma.registry import Registry
from flamma.types import Params


@dataclass(frozen=True, eq=False)
class Update:
    """One client's update, trainable weights only.

    Attributes
    ----------
    local : ndarray
        The model the client sent.
    received : ndarray
        The global model it started from.
    aggregate : ndarray
        The new global model.
    """

    local: Params
    received: Params
    aggregate: Params


ContributionMeasure = Callable[..., float]
"""``(update, **options) -> contribution``."""


def distance(update: Update) -> float:
    """Return ω = clip(1 - ‖w_i - w‖ / ‖w‖, 0, 1), the closeness of a model to the aggregate."""
    with np.errstate(over="ignore"):  # beyond float32 a distance is infinite, which is far enough
        size, apart = norm(update.aggregate), norm(update.local - update.aggregate)
    return min(1.0, max(0.0, 1 - apart / size)) if size > 0 else 0.0


def cosine(update: Update) -> float:
    """Return ω = clip(cos ∠(w_i - w, w' - w), 0, 1), how far a client's move is the common one.

    Unlike the distance it does not reward doing little.
    """
    move = (update.local - update.received).astype(np.float64)
    common = (update.aggregate - update.received).astype(np.float64)
    size = norm(move) * norm(common)
    return min(1.0, max(0.0, dot(move, common) / size)) if size > 0 else 0.0


CONTRIBUTIONS: Registry[ContributionMeasure] = Registry(
    "contribution measure", "flamma.contributions", {"distance": distance, "cosine": cosine}
)
"""All contribution measures by name."""

"""Measures that look at one client's update by itself."""

from __future__ import annotations

import numpy as np

from flamma.contributions.contract import Update
from flamma.numerics import dot, norm


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

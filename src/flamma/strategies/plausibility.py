"""Is an answer plausible? Compares work claimed with how far an update went, losses with others'.

With plain SGD the length of an update grows with the steps taken, less than in proportion. How far
a client gets per unit of that, its pace, is compared with that of other clients and with its own
earlier one. An update that is much too short for the epochs claimed is credited with as many epochs
as it looks like.
"""

from __future__ import annotations

import math

import numpy as np

from flamma.numerics import norm, power
from flamma.types import Floats, Ints, Params, Report, Terms

WORK_EXPONENT = 0.7
"""The length of an update grows about as steps^0.7: less than straight on, more than at random."""

PLAUSIBLE_PACE = 1 / 3
"""The share of the others' median pace, or of its own, below which an update is too short."""

FEWEST_PACES = 2
"""How many other clients' paces it takes to judge one."""

RECENT_ROUNDS = 10
"""For how many rounds a pace can be compared: updates get shorter as the model gets better."""


def pace_of(report: Report, terms: Terms, received: Params, batch_size: int) -> float:
    """Return how far an update went per unit of the work that is claimed; NaN without a step."""
    assert report.params is not None
    steps = report.epochs * -(-report.samples // batch_size)
    if steps < 1 or not terms.step_scale > 0:
        return math.nan
    with np.errstate(over="ignore"):
        length = norm(report.params - received)
    return length / (terms.step_scale * float(power(np.array(float(steps)), WORK_EXPONENT)))


def looks_like(epochs: int, pace: float, others: Floats, own: float) -> float:
    """Return the epochs that an update of this pace looks like, at most those claimed.

    Parameters
    ----------
    epochs : int
        The epochs claimed.
    pace : float
        As if they had been done.
    others : ndarray
        Recent paces of other clients.
    own : float
        The client's own earlier one, NaN if there is none.
    """
    expected = [float(np.median(others))] if others.size >= FEWEST_PACES else []
    expected += [own] if math.isfinite(own) else []
    least = PLAUSIBLE_PACE * max(expected, default=0.0)
    if not math.isfinite(pace) or pace >= least:
        return float(epochs)
    return epochs * float(power(np.array(pace / least), 1 / WORK_EXPONENT))


def capped_samples(samples: Ints | Floats, most: float) -> Floats:
    """Return data sizes of at most a multiple of their median, so that no claim counts for all."""
    return np.minimum(samples.astype(np.float64), most * float(np.median(samples)))


def capped_losses(losses: Floats) -> Floats:
    """Return losses with the largest one counting at most as the largest of the others."""
    told = np.flatnonzero(np.isfinite(losses))
    if told.size < 2:
        return losses
    second = np.partition(losses[told], told.size - 2)[told.size - 2]
    return np.where(np.isfinite(losses), np.minimum(losses, second), losses)

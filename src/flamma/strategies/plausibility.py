"""Is an answer plausible? Compares work claimed with how far an update went, losses with others'.

With plain SGD the length of an update grows with the steps taken, less than in proportion. How far
a client gets per unit of that, its pace, is compared with that of other clients and with its own
earlier one. An update that is much too short for the epochs claimed is credited with as many epochs
as it looks like, and one that is much too long with the fewer epochs the longer it is. Steps are
counted by the samples with which the client introduced itself, not by those that an answer names.
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

IMPLAUSIBLE_PACE = 8.0
"""The multiple of the others' median pace, or else of its own, above which an update is too long.
Of 2,160 honest answers on digits (IID, two and one classes per client) the largest had 7.5."""

FEWEST_PACES = 2
"""How many other clients' paces it takes to judge one."""

RECENT_ROUNDS = 10
"""For how many rounds a pace can be compared: updates get shorter as the model gets better."""


def pace_of(report: Report, terms: Terms, received: Params, batch_size: int, samples: int) -> float:
    """Return how far an update went per unit of the work that is claimed; NaN without a step.

    ``samples`` are those with which the client introduced itself.
    """
    assert report.params is not None
    steps = report.epochs * -(-samples // batch_size)
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
    least = PLAUSIBLE_PACE * max(_expected(others, own), default=0.0)
    if not math.isfinite(pace) or pace >= least:
        return float(epochs)
    return epochs * float(power(np.array(pace / least), 1 / WORK_EXPONENT))


def believed_share(pace: float, others: Floats, own: float) -> float:
    """Return the share of its epochs that an update is credited with: below 1 if it is too long.

    The arguments are those of :func:`looks_like`. To have been long before is no excuse, so a
    client's own earlier pace counts only where there are too few others.
    """
    expected = _expected(others, own)
    most = IMPLAUSIBLE_PACE * expected[0] if expected else math.inf
    if math.isnan(pace) or pace <= most:
        return 1.0
    return float(power(np.array(most / pace), 1 / WORK_EXPONENT))


def _expected(others: Floats, own: float) -> list[float]:
    """Return the paces to compare with: the others' median, and the client's own earlier one."""
    usual = [float(np.median(others))] if others.size >= FEWEST_PACES else []
    return usual + ([own] if math.isfinite(own) else [])


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

"""Small quadratic programs over clients' weights, solved to the same bits on every machine."""

from __future__ import annotations

import math

import numpy as np

from flamma.numerics import dot, total, totals
from flamma.types import Floats, Ints

GAP_TOLERANCE = 1e-10
"""How far ½ λᵀKλ may be above its smallest value, where K has diagonal entries of about 1."""

_MOST_EXCHANGES = 100_000
"""After so many exchanges between two weights the solver returns what it has; ten clients take
some dozens, and what it has is feasible at any time."""

_SMALLEST_PIVOT = 1e-10
"""A vector counts as a combination of others if its squared distance to their span is this small
a part of its squared length."""


def project_to_simplex(values: Floats, mass: float) -> Floats:
    """Return the point nearest to the values that is nowhere negative and has the sum ``mass``.

    Duchi et al., "Efficient projections onto the l1-ball", ICML 2008: max(v - θ, 0) with the one θ
    that makes the sum right. A point of the simplex whose sum is exact stays as it is.

    Examples
    --------
    >>> project_to_simplex(np.array([0.5, 0.75, -1.0]), 1.0)
    array([0.375, 0.625, 0.   ])
    """
    ordered = -np.sort(-values, kind="stable")
    thresholds = (np.cumsum(ordered) - mass) / np.arange(1, values.size + 1)
    theta = thresholds[np.flatnonzero(ordered > thresholds)[-1]]
    nearest: Floats = np.maximum(values - theta, 0.0)
    return nearest


def least_norm_weights(gram: Floats, start: Floats, reach: float) -> Floats:
    """Return λ with the least λᵀKλ on the simplex, no entry further than ``reach`` from the start.

    Two weights at a time are exchanged, those that promise most (sequential minimal optimisation;
    Keerthi et al., "Improvements to Platt's SMO algorithm", Neural Computation 2001): λ_i grows and
    λ_j shrinks where (Kλ)_i is the least of all that may grow, and (Kλ)_j the largest of all that
    may shrink. The difference of the two bounds how far ½ λᵀKλ is above its least value, and the
    end is where it is at most :data:`GAP_TOLERANCE`.

    Parameters
    ----------
    gram : ndarray
        K, the inner products of the vectors whose combination Σ λ_i v_i is to be short.
    start : ndarray
        A point of the simplex.
    reach : float
        The most that an entry may differ from the start.
    """
    lower, upper = np.maximum(start - reach, 0.0), np.minimum(start + reach, 1.0)
    weights, slopes = start.copy(), totals(gram * start)
    for _ in range(_MOST_EXCHANGES):
        up = int(np.argmin(np.where(weights < upper, slopes, np.inf)))
        down = int(np.argmax(np.where(weights > lower, slopes, -np.inf)))
        # Where no weight may grow, or none may shrink, any one is found, and it has no room.
        room = min(upper[up] - weights[up], weights[down] - lower[down])
        gap = slopes[down] - slopes[up]
        if not (gap > GAP_TOLERANCE and room > 0):
            break
        curvature = gram[up, up] + gram[down, down] - 2 * gram[up, down]
        exchanged = gap / curvature if curvature * room > gap else room
        weights[up] = min(weights[up] + exchanged, upper[up])
        weights[down] = max(weights[down] - exchanged, lower[down])
        slopes = slopes + exchanged * (gram[up] - gram[down])
    return weights


def weights_of_rates(gram: Floats, rates: Floats) -> Floats:
    """Return λ such that d = Σ λ_i v_i has ⟨d, v_i⟩ = r_i ‖d‖² for every i, and no longer d does.

    That is K⁻¹ r / (rᵀ K⁻¹ r), by Cholesky's factors. A vector that is a combination of others with
    larger rates cannot have a rate of its own, and gets the weight 0.
    """
    count = rates.size
    factor, solved, kept = np.zeros((count, count)), np.zeros(count), np.zeros(0, dtype=np.int64)
    for candidate in np.argsort(-rates, kind="stable").tolist():
        size = kept.size
        row = _forward(factor, gram[candidate, kept])
        pivot = gram[candidate, candidate] - dot(row, row)
        if pivot > _SMALLEST_PIVOT * gram[candidate, candidate]:
            factor[size, :size], factor[size, size] = row, math.sqrt(pivot)
            solved[size] = (rates[candidate] - dot(row, solved[:size])) / factor[size, size]
            kept = np.append(kept, candidate)
    return _backward(factor, solved, kept)


def _forward(factor: Floats, values: Floats) -> Floats:
    """Return x with L x = values, for the first rows of the lower triangle L."""
    x = np.zeros(values.size)
    for place in range(values.size):
        x[place] = (values[place] - dot(factor[place, :place], x[:place])) / factor[place, place]
    return x


def _backward(factor: Floats, solved: Floats, kept: Ints) -> Floats:
    """Return λ of all vectors from L⁻¹ r of those that are kept."""
    weights, x = np.zeros(solved.size), np.zeros(kept.size)
    for place in reversed(range(kept.size)):
        below = slice(place + 1, kept.size)
        x[place] = (solved[place] - dot(factor[below, place], x[below])) / factor[place, place]
    scale = total(np.square(solved[: kept.size]))
    weights[kept] = x / scale if scale > 0 else 0.0
    return weights

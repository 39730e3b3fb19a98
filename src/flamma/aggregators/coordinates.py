"""Aggregators that reduce every coordinate by itself.

Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flamma.aggregators.contract import Vectors, Weighed, asks
from flamma.errors import StrategyError
from flamma.numerics.sums import COLUMNS
from flamma.types import Floats

ROUNDING_SHARE = 1e-10
"""Shares of the weight below this are rounding. A trimmed vector must not keep one: a number of
single precision can be so large that even this part of it would show."""


def coordinate_median(vectors: Vectors, weights: Floats, *, weighted: bool = True) -> Floats:
    """Return the coordinate-wise median.

    The median of a coordinate has at most half of the weight below it and at most half above. If
    two neighbouring values both do, it is the middle between them.

    Parameters
    ----------
    weighted : bool
        Whether clients count by their weights, such as their data sizes; else they count alike.

    Examples
    --------
    >>> vectors = np.array([[0, 5], [1, 6], [100, -100]], dtype=np.float32)
    >>> coordinate_median(vectors, np.full(3, 1 / 3))
    array([1., 5.])
    """
    given = Weighed.of(vectors, weights, weighted)
    return given.scale * _by_columns(given, _medians)


def _check_share(answers: int, *, share: float, weighted: bool) -> None:
    if not 0 <= share < 0.5:
        raise StrategyError(f"the share to trim must lie from 0 to below 0.5, not {share:g}.")


@asks(check=_check_share)
def trimmed_mean(
    vectors: Vectors, weights: Floats, *, share: float = 0.2, weighted: bool = True
) -> Floats:
    """Return the coordinate-wise mean without the largest and the smallest values.

    From both ends of each coordinate a share of the weight is left out. A client at the cut counts
    by what is left of its weight.

    Parameters
    ----------
    share : float
        How much of the weight is left out at each end, from 0 to below 0.5: as many attackers are
        borne.
    weighted : bool
        Whether clients count by their weights, such as their data sizes; else they count alike.

    Examples
    --------
    >>> vectors = np.array([[0], [1], [2], [3], [1000]], dtype=np.float32)
    >>> trimmed_mean(vectors, np.full(5, 0.2), share=0.2)
    array([2.])
    """
    _check_share(len(vectors), share=share, weighted=weighted)
    given = Weighed.of(vectors, weights, weighted)
    return given.scale * _by_columns(given, lambda values, own: _trimmed_means(values, own, share))


def weighted_median(values: Floats, weights: Floats) -> float:
    """Return the median of numbers whose weights sum up to 1."""
    return float(_by_columns(Weighed([*values.reshape(-1, 1)], weights, 1.0), _medians)[0])


def _by_columns(given: Weighed, reduce: Callable[[Floats, Floats], Floats]) -> Floats:
    """Reduce every coordinate, given its values in order and the weights that go with them."""
    size = given.vectors[0].size
    result = np.empty(size)
    for start in range(0, size, COLUMNS):
        part = slice(start, min(start + COLUMNS, size))
        values = np.stack([vector[part] for vector in given.vectors]).astype(np.float64)
        order = np.argsort(values, axis=0, kind="stable")
        result[part] = reduce(np.take_along_axis(values, order, axis=0), given.weights[order])
    return result


def _medians(values: Floats, weights: Floats) -> Floats:
    below = np.cumsum(weights, axis=0)
    lower = np.argmax(below >= 0.5 - ROUNDING_SHARE, axis=0)
    upper = np.argmax(below > 0.5 + ROUNDING_SHARE, axis=0)
    columns = np.arange(values.shape[1])
    middle: Floats = (values[lower, columns] + values[upper, columns]) / 2
    return middle


def _trimmed_means(values: Floats, weights: Floats, share: float) -> Floats:
    below = np.cumsum(weights, axis=0)
    kept = np.minimum(below, 1 - share) - np.maximum(below - weights, share)
    kept[kept < ROUNDING_SHARE] = 0.0
    sums, counted = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    for value, weight in zip(values, kept, strict=True):  # one by one: the order is fixed
        sums += weight * value
        counted += weight
    return sums / counted

"""Sums and means over each client's part of an array, in the order of its entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.types import Floats, Ints


def owners_of(offsets: Ints) -> Ints:
    """Return the client of every entry: client ``i`` owns those from ``offsets[i]`` on."""
    counts = np.diff(offsets)
    return np.repeat(np.arange(counts.size), counts)


def part_sums(values: NDArray[Any], offsets: Ints) -> Floats:
    """Return the sum of each client's values, which are added up in their order.

    Examples
    --------
    >>> part_sums(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
    array([3., 0., 3.])
    """
    own = values[offsets[0] : offsets[-1]]
    sums: Floats = np.bincount(  # type: ignore[assignment]
        owners_of(offsets), weights=own, minlength=offsets.size - 1
    )
    return sums


def part_means(values: NDArray[Any], offsets: Ints) -> Floats:
    """Return the mean of each client's values; a client without values has NaN."""
    return ratios(part_sums(values, offsets), np.diff(offsets))


def ranks_of(values: NDArray[Any], offsets: Ints) -> Floats:
    """Return the rank of each value among its client's, from 1 on; equal ones share their mean.

    Examples
    --------
    >>> ranks_of(np.array([5.0, 1.0, 5.0, 9.0]), np.array([0, 3, 4]))
    array([2.5, 1. , 2.5, 1. ])
    """
    owner = owners_of(offsets)
    order = np.lexsort((values, owner))
    whose, ranked = owner[order], values[order]
    new = np.ones(order.size, dtype=bool)
    new[1:] = (ranked[1:] != ranked[:-1]) | (whose[1:] != whose[:-1])
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], order.size)
    ranks = np.empty(order.size)
    ranks[order] = np.repeat((starts + ends + 1) / 2, ends - starts) - offsets[whose]
    return ranks


def ratios(above: Floats, below: NDArray[Any]) -> Floats:
    """Return each quotient, NaN where the divisor is 0."""
    found = np.full(below.size, math.nan)
    filled = below != 0
    found[filled] = above[filled] / below[filled]
    return found

"""Sums in a fixed order, in double precision.

The order of a sum of n numbers x_0 .. x_(n-1) is the following, and compiled code must keep to it:

1. There are 1024 partial sums s_0 .. s_1023, all +0.0.
2. For i = 0 .. n-1 in this order, x_i is added to s_(i mod 1024).
3. For h = 512, 256, ..., 1: s_j becomes s_j + s_(j+h) for j = 0 .. h-1. The sum is s_0.

Every addition is rounded to double precision. A number of single or half precision is converted
first, which is exact. Of a sum of products each product is rounded to double precision before it is
added: products and sums are never fused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

_PARTIAL_SUMS = 1024
"""How many partial sums there are, a power of two."""

BLOCK = 16 * _PARTIAL_SUMS
"""How many numbers are converted at once; temporaries of this size stay in the cache."""

COLUMNS = 8192
"""How many columns of a weighted sum are computed at once."""

Doubles = NDArray[np.float64]
_Reals = NDArray[np.floating | np.integer]


def total(values: ArrayLike) -> float:
    """Return the sum of all values, in the order of this module.

    Examples
    --------
    >>> total([0.25, 0.5, 1.0])
    1.75
    """
    flat = np.asarray(values).reshape(-1)
    sums = _partial_sums((), flat.size)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, BLOCK):
            _add(sums, flat[start : start + BLOCK].astype(np.float64, copy=False))
        return float(_folded(sums))


def totals(values: Doubles) -> Doubles:
    """Return the sums along the last axis, each as :func:`total` returns it.

    Examples
    --------
    >>> totals(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([3., 7.])
    """
    sums = _partial_sums(values.shape[:-1], values.shape[-1])
    with np.errstate(over="ignore", invalid="ignore"):
        _add(sums, values)
        return _folded(sums)


def dot(x: _Reals, y: _Reals) -> float:
    """Return Σ x_i y_i, in the order of this module.

    Examples
    --------
    >>> dot(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    11.0
    """
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"two vectors of one length are needed, not {x.shape} and {y.shape}.")
    sums = _partial_sums((), x.size)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, x.size, BLOCK):
            part = slice(start, start + BLOCK)
            _add(sums, np.multiply(x[part], y[part], dtype=np.float64))
        return float(_folded(sums))


def norm(x: _Reals) -> float:
    """Return the square root of Σ x_i²; squares of single precision cannot overflow.

    Examples
    --------
    >>> norm(np.array([3.0, 4.0], dtype=np.float32))
    5.0
    """
    return math.sqrt(dot(x, x))


def weighted_sum(
    vectors: Sequence[NDArray[np.floating]] | NDArray[np.floating], weights: ArrayLike
) -> Doubles:
    """Return Σ w_k v_k in double precision, added one by one to zeros in the order given.

    Parameters
    ----------
    vectors : sequence of ndarray, or ndarray
        Vectors of one length, or a matrix with a row for each, in half, single or double precision.
    weights : array_like
        One weight for each vector.

    Examples
    --------
    >>> weighted_sum(np.array([[1, 2], [3, 4]], dtype=np.float32), [0.5, 0.25])
    array([1.25, 2.  ])
    """
    factors = np.asarray(weights, dtype=np.float64)
    if factors.shape != (len(vectors),):
        raise ValueError(f"{len(vectors)} vectors need as many weights, not {factors.shape}.")
    size = vectors.shape[1] if isinstance(vectors, np.ndarray) else vectors[0].size
    result = np.zeros(size)
    product = np.empty(min(size, COLUMNS))
    pairs = list(zip(vectors, factors, strict=True))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, size, COLUMNS):
            part = result[start : start + COLUMNS]
            term = product[: part.size]
            for vector, factor in pairs:
                term[:] = vector[start : start + COLUMNS]
                term *= factor
                part += term
    return result


def _partial_sums(shape: tuple[int, ...], count: int) -> Doubles:
    """Return the partial sums before the first addition.

    Those that no number is added to stay 0 and do not change the result, so only as many are kept
    as are needed: a partial sum is never -0.0, which +0.0 would turn into +0.0.
    """
    needed = 1 << max(0, count - 1).bit_length()
    return np.zeros((*shape, min(needed, _PARTIAL_SUMS)))


def _add(sums: Doubles, values: Doubles) -> None:
    width = sums.shape[-1]
    for start in range(0, values.shape[-1], width):
        part = values[..., start : start + width]
        sums[..., : part.shape[-1]] += part


def _folded(sums: Doubles) -> Doubles:
    while (half := sums.shape[-1] // 2) > 0:
        sums = sums[..., :half] + sums[..., half:]
    folded: Doubles = sums[..., 0]
    return folded

"""Exponentials, logarithms, powers and a cosine, to about one unit in the last place.

The polynomials of :func:`exp`, :func:`log` and :func:`cosine_of_half_turns` are those of FDLIBM
(Sun Microsystems, 1993). A power is exp(y ln x) with the logarithm and the product as sums of two
doubles, so that no precision is lost to the size of the exponent.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.numerics.sums import Doubles

_BLOCK_VALUES = 16384
"""How many values are computed at once; temporaries of this size stay in the cache."""

LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 as a sum; the first part has 32 bits, so that its product with an exponent is exact."""

_INVERSE_LN2 = 1.44269504088896338700
_SQRT_HALF = 0.70710678118654752440

LARGEST_EXPONENT, SMALLEST_EXPONENT = 709.782712893384, -745.2
"""Beyond these the exponential overflows, or is 0."""

_LARGEST_POWER = 2.0**66
"""A power with an exponent beyond this is 0, 1 or infinite, as it is with this exponent."""

_SPLITTER = 2.0**27 + 1
"""Splits a double into two halves of 26 bits (Veltkamp)."""

THIRD_HIGH, THIRD_LOW = 1 / 3, 1.850371707708594e-17
"""1/3 as a sum of two doubles."""

_EXP_TERMS = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
_LOG_TERMS = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)

_COS_TERMS = (
    1.0,
    -0.5,
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)
_SIN_TERMS = (
    1.0,
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)

Pair = tuple[Doubles, Doubles]
"""A number as the sum of two doubles, the second at most half a unit in the last place."""


def exp(x: ArrayLike) -> Doubles:
    """Return e to the power of x.

    Examples
    --------
    >>> exp([0.0, 1.0, -np.inf])
    array([1.        , 2.71828183, 0.        ])
    """
    return _blockwise(lambda part: _exp_of_sum(part, np.zeros_like(part)), np.asarray(x))


def log(x: ArrayLike) -> Doubles:
    """Return the natural logarithm: -inf of 0, NaN of a negative number.

    Examples
    --------
    >>> log([1.0, 2.0, 0.0])
    array([0.        , 0.69314718,       -inf])
    """
    return _blockwise(_log, np.asarray(x))


def power(x: ArrayLike, y: ArrayLike) -> Doubles:
    """Return x to the power of y for x of at least 0; NaN for a negative x.

    As IEEE 754 says, x^0 and 1^y are 1 even of NaN.

    Examples
    --------
    >>> power([4.0, 0.0, 9.0], [0.5, 2.0, -0.5])
    array([2.        , 0.        , 0.33333333])
    """
    base, exponent = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
    return _blockwise(_power, base, exponent)


def cosine_of_half_turns(turns: float) -> float:
    """Return cos(π x) of an x from 0 to 1, to within a few units in the last place.

    Examples
    --------
    >>> [cosine_of_half_turns(x) for x in (0.0, 0.5, 1.0)]
    [1.0, 0.0, -1.0]
    """
    if turns > 0.5:
        return -cosine_of_half_turns(1 - turns)
    near, terms = (turns, _COS_TERMS) if turns <= 0.25 else (0.5 - turns, _SIN_TERMS)
    angle = np.array(math.pi * near)
    value = float(polynomial(angle * angle, terms))
    return value if terms is _COS_TERMS else float(angle) * value


def _blockwise(function: Callable[..., Doubles], *arguments: NDArray[np.generic]) -> Doubles:
    shape = arguments[0].shape
    flat = [argument.astype(np.float64, copy=False).reshape(-1) for argument in arguments]
    result = np.empty(flat[0].size)
    with np.errstate(all="ignore"):
        for start in range(0, result.size, _BLOCK_VALUES):
            part = slice(start, start + _BLOCK_VALUES)
            result[part] = function(*(argument[part] for argument in flat))
    return result.reshape(shape)


def polynomial(x: Doubles, coefficients: tuple[float, ...]) -> Doubles:
    """Return c_0 + c_1 x + c_2 x² + ..., by Horner's rule."""
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value *= x
        value += coefficient
    return value


def _exp_of_sum(x: Doubles, more: Doubles) -> Doubles:
    """Return e to the power of x + more, where ``more`` is far smaller than x or than 1.

    With x = k ln 2 + r and |r| <= (ln 2) / 2, e^r = 1 + 2 r / (R - r) for an R that is close to a
    polynomial in r².
    """
    inside = np.clip(x, SMALLEST_EXPONENT, LARGEST_EXPONENT + 1)
    known = np.where(np.isnan(x), 0.0, inside)
    k = np.rint(known * _INVERSE_LN2)
    high = known - k * LN2_HIGH
    low = k * LN2_LOW - more
    r = high - low
    square = r * r
    c = r - square * polynomial(square, _EXP_TERMS)
    value = _scaled(1 - ((low - (r * c) / (2 - c)) - high), k)
    value = np.where(x > LARGEST_EXPONENT + 0.5, np.inf, value)
    return np.where(np.isnan(x), x, np.where(x < SMALLEST_EXPONENT, 0.0, value))


def _scaled(x: Doubles, k: Doubles) -> Doubles:
    """Return x 2^k in two steps, of which the first is exact and the second rounds once."""
    first = np.floor(k / 2).astype(np.int64)
    second = k.astype(np.int64) - first
    return x * _power_of_two(first) * _power_of_two(second)


def _power_of_two(k: NDArray[np.int64]) -> Doubles:
    return ((k + 1023) << 52).view(np.float64)


def _reduced(x: Doubles) -> tuple[Doubles, Doubles, NDArray[np.bool_]]:
    """Return f and k of x = 2^k (1 + f), 1 + f from √½ to √2, and where 0 < x < ∞."""
    usable = (x > 0) & (x < np.inf)
    mantissa, exponent = np.frexp(np.where(usable, x, 1.0))
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, 2 * mantissa, mantissa)
    return mantissa - 1, exponent - small.astype(np.float64), usable


def _log(x: Doubles) -> Doubles:
    f, k, usable = _reduced(x)
    s = f / (2 + f)
    square = s * s
    rest = square * polynomial(square, _LOG_TERMS)
    half = 0.5 * f * f
    value = k * LN2_HIGH - ((half - (s * (half + rest) + k * LN2_LOW)) - f)
    return np.where(usable, value, _log_outside(x))


def _log_outside(x: Doubles) -> Doubles:
    return np.where(x == 0, -np.inf, np.where(x == np.inf, np.inf, np.nan))


def _power(x: Doubles, y: Doubles) -> Doubles:
    _, _, usable = _reduced(x)
    exponent = np.clip(np.where(np.isnan(y), 0.0, y), -_LARGEST_POWER, _LARGEST_POWER)
    high, low = _product(_log_of_pair(x), (exponent, np.zeros_like(exponent)))
    value = _exp_of_sum(high, low)
    at_end = np.where((x == 0) == (y > 0), 0.0, np.inf)  # of 0 and of infinity
    value = np.where(usable, value, np.where((x == 0) | (x == np.inf), at_end, np.nan))
    value = np.where(np.isnan(y), np.nan, value)
    return np.where((y == 0) | (x == 1), 1.0, value)


def _log_of_pair(x: Doubles) -> Pair:
    """Return ln x to about 100 bits less what a series of doubles costs, 0 where there is none.

    ln(1 + f) = 2 s + 2 s³/3 + 2 s⁵ (1/5 + s²/7 + ...) with s = f / (2 + f). The first two terms
    are pairs; the rest is so much smaller that a double will do.
    """
    f, k, _ = _reduced(x)
    s = _quotient(f, _sum(np.full_like(f, 2.0), f))
    square = _product(s, s)
    third = _product(square, (np.full_like(f, THIRD_HIGH), np.full_like(f, THIRD_LOW)))
    tail = square[0] * square[0] * polynomial(square[0], tuple(1 / n for n in range(5, 27, 2)))
    series = _sum(third[0], tail)
    series = _sum(series[0], series[1] + third[1])
    whole = _sum(np.ones_like(f), series[0])
    high, low = _product((2 * s[0], 2 * s[1]), (whole[0], whole[1] + series[1]))
    base, rest = _sum(k * LN2_HIGH, high)
    return _sum(base, rest + (low + k * LN2_LOW))


def _sum(x: Doubles, y: Doubles) -> Pair:
    """Return x + y exactly (Knuth)."""
    high = x + y
    part = high - x
    return high, (x - (high - part)) + (y - part)


def _product(x: Pair, y: Pair) -> Pair:
    """Return x y (Dekker); exact to about 104 bits."""
    high = x[0] * y[0]
    x_high, x_low = _halves(x[0])
    y_high, y_low = _halves(y[0])
    error = ((x_high * y_high - high) + x_high * y_low + x_low * y_high) + x_low * y_low
    return _sum(high, error + (x[0] * y[1] + x[1] * y[0]))


def _halves(x: Doubles) -> Pair:
    scaled = _SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high


def _quotient(x: Doubles, y: Pair) -> Pair:
    high = x / y[0]
    back, error = _product((high, np.zeros_like(high)), y)
    return _sum(high, ((x - back) - error) / y[0])

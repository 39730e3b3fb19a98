"""Random deviates from uniform ones, with the same bits everywhere.

numpy's own normal, gamma and Gumbel deviates call the mathematical library of the operating system.
Its uniform deviates are whole numbers times a power of two.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from flamma.numerics.elementary import exp, log, polynomial
from flamma.numerics.sums import Doubles, total

_LEAST_UNIFORM = 2.0**-54
"""Stands for a uniform deviate of 0, half of the smallest other one."""

_QUANTILES = 2**16
"""How many quantiles the table of :func:`normal_float32` has."""

CENTRE, TAIL = 0.425, 5.0
"""Where Wichura's three approximations meet: |p - 1/2|, and √(-ln p)."""

_CENTRE_NUMERATOR = (
    3.3871328727963666080e0,
    1.3314166789178437745e2,
    1.9715909503065514427e3,
    1.3731693765509461125e4,
    4.5921953931549871457e4,
    6.7265770927008700853e4,
    3.3430575583588128105e4,
    2.5090809287301226727e3,
)
_CENTRE_DENOMINATOR = (
    1.0,
    4.2313330701600911252e1,
    6.8718700749205790830e2,
    5.3941960214247511077e3,
    2.1213794301586595867e4,
    3.9307895800092710610e4,
    2.8729085735721942674e4,
    5.2264952788528545610e3,
)
_SIDE_NUMERATOR = (
    1.42343711074968357734e0,
    4.63033784615654529590e0,
    5.76949722146069140550e0,
    3.64784832476320460504e0,
    1.27045825245236838258e0,
    2.41780725177450611770e-1,
    2.27238449892691845833e-2,
    7.74545014278341407640e-4,
)
_SIDE_DENOMINATOR = (
    1.0,
    2.05319162663775882187e0,
    1.67638483018380384940e0,
    6.89767334985100004550e-1,
    1.48103976427480074590e-1,
    1.51986665636164571966e-2,
    5.47593808499534494600e-4,
    1.05075007164441684324e-9,
)
_TAIL_NUMERATOR = (
    6.65790464350110377720e0,
    5.46378491116411436990e0,
    1.78482653991729133580e0,
    2.96560571828504891230e-1,
    2.65321895265761230930e-2,
    1.24266094738807843860e-3,
    2.71155556874348757815e-5,
    2.01033439929228813265e-7,
)
_TAIL_DENOMINATOR = (
    1.0,
    5.99832206555887937690e-1,
    1.36929880922735805310e-1,
    1.48753612908506148525e-2,
    7.86869131145613259100e-4,
    1.84631831751005468180e-5,
    1.42151175831644588870e-7,
    2.04426310338993978564e-15,
)


def gumbel(rng: np.random.Generator, size: int) -> Doubles:
    """Return standard Gumbel deviates, -ln(-ln u)."""
    return -log(-log(_uniform(rng, size)))


def normal(rng: np.random.Generator, size: int) -> Doubles:
    """Return standard normal deviates, by the inverse of their distribution function."""
    return normal_quantile(_uniform(rng, size))


def normal_float32(rng: np.random.Generator, size: int) -> NDArray[np.float32]:
    """Return standard normal deviates of single precision, many at a time.

    Each is the sum over √2 of two draws from a table of 65,536 quantiles, which is close enough to
    a normal distribution for artificial data.
    """
    table = _table()
    picked = rng.integers(0, _QUANTILES, size=(size, 2), dtype=np.uint16)
    deviates: NDArray[np.float32] = table[picked[:, 0]]
    deviates += table[picked[:, 1]]
    return deviates


@cache
def _table() -> NDArray[np.float32]:
    """Return the quantiles over √2."""
    quantiles = normal_quantile((np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    table: NDArray[np.float32] = (quantiles / np.sqrt(2.0)).astype(np.float32)
    return table


def normal_quantile(p: Doubles) -> Doubles:
    """Return the quantiles of the standard normal distribution at p between 0 and 1.

    Wichura's algorithm AS241 (Applied Statistics 37, 1988), to about 16 digits.

    Examples
    --------
    >>> normal_quantile(np.array([0.5, 0.975]))
    array([0.        , 1.95996398])
    """
    offset = p - 0.5
    outside = np.abs(offset) > CENTRE
    square = CENTRE * CENTRE - offset * offset
    ratio = polynomial(square, _CENTRE_NUMERATOR) / polynomial(square, _CENTRE_DENOMINATOR)
    result: Doubles = offset * ratio
    if outside.any():
        far = p[outside]
        depth = np.sqrt(-log(np.minimum(far, 1 - far)))
        side, tail = depth - 1.6, depth - TAIL
        near = polynomial(side, _SIDE_NUMERATOR) / polynomial(side, _SIDE_DENOMINATOR)
        deep = polynomial(tail, _TAIL_NUMERATOR) / polynomial(tail, _TAIL_DENOMINATOR)
        size = np.where(depth <= TAIL, near, deep)
        result[outside] = np.where(far < 0.5, -size, size)
    return result


def log_gamma_deviates(rng: np.random.Generator, shape: float, size: int) -> Doubles:
    """Return logarithms of gamma deviates, which do not underflow however small the shape is.

    Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26 (2000). A
    shape a below 1 goes by that of a + 1 times u^(1/a).
    """
    boost = log(_uniform(rng, size)) / shape if shape < 1 else np.zeros(size)
    d = (shape + 1 if shape < 1 else shape) - 1 / 3
    c = 1 / np.sqrt(9 * d)
    result = np.empty(size)
    left = np.arange(size)
    while left.size:
        deviate = normal(rng, left.size)
        root = 1 + c * deviate
        log_cube = 3 * log(np.maximum(root, _LEAST_UNIFORM))
        limit = 0.5 * deviate * deviate + d * (1 - root * root * root + log_cube)
        taken = (root > 0) & (log(_uniform(rng, left.size)) < limit)
        result[left[taken]] = log_cube[taken]
        left = left[~taken]
    return result + log(d) + boost


def dirichlet(rng: np.random.Generator, alpha: float, size: int) -> Doubles:
    """Return shares that add up to 1, from a symmetric Dirichlet distribution."""
    logs = log_gamma_deviates(rng, alpha, size)
    shares = exp(logs - np.max(logs))
    return shares / total(shares)


def _uniform(rng: np.random.Generator, size: int) -> Doubles:
    return np.maximum(rng.random(size), _LEAST_UNIFORM)

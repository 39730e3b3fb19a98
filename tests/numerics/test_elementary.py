import math
from decimal import Decimal, getcontext, localcontext

import numpy as np
import pytest

from flamma.numerics import exp, log, power
from flamma.seeding import stream

DIGITS = 50
"""Of the exact values that the functions are held against."""

LARGEST_ERROR = 1.0
"""In units in the last place."""


@pytest.fixture(autouse=True)
def many_digits():
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = DIGITS, -100_000, 100_000
        yield


def error_in_last_places(values, exact):
    """Return the largest distance from the exact values, in units in the last place of them."""
    assert getcontext().prec == DIGITS
    return max(
        abs(Decimal(value) - truth) / Decimal(math.ulp(float(truth)))
        for value, truth in zip(values.tolist(), exact, strict=True)
    )


def spread(name, low, high, count=700):
    return low + (high - low) * stream(0, name).random(count)


@pytest.mark.parametrize(
    "x",
    [
        spread("wide", -745, 709.7),
        spread("near", -1, 1),
        spread("subnormal", -745, -708),
        np.ldexp(1.0, -np.arange(1, 60)),
        np.array([709.782712893383, -708.4, -744.9, 0.34657359027997264, -0.34657359027997264]),
    ],
    ids=["wide", "near 0", "subnormal", "tiny", "ends"],
)
def test_exponentials_are_within_one_unit_in_the_last_place(x):
    exact = [Decimal(value).exp() for value in x.tolist()]
    assert error_in_last_places(exp(x), exact) < LARGEST_ERROR


@pytest.mark.parametrize(
    "x",
    [
        np.ldexp(spread("mantissa", 0.5, 1), np.arange(700) - 350),
        spread("near", 0.5, 2),
        1 + np.ldexp(1.0, -np.arange(1, 53)),
        1 - np.ldexp(1.0, -np.arange(1, 54)),
        np.array([5e-324, 1e-310, 2.2e-308, 1.7e308, 0.7071067811865475, 0.7071067811865477]),
    ],
    ids=["wide", "near 1", "above 1", "below 1", "ends"],
)
def test_logarithms_are_within_one_unit_in_the_last_place(x):
    exact = [Decimal(value).ln() for value in x.tolist()]
    assert error_in_last_places(log(x), exact) < LARGEST_ERROR


@pytest.mark.parametrize(
    ("x", "size"),
    [
        (np.ldexp(spread("base", 0.5, 1), np.arange(-200, 500) % 700 - 350), 700.0),
        (1 + spread("near", -1e-3, 1e-3), 700.0),
        (spread("small", 0.1, 3), 3.0),
    ],
    ids=["wide", "near 1", "everyday"],
)
def test_powers_are_within_one_unit_in_the_last_place(x, size):
    y = spread("exponent", -size, size) / np.abs(np.log(x)).clip(1e-12)
    exact = [(Decimal(b).ln() * Decimal(e)).exp() for b, e in zip(x.tolist(), y.tolist())]  # noqa: B905
    assert error_in_last_places(power(x, y), exact) < LARGEST_ERROR


def test_exact_powers_are_exact():
    whole = np.arange(1.0, 50)
    assert power(whole, 1.0).tolist() == whole.tolist()
    assert power(np.square(whole), 0.5).tolist() == whole.tolist()
    assert power(2.0, np.arange(-1074.0, 1024)).tolist() == [2.0**k for k in range(-1074, 1024)]


def test_ends_of_the_range():
    nan, inf = math.nan, math.inf
    assert exp([inf, -inf, 0.0, 710.0, -746.0]).tolist() == [inf, 0.0, 1.0, inf, 0.0]
    assert log([inf, 0.0, -0.0, 1.0]).tolist() == [inf, -inf, -inf, 0.0]
    assert np.isnan([*exp([nan]), *log([nan, -1.0, -inf])]).all()
    assert exp(-745.0) == 5e-324


@pytest.mark.parametrize("x", [0.0, 5e-324, 0.5, 1.0, 1.5, 1e300, math.inf, math.nan])
@pytest.mark.parametrize("y", [-math.inf, -1e300, -2.5, 0.0, 0.5, 3.0, 1e300, math.inf, math.nan])
def test_powers_at_the_ends_are_those_of_the_standard(x, y):
    with np.errstate(all="ignore"):
        standard = float(np.power(x, y))
    assert float(power(x, y)) == pytest.approx(standard, rel=1e-15, nan_ok=True)


def test_a_negative_base_has_no_power():
    assert np.isnan(power([-1.0, -2.5, -math.inf], [2.0, 0.5, 1.0])).all()


def test_shapes_are_kept_and_broadcast():
    assert exp(0.0).shape == ()
    assert log(np.ones((2, 3), dtype=np.float32)).shape == (2, 3)
    assert power([[1.0], [2.0]], [1.0, 2.0, 3.0]).tolist() == [[1, 1, 1], [2, 4, 8]]
    many = spread("many", 0, 1, 40_000)  # more than are computed at once
    assert exp(many)[-5:].tolist() == [float(exp(value)) for value in many[-5:]]

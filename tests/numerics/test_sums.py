import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.numerics import dot, norm, total, totals, weighted_sum
from flamma.seeding import stream


def in_order(values):
    """Sum as the module says, one number at a time in Python's doubles."""
    sums = [0.0] * 1024
    for place, value in enumerate(values):
        sums[place % 1024] += value
    half = 512
    while half:
        sums = [sums[j] + sums[j + half] for j in range(half)]
        half //= 2
    return sums[0]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 10, 511, 1000, 1024, 1025, 5000, 40_000])
def test_sums_are_in_the_documented_order(size):
    x, y = stream(size, "x").random((2, size)) - 0.3
    assert total(x) == in_order(x.tolist())
    assert dot(x, y) == in_order([a * b for a, b in zip(x.tolist(), y.tolist(), strict=True)])
    assert norm(x) == math.sqrt(dot(x, x))
    assert totals(np.stack([x, y])).tolist() == [in_order(x.tolist()), in_order(y.tolist())]


@given(st.lists(st.floats(-1e6, 1e6), max_size=50))
def test_a_sum_is_close_to_the_exact_one(values):
    exact = sum(map(Fraction, values), Fraction())
    size = sum(map(abs, values))
    assert abs(Fraction(total(values)) - exact) <= Fraction(size) * len(values) * Fraction(1, 2**53)


def test_single_and_half_precision_are_converted_before_they_are_multiplied():
    x = stream(0, "x").random(3000).astype(np.float32)
    assert dot(x, x) == dot(x.astype(np.float64), x.astype(np.float64))
    large = np.full(2000, 3e38, dtype=np.float32)
    assert norm(large) == pytest.approx(3e38 * math.sqrt(2000), rel=1e-6)
    half = x.astype(np.float16)
    assert total(half) == in_order(half.astype(np.float64).tolist())


def test_minus_zero_and_infinities():
    assert math.copysign(1, total([-0.0])) == math.copysign(1, in_order([-0.0])) == 1
    assert total([1.0, math.inf]) == math.inf
    assert math.isnan(total([math.inf, -math.inf]))
    assert total([]) == 0.0


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_weighted_sum_adds_rounded_products_one_by_one(kind):
    rows = (stream(1, "rows").random((7, 9000)) - 0.5).astype(kind)
    weights = stream(1, "weights").random(7)
    expected = np.zeros(9000)
    for row, weight in zip(rows, weights, strict=True):
        expected += row.astype(np.float64) * weight
    assert np.array_equal(weighted_sum(rows, weights), expected)
    assert np.array_equal(weighted_sum(list(rows), weights.tolist()), expected)
    # Rows with gaps between them, such as the trained part of each, are the same.
    assert np.array_equal(weighted_sum(rows[:, :4000], weights), expected[:4000])


def test_a_product_is_rounded_before_it_is_added():
    x = 1 + 2.0**-30  # x² = 1 + 2^-29 + 2^-60, of which a fused sum would keep the last part
    rows = np.array([[-1.0 - 2.0**-29], [x]])
    assert weighted_sum(rows, [1.0, x]).tolist() == [0.0]
    assert dot(np.array([x]), np.array([x])) == 1 + 2.0**-29


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="one length"):
        dot(np.ones(2), np.ones(3))
    with pytest.raises(ValueError, match="as many weights"):
        weighted_sum(np.ones((2, 3)), [1.0])

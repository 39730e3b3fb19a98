"""The small quadratic programs: against conditions of optimality, scipy and linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from flamma.strategies.quadratics import (
    GAP_TOLERANCE,
    least_norm_weights,
    project_to_simplex,
    weights_of_rates,
)


def vectors(seed, count, size, alike=0.0):
    """Return random vectors of length 1, the more alike the more of a common one they have."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(count, size)) + alike * rng.normal(size=size)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def shares(seed, count):
    drawn = np.random.default_rng(seed + 1).uniform(1, 9, count)
    return drawn / drawn.sum()


@given(
    arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e3, 1e3)),
    st.floats(0.1, 100),
)
@settings(max_examples=60, deadline=None)
def test_a_projection_is_nearer_than_any_corner_between(values, mass):
    found = project_to_simplex(values, mass)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(mass, rel=1e-9)
    # ⟨v - x, y - x⟩ ≤ 0 for every y of a convex set: its corners are enough.
    rest = values - found
    assert mass * rest.max() - rest @ found <= 1e-9 * (1 + np.abs(rest).max() * mass)


def test_a_point_of_the_simplex_stays_to_the_bit():
    samples = np.array([13.0, 7.0, 101.0, 1.0])
    np.testing.assert_array_equal(project_to_simplex(samples, samples.sum()), samples)


@pytest.mark.parametrize("reach", [0.02, 0.1, 1.0])
@pytest.mark.parametrize(("count", "size"), [(1, 4), (2, 4), (6, 40), (12, 5)])
def test_least_norm_weights_are_those_of_scipy(count, size, reach):
    for seed in range(4):
        given_vectors, start = vectors(seed, count, size, alike=seed / 2), shares(seed, count)
        gram = given_vectors @ given_vectors.T
        found = least_norm_weights(gram, start, reach)
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert found.min() >= 0
        assert np.abs(found - start).max() <= reach + 1e-15
        theirs = minimize(
            lambda x, k=gram: x @ k @ x / 2,
            start,
            jac=lambda x, k=gram: k @ x,
            bounds=[(max(0, s - reach), min(1, s + reach)) for s in start],
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-14, "maxiter": 1000},
            method="SLSQP",
        )
        assert found @ gram @ found / 2 <= theirs.fun + 1e-9


@given(st.integers(0, 10_000), st.integers(2, 30), st.floats(0.0, 1.0))
@settings(max_examples=40, deadline=None)
def test_nothing_is_to_be_gained_by_an_exchange(seed, count, reach):
    given_vectors, start = vectors(seed, count, 8), shares(seed, count)
    gram = given_vectors @ given_vectors.T
    found = least_norm_weights(gram, start, reach)
    slopes = gram @ found
    may_grow = found < np.minimum(start + reach, 1)
    may_shrink = found > np.maximum(start - reach, 0)
    if may_grow.any() and may_shrink.any():
        assert slopes[may_shrink].max() - slopes[may_grow].min() <= 2 * GAP_TOLERANCE


def test_two_vectors_by_hand():
    # v = (1, 0) and (0, 2): the foot of the perpendicular has weights 4/5 and 1/5.
    gram = np.array([[1.0, 0.0], [0.0, 4.0]])
    np.testing.assert_allclose(least_norm_weights(gram, np.array([0.5, 0.5]), 1.0), [0.8, 0.2])
    np.testing.assert_allclose(least_norm_weights(gram, np.array([0.5, 0.5]), 0.1), [0.6, 0.4])
    start = np.array([0.3, 0.7])
    np.testing.assert_array_equal(least_norm_weights(gram, start, 0.0), start)


@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0, 3))
@settings(max_examples=40, deadline=None)
def test_every_vector_has_its_rate_along_the_direction(seed, count, alike):
    given_vectors = vectors(seed, count, 30, alike)
    rates = np.random.default_rng(seed + 2).uniform(0, 1, count)
    rates[0] = 1.0
    direction = weights_of_rates(given_vectors @ given_vectors.T, rates) @ given_vectors
    square = direction @ direction
    np.testing.assert_allclose(given_vectors @ direction, rates * square, atol=1e-9)


def test_a_vector_between_others_of_larger_rates_is_left_out():
    first, second = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    between = (first + second) / np.sqrt(2)
    stacked = np.stack([between, first, second, np.zeros(2)])
    found = weights_of_rates(stacked @ stacked.T, np.array([0.1, 1.0, 0.5, 0.9]))
    # Of the two others: d with d·(1, 0) = |d|² and d·(0, 1) = |d|²/2 is (0.8, 0.4).
    np.testing.assert_allclose(found, [0, 0.8, 0.4, 0], atol=1e-15)
    assert not weights_of_rates(np.zeros((2, 2)), np.ones(2)).any()

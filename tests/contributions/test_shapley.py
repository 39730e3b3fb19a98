from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from flamma.contributions.shapley import _sampled_shapley, exact_shapley
from flamma.seeding import stream


def by_definition(values, players):
    """Return Shapley values as the mean gain over all orders in which players join."""
    gains = np.zeros(players)
    orders = list(itertools.permutations(range(players)))
    for order in orders:
        coalition = 0
        for player in order:
            gains[player] += values[coalition | 1 << player] - values[coalition]
            coalition |= 1 << player
    return gains / len(orders)


@pytest.mark.parametrize("players", [1, 2, 3, 5])
def test_exact_shapley_values_are_mean_gains_over_all_orders(players):
    values = stream(players, "game").normal(size=1 << players)
    np.testing.assert_allclose(exact_shapley(values), by_definition(values, players), atol=1e-12)


def test_shapley_values_of_a_glove_game():
    """One left glove, two right ones, and a pair is worth 1: by hand 2/3, 1/6, 1/6."""
    values = np.array([0, 0, 0, 1, 0, 1, 0, 1.0])  # bit 0 is the left glove
    np.testing.assert_allclose(exact_shapley(values), [2 / 3, 1 / 6, 1 / 6])


def test_a_table_that_is_no_game_is_refused():
    with pytest.raises(ValueError, match="power of two"):
        exact_shapley(np.zeros(6))


def test_sampled_shapley_values_add_up_and_come_near_the_exact_ones():
    values = stream(1, "game").normal(size=64)
    found = _sampled_shapley(lambda c: float(values[c]), 6, 3000, 0.0, key=0)
    assert math.isclose(found.sum(), values[-1] - values[0], abs_tol=1e-9)
    np.testing.assert_allclose(found, by_definition(values, 6), atol=0.1)


def test_groups_of_orders_give_an_additive_game_exactly():
    worth = np.array([3.0, 1.0, 0.0, 2.0])

    def value(coalition):
        return float(sum(w for i, w in enumerate(worth) if coalition >> i & 1))

    np.testing.assert_allclose(_sampled_shapley(value, 4, 4, 0.0, key=7), worth)


def test_truncation_saves_scores():
    scored = set()

    def value(coalition):
        scored.add(coalition)
        return float(bool(coalition))  # the first to join brings everything

    found = _sampled_shapley(value, 8, 8, 0.01, key=3)
    assert len(scored) <= 10
    np.testing.assert_allclose(found, np.full(8, 1 / 8))

"""Inspections deter exactly from the computed rate and fine on; free-riding by brute force."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from games import exact_games, floats
from hypothesis import given
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import Game
from flamma.game.costs import deterring_fine, free_riding, smallest_inspection_rate

INF = float("inf")
AMOUNTS = st.floats(1e-6, 1e6)


def pays(gain, fine, rate):
    """What a cheater expects, exactly."""
    g, f, a = Fraction(gain), Fraction(fine), Fraction(rate)
    return (1 - a) * g - a * f


@given(AMOUNTS, AMOUNTS)
def test_cheating_pays_below_the_smallest_rate_and_not_above(gain, fine):
    rate = float(smallest_inspection_rate(gain, fine))
    assert 0 < rate < 1
    assert pays(gain, fine, rate * (1 - 1e-9)) > 0
    assert pays(gain, fine, min(1.0, rate * (1 + 1e-12))) <= 0


@given(AMOUNTS, st.floats(1e-6, 1 - 1e-6))
def test_a_fine_and_its_rate_belong_together(gain, rate):
    fine = float(deterring_fine(gain, rate))
    assert float(smallest_inspection_rate(gain, fine)) == pytest.approx(rate, rel=1e-12)
    assert pays(gain, fine * (1 - 1e-9), rate) > 0


@pytest.mark.parametrize(
    ("gain", "fine", "rate"),
    [
        (0, 0, 0), (0, 5, 0), (-1, 0, 0), (-1, INF, 0), (1, 0, 1), (1e-300, 0, 1),
        (1, INF, 0), (INF, 1, 1), (INF, 0, 1), (-INF, 1, 0), (1e308, 1e308, 0.5), (2, 6, 0.25),
    ],
)  # fmt: skip
def test_rates_at_the_edges_are_exact(gain, fine, rate):
    assert float(smallest_inspection_rate(gain, fine)) == rate


@pytest.mark.parametrize(
    ("gain", "rate", "fine"),
    [(0, 0, 0), (-1, 0, 0), (1, 0, INF), (1, 1, 0), (INF, 1, 0), (INF, 0.5, INF), (6, 0.25, 18)],
)
def test_fines_at_the_edges_are_exact(gain, rate, fine):
    assert float(deterring_fine(gain, rate)) == fine


def test_both_take_arrays_and_broadcast_them():
    rates = smallest_inspection_rate([[1.0], [3.0]], [1.0, 3.0])
    assert rates.tolist() == [[0.5, 0.25], [0.75, 0.5]]
    assert deterring_fine([1.0, 2.0], 0.5).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: smallest_inspection_rate(1, -1), "must not be negative"),
        (lambda: smallest_inspection_rate(float("nan"), 1), "a gain must be a number"),
        (lambda: smallest_inspection_rate("much", 1), "a gain must be a number"),
        (lambda: smallest_inspection_rate(INF, INF), "both infinite"),
        (lambda: deterring_fine(1, 1.5), "must lie in"),
        (lambda: deterring_fine(1, -0.5), "must lie in"),
    ],
)
def test_what_is_no_inspection_is_refused(call, what):
    with pytest.raises(GameError, match=what):
        call()


@given(exact_games(), st.integers(0, 20))
def test_the_gain_of_free_riding_is_the_best_claim_less_the_best_work(exact, twentieths):
    game, gamma = floats(exact).replace(whole_epochs=True), twentieths / 20
    low, high = (int(bound) for bound in game.epoch_bounds)
    gain, honest = free_riding(game, gamma)
    for k in range(game.clients):
        rate = gamma * game.contributions[k]
        work = [rate * t - game.costs[k] * t * t for t in (0, *range(low, high + 1))]
        claims = [rate * t for t in (0, *range(low, high + 1))]
        assert honest[k] == pytest.approx(max(work), abs=1e-9)
        assert gain[k] == pytest.approx(max(claims) - max(work), abs=1e-9)
        assert gain[k] >= -1e-12


def test_each_client_may_have_its_own_decay_factor():
    game = Game([0.8, 0.8], [0.1, 0.1])
    gain, honest = free_riding(game, [1.0, 0.5])
    assert gain.tolist() == [free_riding(game, 1.0)[0][0], free_riding(game, 0.5)[0][1]]
    assert honest[0] > honest[1] > 0


def test_without_an_upper_bound_a_claim_has_no_limit_unless_nothing_is_paid():
    gain, _ = free_riding(Game([0.8, 0.0], [0.1, 0.1], epoch_bounds=(0, INF)), 1.0)
    assert gain.tolist() == [INF, 0.0]
    assert np.array_equal(smallest_inspection_rate(gain, 5.0), [1.0, 0.0])

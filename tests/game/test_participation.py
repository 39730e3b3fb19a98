"""Prices of participation: nobody gains by another probability, the server by no other prices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game.mechanisms import (
    Participation,
    ParticipationGame,
    best_participation,
    certify_participation,
    solve_participation,
)

NUMBERS = st.floats(0.01, 10.0)
GAMES = st.lists(st.tuples(NUMBERS, NUMBERS, st.floats(0.0, 2.0)), min_size=1, max_size=6)


def game_of(clients, least=0.05):
    costs, noises, value = zip(*clients, strict=True)
    return ParticipationGame(costs, noises, value, least)


@settings(max_examples=40)
@given(GAMES, st.floats(0.0, 1.0))
def test_prices_and_probabilities_are_an_equilibrium(clients, share):
    game = game_of(clients)
    lowest = game.spending(np.full(len(clients), game.least))
    highest = game.spending(np.ones(len(clients)))
    budget = lowest + share * (highest - lowest)
    found = solve_participation(game, budget=budget)
    certificate = certify_participation(game, found, budget)
    scale = 1 + np.abs(found.prices).max()
    assert certificate.follower_gap <= 1e-9 * scale
    assert certificate.overspent <= 1e-9 * scale
    if 0 < share < 1:
        assert abs(certificate.leader_gap) <= 1e-6
    q = found.probabilities
    kappa = np.array([entry[2] for entry in clients])
    identity = 2 * game.costs * q - kappa * game.noises / q**2
    np.testing.assert_allclose(found.prices, identity, rtol=1e-12)


@settings(max_examples=25)
@given(GAMES)
def test_no_probability_of_a_fine_grid_is_better_for_a_client(clients):
    game = game_of(clients)
    found = solve_participation(game, expected=0.5 * len(clients))
    for k, (cost, noise, value) in enumerate(clients):
        grid = np.linspace(game.least, 1, 4001)
        utility = found.prices[k] * grid - cost * grid**2 - value * noise * (1 - grid) / grid
        q = found.probabilities[k]
        own = found.prices[k] * q - cost * q**2 - value * noise * (1 - q) / q
        assert utility.max() <= own + 1e-9 * (1 + abs(own))


def test_values_by_hand():
    # With equal noises q³ is in proportion to 1/c; 1/8 of the cost is twice the probability.
    game = ParticipationGame([1.0, 8.0], [1.0, 1.0])
    found = solve_participation(game, expected=0.75)
    np.testing.assert_allclose(found.probabilities, [0.5, 0.25], rtol=1e-12)
    np.testing.assert_allclose(found.prices, [1.0, 4.0], rtol=1e-12)
    assert found.exchange == pytest.approx(4 * 1 * 0.5**3)


def test_no_split_of_the_same_budget_is_less_noisy():
    game = ParticipationGame([0.5, 2.0], [1.0, 3.0], [0.0, 0.1])
    found = solve_participation(game, budget=0.8)
    q = np.stack(np.meshgrid(*[np.linspace(0.05, 1, 400)] * 2), axis=-1)
    spending = (2 * game.costs * q**2 - game.value * game.noises / q).sum(axis=-1)
    noise = (game.noises * (1 - q) / q).sum(axis=-1)
    best = noise[spending <= 0.8].min()
    assert game.noise(found.probabilities) <= best
    assert game.noise(found.probabilities) == pytest.approx(best, rel=0.02)


def test_enough_money_or_clients_is_full_participation():
    game = ParticipationGame([0.1, 0.2, 0.4], [1.0, 2.0, 0.1])
    for found in (solve_participation(game, budget=1e9), solve_participation(game, expected=3)):
        assert found.probabilities.tolist() == [1, 1, 1]
    few = solve_participation(game, expected=0.01)
    assert few.probabilities.tolist() == [0.05] * 3


def test_a_budget_below_the_least_is_refused():
    game = ParticipationGame([1.0, 1.0], [1.0, 1.0], least=0.5)
    with pytest.raises(GameError, match="at least 1"):
        solve_participation(game, budget=0.9)
    with pytest.raises(GameError, match="a budget, or an expected number"):
        solve_participation(game)


def test_clients_answer_other_prices_too():
    game = ParticipationGame([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], least=0.1)
    np.testing.assert_allclose(best_participation(game, [0.0, 1.0, 5.0]), [0.1, 0.5, 1.0])
    certificate = certify_participation(
        game, Participation(np.full(3, 0.5), np.array([0.0, 1.0, 5.0]), 1.0), budget=2.0
    )
    # At a price of 5, q = 1 is worth 4 and q = 0.5 is worth 2.25.
    assert certificate.follower_gap == pytest.approx(1.75)
    assert certificate.overspent == pytest.approx(1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"costs": [0.0]},
        {"costs": [np.nan]},
        {"noises": [-1.0]},
        {"noises": [1.0, 1.0]},
        {"value": -0.1},
        {"value": [0.1, 0.1]},
        {"least": 0.0},
        {"least": 1.1},
    ],
)
def test_what_is_no_game_is_refused(wrong):
    with pytest.raises(GameError):
        ParticipationGame(**{"costs": [1.0], "noises": [1.0], **wrong})

"""Menus of contracts: rational and compatible for every type, and the best of all that are."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game.mechanisms import (
    ContractMenu,
    Participation,
    ParticipationGame,
    best_participation,
    certify_menu,
    certify_participation,
    optimal_menu,
    solve_participation,
)

TYPES = st.lists(
    st.tuples(st.floats(0.01, 2.0), st.floats(0.05, 5.0)),
    min_size=1,
    max_size=6,
    unique_by=lambda entry: entry[0],
)


def profit(menu, shares, value):
    parts = zip(shares, menu.epochs, menu.payments, strict=True)
    return sum(p * (value * math.log(1 + t) - r) for p, t, r in parts) / sum(shares)


@given(TYPES, st.floats(0.0, 40.0), st.integers(1, 4), st.integers(0, 12))
def test_every_type_against_every_item(types, value, fewest, more):
    costs, shares = zip(*sorted(types), strict=True)
    menu = optimal_menu(costs, shares, value=value, epoch_bounds=(fewest, fewest + more))
    for own, cost in enumerate(costs):
        utilities = [r - cost * t**2 for t, r in zip(menu.epochs, menu.payments, strict=True)]
        slack = 1e-12 * (1 + max(menu.payments))
        assert utilities[own] >= -slack
        assert utilities[own] >= max(utilities) - slack
        assert menu.epochs[own] == 0 or fewest <= menu.epochs[own] <= fewest + more
    assert list(menu.epochs) == sorted(menu.epochs, reverse=True)
    certificate = certify_menu(menu, costs)
    assert certificate.rationality_slack >= -1e-12 * (1 + max(menu.payments))
    assert certificate.envy <= 1e-12 * (1 + max(menu.payments))


def smallest_payments(costs, epochs):
    """The least payments under which no type envies another, by longest paths between types."""
    nodes = [(0, 0.0), *zip(epochs, costs, strict=True)]
    rent = [0.0] * len(nodes)
    for _ in nodes:
        for k, (_, cost) in enumerate(nodes[1:], start=1):
            for other, (work, own) in enumerate(nodes):
                rent[k] = max(rent[k], rent[other] + (own - cost) * work**2)
    # Envy that still grows after so many rounds of relaxation can never be paid away.
    for k, (_, cost) in enumerate(nodes[1:], start=1):
        for other, (work, own) in enumerate(nodes):
            if rent[other] + (own - cost) * work**2 > rent[k] + 1e-9:
                return None
    return [rent[k] + c * t**2 for k, (t, c) in enumerate(nodes[1:], start=1)]


@pytest.mark.parametrize(
    ("costs", "shares", "value"),
    [
        ([0.1], [1], 6.0),
        ([0.05, 0.1, 0.2], [1, 1, 1], 6.0),
        # Rare in the middle: its virtual cost is above that of the dearest, so items are pooled.
        ([0.05, 0.1, 0.11], [1, 0.05, 1], 3.0),
        ([0.05, 0.1, 0.11], [5, 0.2, 3], 9.0),
        ([0.3, 0.9], [1, 20], 2.0),
        ([1.0, 2.0, 3.0], [1, 1, 1], 0.1),
    ],
)
def test_no_menu_does_better(costs, shares, value):
    """All work of all types, with payments that do not rely on the order of the types."""
    found = optimal_menu(costs, shares, value=value, epoch_bounds=(1, 6))
    best = -math.inf
    for epochs in itertools.product(range(7), repeat=len(costs)):
        payments = smallest_payments(costs, epochs)
        if payments is not None:
            best = max(best, profit(ContractMenu(epochs, tuple(payments)), shares, value))
    assert profit(found, shares, value) == pytest.approx(best, abs=1e-9)


def test_types_are_pooled_where_virtual_costs_fall():
    # ψ = 0.05, 0.1 + 0.05 · 1/0.05 = 1.1, and 0.11 + 0.01 · 1.05/1 = 0.1205: not monotone.
    menu = optimal_menu([0.05, 0.1, 0.11], [1, 0.05, 1], value=3.0)
    assert menu.epochs[1] == menu.epochs[2] > 0
    assert menu.payments[1] == pytest.approx(menu.payments[2], rel=1e-12)
    assert menu.epochs[0] > menu.epochs[1]


def test_values_by_hand():
    # One type: max 6 ln(1 + t) - 0.1 t² is at t = 5 (10.75 - 2.5 = 8.25; 4: 8.06, 6: 8.08).
    menu = optimal_menu([0.1], [1], value=6.0)
    assert menu.epochs == (5,)
    assert menu.payments == pytest.approx((2.5,))
    # Two types alike: ψ = 0.1 and 0.2 + 0.1 = 0.3. With 0.3, 2 gives 6 ln 3 - 1.2 = 5.39 and 3
    # gives 8.32 - 2.7 = 5.62, 4 gives 4.86. So R = 0.2 · 9 = 1.8 and 1.8 + 0.1 (25 - 9) = 3.4.
    menu = optimal_menu([0.1, 0.2], [1, 1], value=6.0)
    assert menu.epochs == (5, 3)
    assert menu.payments == pytest.approx((3.4, 1.8))


@given(st.floats(0.001, 5.0))
def test_a_client_between_types_takes_what_is_best_for_it(cost):
    menu = optimal_menu([0.05, 0.1, 0.2], [1, 1, 1], value=6.0)
    utilities = {t: r - cost * t**2 for t, r in zip(menu.epochs, menu.payments, strict=True)}
    best = max(0.0, *utilities.values())
    assert utilities.get(menu.choice(cost), 0.0) == pytest.approx(best, abs=1e-9)


def test_an_indifferent_client_works_more():
    menu = optimal_menu([0.05, 0.1, 0.2], [1, 1, 1], value=6.0)
    assert [menu.choice(cost) for cost in (0.05, 0.1, 0.2)] == list(menu.epochs)
    assert menu.choice(0.3) == 0


@pytest.mark.parametrize("most", [0.0, 0.3, 1.0, 2.5, 100.0])
def test_a_largest_payment_is_kept(most):
    costs, shares = [0.05, 0.1, 0.2], [1, 2, 1]
    menu = optimal_menu(costs, shares, value=6.0, most_payment=most)
    assert max(menu.payments) <= most
    assert certify_menu(menu, costs).envy < 1e-12
    assert any(menu.epochs) == (most > 0)


@pytest.mark.parametrize(
    ("costs", "shares", "options", "says"),
    [
        ([0.2, 0.1], [1, 1], {}, "increase"),
        ([0.1, 0.2], [1], {}, "as many shares"),
        ([], [], {}, "at least one type"),
        ([0.1], [0], {}, "shares of types must be positive"),
        ([math.nan], [1], {}, "positive and increase"),
        (["a"], [1], {}, "a list of costs"),
        ([0.1], [1], {"value": -1.0}, "at least 0"),
        ([0.1], [1], {"epoch_bounds": (0, 5)}, "from 1 on"),
        ([0.1], [1], {"epoch_bounds": (1, math.inf)}, "upper one"),
    ],
)
def test_what_is_no_menu_is_refused(costs, shares, options, says):
    with pytest.raises(GameError, match=says):
        optimal_menu(costs, shares, **{"value": 1.0, **options})


def test_a_client_without_a_cost_cannot_choose():
    with pytest.raises(GameError, match="positive cost"):
        ContractMenu((1,), (1.0,)).choice(math.nan)


def test_a_certificate_finds_envy_and_loss():
    menu = ContractMenu((4, 2), (1.0, 0.9))
    certificate = certify_menu(menu, np.array([0.1, 0.2]))
    # With 0.1: 1 - 1.6 = -0.6 of its own item, and 0.9 - 0.4 = 0.5 of the other.
    assert certificate.rationality_slack == pytest.approx(-0.6)
    assert certificate.envy == pytest.approx(1.1)


# Prices of participation: nobody gains by another probability, the server by no other prices.

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


def test_values_by_hand_participation():
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

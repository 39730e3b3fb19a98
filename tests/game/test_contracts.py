"""Menus of contracts: rational and compatible for every type, and the best of all that are."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game.mechanisms import ContractMenu, certify_menu, optimal_menu

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

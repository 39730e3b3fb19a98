"""The paper's closed forms: equal to solve under their conditions, and only there."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from games import SHARES
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import (
    Game,
    closed_form_decay_factor,
    decay_start_round,
    printed_decay_factor,
    server_utility_is_concave,
    solve,
    unbounded_best_response,
)

COSTS = st.integers(1, 200).map(lambda k: Fraction(k, 100))
CLIENTS = st.lists(st.tuples(SHARES, COSTS), min_size=1, max_size=6)
PRICES = st.integers(0, 300).map(lambda k: Fraction(k, 100))


def unbounded(contributions, costs, t, price=1.0):
    return Game(contributions, costs, t, price, epoch_bounds=(0, math.inf), whole_epochs=False)


def as_floats(clients):
    return tuple([float(client[part]) for client in clients] for part in (0, 1))


@given(CLIENTS, st.integers(1, 200), PRICES)
def test_the_closed_form_is_the_equilibrium_without_bounds(clients, t, price):
    total = sum(omega for omega, _ in clients)
    response = sum(omega / cost for omega, cost in clients)
    curvature = 2 * price * t - response
    gamma = min(Fraction(1), total / curvature) if curvature > 0 else Fraction(1)

    arguments = (*as_floats(clients), t, float(price))
    assume(total == 0 or abs(curvature) > 1e-9)  # else the sign is a matter of the last bit
    assert closed_form_decay_factor(*arguments) == pytest.approx(float(gamma), rel=1e-10)
    assert server_utility_is_concave(*arguments) == (curvature > 0)
    equilibrium = solve(unbounded(*arguments))
    assert equilibrium.decay_factor == pytest.approx(float(gamma), rel=1e-10)
    assert equilibrium.local_epochs == pytest.approx(
        unbounded_best_response(*arguments[:2], equilibrium.decay_factor), rel=1e-12
    )


@given(CLIENTS, PRICES.filter(bool))
def test_the_decay_starts_after_its_round(clients, price):
    total = sum(omega for omega, _ in clients)
    start = (total + sum(omega / cost for omega, cost in clients)) / (2 * price)
    assume(total > 0)
    contributions, costs = as_floats(clients)
    assert decay_start_round(contributions, costs, float(price)) == pytest.approx(float(start))
    last = math.floor(start)
    for t, full in ((last, True), (last + 1, False), (3 * last + 5, False)):
        if t >= 1:
            gamma = solve(unbounded(contributions, costs, t, float(price))).decay_factor
            assert (gamma == 1.0) == full


@given(
    st.integers(1, 20).map(lambda k: Fraction(k, 20)),
    st.integers(1, 50),
    st.integers(-40, 40).map(lambda k: Fraction(k, 10)).filter(bool),
)
@example(Fraction(1), 1, Fraction(1, 2))
def test_the_printed_formula_holds_for_one_client_under_both_conditions_only(omega, t, theta):
    # With ω / c = 2 t - θ ω the printed formula is 1/θ: right for θ >= 1 (t late enough), more
    # than 1 for 0 < θ < 1 (concave, but t too early), negative for θ < 0 (2 t c < ω).
    assume(2 * t > theta * omega)
    cost = omega / (2 * t - theta * omega)
    printed = printed_decay_factor(float(omega), float(cost), t)
    solved = solve(unbounded([float(omega)], [float(cost)], t)).decay_factor
    assert printed == pytest.approx(float(1 / theta), rel=1e-9)
    if theta >= 1:
        assert solved == pytest.approx(printed, rel=1e-9)
    else:
        assert solved == 1.0
        assert printed < 0 or printed > 1


def test_the_printed_formula_is_infinite_where_the_utility_is_a_line():
    assert printed_decay_factor(0.5, 0.125, round=2) == math.inf  # 2 t c = ω
    assert solve(unbounded([0.5], [0.125], 2)).decay_factor == 1.0


def test_hand_computed_values():
    # A = 1.2, B = 12: γ = 1.2 / (2 t - 12), t0 = 13.2 / 2.
    clients = ([0.8, 0.4], [0.1, 0.1])
    assert closed_form_decay_factor(*clients, round=10) == pytest.approx(0.15)
    assert closed_form_decay_factor(*clients, round=5, price=2.0) == pytest.approx(0.15)
    assert closed_form_decay_factor(*clients, round=6) == 1.0
    assert decay_start_round(*clients) == pytest.approx(6.6)
    assert decay_start_round(*clients, price=0.0) == math.inf
    assert unbounded_best_response(*clients, 0.5) == pytest.approx([2, 1])
    assert printed_decay_factor(0.8, 0.1, round=10) == pytest.approx(0.08 / 1.2)


def test_bad_numbers_are_refused():
    for call in (
        lambda: closed_form_decay_factor([0.8], [0.0], 1),
        lambda: closed_form_decay_factor([0.8], [0.1], 0),
        lambda: decay_start_round([0.8], [0.1], price=-1.0),
        lambda: printed_decay_factor(1.2, 0.1, 1),
        lambda: server_utility_is_concave([0.8], [0.1, 0.2], 1),
        lambda: unbounded_best_response([], [], 0.5),
        lambda: unbounded_best_response([0.8], [0.1], 1.5),
    ):
        with pytest.raises(GameError):
            call()

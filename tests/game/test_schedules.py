"""The price that places the decay, and the two fixed rules."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from games import exact_games, floats, scale
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import (
    Game,
    best_response,
    constant_decay,
    harmonic_decay,
    price_for,
    server_utility,
    solve,
)

NAN, INF = float("nan"), float("inf")
SHARES = st.integers(0, 50).map(lambda k: Fraction(k, 50))
COSTS = st.integers(1, 200).map(lambda k: Fraction(k, 100))


@given(st.lists(st.tuples(SHARES, COSTS), min_size=1, max_size=6), st.integers(1, 100))
def test_without_bounds_the_price_is_the_closed_form(clients, start):
    total = sum(omega for omega, _ in clients)
    assume(total > 0)
    expected = (total + sum(omega / cost for omega, cost in clients)) / (2 * start)
    contributions, costs = ([float(x) for x in part] for part in zip(*clients, strict=True))
    found = price_for(start / 100, 100, contributions, costs)
    assert found == pytest.approx(float(expected), rel=1e-12)


@settings(max_examples=200)
@given(exact_games(), st.integers(1, 100))
def test_the_decay_factor_stays_at_its_upper_bound_until_the_chosen_round(exact, start):
    assume(exact.gamma_min < exact.gamma_max)
    assume(exact.leader(exact.gamma_max) > -exact.price * exact.round * exact.gamma_max**2)
    game = floats(exact)
    price = price_for(start / 100, 100, game)
    top = game.decay_bounds[1]
    at = [game.replace(price=price, round=t) for t in range(1, start + 9)]
    for early in {1, start // 2, start - 1} & set(range(1, start)):
        assert solve(at[early - 1]).decay_factor == top
    for late in (start + 1, start + 2, start + 8):
        assert solve(at[late - 1]).decay_factor < top
    # In that round itself the leader is exactly indifferent where its utility has two peaks, and
    # the last bit of price times round decides which one it takes; both are equally good.
    tie = at[start - 1]
    stays = server_utility(tie, top, best_response(tie, top))
    assert solve(tie).server_utility == pytest.approx(float(stays), abs=1e-11 * scale(exact))


def test_hand_computed_price_with_whole_epochs():
    # ω = 1, c = 1/4, at most 2 epochs: S = 1, 2, 3 from γ = 0, 1/4, 3/4. The ratio
    # (3 - γ S) / (1 - γ²) is above 2.9 for γ < 1/4, above 2.6 for γ < 3/4, and from there on
    # 3 / (1 + γ), which falls to 3/2. So λ t0 = 3/2: γ leaves 1 by the vertex 3 / (2 λ t).
    price = price_for(0.1, 100, [1.0], [0.25], (0, 2), whole_epochs=True)
    assert price == pytest.approx(0.15)
    game = Game([1.0], [0.25], 12, price, epoch_bounds=(0, 2))
    assert solve(game).decay_factor == pytest.approx(1.5 / 1.8)


@pytest.mark.parametrize(("omega", "cost"), [(0.2, 0.04), (0.1, 0.02), (0.15, 0.03)])
def test_hand_computed_price_where_a_client_steps_exactly_at_the_upper_end(omega, cost):
    # ω / c = 5: 2 epochs from γ = 2/5, 3 from γ = 1 exactly, though 5 c / ω comes out just below
    # 1 in floats for the first two. The ratio (ω + 3 - γ (ω + 2)) / (1 - γ²) rises from γ = 2/5
    # on for ω <= 0.2, so γ = 2/5 is the rival.
    expected = (omega + 3 - 0.4 * (omega + 2)) / 0.84
    assert price_for(0.1, 100, [omega], [cost], (2, 5), True) == pytest.approx(expected / 10)


def test_hand_computed_price_where_a_client_enters_exactly_at_the_upper_end():
    # γ ω = c τ_min at γ = 0.1: below it nobody plays and γ = 0 is best, so λ t0 γ² = γ S with
    # S = 1.1, λ t0 = 11.
    price = price_for(0.1, 100, [0.1], [0.01], (1, 1), False, decay_bounds=(0.0, 0.1))
    assert price == pytest.approx(1.1)


def test_hand_computed_price_with_a_smaller_upper_decay_bound():
    # S = A + B γ / 2 with A = 1.2, B = 12; below γ = 1/2 the ratio tends to (A / γ + B) / 2 = 7.2.
    price = price_for(1.0, 10, [0.8, 0.4], [0.1, 0.1], decay_bounds=(0.0, 0.5))
    assert price == pytest.approx(0.72)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"decay_start": 0}, r"decay_start must lie in \(0, 1\], not 0"),
        ({"decay_start": 1.5}, r"not 1\.5"),
        ({"decay_start": -0.5}, r"not -0\.5"),
        ({"decay_start": NAN}, "not nan"),
        ({"decay_start": "half"}, "decay_start must be a number, not 'half'"),
        ({"rounds": 0}, "must be at least 1, not 0"),
        ({"rounds": 1.5}, r"must be a whole number, not 1\.5"),
        ({"rounds": NAN}, "must be a whole number, not nan"),
        ({"costs": None}, "needs a game, or contributions and costs"),
        ({"costs": [0.0]}, "client 0 has 0"),
        ({"costs": [0.1, 0.1]}, "there are 1 and 2"),
        ({"epoch_bounds": (5, 1)}, "epoch_bounds"),
        ({"decay_bounds": (0.7, 0.7)}, "no room"),
        ({"contributions": [0.0]}, "no client takes part"),
        ({"costs": [2.0], "epoch_bounds": (1, 10)}, "no client takes part"),
    ],
)
def test_a_price_that_cannot_be_found_is_an_error(changes, says):
    good = {"decay_start": 0.5, "rounds": 10, "contributions": [0.8], "costs": [0.1]}
    assert price_for(**good) > 0
    with pytest.raises(GameError, match=says):
        price_for(**good | changes)


@pytest.mark.parametrize("gamma", [0, 0.3, 1])
def test_a_constant_decay_is_what_it_was_given(gamma):
    assert constant_decay(gamma) == gamma
    assert isinstance(constant_decay(gamma), float)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, NAN, INF, "most", [0.1, 0.2]])
def test_a_constant_decay_outside_its_range_is_refused(gamma):
    with pytest.raises(GameError, match="must be a number"):
        constant_decay(gamma)


def test_hand_computed_harmonic_decays():
    assert harmonic_decay(4, 5.0) == pytest.approx(1 / 10)
    assert harmonic_decay(1, 0.0) == pytest.approx(1 / 2)
    assert harmonic_decay(6, 2.0, price=0.5) == pytest.approx(1 / 5)
    assert harmonic_decay(100, 10.0, price=0.0) == 1.0


@given(st.integers(1, 500), st.floats(0, 50), st.floats(0.001, 10))
def test_a_harmonic_decay_falls_with_rounds_work_and_price(t, epochs, price):
    gamma = harmonic_decay(t, epochs, price)
    assert 0 < gamma < 1
    assert harmonic_decay(t + 1, epochs, price) < gamma
    assert harmonic_decay(t, epochs + 1, price) < gamma
    assert harmonic_decay(t, epochs, 2 * price) < gamma


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 1.0), "round must be at least 1, not 0"),
        ((1.5, 1.0), r"round must be a whole number, not 1\.5"),
        ((1, -1.0), "mean_epochs must be .* not -1"),
        ((1, NAN), "mean_epochs must be .* not nan"),
        ((1, INF), "mean_epochs must be .* not inf"),
        ((1, 1.0, -0.5), r"price must be .* not -0\.5"),
        ((1, 1.0, NAN), "price must be .* not nan"),
    ],
)
def test_a_harmonic_decay_of_bad_numbers_is_refused(arguments, says):
    with pytest.raises(GameError, match=says):
        harmonic_decay(*arguments)


def test_a_game_says_the_same_as_its_clients_and_rules():
    game = Game([0.8, 0.4], [0.1, 0.3], 7, 2.0, (1, 6), True, (0.1, 0.9))
    rules = (game.epoch_bounds, game.whole_epochs, game.decay_bounds)
    spelled_out = price_for(0.5, 40, game.contributions, game.costs, *rules)
    assert price_for(0.5, 40, game) == spelled_out
    assert spelled_out != pytest.approx(price_for(0.5, 40, game.contributions, game.costs))


def test_the_price_does_not_depend_on_how_the_start_is_split():
    arguments = ([0.8, 0.4], [0.1, 0.3], (1, 10), True)
    assert price_for(0.5, 40, *arguments) == pytest.approx(price_for(0.2, 100, *arguments))
    assert math.isclose(2 * price_for(1.0, 40, *arguments), price_for(0.5, 40, *arguments))


@pytest.mark.parametrize("omega", [5e-324, 1e-310, 1e-300])
def test_the_search_for_a_price_ends_where_products_are_rounded_to_almost_nothing(omega):
    game = Game([omega], [1.0], epoch_bounds=(0, 10), whole_epochs=False)
    assert 0 <= price_for(0.3, 100, game) <= omega

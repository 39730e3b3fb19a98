"""Pricing rules: what the strategies' games are, and offers that do not depend on one's report."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import Game, PricingRule, best_response, price_for, solve
from flamma.game.model import LARGEST_COST, SMALLEST_COST

FLOORS = st.sampled_from(["participation", 0.0, 0.15])
PRICES = st.sampled_from([None, 0.0, 0.3, 1.0])
BOUNDS = st.sampled_from([(1, 10), (0, 10), (2, 3), (1, 1)])


@st.composite
def rules(draw, rule="others"):
    whole = draw(st.booleans())
    bounds = draw(BOUNDS)
    return PricingRule(
        rule=rule,
        decay_floor=draw(FLOORS),
        price=draw(PRICES),
        decay_start=draw(st.sampled_from([0.3, 0.05, 1.0])),
        rounds=draw(st.sampled_from([40, 100])),
        epoch_bounds=bounds if whole else draw(st.sampled_from([bounds, (0.5, np.inf)])),
        whole_epochs=whole,
    )


@st.composite
def populations(draw, fewest=1, most=8):
    n = draw(st.integers(fewest, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    contributions = rng.choice([0.0, 1.0, 0.3, *rng.random(4)], n)
    costs = rng.choice([0.1, *(0.1 * np.exp(rng.normal(size=4)))], n)
    return contributions, costs


def population(n, seed):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.6, 0.95, n), 0.1 * np.exp(0.5 * rng.normal(size=n))


def by_definition(rule, contributions, costs, t, offered):
    """The decay factors of the rule ``others``, one whole game after the other."""
    everyone = np.arange(contributions.size)
    found = []
    for i in offered:
        others = everyone[everyone != i]
        asked = [j for j in offered if j != i] or others
        floor = PricingRule(
            decay_floor=rule.decay_floor, price=0.0, epoch_bounds=rule.epoch_bounds
        ).game(contributions[asked], costs[asked], 1)
        game = Game(
            contributions[others],
            costs[others],
            t,
            epoch_bounds=rule.epoch_bounds,
            whole_epochs=rule.whole_epochs,
            decay_bounds=floor.decay_bounds,
        )
        price = (
            price_for(rule.decay_start, rule.rounds, game)
            if rule.price is None
            else rule.price * others.size / len(offered)
        )
        found.append(solve(game.replace(price=price)).decay_factor)
    return np.array(found)


@settings(max_examples=300)
@given(populations(), rules("common"), st.integers(1, 100))
def test_the_common_game_is_that_of_the_papers_strategy(clients, rule, t):
    omega, costs = clients
    floor = rule.decay_floor
    if floor == "participation":
        with np.errstate(divide="ignore", invalid="ignore"):
            entry = rule.epoch_bounds[0] * costs / omega
        floor = max([0.0, *entry[entry <= 1]])
    game = Game(
        omega,
        costs,
        t,
        epoch_bounds=rule.epoch_bounds,
        whole_epochs=rule.whole_epochs,
        decay_bounds=(floor, 1),
    )
    price = rule.price
    if price is None:
        idle = floor == 1 or not best_response(game, 1.0).any()
        price = 0.0 if idle else price_for(rule.decay_start, rule.rounds, game)
    found = rule.game(omega, costs, t)
    assert (found.price, found.decay_bounds, found.round) == (price, (floor, 1), t)
    expected = solve(game.replace(price=price)).decay_factor
    assert rule.decay_factors(omega, costs, t).tolist() == [expected] * omega.size
    assert rule.decay_factors(omega, costs, t, [0]).size == 1


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("price", [None, 0.7])
@pytest.mark.parametrize(
    ("n", "asked", "seeds"), [(2, 2, 20), (5, 5, 20), (60, 8, 5), (3000, 3, 1)]
)
def test_others_is_the_game_of_all_others(whole, price, n, asked, seeds):
    for seed in range(seeds):
        omega, costs = population(n, seed)
        offered = np.random.default_rng(seed).permutation(n)[:asked]
        for t in (20, 45, 90):
            rule = PricingRule("others", price=price, whole_epochs=whole)
            found = rule.decay_factors(omega, costs, t, offered)
            expected = by_definition(rule, omega, costs, t, offered)
            assert found == pytest.approx(expected, rel=1e-9)


@settings(max_examples=300)
@given(populations(), rules(), st.integers(1, 100), st.data())
def test_ones_own_report_does_not_move_a_bit_of_ones_own_offer(clients, rule, t, data):
    omega, costs = clients
    asked = data.draw(st.permutations(range(omega.size)))
    offered = asked[: data.draw(st.integers(1, omega.size))]
    honest = rule.decay_factors(omega, costs, t, offered)
    place = data.draw(st.integers(0, len(offered) - 1))
    lie = costs.copy()
    smallest = SMALLEST_COST if np.isfinite(rule.epoch_bounds[1]) else 1e-6
    low, high = np.log([smallest, LARGEST_COST])
    for share in data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=5)):
        lie[offered[place]] = np.clip(np.exp(low + share * (high - low)), smallest, LARGEST_COST)
        assert rule.decay_factors(omega, lie, t, offered)[place] == honest[place]


def test_many_clients_ones_own_report_does_not_move_a_bit():
    omega, costs = population(3000, 0)  # so many that intervals of γ are dropped unseen
    for price in (None, 1.0):
        rule = PricingRule("others", price=price)
        honest = rule.decay_factors(omega, costs, 60, [7, 8])
        for lie in (1e-9, 0.03, 0.2, 0.9, 5.0):
            told = np.where(np.arange(3000) == 7, lie, costs)
            assert rule.decay_factors(omega, told, 60, [7, 8])[0] == honest[0]


def test_a_given_price_is_scaled_to_the_size_of_the_others_game():
    # All clients alike: the game of the others must have the solution of the common one.
    for known, asked in ((4, 4), (50, 5)):
        omega, costs = np.full(known, 0.8), np.full(known, 0.1)
        for t in (3, 20, 60):
            both = [
                PricingRule(rule, 0.05, price=1.0, whole_epochs=False).decay_factors(
                    omega, costs, t, np.arange(asked)
                )
                for rule in ("common", "others")
            ]
            assert both[1] == pytest.approx(both[0], rel=1e-12)
            assert t < 60 or both[0][0] < 1


def test_without_others_that_work_the_offer_needs_no_report():
    derived = PricingRule("others")
    assert derived.decay_factors([0.9], [0.1], 20).tolist() == [1.0]
    assert derived.decay_factors([0.9], [0.1], 60) == pytest.approx([0.5])
    given_price = PricingRule("others", price=0.1, decay_floor=0.2)
    assert given_price.decay_factors([0.9], [0.1], 9) == pytest.approx([0.5])
    assert given_price.decay_factors([0.9], [0.1], 90) == pytest.approx([0.2])
    # The second client would not work at any decay factor, so the first is as if alone.
    assert derived.decay_factors([0.9, 0.5], [0.1, 0.6], 60, [0]) == pytest.approx([0.5])
    assert PricingRule("others", price=0.0).decay_factors([0.9], [0.1], 9).tolist() == [1.0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rule": "mine"}, "'common' or 'others'"),
        ({"decay_floor": "low"}, "participation"),
        ({"decay_floor": 2.0}, r"\[0, 1\]"),
        ({"price": -1.0}, "price"),
        ({"decay_start": 0.0}, r"\(0, 1\]"),
        ({"rounds": 0}, "rounds"),
        ({"epoch_bounds": (5, 2)}, "5 and 2"),
    ],
)
def test_rules_that_make_no_sense(change, expected):
    with pytest.raises(GameError, match=expected):
        PricingRule(**change)


@pytest.mark.parametrize("offered", [[3], [-1], [0, 0], [0.5], [[0]]])
def test_only_known_clients_can_be_offered_work(offered):
    with pytest.raises(GameError, match="offered"):
        PricingRule().decay_factors([0.5, 0.6, 0.7], [0.1, 0.1, 0.1], 1, offered)

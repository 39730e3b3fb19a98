"""Pricing rules: what the strategies' games are, and offers that do not depend on one's report."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from games import exact_games, floats, scale
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import (
    Game,
    PricingRule,
    best_response,
    constant_decay,
    harmonic_decay,
    price_for,
    server_utility,
    solve,
)
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.game.pricing import affordable

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


# A budget is kept whatever clients do, and a client's offer does not depend on the others.

PLAYS = ("most", "best", "any")


@settings(max_examples=150)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 8),
    st.just(0.0) | st.floats(1e-9, 200),
    st.sampled_from(PLAYS),
)
def test_no_play_exceeds_the_budget_not_even_by_rounding(seed, rounds, per_round, budget, play):
    rng, spent = np.random.default_rng(seed), 0.0
    for _ in range(rounds):
        omega = rng.uniform(0, 1, per_round)
        gamma = rng.uniform(0, 1, per_round) if rng.random() < 0.5 else np.ones(per_round)
        scale = affordable(gamma, omega, 10, budget=budget, rounds=rounds, per_round=per_round)
        assert ((scale >= 0) & (scale <= 1)).all()
        for pull, w in zip((gamma * scale).tolist(), omega.tolist(), strict=True):
            if play == "most":
                epochs = 10
            elif play == "any":
                epochs = int(rng.integers(0, 11))
            else:
                game = Game([w], [rng.uniform(0.01, 0.2)])
                epochs = int(best_response(game, pull)[0])
            spent += pull * w * epochs
            assert spent <= budget


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.floats(0.1, 50), st.data())
def test_an_offer_depends_on_no_other_offer(omega, budget, data):
    rule = {"budget": budget, "rounds": 10, "per_round": len(omega)}
    gamma = np.linspace(0.2, 1, len(omega))
    before = affordable(gamma, omega, 10, **rule)
    own = data.draw(st.integers(0, len(omega) - 1))
    others = gamma * data.draw(st.floats(0, 1))
    others[own] = gamma[own]
    assert affordable(others, omega, 10, **rule)[own] == before[own]


def test_a_budget_that_binds_is_used_whole_and_one_that_does_not_changes_nothing():
    rule = {"rounds": 5, "per_round": 2}
    omega = np.array([0.9, 0.8])
    scale = affordable(1.0, omega, 10, budget=20.0, **rule)
    assert 5 * float((scale * omega * 10).sum()) == pytest.approx(20.0, rel=1e-12)
    assert affordable(1.0, omega, 10, budget=91.0, **rule).tolist() == [1.0, 1.0]
    assert affordable(1.0, [0.0, 0.5], 10, budget=0.0, **rule).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("budget", [-1.0, float("nan"), float("inf")])
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(GameError, match="a budget must be a number from 0 on"):
        affordable(1.0, [0.5], 10, budget=budget, rounds=1, per_round=1)


def test_a_budget_needs_bounded_epochs():
    with pytest.raises(GameError, match="upper bound of the local epochs"):
        affordable(1.0, [0.5], float("inf"), budget=1.0, rounds=1, per_round=1)


# The price that places the decay, and the two fixed rules.

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
        ({"costs": [0.1, 0.1]}, "got 1 and 2"),
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

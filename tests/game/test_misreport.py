"""The best lie about a cost, against brute force over the costs that could be reported."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from games import exact_games, floats, scale
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import (
    Game,
    PricingRule,
    best_misreport,
    best_response,
    certify,
    client_utility,
    server_utility,
    solve,
)
from flamma.game.costs import smallest_inspection_rate
from flamma.game.misreport import _Audit
from flamma.game.pricing import affordable

README = Game([0.9, 0.8, 0.7], [0.05, 0.1, 0.2], round=20)
BOUNDS = [(1, 10), (0, 10), (2, 3), (1, 1), (1, math.inf), (0, math.inf), (3, 8)]


def announced(game, client, rule, cost):
    """The decay factor after a report, and what it is worth at the true cost: nothing of ours."""
    costs = game.costs.copy()
    costs[client] = cost
    if rule is None:
        gamma = solve(game.replace(costs=costs)).decay_factor
    else:
        gamma = solve(rule.game(game.contributions, costs, game.round)).decay_factor
    return gamma, client_utility(game, gamma, best_response(game, gamma))[client]


def brute_force(game, client, rule):
    """The most that any of many reports brings: a fine grid, refined where it is best."""
    omega, true = game.contributions[client], game.costs[client]
    reports = np.unique([*(omega / np.geomspace(0.05, 3000, 250)), true, 1e6])
    best = 0.0
    for _ in range(4):
        found = [announced(game, client, rule, cost) for cost in reports]
        best = max(best, *(utility for _, utility in found))
        top = np.argsort([-gamma for gamma, _ in found], kind="stable")[:3]
        near = [(reports[max(k - 1, 0)], reports[min(k + 1, reports.size - 1)]) for k in top]
        reports = np.unique(np.concatenate([np.geomspace(a, b, 20) for a, b in near]))
    return best


def random_case(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    contributions = rng.choice([0.3, 0.5, 1.0], n) if seed % 5 == 0 else rng.uniform(0.2, 1, n)
    costs = 0.1 * np.exp(rng.normal(size=n) * rng.choice([0.2, 0.5, 1.5]))
    whole, bounds = bool(seed % 2), BOUNDS[rng.integers(len(BOUNDS))]
    floor = float(rng.choice([0, 0.1, 0.3]))
    price = float(rng.choice([0.05, 0.2, 1.0]))
    game = Game(
        contributions,
        costs,
        int(rng.integers(1, 100)),
        price,
        bounds,
        whole,
        (floor, float(rng.choice([1, 0.8]))),
    )
    start = float(rng.choice([0.1, 0.3]))
    rules = [
        None,
        PricingRule("common", floor, None, start, 100, bounds, whole),
        PricingRule("common", floor, price, start, 100, bounds, whole),
        PricingRule("common", "participation", None, start, 100, bounds, whole),
        PricingRule("common", "participation", price, start, 100, bounds, whole),
    ]
    return game, int(rng.integers(n)), rules[seed % len(rules)]


def all_reports_searched(game, rule):
    """Of more than 64 whole epochs the lowest costs are tried here and there only."""
    derived = rule is not None and rule.price is None
    return not (derived and game.whole_epochs and game.epoch_bounds[1] > 64)


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 300), marks=pytest.mark.slow, id="more")]
)
def test_no_report_of_many_brings_more(seeds):
    for seed in seeds:
        game, client, rule = random_case(seed)
        lie = best_misreport(game, client, rule)
        gamma, utility = announced(game, client, rule, lie.cost)
        assert (lie.decay_factor, lie.utility) == (gamma, utility), seed
        assert lie.gain >= 0
        if not all_reports_searched(game, rule):
            assert lie.decay_factor + lie.decay_factor_uncertainty >= 1, seed
        else:
            assert lie.decay_factor_uncertainty < 1e-6, seed
        assert utility >= brute_force(game, client, rule) - 1e-8 * max(1, utility), seed
        honest = announced(game, client, rule, game.costs[client])
        assert (lie.honest_decay_factor, lie.honest_utility) == honest
        assert lie.honest_cost == game.costs[client]


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_of_an_interval_holds_for_every_report_in_it(seed):
    game, client, rule = random_case(seed)
    search = _Audit(game, client, rule).search()
    cells = search._cells()
    rng = np.random.default_rng(seed)
    for low, high in zip(cells[:-1], cells[1:] * (1 - 2e-12), strict=True):
        ends = np.sort(np.exp(rng.uniform(np.log(low), np.log(high), (8, 2))), axis=1)
        inside = np.exp(rng.uniform(*np.log(ends.T), (30, 8)))
        bounds = search._bounds(ends[:, 0], ends[:, 1])
        for k in range(30):
            assert np.all(search._gammas(inside[k]) <= bounds + 1e-9)


DECIMAL = [0.05, 0.1, 0.2, 0.25, 0.5, 1.0]
DECIMAL_REPORTS = [
    1.0 / x * (1 + off)
    for x in (*np.geomspace(0.5, 30, 25), *(2 * k + 1 for k in range(6)))
    for off in (0, 1e-9, -1e-9)
]


def decimal_case(seed):
    """A game in which clients are exactly indifferent at γ = 1, at the floor, or with others."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    costs = rng.choice(DECIMAL, n)
    contributions = np.ones(n) if seed % 3 else rng.choice([1.0, 0.5], n)
    bounds = [(1, 10), (1, 10), (0, 10), (2, 3), (1, 5)][rng.integers(5)]
    floor = [0.5, 0.5, "participation", 0.1, 0.8][rng.integers(5)]
    start, round_ = float(rng.choice([0.1, 0.3])), int(rng.choice([31, 45, 60, 100]))
    whole = seed % 4 > 0
    rule = PricingRule("common", floor, None, start, 100, bounds, whole)
    return Game(contributions, costs, round_, 1.0, bounds, whole), int(rng.integers(n)), rule


def assert_nothing_better(game, client, rule, reports):
    lie = best_misreport(game, client, rule)
    assert lie.decay_factor_uncertainty < 1e-6
    assert (lie.decay_factor, lie.utility) == announced(game, client, rule, lie.cost)
    found = [announced(game, client, rule, cost) for cost in (*reports, game.costs[client], 1e6)]
    best = max(utility for _, utility in found)
    assert lie.utility >= best - 1e-8 * max(1, best)
    if lie.gain > 0:
        largest = max(gamma for gamma, _ in found)
        assert largest <= lie.decay_factor + lie.decay_factor_uncertainty + 1e-9


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 600), marks=pytest.mark.slow, id="more")]
)
def test_ties_of_decimal_costs_hide_no_lie(seeds):
    for seed in seeds:
        assert_nothing_better(*decimal_case(seed), DECIMAL_REPORTS)


@pytest.mark.parametrize("other", [0.05, 0.1, 0.2, 0.25, 0.5])
def test_another_client_that_is_indifferent_at_the_top(other):
    game = Game([1, 1], [0.1, other], round=100)
    rule = PricingRule("common", 0.5, None, 0.3, 100)
    assert_nothing_better(game, 0, rule, DECIMAL_REPORTS)
    if other == 0.2:
        lie = best_misreport(game, 0, rule)
        assert lie.relative_gain > 0.59
        assert lie.cost == pytest.approx(0.6193, abs=1e-4)


def test_reports_that_are_not_searched_are_stated_as_uncertainty():
    """With many whole epochs a very low report may be best, and not all are searched."""
    rng = np.random.default_rng(1)
    contributions, costs = rng.uniform(0.2, 1, 26), 0.1 * np.exp(rng.normal(size=26))
    rule = PricingRule("common", 0.0, None, 0.3, 100, (1, 100))
    game = Game(contributions, costs, 59, epoch_bounds=(1, 100))
    lie = best_misreport(game, 0, rule)
    assert lie.decay_factor > 0.8  # 0.48 is the most up to 64 epochs
    for x in (*np.geomspace(1, 300, 40), 205.0):
        gamma, _ = announced(game, 0, rule, contributions[0] / x * (1 - 1e-9))
        assert gamma <= lie.decay_factor + lie.decay_factor_uncertainty


@pytest.mark.parametrize("price", [None, 0.0, 1.0, 1e90])
@pytest.mark.parametrize("bounds", [(1, 10), (0, 10), (1, math.inf), (1_000_000, 1_000_000)])
def test_games_at_the_limits(price, bounds):
    """No warning, which would be an error here, and nothing better among extreme reports."""
    least = 1e-100 if bounds[1] < math.inf else 1e-80  # a price that follows is at most 1e100
    extremes = [(1.0, least), (1.0, 1e100), (5e-324, 1e100), (1e-300, least), (0.0, 1.0)]
    for seed, (mine, other) in enumerate(product(extremes, repeat=2)):
        contributions, costs = zip(mine, other, strict=True)
        whole = bounds[1] < math.inf and seed % 2 == 0
        floor = [0.0, 0.5, "participation"][seed % 3]
        round_ = [60, 2**33][seed % 2]
        rule = PricingRule("common", floor, price, 0.3, 100, bounds, whole)
        game = Game(contributions, costs, round_, price or 1.0, bounds, whole)
        lie = best_misreport(game, 0, rule)
        assert 0 <= lie.decay_factor_uncertainty <= 1
        for cost in (least, 1e-3, 1.0, 1e100):
            _, utility = announced(game, 0, rule, cost)
            possible = lie.decay_factor + lie.decay_factor_uncertainty
            most = client_utility(game, possible, best_response(game, min(1, possible)))[0]
            assert utility <= max(lie.utility, most) * (1 + 1e-8), (game, rule)


def test_the_readme_game():
    lies = [best_misreport(README, client) for client in range(3)]
    assert [lie.honest_utility for lie in lies] == pytest.approx([0.6, 0.2222, 0.0722], abs=1e-4)
    # 0.7 / 17 is the largest cost at which the third client would do 9 epochs at γ = 1.
    assert lies[2].cost == pytest.approx(0.7 / 17)
    assert lies[2].decay_factor == 1
    assert lies[2].utility == pytest.approx(0.6)
    assert lies[2].relative_gain == pytest.approx(8.31 - 1, abs=0.01)
    assert lies[1].utility == pytest.approx(1.6)
    assert lies[0].utility == pytest.approx(1.917, abs=1e-3)


def test_with_a_derived_price_overstating_pays():
    game = README.replace(round=60)
    for client, gain in enumerate([0.306, 0.333, 0.412]):
        lie = best_misreport(game, client, PricingRule(decay_start=0.3, rounds=100))
        assert lie.cost == pytest.approx(game.contributions[client])
        assert lie.decay_factor == 1
        assert lie.relative_gain == pytest.approx(gain, abs=1e-3)
        without_floor = best_misreport(game, client, PricingRule(decay_floor=0.1))
        assert without_floor.cost > game.costs[client]
        assert 0.15 < without_floor.relative_gain < gain


@pytest.mark.parametrize("seed", range(60))
def test_pricing_by_the_others_leaves_nothing_to_gain(seed):
    game, client, rule = random_case(seed)
    settings = {} if rule is None else {"decay_floor": rule.decay_floor, "price": rule.price}
    rule = PricingRule(
        "others", epoch_bounds=game.epoch_bounds, whole_epochs=game.whole_epochs, **settings
    )
    lie = best_misreport(game, client, rule)
    assert (lie.gain, lie.relative_gain, lie.cost) == (0, 0, game.costs[client])


def test_nothing_to_gain():
    assert best_misreport(README.replace(round=1), 0).gain == 0  # γ is 1 already
    assert best_misreport(README.replace(contributions=[0.9, 0.8, 0.0]), 2).gain == 0
    fixed = README.replace(decay_bounds=(0.4, 0.4))
    assert [best_misreport(fixed, client).gain for client in range(3)] == [0, 0, 0]


def test_who_gets_nothing_by_the_truth_gains_infinitely_many_times():
    game = Game([0.9, 0.5], [0.1, 0.3], round=10)
    lie = best_misreport(game, 1)
    assert lie.honest_utility == 0 < lie.gain
    assert lie.relative_gain == math.inf


@pytest.mark.parametrize("client", [-1, 3, 0.5, None])
def test_an_unknown_client(client):
    with pytest.raises(GameError, match=r"client=0\.\.2"):
        best_misreport(README, client)


# Every step of the proof in ``docs/explanation/incentives.md``, on random games.

SHARES = st.floats(0, 1)
RATES = st.integers(1, 40).map(lambda k: Fraction(k, 40))
MENUS = [(0, 10), (1, 10), (2, 5), (3, 3), (0, 4)]


@st.composite
def situations(draw):
    """A rule ``others``, true costs, the clients that are asked, one of them, and a budget."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(1, 7))
    asked = rng.permutation(n)[: draw(st.integers(1, n))]
    whole = draw(st.booleans())
    rule = PricingRule(
        "others",
        decay_floor=draw(st.sampled_from(["participation", 0.0, 0.2])),
        price=draw(st.sampled_from([None, 0.2, 1.0])),
        epoch_bounds=draw(st.sampled_from([(1, 10), (0, 10), (2, 3)])),
        whole_epochs=whole,
    )
    omega = rng.choice([0.0, 1.0, *rng.uniform(0.2, 1, 6)], n)
    costs = 0.1 * np.exp(rng.normal(size=n))
    budget = draw(st.sampled_from([None, 0.5, 50.0]))
    return rule, omega, costs, draw(st.integers(1, 100)), asked, draw(st.integers(0, 6)), budget


def own_rate(situation, told):
    """The pay for an epoch of one's own, r_i = s_i γ_i ω_i, after these reports of all."""
    rule, omega, _, t, asked, place, budget = situation
    place %= asked.size
    gamma = rule.decay_factors(omega, told, t, asked)
    if budget is not None:
        gamma *= affordable(
            gamma,
            omega[asked],
            rule.epoch_bounds[1],
            budget=budget,
            rounds=100,
            per_round=asked.size,
        )
    return gamma[place] * omega[asked[place]]


def menu_of(rule):
    low, high = rule.epoch_bounds
    if rule.whole_epochs:
        return np.array([0, *range(low, high + 1)], dtype=float)
    return np.array([0, *np.linspace(low, high, 2001)])


@settings(max_examples=200)
@given(exact_games(), SHARES, SHARES)
def test_whoever_is_paid_more_for_an_epoch_gains_more(exact, one, other):
    game = floats(exact)
    low, high = sorted((one, other))
    before, after = (client_utility(game, g, best_response(game, g)) for g in (low, high))
    assert np.all(after >= before - 1e-12 * scale(exact))


@settings(max_examples=250)
@given(situations(), st.lists(st.floats(-9, 9), min_size=1, max_size=4), st.data())
def test_truth_is_dominant_whatever_the_others_say(situation, powers, data):
    rule, _, costs, _, asked, place, _ = situation
    own = asked[place % asked.size]
    seed = data.draw(st.integers(0, 2**32))
    told = costs * np.exp(2 * np.random.default_rng(seed).normal(size=costs.size))
    told[own] = costs[own]
    rate, true = own_rate(situation, told), costs[own]
    menu = menu_of(rule)
    alone = Game([1.0], [true], epoch_bounds=rule.epoch_bounds, whole_epochs=rule.whole_epochs)
    epochs = best_response(alone, rate)[0]
    # What is offered admits nothing better than the answer at one's true cost ...
    best = float(np.max(rate * menu - true * menu**2))
    assert rate * epochs - true * epochs**2 >= best - 1e-12
    for power in powers:
        lie = told.copy()
        lie[own] = 0.1 * np.exp(power)
        # ... a report does not move it, not by a bit ...
        assert own_rate(situation, lie) == rate
        # ... and were the report binding, what it would have one do brings no more.
        bound = best_response(alone.replace(costs=[lie[own]]), rate)[0]
        assert rate * bound - true * bound**2 <= rate * epochs - true * epochs**2 + 1e-12


def test_under_a_common_factor_the_same_reports_do_pay():
    # Without this the test above might be one that nothing fails.
    gains = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        game = Game(rng.uniform(0.6, 0.95, 4), 0.1 * np.exp(0.5 * rng.normal(size=4)))
        for rule in (PricingRule(), PricingRule(price=1.0)):
            worth = []
            for factor in (1, 0.05, 0.3, 3, 8):
                told = game.costs * np.where(np.arange(4) == 0, factor, 1)
                gamma = rule.decay_factors(game.contributions, told, 60)[0]
                worth.append(client_utility(game, gamma, best_response(game, gamma))[0])
            gains.append(max(worth) > worth[0] + 1e-9)
    assert np.mean(gains) > 0.5


def threshold_payment(rate, epochs, low):
    """Each step of work, paid at the cost of the type that would just not take it any more."""
    steps = [(0, max(low, 1)), *((k - 1, k) for k in range(max(low, 1) + 1, epochs + 1))]
    paid = Fraction(0)
    for fewer, more in steps:
        threshold = rate * (more - fewer) / (more**2 - fewer**2)  # rate Δτ = z Δτ²
        paid += threshold * (more**2 - fewer**2)
    return paid


@given(RATES, st.sampled_from(MENUS), st.integers(1, 400))
def test_the_pay_is_the_sum_of_threshold_payments_exactly(rate, menu, cost):
    low, high = menu
    cost = Fraction(cost, 200)
    epochs = max(
        (0, *range(low, high + 1)), key=lambda tau: (rate * tau - cost * tau**2, tau)
    )  # ties upward
    alone = Game([1.0], [float(cost)], epoch_bounds=menu)
    assert best_response(alone, float(rate))[0] == epochs
    assert (threshold_payment(rate, epochs, low) if epochs else 0) == rate * epochs


def integral_of_work(rate, cost, menu, whole):
    """∫ τ(z)² dz over all costs z from one's own on, by the midpoint rule in log z."""
    last = cost * 10**5
    edges = np.geomspace(cost, last, 400_001)
    middle = np.sqrt(edges[:-1] * edges[1:])
    types = Game(np.ones(middle.size), middle, epoch_bounds=menu, whole_epochs=whole)
    work = np.square(best_response(types, rate).astype(float))
    tail = rate**2 / (4 * last) if menu[0] == 0 and not whole else 0.0
    return float(np.sum(work * np.diff(edges))) + tail


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("menu", [*MENUS, (0, math.inf), (1, math.inf)])
def test_the_pay_is_myersons(whole, menu):
    rng = np.random.default_rng(0)
    for _ in range(3):
        rate, cost = rng.uniform(0.2, 1), 0.1 * np.exp(rng.normal())
        alone = Game([1.0], [cost], epoch_bounds=menu, whole_epochs=whole)
        epochs = float(best_response(alone, rate)[0])
        truthful = cost * epochs**2 + integral_of_work(rate, cost, menu, whole)
        assert truthful == pytest.approx(rate * epochs, rel=2e-3, abs=1e-9)
        utility = client_utility(alone, rate, [epochs])[0]
        assert integral_of_work(rate, cost, menu, whole) == pytest.approx(
            utility, rel=2e-3, abs=2e-3 * rate
        )


@given(RATES, st.sampled_from(MENUS), st.floats(0.02, 2), st.floats(0.02, 2), SHARES)
def test_utility_is_convex_in_the_cost_with_the_work_as_slope(rate, menu, one, other, share):
    costs = np.array([one, other, share * one + (1 - share) * other])
    types = Game(np.ones(3), costs, epoch_bounds=menu)
    epochs = best_response(types, float(rate))
    utility = client_utility(types, float(rate), epochs)
    assert utility[2] <= share * utility[0] + (1 - share) * utility[1] + 1e-9
    # The tangent at one cost is below the utility at another: u(z) ≥ u(c) - τ(c)² (z - c).
    assert utility[1] >= utility[0] - float(epochs[0]) ** 2 * (other - one) - 1e-9


def own_part(game, i, gamma):
    """k_i(γ), what client i alone adds to the server's utility: γ (ω + τ) - (λ t / n) γ²."""
    alone = game.replace(
        contributions=game.contributions[[i]],
        costs=game.costs[[i]],
        price=game.price / game.clients,
    )
    return float(server_utility(alone, gamma, best_response(alone, gamma)))


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
@given(exact_games(), st.sampled_from([0.0, 0.15]))
def test_with_a_given_price_every_client_alone_costs_the_server_something(exact, floor):
    game = floats(exact).replace(decay_bounds=(floor, 1))
    assume(game.clients > 1 and game.price > 0 and best_response(game, 1.0).all())
    rule = PricingRule(
        "others",
        floor,
        game.price,
        epoch_bounds=game.epoch_bounds,
        whole_epochs=game.whole_epochs,
    )
    gammas = rule.decay_factors(game.contributions, game.costs, game.round)
    common, tolerance = solve(game), 1e-9 * scale(exact)
    parts = []
    for i, gamma in enumerate(gammas):
        lost = own_part(game, i, common.decay_factor) - own_part(game, i, gamma)
        for_all = common.server_utility - float(
            server_utility(game, gamma, best_response(game, gamma))
        )
        assert 0 - tolerance <= for_all <= lost + tolerance
        parts.append(lost)
    epochs = best_response(game, gammas, one_each=True)
    certificate = certify(game, gammas, epochs)
    assert certificate.leader_regret == pytest.approx(sum(parts), abs=tolerance)
    assert abs(certificate.follower_gap) <= tolerance
    assert certificate.individual_rationality_slack >= -tolerance


def large_game(n, seed, price=None):
    """A continuous game at twice the round from which γ falls, and its offers by the others."""
    rng = np.random.default_rng([n, seed])
    omega, costs = rng.uniform(0.6, 0.95, n), 0.1 * np.exp(0.5 * rng.normal(size=n))
    free = {"decay_floor": 0.0, "epoch_bounds": (0, math.inf), "whole_epochs": False}
    game = PricingRule(**free).game(omega, costs, 60)
    given_price = game.price if price == "given" else None
    gammas = PricingRule("others", price=given_price, **free).decay_factors(omega, costs, 60)
    epochs = best_response(game, gammas, one_each=True)
    return game, gammas, certify(game, gammas, epochs).leader_regret


@pytest.mark.parametrize("price", ["given", "derived"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_servers_loss_is_of_first_order_and_does_not_grow_with_the_clients(price, seed):
    n = 400
    game, gammas, loss = large_game(n, seed, price)
    gamma, ratio = solve(game).decay_factor, game.contributions / game.costs
    a, b, price_each = game.contributions.mean(), ratio.mean(), game.influence_price / n
    curvature = 2 * price_each - b
    assert gamma == pytest.approx(a / curvature)
    if price == "given":
        towards = (game.contributions + gamma * ratio) / curvature
    else:  # γ = a / ((a + b) s - b) with s = t / t0 = 2
        towards = (b * game.contributions - a * ratio) * (2 - 1) / curvature**2
    shift = (towards.mean() - towards) / (n - 1)
    assert gammas - gamma == pytest.approx(shift, rel=0.1, abs=0.1 * np.abs(shift).mean())
    slope = game.contributions + gamma * ratio
    first_order = n / (n - 1) * np.cov(slope, towards, ddof=0)[0, 1]
    assert loss == pytest.approx(first_order, rel=0.1)
    assert (loss > 0) == (price == "given")
    _, fewer, _ = large_game(n // 4, seed, price)
    assert 2.5 < np.std(fewer) / np.std(gammas) < 6.5  # about 4: each offer moves by 1/n


@given(st.floats(0.01, 0.99), st.floats(0.01, 20))
def test_a_fine_of_the_odds_deters_whoever_would_keep_all_its_pay(rate, pay):
    fine = (1 - rate) / rate * pay
    assert (1 - rate) * pay - rate * fine == pytest.approx(0, abs=1e-9)
    assert smallest_inspection_rate(pay, fine) == pytest.approx(rate)


@pytest.mark.parametrize("clients", [3, 100])
def test_a_partner_that_overstates_its_cost_lifts_the_floor_of_the_other(clients):
    rng = np.random.default_rng(0)
    omega = rng.uniform(0.6, 0.95, clients)
    costs = 0.1 * np.exp(0.5 * rng.normal(size=clients))
    told = costs.copy()
    told[1] = omega[1]
    before, after = (PricingRule("others").decay_factors(omega, c, 90) for c in (costs, told))
    assert before[0] < after[0] == 1
    assert before[1] == after[1]

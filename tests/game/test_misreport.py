"""The best lie about a cost, against brute force over the costs that could be reported."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from flamma.errors import GameError
from flamma.game import Game, PricingRule, best_misreport, best_response, client_utility, solve
from flamma.game.misreport import ReportSearch, _Audit

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
    search = ReportSearch(_Audit(game, client, rule).situation())
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

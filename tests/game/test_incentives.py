"""Every step of the proof in ``docs/explanation/incentives.md``, on random games."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from games import exact_games, floats, scale
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flamma.game import (
    Game,
    PricingRule,
    best_response,
    certify,
    client_utility,
    server_utility,
    solve,
)
from flamma.game.costs import smallest_inspection_rate
from flamma.game.pricing import affordable

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

"""The five lemmas of section IV, and counter-examples where they are stated too generally."""

from __future__ import annotations

import math

import numpy as np
import pytest
from games import SHARES, exact_games, floats
from hypothesis import assume, given
from hypothesis import strategies as st

from flamma.game import (
    Game,
    best_response,
    client_utility,
    printed_decay_factor,
    server_utility,
    server_utility_is_concave,
    solve,
)

GAMMAS = np.linspace(0, 1, 2001)
COSTS = st.integers(1, 200).map(lambda k: k / 100)
CLIENTS = st.lists(st.tuples(SHARES.map(float), COSTS), min_size=1, max_size=5)


def unbounded(contributions, costs, t, price=1.0):
    return Game(contributions, costs, t, price, epoch_bounds=(0, math.inf), whole_epochs=False)


def leader(game, gammas):
    return server_utility(game, gammas, best_response(game, gammas))


@given(CLIENTS, SHARES.map(float), st.integers(1, 50), st.integers(1, 20))
def test_lemma_1_a_clients_utility_is_strictly_concave_in_its_epochs(clients, gamma, tau, step):
    game = Game(*zip(*clients, strict=True))
    below, at, above = (
        client_utility(game, gamma, np.full(game.clients, t)) for t in (tau - step, tau, tau + step)
    )
    bend = below - 2 * at + above
    assert (bend < 0).all()
    assert bend == pytest.approx(-2 * game.costs * step**2, rel=1e-9, abs=1e-9)


@given(CLIENTS, SHARES.map(float))
def test_lemma_2_the_optimal_epochs_maximise_a_clients_utility(clients, gamma):
    game = unbounded(*zip(*clients, strict=True), t=1)
    best = best_response(game, gamma)
    assert best == pytest.approx(gamma * game.contributions / (2 * game.costs), rel=1e-12)
    utility = client_utility(game, gamma, best)
    for factor in (0.0, 0.5, 0.99, 1.01, 2.0):
        other = client_utility(game, gamma, factor * best)
        assert (other < utility)[best > 0].all()
    assert (client_utility(game, gamma, best + 0.01) < utility).all()


def test_lemma_2_needs_the_bounds_where_the_optimum_lies_outside_them():
    # γ ω / (2 c) = 45 and 0.75 by hand; with 1 to 10 whole epochs the best are 10 and 1.
    game = Game([0.9, 0.9], [0.01, 0.6], epoch_bounds=(1, 10))
    assert best_response(game, 1.0).tolist() == [10, 1]
    options = np.arange(1, 11)
    utilities = client_utility(game, np.ones(10), np.stack([options, options], axis=-1))
    assert options[utilities.argmax(axis=0)].tolist() == [10, 1]


@given(CLIENTS, st.integers(1, 100), st.integers(0, 200).map(lambda k: k / 100))
def test_lemma_3_the_servers_utility_is_concave_exactly_if_2_lambda_t_exceeds_b(clients, t, price):
    game = unbounded(*zip(*clients, strict=True), t, price)
    curvature = 2 * price * t - sum(omega / cost for omega, cost in clients)
    assume(abs(curvature) > 1e-6)
    for gamma in (0.1, 0.5, 0.9):
        below, at, above = leader(game, np.array([gamma - 0.1, gamma, gamma + 0.1]))
        assert below - 2 * at + above == pytest.approx(-curvature * 0.01, rel=1e-6, abs=1e-11)
    concave = server_utility_is_concave(game.contributions, game.costs, t, price)
    assert concave == (curvature > 0)


@pytest.mark.parametrize(("t", "printed"), [(1, -0.08 / 0.6), (3, -0.4), (4, math.inf)])
def test_lemma_3_fails_where_2_lambda_t_is_at_most_b(t, printed):
    # One client with ω = 0.8 and c = 0.1: B = 8, so U_s is convex for t < 4 and a line at t = 4.
    game = unbounded([0.8], [0.1], t)
    assert not server_utility_is_concave([0.8], [0.1], t)
    below, at, above = leader(game, np.array([0.25, 0.5, 0.75]))
    assert below + above - 2 * at >= -1e-12
    assert printed_decay_factor(0.8, 0.1, t) == pytest.approx(printed)
    assert leader(game, GAMMAS).argmax() == GAMMAS.size - 1  # γ = 1, whatever the formula says
    assert solve(game).decay_factor == 1.0


def test_lemma_3_fails_for_many_clients_the_printed_value_of_none_is_the_maximiser():
    # By hand: A = 1.2, B = 8 + 2 = 10, t = 10: U_s = 1.2 γ - 5 γ², largest at γ = 0.12 with
    # 0.072. Printed: 0.08 / 1.2 = 1/15, worth 13/225, and 0.08 / 3.6 = 1/45, worth 49/2025.
    game = unbounded([0.8, 0.4], [0.1, 0.2], 10)
    printed = np.array([printed_decay_factor(0.8, 0.1, 10), printed_decay_factor(0.4, 0.2, 10)])
    assert printed == pytest.approx([1 / 15, 1 / 45])
    assert leader(game, printed) == pytest.approx([13 / 225, 49 / 2025])
    assert solve(game).decay_factor == pytest.approx(0.12)
    assert solve(game).server_utility == pytest.approx(0.072)
    assert leader(game, GAMMAS).max() == pytest.approx(0.072)


def test_lemma_3_fails_with_whole_epochs_even_where_2_lambda_t_exceeds_b():
    # By hand, ω = 1, c = 1/4, t = 3: 2 γ - 3 γ² on [1/4, 3/4) peaks at 1/3 with 1/3 and falls,
    # then the second epoch lifts it to 9/16 at 3/4. B = 4 < 6.
    assert server_utility_is_concave([1.0], [0.25], 3)
    game = Game([1.0], [0.25], 3)
    peak, valley, top = leader(game, np.array([1 / 3, 0.7, 0.75]))
    assert (peak, valley, top) == pytest.approx((1 / 3, 1.4 - 1.47, 9 / 16))
    assert solve(game).decay_factor == 0.75


@given(exact_games(), SHARES.map(float))
def test_lemma_4_no_client_gains_by_deviating_alone_from_its_best_response(exact, gamma):
    game = floats(exact)
    played = best_response(game, gamma)
    utility = client_utility(game, gamma, played)
    points = exact.high - exact.low + 1 if exact.whole else 201
    deviations = np.append(np.linspace(exact.low, exact.high, points), 0.0)
    for i in range(game.clients):
        profiles = np.tile(played.astype(float), (deviations.size, 1))
        profiles[:, i] = deviations
        outcome = client_utility(game, gamma, profiles)
        assert outcome[:, i].max() <= utility[i] + 1e-11 * (1 + game.costs[i] * exact.high**2)
        # Nobody else notices: the best response is dominant, whatever the others play.
        others = np.arange(game.clients) != i
        assert (outcome[:, others] == utility[others]).all()


@given(exact_games(), SHARES.map(float))
def test_lemma_5_holds_where_a_client_may_play_0_epochs_or_abstain(exact, gamma):
    game = floats(exact)
    for factor in (gamma, solve(game).decay_factor):
        epochs = best_response(game, factor)
        utility = client_utility(game, factor, epochs)
        assert (utility >= -1e-11 * game.costs * epochs**2).all()
        assert (utility[epochs == 0] == 0).all()


@pytest.mark.parametrize("whole", [True, False])
def test_lemma_5_fails_with_at_least_1_epoch_unless_clients_may_abstain(whole):
    # By hand: γ ω τ - c τ² = 0.5 τ - 0.6 τ² is -0.1 at τ = 1 and falls from there.
    game = Game([0.9, 0.5], [0.1, 0.6], round=2, epoch_bounds=(1, 10), whole_epochs=whole)
    allowed = np.linspace(1, 10, 10 if whole else 901)
    utilities = client_utility(game, 1.0, np.stack([allowed, allowed], axis=-1))
    # The first gains 0.9 τ - 0.1 τ², 2.025 at 4.5 epochs; the best that the second may play loses.
    assert utilities.max(axis=0) == pytest.approx([2.0 if whole else 2.025, -0.1])
    equilibrium = solve(game)
    assert equilibrium.decay_factor == 1.0
    assert equilibrium.abstains.tolist() == [False, True]
    assert equilibrium.client_utilities[1] == 0.0

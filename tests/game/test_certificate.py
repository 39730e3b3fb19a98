"""The certificate: silent at an equilibrium, loud at everything else."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from games import exact_games, floats, scale
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import Game, best_response, certificate, certify, server_utility, solve
from flamma.game.model import _LARGEST_PRICE, LARGEST_COST, MAX_EPOCHS, SMALLEST_COST


@settings(max_examples=1000)
@given(exact_games())
def test_an_equilibrium_has_no_gaps(exact):
    game = floats(exact)
    equilibrium = solve(game)
    result = certify(game, equilibrium.decay_factor, equilibrium.local_epochs)
    tolerance = 1e-11 * scale(exact)
    assert abs(result.follower_gap) <= tolerance
    assert abs(result.leader_regret) <= tolerance
    assert 0 <= result.leader_regret_uncertainty <= tolerance
    assert result.individual_rationality_slack >= -tolerance
    assert result.abstaining_share == equilibrium.abstains.mean()


@settings(max_examples=500)
@given(exact_games(), st.integers(0, 100))
def test_the_leaders_regret_is_the_exact_one(exact, percent):
    gamma = exact.gamma_min + (exact.gamma_max - exact.gamma_min) * Fraction(percent, 100)
    game = floats(exact)
    epochs = best_response(game, float(gamma))
    answers = [exact.answer(i, gamma) for i in range(game.clients)]
    assume([float(a or 0) for a in answers] == pytest.approx(epochs.tolist()))  # no tie at gamma
    regret = float(exact.optimum()[0] - exact.leader(gamma))
    found = certify(game, float(gamma), epochs)
    tolerance = 1e-11 * scale(exact)
    assert found.leader_regret <= regret + tolerance
    assert found.leader_regret + found.leader_regret_uncertainty >= regret - tolerance
    assert abs(found.follower_gap) <= tolerance


@settings(max_examples=500)
@given(exact_games(whole=st.just(True)), st.data())
def test_the_follower_gap_is_the_exact_one(exact, data):
    gamma = exact.gamma_max
    options = [0, *range(exact.low, exact.high + 1)]
    epochs = [data.draw(st.sampled_from(options)) for _ in exact.omega]
    gap = max(
        max(exact.client_utility(i, gamma, Fraction(t)) for t in options)
        - exact.client_utility(i, gamma, Fraction(epochs[i]))
        for i in range(len(epochs))
    )
    found = certify(floats(exact), float(gamma), epochs)
    assert found.follower_gap == pytest.approx(float(gap), abs=1e-11 * scale(exact))


GAME = Game([0.93, 0.78, 0.55, 0.28], [0.05, 0.08, 0.1, 0.05], round=30)


@pytest.mark.parametrize("game", [GAME, GAME.replace(whole_epochs=False)])
@pytest.mark.parametrize("shift", [-0.3, -1e-3, 1e-3, 0.2])
def test_a_wrong_decay_factor_is_caught(game, shift):
    gamma = solve(game).decay_factor + shift
    gamma = min(1.0, max(0.0, gamma))
    result = certify(game, gamma, best_response(game, gamma))
    assert result.leader_regret > 1e-6
    assert result.better_decay_factor == pytest.approx(solve(game).decay_factor, abs=1e-6)
    assert result.follower_gap == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("client", range(4))
@pytest.mark.parametrize("shift", [-1, 1])
def test_wrong_epochs_are_caught(client, shift):
    game = GAME.replace(price=0.3)  # γ = 1, epochs 9, 5, 3, 3
    equilibrium = solve(game)
    epochs = equilibrium.local_epochs.copy()
    epochs[client] += shift
    assert certify(game, equilibrium.decay_factor, epochs).follower_gap > 1e-3


def test_a_loss_shows_as_negative_slack_and_abstainers_are_counted():
    game = Game([0.9, 0.5], [0.1, 0.6], round=7)
    equilibrium = solve(game)
    honest = certify(game, equilibrium.decay_factor, equilibrium.local_epochs)
    assert honest.abstaining_share == 0.5
    forced = certify(game, 1.0, [4, 1])  # the second client is made to work at a loss
    assert forced.individual_rationality_slack == pytest.approx(0.5 - 0.6)
    assert forced.follower_gap == pytest.approx(0.1)
    assert forced.abstaining_share == 0.0


def test_who_abstains_although_it_would_gain_is_caught():
    game = Game([0.9], [0.1], round=7)
    assert certify(game, 1.0, [0]).follower_gap == pytest.approx(max(0.9 * 4 - 1.6, 0.9 * 5 - 2.5))


@pytest.mark.parametrize(
    ("gamma", "epochs"),
    [
        (1.5, [1, 1, 1, 1]),
        (float("nan"), [1, 1, 1, 1]),
        (0.5, [1, 1, 1]),
        (0.5, [1, 1, 1, 11]),
        (0.5, [1, 1, 1, -1]),
        (0.5, [1, 1, 1, 1.5]),
        (0.5, [1, 1, 1, float("nan")]),
    ],
)
def test_a_play_against_the_rules_is_refused(gamma, epochs):
    with pytest.raises(GameError):
        certify(GAME, gamma, epochs)


def test_large_games_keep_an_honest_uncertainty():
    rng = np.random.default_rng(0)
    game = Game(rng.random(200_000), rng.lognormal(-2, 1, 200_000), round=200_000)
    equilibrium = solve(game)
    result = certify(game, equilibrium.decay_factor, equilibrium.local_epochs)
    assert result.leader_regret <= 1e-9 * equilibrium.server_utility
    assert result.leader_regret_uncertainty < 0.05 * equilibrium.server_utility
    wrong = certify(
        game, equilibrium.decay_factor / 2, best_response(game, equilibrium.decay_factor / 2)
    )
    worse = server_utility(
        game, equilibrium.decay_factor / 2, best_response(game, equilibrium.decay_factor / 2)
    )
    true_regret = equilibrium.server_utility - worse
    assert wrong.leader_regret <= true_regret * (1 + 1e-12)
    assert wrong.leader_regret + wrong.leader_regret_uncertainty >= true_regret * (1 - 1e-12)


def test_it_shares_no_code_with_the_solver():
    tree = ast.parse(inspect.getsource(certificate))
    imported = {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    ours = {name for name in imported if name.startswith("flamma")}
    shared = {"flamma.errors", "flamma.game.model", "flamma.numerics", "flamma.types"}
    assert ours == shared
    assert "TIE" not in inspect.getsource(certificate)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 0.3, 1.0]),
            st.sampled_from([SMALLEST_COST, 1e-50, 1e-9, 0.1, 7.0, 1e50, LARGEST_COST]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([0.0, 5e-324, 1e-50, 1.0, 1e50, _LARGEST_PRICE]),
    st.sampled_from([(0, 1e-9), (0, math.inf), (1, 10), (0.5, math.inf), (1, MAX_EPOCHS)]),
)
def test_certificates_at_the_limits_of_a_game_are_finite(clients, price, bounds):
    contributions, costs = zip(*clients, strict=True)
    game = Game(contributions, costs, 1, price, bounds, whole_epochs=False)
    equilibrium = solve(game)
    certificate = certify(game, equilibrium.decay_factor, equilibrium.local_epochs)
    assert all(map(math.isfinite, dataclasses.astuple(certificate)))
    assert math.isfinite(equilibrium.server_utility)


@settings(max_examples=300)
@given(exact_games(), st.data())
def test_one_decay_factor_each_is_measured_client_by_client(exact, data):
    game = floats(exact)
    shares = data.draw(st.lists(st.integers(0, 50), min_size=game.clients, max_size=game.clients))
    gammas = np.array(shares) / 50
    epochs = best_response(game, gammas, one_each=True)
    alone = [
        Game(
            [game.contributions[i]],
            [game.costs[i]],
            epoch_bounds=game.epoch_bounds,
            whole_epochs=game.whole_epochs,
        )
        for i in range(game.clients)
    ]
    assert epochs.tolist() == [
        best_response(g, gamma)[0] for g, gamma in zip(alone, gammas, strict=True)
    ]
    worse = np.clip(epochs - 1, *game.epoch_bounds)
    gaps = [
        certify(g, gamma, [tau]).follower_gap
        for g, gamma, tau in zip(alone, gammas, worse, strict=True)
    ]
    tolerance = 1e-11 * scale(exact)
    found = certify(game, gammas, worse)
    assert found.follower_gap == pytest.approx(max(gaps), abs=tolerance)
    assert abs(certify(game, gammas, epochs).follower_gap) <= tolerance
    assert certify(game, gammas, epochs).individual_rationality_slack >= -tolerance


@settings(max_examples=200)
@given(exact_games())
def test_equal_decay_factors_are_a_common_one(exact):
    game = floats(exact)
    equilibrium = solve(game)
    gammas = np.full(game.clients, equilibrium.decay_factor)
    each = certify(game, gammas, equilibrium.local_epochs)
    common = certify(game, equilibrium.decay_factor, equilibrium.local_epochs)
    for field in dataclasses.fields(each):
        if field.name != "better_decay_factor":
            assert getattr(each, field.name) == pytest.approx(
                getattr(common, field.name), abs=1e-11 * scale(exact)
            )


def test_the_loss_of_offers_against_the_common_equilibrium_is_exact():
    game = Game([0.9, 0.8, 0.7], [0.05, 0.1, 0.2], round=20)
    gammas = [0.2, 0.3, 0.4]
    epochs = best_response(game, gammas, one_each=True)
    assert epochs.tolist() == [2, 1, 1]
    gain = 0.2 * 2.9 + 0.3 * 1.8 + 0.4 * 1.7 - 20 * (0.04 + 0.09 + 0.16) / 3
    assert server_utility(game, gammas, epochs, one_each=True) == pytest.approx(gain)
    assert certify(game, gammas, epochs).leader_regret == pytest.approx(
        solve(game).server_utility - gain
    )


def test_as_many_decay_factors_as_clients():
    with pytest.raises(GameError, match=r"one decay factor per client \(2\)"):
        certify(Game([0.5, 0.5], [0.1, 0.1]), [0.5], [1, 1])
    with pytest.raises(GameError, match="decay factor must be a number"):
        certify(Game([0.5, 0.5], [0.1, 0.1]), [0.5, 2.0], [1, 1])

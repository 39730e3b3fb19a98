"""solve against exact enumeration, hand-computed games and the closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from games import exact_games, floats, scale
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.game import Game, best_response, server_utility, solve
from flamma.game.equilibrium import _order


@settings(max_examples=1500)
@given(exact_games())
def test_equals_exact_enumeration(exact):
    utility, gamma = exact.optimum()
    equilibrium = solve(floats(exact))
    tolerance = 1e-12 * scale(exact)
    assert equilibrium.server_utility == pytest.approx(float(utility), abs=tolerance)
    # Ties go to the larger decay factor: nothing better or equal may lie clearly above ours.
    assert equilibrium.decay_factor >= float(gamma) - 2e-7
    answers = [exact.answer(i, gamma) for i in range(len(exact.omega))]
    if equilibrium.decay_factor == pytest.approx(float(gamma), abs=1e-13):
        assert equilibrium.abstains.tolist() == [a is None for a in answers]
        if exact.whole:
            assert equilibrium.local_epochs.tolist() == [a or 0 for a in answers]


@settings(max_examples=100)
@given(exact_games(most=30))
def test_larger_games_equal_exact_enumeration(exact):
    utility, _ = exact.optimum()
    assert solve(floats(exact)).server_utility == pytest.approx(
        float(utility), abs=1e-12 * scale(exact)
    )


@given(exact_games())
def test_no_sampled_decay_factor_beats_it(exact):
    game = floats(exact)
    gammas = np.linspace(*game.decay_bounds, 501)
    sampled = server_utility(game, gammas, best_response(game, gammas))
    assert solve(game).server_utility >= sampled.max() - 1e-12 * scale(exact)


def test_hand_computed_whole_epochs():
    # One client, ω = 1, c = 1/4: 1 epoch from γ = 1/4, 2 from 3/4. At t = 3:
    # piece [1/4, 3/4): 2γ - 3γ² peaks at 1/3 with 1/3; piece [3/4, 1]: 3γ - 3γ² falls from 9/16.
    equilibrium = solve(Game([1.0], [0.25], round=3))
    assert equilibrium.decay_factor == 0.75
    assert equilibrium.local_epochs.tolist() == [2]
    assert equilibrium.server_utility == pytest.approx(9 / 16)
    assert equilibrium.client_utilities == pytest.approx([0.75 * 2 - 0.25 * 4])


def test_hand_computed_continuous_with_all_phases():
    # ω = 1, c = 1/10, epochs 1..2: enters at γ = 0.1, leaves 1 at 0.2, reaches 2 at 0.4.
    # At t = 5: on [0.2, 0.4] U = γ + 5γ² - 5γ² = γ; above it 3γ - 5γ² falls; so γ* = 0.4.
    equilibrium = solve(Game([1.0], [0.1], round=5, epoch_bounds=(1, 2), whole_epochs=False))
    assert equilibrium.decay_factor == pytest.approx(0.4, abs=1e-12)
    assert equilibrium.server_utility == pytest.approx(0.4)


def test_a_client_exactly_indifferent_takes_part_at_the_upper_end():
    # γ ω = c τ_min at γ = 1 on paper, though 0.1 * 3 > 0.3 in floating point.
    equilibrium = solve(Game([0.3], [0.1], epoch_bounds=(3, 5), price=0.1))
    assert equilibrium.decay_factor == 1.0
    assert equilibrium.local_epochs.tolist() == [3]
    assert not equilibrium.abstains[0]


def test_abstainers_leave_the_servers_sum():
    # The second client would need γ > 1 to take part: it must not count, not even its ω.
    alone = solve(Game([0.9], [0.1], round=7))
    both = solve(Game([0.9, 0.5], [0.1, 0.6], round=7))
    assert both.abstains.tolist() == [False, True]
    assert both.decay_factor == alone.decay_factor
    assert both.server_utility == alone.server_utility
    assert both.client_utilities[1] == 0


def test_nobody_abstains_with_a_lower_bound_of_zero():
    equilibrium = solve(Game([0.0, 0.1], [5.0, 5.0], round=50, epoch_bounds=(0, 10)))
    assert not equilibrium.abstains.any()
    assert equilibrium.local_epochs.tolist() == [0, 0]


def test_ties_between_decay_factors_go_to_the_larger():
    # Without price and with nobody in the game every decay factor is worth 0.
    assert solve(Game([0.1], [1.0], price=0.0)).decay_factor == 1.0
    # 2 λ t = B makes U_s = A γ; with A = 0 it is flat as well.
    assert solve(Game([0.0], [1.0], price=0.0, epoch_bounds=(0, 3))).decay_factor == 1.0


@given(exact_games(), st.randoms(use_true_random=False))
def test_the_order_of_the_clients_does_not_matter(exact, random):
    game = floats(exact)
    order = list(range(game.clients))
    random.shuffle(order)
    shuffled = game.replace(contributions=game.contributions[order], costs=game.costs[order])
    assert solve(shuffled).decay_factor == pytest.approx(solve(game).decay_factor, abs=2e-7)
    assert solve(shuffled).server_utility == pytest.approx(
        solve(game).server_utility, abs=1e-12 * scale(exact)
    )


def test_a_nearly_free_client_does_not_drown_the_others():
    # 1/c of the first is 1e12; past γ = 2 τ_max c/ω = 2e-11 it plays 10 epochs like anybody.
    game = Game([1.0, 0.6, 0.4], [1e-12, 0.05, 0.04], round=60, whole_epochs=False)
    gammas = np.linspace(0, 1, 200_001)
    sampled = server_utility(game, gammas, best_response(game, gammas))
    assert solve(game).server_utility == pytest.approx(sampled.max(), rel=1e-9)


def test_whole_epochs_without_an_upper_bound():
    capped = solve(Game([0.9, 0.8], [0.01, 0.02], round=40, epoch_bounds=(1, 10_000)))
    free = solve(Game([0.9, 0.8], [0.01, 0.02], round=40, epoch_bounds=(1, np.inf)))
    assert free.decay_factor == capped.decay_factor
    assert free.local_epochs.tolist() == capped.local_epochs.tolist()


def test_tied_clients_are_summed_in_the_order_given():
    # The same ratio c/ω from different ω: the order of the sum shows in the last bits.
    omega = np.array([0.1, 0.7, 0.3, 0.9, 0.2, 0.6] * 50)
    game = Game(omega, omega * 0.25, round=3, epoch_bounds=(0, 10), whole_epochs=False)
    ratio = game.costs / game.contributions
    ties = np.flatnonzero(np.bincount(np.unique(ratio, return_inverse=True)[1]) > 1)
    assert ties.size
    assert np.array_equal(_order(ratio), np.argsort(ratio, kind="stable"))
    distinct = np.linspace(1, 0, 50)
    assert np.array_equal(_order(distinct), np.argsort(distinct, kind="stable"))

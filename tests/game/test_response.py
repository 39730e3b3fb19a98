"""best_response and the utilities against exact enumeration."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from games import SHARES, exact_games, floats, scale
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import Game, best_response, client_utility, server_utility

UTILITIES = (client_utility, server_utility)


@settings(max_examples=600)
@given(exact_games(), SHARES, st.data())
def test_equals_exact_enumeration_also_at_exact_ties(exact, gamma, data):
    if data.draw(st.booleans()):  # where some client is indifferent between two options
        gamma = data.draw(st.sampled_from(exact.breakpoints()))
    answers = [exact.answer(i, gamma) for i in range(len(exact.omega))]
    game = floats(exact)
    epochs = best_response(game, float(gamma))
    if exact.whole:
        assert epochs.tolist() == [a or 0 for a in answers]
    else:
        assert epochs == pytest.approx([float(a or 0) for a in answers], rel=1e-12, abs=0)
    if exact.low > 0:
        abstains = [
            gamma * omega < cost * exact.low
            for omega, cost in zip(exact.omega, exact.cost, strict=True)
        ]
        assert (epochs == 0).tolist() == abstains
    assert server_utility(game, float(gamma), epochs) == pytest.approx(
        float(exact.leader(gamma)), abs=1e-12 * scale(exact)
    )


@given(exact_games(), st.lists(SHARES, min_size=1, max_size=6))
def test_several_decay_factors_give_a_row_each(exact, gammas):
    game = floats(exact)
    gammas = np.array([float(g) for g in gammas])
    rows = best_response(game, gammas)
    assert rows.shape == (gammas.size, game.clients)
    assert rows.dtype == (np.int64 if exact.whole else np.float64)
    clients, server = client_utility(game, gammas, rows), server_utility(game, gammas, rows)
    for k, gamma in enumerate(gammas):
        assert rows[k].tolist() == best_response(game, gamma).tolist()
        assert clients[k].tolist() == client_utility(game, gamma, rows[k]).tolist()
        assert server[k] == server_utility(game, gamma, rows[k])


@given(exact_games(), SHARES, SHARES)
def test_nobody_works_less_at_a_larger_decay_factor(exact, one, other):
    less, more = best_response(floats(exact), sorted((float(one), float(other))))
    assert (less <= more).all()


def test_ties_go_upward_although_the_decimals_are_not_exact():
    # By hand: γ ω / (2 c) is 1.5, 3.5, 0.5 and 2.5. In floats the first falls below 1.5.
    assert 0.3 / (2 * 0.1) < 1.5
    game = Game([0.3, 0.7, 0.1, 1.0], [0.1, 0.1, 0.1, 0.2], epoch_bounds=(0, 10))
    assert best_response(game, 1.0).tolist() == [2, 4, 1, 3]
    assert best_response(game, 1 - 1e-9).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("whole", [True, False])
def test_an_indifferent_client_takes_part_and_a_losing_one_does_not(whole):
    # γ ω = c τ_min on paper; in floats 0.1 * 3 > 0.3. The second client misses it by 1e-9.
    game = Game([0.3, 0.3], [0.1, 0.1 + 1e-9], epoch_bounds=(3, 5), whole_epochs=whole)
    assert best_response(game, 1.0).tolist() == [3, 0]


def test_nobody_abstains_where_no_epochs_are_allowed_too():
    game = Game([0.0, 0.01], [5.0, 5.0], epoch_bounds=(0, 3), whole_epochs=False)
    assert best_response(game, 1.0) == pytest.approx([0, 0.001])


def test_continuous_epochs_are_clipped_to_the_bounds():
    # By hand: γ ω / (2 c) = 0.75, 1.5 and 5 at γ = 1/2; the first still gains by 1 epoch.
    game = Game([0.3, 0.6, 1.0], [0.1, 0.1, 0.05], epoch_bounds=(1, 4), whole_epochs=False)
    assert best_response(game, 0.5) == pytest.approx([1, 1.5, 4])


def test_decay_factors_of_any_shape_keep_their_shape():
    game = Game([0.9, 0.3, 0.1], [0.1, 0.1, 0.2])
    gammas = np.array([[1.0, 0.5], [0.25, 0.0]])
    # By hand: γ ω / (2 c) = 4.5, 1.5, out | 2.25, 0.75, out | 1.125, out, out | nobody.
    rows = [[[5, 2, 0], [2, 1, 0]], [[1, 0, 0], [0, 0, 0]]]
    assert best_response(game, gammas).tolist() == rows
    assert best_response(game, []).shape == (0, 3)
    assert server_utility(game, gammas, rows).shape == (2, 2)


def test_utilities_broadcast_either_argument():
    game = Game([0.8, 0.5], [0.1, 0.2], round=2)
    # By hand: U_1 = 0.8 γ τ - 0.1 τ², U_2 = 0.5 γ τ - 0.2 τ², U_s = γ (1.3 + Σ τ) - 2 γ².
    assert client_utility(game, 1.0, [[4, 1], [2, 2]]) == pytest.approx(
        np.array([[1.6, 0.3], [1.2, 0.2]])
    )
    assert client_utility(game, [1.0, 0.5], [4, 1]) == pytest.approx(
        np.array([[1.6, 0.3], [0.0, 0.05]])
    )
    assert server_utility(game, 1.0, [[4, 1], [2, 2]]) == pytest.approx([4.3, 3.3])
    assert server_utility(game, [1.0, 0.5], [4, 1]) == pytest.approx([4.3, 2.65])


def test_no_epochs_are_out_of_the_game_only_with_a_positive_lower_bound():
    out = Game([0.8, 0.5], [0.1, 0.2], round=2)
    rests = out.replace(epoch_bounds=(0, 10))
    # By hand, γ = 1/2: (0.8 + 4) / 2 - 1/2, with the second client's 0.5 / 2 on top or not.
    assert server_utility(out, 0.5, [4, 0]) == pytest.approx(1.9)
    assert server_utility(rests, 0.5, [4, 0]) == pytest.approx(2.15)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan"), float("inf"), [0.5, 2.0], None, "big"])
def test_a_decay_factor_outside_its_range_is_refused(gamma):
    game = Game([0.5], [0.1])
    for call in (best_response, *(partial(f, local_epochs=[1]) for f in UTILITIES)):
        with pytest.raises(GameError, match=r"in \[0, 1\]"):
            call(game, gamma)


@pytest.mark.parametrize("epochs", [3, [3], [1, 2, 3], [[1], [2]]])
def test_epochs_that_are_not_one_per_client_are_refused(epochs):
    for utility in UTILITIES:
        with pytest.raises(GameError, match="per client"):
            utility(Game([0.8, 0.5], [0.1, 0.2]), 0.5, epochs)


@given(exact_games(whole=st.just(True)))
def test_at_every_step_the_larger_number_of_epochs_is_played(exact):
    game = floats(exact)
    for i, (omega, cost) in enumerate(zip(exact.omega, exact.cost, strict=True)):
        for epochs in range(exact.low, exact.high):
            # γ ω = (2 τ + 1) c: equally good are τ and τ + 1.
            step = Fraction(2 * epochs + 1) * cost / omega if omega else Fraction(2)
            if step <= 1:
                assert best_response(game, float(step))[i] == epochs + 1
                assert best_response(game, float(step) * (1 - 1e-9))[i] == epochs

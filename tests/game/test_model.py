"""Game: what it refuses and in which words, and that nobody can change it afterwards."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from games import SHARES, exact_games, floats, scale
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma import FlammaError
from flamma.errors import GameError
from flamma.game import Game, best_response, client_utility, server_utility

NAN, INF = float("nan"), float("inf")
GOOD = {"contributions": [0.9, 0.5, 0.2], "costs": [0.1, 0.2, 0.3]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"contributions": [0.9, NAN, 0.2]}, "contributions must be finite .* client 1 has nan"),
        ({"contributions": [0.9, 0.5, INF]}, "contributions must be finite .* client 2 has inf"),
        ({"contributions": [0.9, None, 0.2]}, "contributions must be finite .* client 1"),
        ({"contributions": [0.9, 0.5, 1.01]}, r"in \[0, 1\], but client 2 has 1\.01"),
        ({"contributions": [-0.1, 0.5, 7]}, r"in \[0, 1\], but client 0 has -0\.1"),
        ({"contributions": [0.9, "good", 0.2]}, "contributions must be a list of numbers"),
        ({"contributions": [[0.9], [0.5, 0.2]]}, "contributions must be a list of numbers"),
        ({"contributions": [GOOD["contributions"]]}, "contributions .* not 2-dimensional"),
        ({"contributions": 0.9}, "contributions .* not 0-dimensional"),
        ({"contributions": [0.9, 0.5]}, r"the same length \(got 2 and 3\)"),
        ({"contributions": [], "costs": []}, "at least one client"),
        ({"costs": [0.1, 0.2, NAN]}, "costs must be finite numbers, but client 2 has nan"),
        ({"costs": [INF, 0.2, 0.3]}, "costs must be finite numbers, but client 0 has inf"),
        ({"costs": [0.1, 0.0, 0.3]}, "costs must be positive, but client 1 has 0"),
        ({"costs": [0.1, 0.2, -3]}, "costs must be positive, but client 2 has -3"),
        ({"costs": np.full((3, 3), 0.1)}, "costs .* not 2-dimensional"),
        ({"costs": ["a", "b", "c"]}, "costs must be a list of numbers"),
        ({"costs": [0.1, 0.2, 1e-320]}, r"costs must lie in 1e-100\.\.1e\+100, .* client 2 has"),
        ({"costs": [0.1, 1e101, 0.2]}, r"costs must lie in 1e-100\.\.1e\+100, .* client 1 has"),
        ({"round": 2**53}, r"round must be below 2\^53, not 9007199254740992"),
        ({"round": 10**5000}, r"round must be below 2\^53, not a number of thousands of digits"),
        ({"price": 1e101}, r"price times round must be at most 1e\+100"),
        ({"epoch_bounds": (1, 1e308)}, r"must be at most 1,000,000, but they are 1 and 1e\+308"),
        ({"epoch_bounds": (1e7, INF)}, r"must be at most 1,000,000, but they are 1e\+07 and inf"),
        ({"costs": [0.1, 0.2, 1e-17], "epoch_bounds": (1, INF)}, "too small to count whole"),
        ({"round": 0}, "round must be at least 1, not 0"),
        ({"round": False}, "round must be at least 1, not 0"),
        ({"round": -4}, "round must be at least 1, not -4"),
        ({"round": 1.5}, r"round must be a whole number, not 1\.5"),
        ({"round": 2.0}, r"round must be a whole number, not 2\.0"),
        ({"round": "2"}, "round must be a whole number, not '2'"),
        ({"price": -0.5}, r"price must be .* at least 0, not -0\.5"),
        ({"price": NAN}, "price must be .* not nan"),
        ({"price": INF}, "price must be .* not inf"),
        ({"price": "dear"}, "price must be a number, not 'dear'"),
        ({"price": None}, "price must be a number, not None"),
        ({"epoch_bounds": (5, 2)}, "lower <= upper .* are 5 and 2"),
        ({"epoch_bounds": (-1, 2)}, "0 <= lower .* are -1 and 2"),
        ({"epoch_bounds": (0, 0)}, "upper > 0, but they are 0 and 0"),
        ({"epoch_bounds": (NAN, 2)}, "two numbers, not nan and 2"),
        ({"epoch_bounds": (1, NAN)}, "two numbers, not 1 and nan"),
        ({"epoch_bounds": (INF, INF)}, "two numbers, not inf and inf"),
        ({"epoch_bounds": (0.5, 2)}, r"whole bounds, but epoch_bounds are 0\.5 and 2"),
        ({"epoch_bounds": (1, 2.5)}, r"whole bounds, but epoch_bounds are 1 and 2\.5"),
        ({"epoch_bounds": (1, "ten")}, "epoch_bounds must be a number, not 'ten'"),
        ({"epoch_bounds": (1, 2, 3)}, r"epoch_bounds must be a pair .* not \(1, 2, 3\)"),
        ({"epoch_bounds": 10}, "epoch_bounds must be a pair .* not 10"),
        ({"decay_bounds": (0.8, 0.3)}, r"lower <= upper <= 1, but they are 0\.8 and 0\.3"),
        ({"decay_bounds": (-0.1, 1)}, r"0 <= lower .* are -0\.1 and 1"),
        ({"decay_bounds": (0, 1.5)}, r"upper <= 1, but they are 0 and 1\.5"),
        ({"decay_bounds": (NAN, 1)}, "are nan and 1"),
        ({"decay_bounds": (0, NAN)}, "are 0 and nan"),
        ({"decay_bounds": None}, "decay_bounds must be a pair .* not None"),
    ],
)
def test_what_is_no_game_is_refused_in_one_sentence_even_by_replace(changes, says):
    for attempt in (lambda: Game(**GOOD | changes), lambda: Game(**GOOD).replace(**changes)):
        with pytest.raises(GameError, match=says) as caught:
            attempt()
        assert isinstance(caught.value, FlammaError)
        assert isinstance(caught.value, ValueError)
        message = str(caught.value)
        assert message.endswith(".")
        assert ". " not in message
        assert "\n" not in message


def test_the_edges_of_what_is_allowed_are_a_game():
    loose = {"epoch_bounds": (0.5, INF), "whole_epochs": False, "decay_bounds": (1, 1)}
    game = Game([0, 1], [1e-9, 1e9], price=0, **loose)
    assert game.clients == 2
    assert game.epoch_bounds == (0.5, INF)
    assert game.decay_bounds == (1.0, 1.0)
    assert Game([0.5], [0.1], epoch_bounds=(3, 3)).epoch_bounds == (3.0, 3.0)


@pytest.mark.parametrize(("given", "kept"), [(True, 1), (np.int64(3), 3), (7, 7)])
def test_a_round_is_anything_that_is_an_integer_and_is_kept_as_one(given, kept):
    game = Game(**GOOD, round=given, price=0.5)
    assert (game.round, type(game.round)) == (kept, int)
    assert game.influence_price == 0.5 * kept


def test_the_arrays_are_copies_that_cannot_be_written_to():
    contributions, costs = np.array([0.9, 0.5]), np.array([0.1, 0.2])
    game = Game(contributions, costs)
    contributions[0], costs[0] = 0.0, 99.0
    assert game.contributions.tolist() == [0.9, 0.5]
    assert game.costs.tolist() == [0.1, 0.2]
    for array in (game.contributions, game.costs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.3
    contributions[1] = 0.4  # the caller's own array stays writeable
    with pytest.raises(dataclasses.FrozenInstanceError):
        game.round = 2


def test_replace_changes_what_it_is_told_and_nothing_else():
    old = Game([0.9], [0.1], 3, 0.5, (0, 4.5), False, (0.1, 0.8))
    new = old.replace(round=4, costs=[0.2])
    assert (new.round, new.costs.tolist()) == (4, [0.2])
    assert (old.round, old.costs.tolist()) == (3, [0.1])
    for field in ("contributions", "price", "epoch_bounds", "whole_epochs", "decay_bounds"):
        assert getattr(new, field) == getattr(old, field)
    assert not new.contributions.flags.writeable


def test_replace_checks_fields_against_each_other():
    continuous = Game([0.9], [0.1], epoch_bounds=(0.5, 2), whole_epochs=False)
    with pytest.raises(GameError, match="whole bounds"):
        continuous.replace(whole_epochs=True)
    with pytest.raises(GameError, match="got 2 and 1"):
        continuous.replace(contributions=[0.9, 0.8])
    with pytest.raises(GameError, match="no 'colour'"):
        continuous.replace(colour="red")


# best_response and the utilities against exact enumeration.

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

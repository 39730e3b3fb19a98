"""Comparative statics: each row is one solve, and the directions that always hold."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from games import exact_games, floats, scale
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import Game, comparative_statics, solve

GAME = Game([0.9, 0.8, 0.3], [0.1, 0.1, 0.2], round=20)
COSTS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
SHARES = [0.0, 0.1, 0.35, 0.6, 1.0]


def falls(values, tolerance):
    return (np.diff(values, axis=0) <= tolerance).all()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("parameter", "values", "client", "changed"),
    [
        ("round", [1, 7, 30], None, lambda v: {"round": v}),
        ("price", [0, 0.2, 1.5], None, lambda v: {"price": v}),
        ("cost_scale", [0.5, 3.0], None, lambda v: {"costs": GAME.costs * v}),
        ("cost", [0.5, 0.01], 1, lambda v: {"costs": [0.1, v, 0.2]}),
        ("contribution", [0, 1, 0.5], 2, lambda v: {"contributions": [0.9, 0.8, v]}),
        ("contribution", [0.4], 0, lambda v: {"contributions": [v, 0.8, 0.3]}),
    ],
)
def test_every_row_is_the_solution_of_its_own_game(parameter, values, client, changed, whole):
    game = GAME.replace(whole_epochs=whole)
    statics = comparative_statics(game, parameter, iter(values), client)
    assert statics.parameter == parameter
    assert statics.values.tolist() == values
    assert statics.local_epochs.dtype == (np.int64 if whole else np.float64)
    assert len(statics.decay_factors) == len(statics.server_utilities) == len(values)
    for k, value in enumerate(values):
        alone = solve(game.replace(**changed(value)))
        assert statics.decay_factors[k] == alone.decay_factor
        assert statics.server_utilities[k] == alone.server_utility
        assert statics.local_epochs[k].tolist() == alone.local_epochs.tolist()
        assert statics.abstains[k].tolist() == alone.abstains.tolist()
        assert statics.client_utilities[k].tolist() == alone.client_utilities.tolist()
    assert GAME.costs.tolist() == [0.1, 0.1, 0.2]  # the game itself is left alone


@given(exact_games(), st.sampled_from([("round", [1, 2, 5, 20, 60]), ("price", [0, 0.1, 1, 3])]))
def test_the_decay_factor_falls_with_round_and_price_and_all_work_and_gain_less(exact, varied):
    statics = comparative_statics(floats(exact), *varied)
    close = 2e-7  # where two decay factors are equally good the larger is played
    assert falls(statics.decay_factors, close)
    assert falls(statics.server_utilities, 1e-11 * scale(exact))
    if not exact.whole:  # a whole epoch may hang on the last bit of the decay factor
        assert falls(statics.client_utilities, close * (1 + exact.high))


@settings(max_examples=150)
@given(exact_games(), st.data())
def test_the_server_loses_by_any_clients_cost_and_gains_by_its_contribution(exact, data):
    game = floats(exact)
    client = data.draw(st.integers(0, game.clients - 1))
    close = 1e-11 * scale(exact)
    dearer = comparative_statics(game, "cost", COSTS, client)
    assert falls(dearer.server_utilities, close)
    better = comparative_statics(game, "contribution", SHARES, client)
    assert falls(-better.server_utilities, close)


@settings(max_examples=150)
@given(exact_games(), st.integers(0, 20), st.data())
def test_at_a_fixed_decay_factor_a_cost_concerns_its_client_only(exact, twentieths, data):
    gamma = float(Fraction(twentieths, 20))
    game = floats(exact).replace(decay_bounds=(gamma, gamma))
    client = data.draw(st.integers(0, game.clients - 1))
    others = np.arange(game.clients) != client
    dearer = comparative_statics(game, "cost", COSTS, client)
    better = comparative_statics(game, "contribution", SHARES, client)
    for statics, sign in ((dearer, 1), (better, -1)):
        assert (statics.decay_factors == gamma).all()
        assert falls(sign * statics.local_epochs[:, client], 0)
        assert falls(sign * statics.client_utilities[:, client], 1e-11)
        assert (statics.local_epochs[:, others] == statics.local_epochs[0, others]).all()


@settings(max_examples=150)
@given(
    st.lists(st.tuples(*[st.integers(1, 50).map(lambda k: k / 50)] * 2), min_size=2, max_size=5),
    st.integers(1, 200),
)
def test_without_bounds_everybody_works_less_when_one_client_becomes_dearer(clients, t):
    contributions, costs = zip(*clients, strict=True)
    game = Game(contributions, costs, t, epoch_bounds=(0, math.inf), whole_epochs=False)
    statics = comparative_statics(game, "cost", COSTS, client=0)
    assert falls(statics.decay_factors, 1e-9)
    assert falls(statics.local_epochs, 1e-9 * statics.local_epochs.max())
    assert falls(statics.client_utilities, 1e-9 * statics.client_utilities.max())


def test_with_whole_epochs_a_dearer_client_may_make_another_work_more():
    # By hand, t = 5: client 1 (ω = 0.4, c = 1/4) enters at γ = 5/8. Client 0 (ω = 0.8) enters at
    # 5/16 for c = 1/4, worth 1.8 γ - 5 γ² = 19/256 to the server, and at 1/2 for c = 2/5, worth
    # -0.35; both together are worth 3.2 γ - 5 γ² = 12/256 at 5/8.
    game = Game([0.8, 0.4], [0.25, 0.25], round=5)
    statics = comparative_statics(game, "cost", [0.25, 0.4], client=0)
    assert statics.decay_factors == pytest.approx([5 / 16, 5 / 8])
    assert statics.server_utilities == pytest.approx([19 / 256, 12 / 256])
    assert statics.local_epochs.tolist() == [[1, 0], [1, 1]]
    assert statics.abstains.tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("epochs", [1, 2]), "cannot vary 'epochs': choose one of round, price, cost_scale, cost"),
        (("costs", [1, 2], 0), "cannot vary 'costs'"),
        (("cost", [0.1]), r"whose cost varies: client=0\.\.2"),
        (("contribution", [0.1]), r"whose contribution varies: client=0\.\.2"),
        (("cost", [0.1], 3), r"client=0\.\.2"),
        (("cost", [0.1], -1), r"client=0\.\.2"),
        (("price", []), "at least one value"),
        (("cost", iter([]), 0), "at least one value"),
        (("cost", [0.1, 0.0], 1), "costs must be positive, but client 1 has 0"),
        (("contribution", [1.5], 2), r"client 2 has 1\.5"),
        (("round", [1, 1.5]), r"whole number, not 1\.5"),
    ],
)
def test_what_cannot_be_varied_is_refused(arguments, says):
    with pytest.raises(GameError, match=says):
        comparative_statics(GAME, *arguments)

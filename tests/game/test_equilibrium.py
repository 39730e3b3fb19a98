"""solve against exact enumeration, hand-computed games and the closed forms."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from fractions import Fraction

import numpy as np
import pytest
from games import SHARES, exact_games, floats, scale
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import (
    Game,
    best_response,
    client_utility,
    comparative_statics,
    printed_decay_factor,
    server_utility,
    server_utility_is_concave,
    solve,
)
from flamma.game.equilibrium import _stable_order


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
    assert np.array_equal(_stable_order(ratio), np.argsort(ratio, kind="stable"))
    distinct = np.linspace(1, 0, 50)
    assert np.array_equal(_stable_order(distinct), np.argsort(distinct, kind="stable"))


# The five lemmas of section IV, and counter-examples where they are stated too generally.

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


# Comparative statics: each row is one solve, and the directions that always hold.

GAME = Game([0.9, 0.8, 0.3], [0.1, 0.1, 0.2], round=20)
COSTS_STATICS = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
SHARES_STATICS = [0.0, 0.1, 0.35, 0.6, 1.0]


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
    dearer = comparative_statics(game, "cost", COSTS_STATICS, client)
    assert falls(dearer.server_utilities, close)
    better = comparative_statics(game, "contribution", SHARES_STATICS, client)
    assert falls(-better.server_utilities, close)


@settings(max_examples=150)
@given(exact_games(), st.integers(0, 20), st.data())
def test_at_a_fixed_decay_factor_a_cost_concerns_its_client_only(exact, twentieths, data):
    gamma = float(Fraction(twentieths, 20))
    game = floats(exact).replace(decay_bounds=(gamma, gamma))
    client = data.draw(st.integers(0, game.clients - 1))
    others = np.arange(game.clients) != client
    dearer = comparative_statics(game, "cost", COSTS_STATICS, client)
    better = comparative_statics(game, "contribution", SHARES_STATICS, client)
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
    statics = comparative_statics(game, "cost", COSTS_STATICS, client=0)
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
        (("cost", [0.1]), r"needs the client: set client=0\.\.2"),
        (("contribution", [0.1]), r"needs the client: set client=0\.\.2"),
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


# How fast and how lean the exact solver is; what measures time is marked slow.


def seconds(call, repeats=5):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def population(clients):
    rng = np.random.default_rng(0)
    return rng.random(clients), rng.lognormal(-2, 1, clients)


@pytest.mark.slow
def test_a_million_clients_cost_at_most_15_sorts():
    contributions, costs = population(1_000_000)
    game = Game(contributions, costs, round=3_000_000, whole_epochs=False)
    sort = seconds(lambda: np.argsort(costs))
    assert 0 < solve(game).decay_factor < 1
    assert seconds(lambda: solve(game)) <= 15 * sort


@pytest.mark.slow
def test_a_hundred_thousand_clients_with_whole_epochs_take_under_two_seconds():
    game = Game(*population(100_000), round=300_000)
    assert seconds(lambda: solve(game), repeats=2) < 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads its memory as Linux tells it")
def test_a_million_clients_need_under_a_gigabyte():
    # Not ru_maxrss: a child starts with the one of the process that it was forked from.
    script = (
        "import numpy as np; from flamma.game import Game, solve\n"
        "rng = np.random.default_rng(0); n = 1_000_000\n"
        "solve(Game(rng.random(n), rng.lognormal(-2, 1, n), n, whole_epochs=False))\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert int(done.stdout) < 1_000_000  # kilobytes

"""reveal_costs: the true cost is always inside, and what no cost explains is said."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from games import COSTS, SHARES, exact_games, floats
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import Game, best_response, reveal_costs
from flamma.game.costs import deterring_fine, free_riding, smallest_inspection_rate

NAN, INF = float("nan"), float("inf")
CLOSE = 1e-9  # more than rounding and the margin for ties, less than anything that matters


@st.composite
def plays(draw, whole=None):
    clients, rounds = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    shares = SHARES.map(float)
    costs = np.array([float(draw(COSTS)) for _ in range(clients)])
    low = draw(st.integers(0, 3))
    bounds = (low, draw(st.sampled_from([max(1, low), low + 1, low + 6, INF])))
    whole = draw(st.booleans()) if whole is None else whole
    observations = []
    for _ in range(rounds):
        gamma, omega = draw(shares), np.array([draw(shares) for _ in range(clients)])
        epochs = best_response(Game(omega, costs, 1, 1.0, bounds, whole), gamma).astype(float)
        absent = [draw(st.integers(0, 4)) == 0 for _ in range(clients)]
        observations.append((gamma, omega, np.where(absent, NAN, epochs)))
    return costs, observations, bounds, whole


def explains(observations, bounds, whole, client, cost):
    """Whether a client of this cost would have played so in every round."""
    return all(
        np.isnan(tau[client])
        or best_response(Game([omega[client]], [cost], 1, 1.0, bounds, whole), gamma)[0]
        == tau[client]
        for gamma, omega, tau in observations
    )


@settings(max_examples=200)
@given(plays())
def test_the_true_costs_lie_within_intervals_that_only_shrink(play):
    costs, observations, bounds, whole = play
    lower, upper = np.zeros(costs.size), np.full(costs.size, INF)
    for number in range(1, len(observations) + 1):
        revealed = reveal_costs(observations[:number], bounds, whole)
        assert (revealed.lower <= costs * (1 + CLOSE)).all()
        assert (revealed.upper >= costs * (1 - CLOSE)).all()
        assert revealed.consistent.all()
        assert revealed.contradictions == ()
        assert (revealed.lower >= lower).all()
        assert (revealed.upper <= upper).all()
        lower, upper = revealed.lower, revealed.upper
        known = np.isfinite(revealed.estimate)
        assert (known == ((lower > 0) | (upper < INF))).all()
        assert (revealed.estimate >= lower * (1 - CLOSE))[known].all()
        assert (revealed.estimate <= upper * (1 + CLOSE))[known].all()


@settings(max_examples=200)
@given(plays(whole=True))
def test_the_interval_holds_exactly_the_costs_that_explain_whole_epochs(play):
    _, observations, bounds, whole = play
    revealed = reveal_costs(observations, bounds, whole)
    for i, (lower, upper) in enumerate(zip(revealed.lower, revealed.upper, strict=True)):
        if upper > lower * (1 + 1e-6):
            for inside in (lower * (1 + 1e-7), upper * (1 - 1e-7)):
                if 0 < inside < INF:
                    assert explains(observations, bounds, whole, i, inside)
        for outside in (lower * (1 - 1e-7), upper * (1 + 1e-7)):
            if 0 < outside < INF:
                assert not explains(observations, bounds, whole, i, outside)


@given(COSTS, *[st.integers(1, 50).map(lambda k: k / 50)] * 2)
def test_continuous_play_between_the_bounds_reveals_the_cost(cost, gamma, omega):
    cost = float(cost)
    game = Game([omega], [cost], epoch_bounds=(0, INF), whole_epochs=False)
    rounds = [(gamma, [omega], best_response(game, gamma))]
    revealed = reveal_costs(rounds, game.epoch_bounds, whole_epochs=False)
    for value in (revealed.lower, revealed.upper, revealed.estimate):
        assert value == pytest.approx([cost], rel=1e-12)


@given(st.integers(2, 9), *[st.integers(1, 50).map(lambda k: k / 50)] * 2)
def test_one_round_of_whole_epochs_between_the_bounds(tau, gamma, omega):
    revealed = reveal_costs([(gamma, [omega], [tau])])
    assert revealed.estimate == pytest.approx([gamma * omega / (2 * tau)], rel=1e-12)
    # γ ω / (2 c) lies within half an epoch of τ.
    assert revealed.lower == pytest.approx([gamma * omega / (2 * tau + 1)])
    assert revealed.upper == pytest.approx([gamma * omega / (2 * tau - 1)])


def test_hand_computed_intervals_of_two_rounds():
    # Client 0: 4 of 0.8 says 0.8/9..0.8/7, then 2 of 0.4 says 0.4/5..0.4/3: the first is narrower.
    # Client 1: 1 of 0.6 is the lower bound: 0.6/3..0.6/1; then out at 0.3: above 0.3.
    revealed = reveal_costs([(1.0, [0.8, 0.6], [4, 1]), (0.5, [0.8, 0.6], [2, 0])])
    assert revealed.lower == pytest.approx([0.8 / 9, 0.3])
    assert revealed.upper == pytest.approx([0.8 / 7, 0.6])
    assert revealed.estimate == pytest.approx([0.1, 0.4])  # 2 / (1/0.3 + 1/0.6)


@pytest.mark.parametrize("whole", [True, False])
def test_abstaining_gives_only_a_lower_bound(whole):
    revealed = reveal_costs([(0.5, [0.8], [0])], (2, 10), whole)
    assert revealed.lower == pytest.approx([0.2])  # γ ω < c τ_min
    assert revealed.upper.tolist() == [INF]
    assert revealed.estimate == pytest.approx([0.4])  # the middle of 0..1/0.2 in 1/c
    assert revealed.consistent.all()


@pytest.mark.parametrize(("whole", "upper"), [(True, 0.25 / 19), (False, 0.25 / 20)])
def test_play_at_the_upper_bound_gives_only_an_upper_bound(whole, upper):
    rounds = [(gamma, [0.5], [10]) for gamma in (1.0, 0.5, 0.75)]
    revealed = reveal_costs(rounds, (1, 10), whole)
    assert revealed.lower.tolist() == [0]
    assert revealed.upper == pytest.approx([upper])
    assert revealed.estimate == revealed.upper


def test_resting_at_a_lower_bound_of_zero_bounds_the_cost_from_below():
    revealed = reveal_costs([(0.5, [0.8], [0])], (0, 10))
    assert revealed.lower == pytest.approx([0.4])  # γ ω / (2 c) < 1/2
    assert revealed.upper.tolist() == [INF]


def test_who_is_not_in_the_game_reveals_nothing():
    once = reveal_costs([(1.0, [0.8, NAN], [4, NAN])])
    assert (once.lower[1], once.upper[1]) == (0, INF)
    assert np.isnan(once.estimate[1])
    assert once.consistent.tolist() == [True, True]
    later = reveal_costs([(1.0, [0.8, NAN], [4, NAN]), (1.0, [NAN, 0.6], [NAN, 3])])
    assert later.estimate == pytest.approx([0.1, 0.1])
    assert later.upper[0] == once.upper[0]


@pytest.mark.parametrize("bounds", [(0, 10), (1, 10)])
@pytest.mark.parametrize("whole", [True, False])
def test_without_pull_nobody_reveals_anything(bounds, whole):
    for silent in ((0.0, [0.8, 0.3], [0, 0]), (1.0, [0.0, 0.0], [0, 0])):
        revealed = reveal_costs([silent], bounds, whole)
        assert (revealed.lower.tolist(), revealed.upper.tolist()) == ([0, 0], [INF, INF])
        assert revealed.consistent.all()


FOUR, THREE, EIGHT = (
    (gamma, [0.8, 0.8], [tau, NAN]) for gamma, tau in ((1, 4), (0.8, 3), (0.5, 8))
)


@pytest.mark.parametrize(
    ("rounds", "blamed"),
    [
        # Costs of 0.089..0.114, 0.091..0.128 and 0.024..0.027: EIGHT fits neither of the others,
        # and THREE has the larger lower bound.
        ([FOUR, EIGHT], (0, 1)),
        ([EIGHT, FOUR], (0, 1)),
        ([FOUR, THREE, EIGHT], (1, 2)),
        ([EIGHT, FOUR, THREE], (0, 2)),
        ([THREE, FOUR, FOUR, EIGHT, FOUR], (0, 3)),
        ([FOUR, FOUR, EIGHT, EIGHT], (0, 2)),  # the earliest of equals
    ],
)
def test_play_that_no_single_cost_explains_names_the_two_rounds(rounds, blamed):
    revealed = reveal_costs(rounds)
    assert revealed.consistent.tolist() == [False, True]
    (contradiction,) = revealed.contradictions
    assert (contradiction.client, contradiction.rounds) == (0, blamed)
    assert f"above {revealed.lower[0]:g}, another below 0.0266667" in contradiction.reason
    assert revealed.upper[0] < revealed.estimate[0] < revealed.lower[0]


@pytest.mark.parametrize(
    ("gamma", "omega", "tau", "bounds", "whole"),
    [
        (1.0, 0.8, 11, (1, 10), True),
        (1.0, 0.8, 1, (2, 10), True),
        (1.0, 0.8, -1, (1, 10), True),
        (1.0, 0.8, -0.5, (0, 10), True),
        (1.0, 0.8, 2.5, (1, 10), True),
        (1.0, 0.8, 0.5, (1, 10), False),
        (1.0, 0.8, INF, (1, INF), False),
        (1.0, 0.0, 3, (1, 10), True),
        (0.0, 0.8, 1, (0, 10), False),
        (1.0, 0.8, 0, (0, 10), False),
    ],
)
def test_impossible_play_is_reported_and_the_other_rounds_still_count(
    gamma, omega, tau, bounds, whole
):
    honest = (1.0, [0.8, 0.8], [4, 4])
    revealed = reveal_costs([honest, (gamma, [0.8, omega], [NAN, tau]), honest], bounds, whole)
    assert revealed.consistent.tolist() == [True, False]
    (contradiction,) = revealed.contradictions
    assert (contradiction.client, contradiction.rounds) == (1, (1,))
    assert contradiction.reason == f"no cost explains {tau:g} epochs"
    assert revealed.lower[1] == revealed.lower[0] > 0
    assert revealed.upper[1] == revealed.upper[0] < INF


def test_rounding_is_no_contradiction():
    # Continuous play of a cost of 0.1 whose two estimates differ in the last bits, and then more.
    fits = reveal_costs([(1.0, [0.8], [4.0]), (1.0, [0.8], [4.0 + 1e-12])], (1, 10), False)
    assert fits.consistent.all()
    differs = reveal_costs([(1.0, [0.8], [4.0]), (1.0, [0.8], [4.0 + 1e-6])], (1, 10), False)
    assert differs.contradictions[0].rounds == (0, 1)


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        ([], "at least one round"),
        ([(1.0, [0.8, 0.5], [4])], "round 0 must be one decay factor, and equally many"),
        ([(1.0, [[0.8]], [[4]])], "round 0 must be"),
        ([([1.0, 0.5], [0.8], [4])], "round 0 must be"),
        ([(1.0, [0.8], [4]), (1.0, [0.8, 0.5], [4, 2])], "round 1 has 2 of them and round 0 has 1"),
        ([(1.0, [0.8], [4]), (1.0, [1.2], [4])], "round 1 has a contribution outside"),
        ([(1.0, [NAN], [4])], "round 0 has a contribution outside"),
        ([(1.5, [0.8], [4])], "decay factor"),
        ([(NAN, [0.8], [4])], "decay factor"),
    ],
)
def test_bad_rounds_are_refused(rounds, says):
    with pytest.raises(GameError, match=says):
        reveal_costs(rounds)


@pytest.mark.parametrize("bounds", [(5, 1), (NAN, 1), (1, 2.5), (-1, 3), 4])
def test_bad_epoch_bounds_are_refused(bounds):
    with pytest.raises(GameError, match="epoch_bounds"):
        reveal_costs([(1.0, [0.8], [4])], bounds)


# Inspections deter exactly from the computed rate and fine on; free-riding by brute force.

INF = float("inf")
AMOUNTS = st.floats(1e-6, 1e6)


def pays(gain, fine, rate):
    """What a cheater expects, exactly."""
    g, f, a = Fraction(gain), Fraction(fine), Fraction(rate)
    return (1 - a) * g - a * f


@given(AMOUNTS, AMOUNTS)
def test_cheating_pays_below_the_smallest_rate_and_not_above(gain, fine):
    rate = float(smallest_inspection_rate(gain, fine))
    assert 0 < rate < 1
    assert pays(gain, fine, rate * (1 - 1e-9)) > 0
    assert pays(gain, fine, min(1.0, rate * (1 + 1e-12))) <= 0


@given(AMOUNTS, st.floats(1e-6, 1 - 1e-6))
def test_a_fine_and_its_rate_belong_together(gain, rate):
    fine = float(deterring_fine(gain, rate))
    assert float(smallest_inspection_rate(gain, fine)) == pytest.approx(rate, rel=1e-12)
    assert pays(gain, fine * (1 - 1e-9), rate) > 0


@pytest.mark.parametrize(
    ("gain", "fine", "rate"),
    [
        (0, 0, 0), (0, 5, 0), (-1, 0, 0), (-1, INF, 0), (1, 0, 1), (1e-300, 0, 1),
        (1, INF, 0), (INF, 1, 1), (INF, 0, 1), (-INF, 1, 0), (1e308, 1e308, 0.5), (2, 6, 0.25),
    ],
)  # fmt: skip
def test_rates_at_the_edges_are_exact(gain, fine, rate):
    assert float(smallest_inspection_rate(gain, fine)) == rate


@pytest.mark.parametrize(
    ("gain", "rate", "fine"),
    [(0, 0, 0), (-1, 0, 0), (1, 0, INF), (1, 1, 0), (INF, 1, 0), (INF, 0.5, INF), (6, 0.25, 18)],
)
def test_fines_at_the_edges_are_exact(gain, rate, fine):
    assert float(deterring_fine(gain, rate)) == fine


def test_both_take_arrays_and_broadcast_them():
    rates = smallest_inspection_rate([[1.0], [3.0]], [1.0, 3.0])
    assert rates.tolist() == [[0.5, 0.25], [0.75, 0.5]]
    assert deterring_fine([1.0, 2.0], 0.5).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: smallest_inspection_rate(1, -1), "must not be negative"),
        (lambda: smallest_inspection_rate(float("nan"), 1), "a gain must be a number"),
        (lambda: smallest_inspection_rate("much", 1), "a gain must be a number"),
        (lambda: smallest_inspection_rate(INF, INF), "both infinite"),
        (lambda: deterring_fine(1, 1.5), "must lie in"),
        (lambda: deterring_fine(1, -0.5), "must lie in"),
    ],
)
def test_what_is_no_inspection_is_refused(call, what):
    with pytest.raises(GameError, match=what):
        call()


@given(exact_games(), st.integers(0, 20))
def test_the_gain_of_free_riding_is_the_best_claim_less_the_best_work(exact, twentieths):
    game, gamma = floats(exact).replace(whole_epochs=True), twentieths / 20
    low, high = (int(bound) for bound in game.epoch_bounds)
    gain, honest = free_riding(game, gamma)
    for k in range(game.clients):
        rate = gamma * game.contributions[k]
        work = [rate * t - game.costs[k] * t * t for t in (0, *range(low, high + 1))]
        claims = [rate * t for t in (0, *range(low, high + 1))]
        assert honest[k] == pytest.approx(max(work), abs=1e-9)
        assert gain[k] == pytest.approx(max(claims) - max(work), abs=1e-9)
        assert gain[k] >= -1e-12


def test_each_client_may_have_its_own_decay_factor():
    game = Game([0.8, 0.8], [0.1, 0.1])
    gain, honest = free_riding(game, [1.0, 0.5])
    assert gain.tolist() == [free_riding(game, 1.0)[0][0], free_riding(game, 0.5)[0][1]]
    assert honest[0] > honest[1] > 0


def test_without_an_upper_bound_a_claim_has_no_limit_unless_nothing_is_paid():
    gain, _ = free_riding(Game([0.8, 0.0], [0.1, 0.1], epoch_bounds=(0, INF)), 1.0)
    assert gain.tolist() == [INF, 0.0]
    assert np.array_equal(smallest_inspection_rate(gain, 5.0), [1.0, 0.0])

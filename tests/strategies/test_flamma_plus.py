"""FLamma-plus: stand-ins for those not asked, a mean that is served, a decay that waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import StrategyError
from flamma.strategies.base import Offer
from flamma.strategies.flamma_plus import LONGEST_MEAN, FlammaPlus, Path, Steps, fading_for
from flamma.strategies.memory import Slopes
from flamma.testing.strategies import ToyFederation
from flamma.types import Plan, Population, Terms, Update

PLAN = Plan(rounds=20, per_round=2, epochs=4, learning_rate=0.1)
PLAIN = {
    "warmup_iterations": 0,
    "levelling": 0.0,
    "averaging": 1.0,
    "momentum": 0.0,
    "smallest_step": 1.0,
    "size_power": 1.0,
    "normalise_epochs": False,
}


def vector(*values):
    return np.array(values, dtype=np.float32)


def played(strategy, *rounds, samples=(10, 10, 10)):
    """Return the state after rounds in which clients send these models."""
    clients = len(samples)
    population = Population(np.array(samples), np.full(clients, 0.1), 2)
    state = strategy.init(vector(0, 0), population)
    for number, models in enumerate(rounds, 1):
        offer = Offer(number, tuple(Terms(c, number) for c in models))
        reports = [Update(c, vector(*w), samples[c], 1) for c, w in models.items()]
        state, _ = strategy.aggregate(state, offer, reports)
    return state


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        # The mean update (1, 0) of client 1 alone, from (1, 1).
        (0.0, (2, 1)),
        # Client 1 had (0, 2) and the mean of both was (1, 1): (1, 0) - (0, 2) + (1, 1).
        (1.0, (3, 0)),
        (0.5, (2.5, 0.5)),
    ],
)
def test_the_last_updates_of_others_stand_in_for_them(correction, expected):
    strategy = FlammaPlus(PLAN, correction=correction, **PLAIN)
    state = played(strategy, {0: (2, 0), 1: (0, 2)}, {1: (2, 1)})
    np.testing.assert_allclose(state.params, vector(*expected), rtol=1e-6)


def test_who_was_never_heard_from_is_neither_corrected_nor_stands_in():
    strategy = FlammaPlus(PLAN, correction=1.0, **PLAIN)
    state = played(strategy, {0: (2, 0)}, {1: (4, 4)})
    # Client 1 has no row, so its update (2, 4) counts as it is.
    np.testing.assert_allclose(state.params, vector(4, 4), rtol=1e-6)


@pytest.mark.parametrize(
    ("second", "slope"),
    [
        ({0: (3, 1), 1: (1, 3)}, 1.0),  # from (1, 1) both do what they did before
        ({0: (2, 1), 1: (1, 2)}, 0.5),  # half of what sets them apart is left
        ({0: (2, 2), 1: (2, 2)}, 0.0),  # nothing sets them apart any more
        ({0: (1, 3), 1: (3, 1)}, 0.0),  # the opposite: a last update is no stand-in
    ],
)
def test_the_slope_is_how_far_clients_go_on_as_they_did(second, slope):
    strategy = FlammaPlus(PLAN, **PLAIN)
    state = played(strategy, {0: (2, 0), 1: (0, 2)}, second)
    assert strategy.slopes(state) == Slopes(pytest.approx(slope), 0.0)


# Clients 0 and 1 answered (0, 0) by updates (2, 0) and (0, 2), client 2 then (1, 1) by (0, -4).
ANSWERED = ({0: (2, 0), 1: (0, 2)}, {2: (1, -3)})


@pytest.mark.parametrize(("updates", "models"), [(1.0, 1.0), (0.5, 0.25), (0.75, 0.0)])
def test_the_slopes_on_updates_and_on_the_models_they_answered_are_told_apart(updates, models):
    strategy = FlammaPlus(PLAN, **PLAIN)
    now = played(FlammaPlus(PLAN, correction=0.0, **PLAIN), *ANSWERED).params
    last, answered = {0: (2, 0), 2: (0, -4)}, {0: (0, 0), 2: (1, 1)}
    then = {
        c: now + updates * vector(*last[c]) + models * (vector(*answered[c]) - now) for c in last
    }
    state = played(FlammaPlus(PLAN, correction=0.0, **PLAIN), *ANSWERED, then)
    assert strategy.slopes(state).updates == pytest.approx(updates, abs=1e-6)
    assert strategy.slopes(state).models == pytest.approx(models, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_slopes_are_the_best_of_those_allowed(seed, size):
    rng = np.random.default_rng(seed)
    y, r, noise = rng.normal(size=(3, 4, size))
    u = rng.uniform(-0.5, 1.5) * y + rng.uniform(-0.5, 1.5) * r + 0.3 * noise
    pairs = [(y, y), (y, r), (r, r), (u, y), (u, r)]
    fit = Slopes.fitted(np.array([(a * b).sum() for a, b in pairs]))
    assert 0 <= fit.models <= fit.updates <= 1

    def squares(b, a):
        return ((u - b * y - a * r) ** 2).sum()

    shares = np.linspace(0, 1, 21)
    best = min(squares(b, a * b) for b in shares for a in shares)
    assert squares(fit.updates, fit.models) <= best + 1e-9


def test_clients_that_go_back_to_their_own_models_end_at_the_mean_of_these():
    strategy, own = FlammaPlus(PLAN, **PLAIN), {0: (6, 0), 1: (0, 6), 2: (-3, -3)}
    rounds = [
        {c: own[c] for c in pair} for pair in ((0, 1), (1, 2), (2, 0), (0, 1), (1, 2), (2, 0))
    ]
    np.testing.assert_allclose(played(strategy, *rounds).params, vector(1, 1), atol=1e-4)


def test_a_part_of_the_mean_step_is_repeated():
    strategy = FlammaPlus(PLAN, correction=0.0, **(PLAIN | {"momentum": 0.5}))
    state = played(strategy, {0: (4, 0)}, {0: (4, 0)})
    # Nobody moves in the second round, but half of the first step is made again.
    np.testing.assert_allclose(state.params, vector(6, 0))
    swinging = [{0: (0, 4)}, {0: (0, -4)}] * 4
    there = played(strategy, *swinging).params
    # A model that goes back and forth does not go further by it.
    assert abs(there[1] + 4) < 0.5
    with pytest.raises(StrategyError, match=r"momentum must lie in \[0, 1\)"):
        FlammaPlus(PLAN, momentum=1.0)


@pytest.mark.parametrize("smallest", [1.0, 0.5, 0.1])
def test_a_model_that_goes_back_and_forth_makes_shorter_steps(smallest):
    swinging = [{0: (0, 4)}, {0: (0, -4)}] * 4
    options = PLAIN | {"correction": 0.0, "smallest_step": smallest}
    strategy = FlammaPlus(PLAN, **options)
    before, after = (played(strategy, *swinging[:n]).params[1] for n in (7, 8))
    assert (before - after) / (before + 4) == pytest.approx(smallest)  # of the way to what was sent


def test_a_step_of_no_length_is_refused():
    with pytest.raises(StrategyError, match=r"smallest_step must lie in \(0, 1\]"):
        FlammaPlus(PLAN, smallest_step=0.0)


def test_a_model_that_gets_on_makes_whole_steps():
    ahead = [{0: (4 * n, 0)} for n in range(1, 6)]
    strategy = FlammaPlus(PLAN, **(PLAIN | {"smallest_step": 0.01}))
    np.testing.assert_allclose(played(strategy, *ahead).params, vector(20, 0))


@pytest.mark.parametrize(("power", "share"), [(1.0, 0.9), (0.5, 0.75), (0.0, 0.5)])
def test_clients_weigh_by_a_power_of_their_data_size(power, share):
    strategy = FlammaPlus(PLAN, **(PLAIN | {"size_power": power}))
    state = played(strategy, {0: (0, 0), 1: (8, 0)}, samples=(1, 9))
    np.testing.assert_allclose(state.params, vector(8 * share, 0), rtol=1e-6)
    np.testing.assert_allclose(state.shares, [1 - share, share])
    with pytest.raises(StrategyError, match=r"size_power must lie in \[0, 1\]"):
        FlammaPlus(PLAN, size_power=1.5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["float32", "float16"]))
def test_what_stands_in_is_the_sum_of_all_rows(seed, rows):
    rng = np.random.default_rng(seed)
    samples = tuple(rng.integers(1, 50, size=6).tolist())
    rounds = [
        {int(c): tuple(rng.normal(size=2)) for c in rng.choice(6, size=3, replace=False)}
        for _ in range(8)
    ]
    state = played(FlammaPlus(PLAN, rows=rows, **PLAIN), *rounds, samples=samples)
    known = state.kept.known
    last = {c: samples[c] / sum(samples[k] for k in models) for models in rounds for c in models}
    weights = np.array([[last[c]] for c in known.tolist()])
    expected = (weights * state.kept.matrix(known).astype(float)).sum(0)
    np.testing.assert_allclose(state.stand_ins, expected, atol=1e-9)
    assert set(state.answered.known) == set(state.places[known])
    models = state.answered.matrix(state.places[known]).astype(float)
    expected = (weights * models).sum(0)
    np.testing.assert_allclose(state.answered_sum, expected, atol=1e-6)


def path_of(steps, fading=0.8):
    seen = Steps(np.zeros(steps.shape[1]), 0.0, 0.0)
    for step in steps:
        seen = seen.with_step(step, fading)
    return seen.path(fading)


def test_a_path_tells_getting_on_from_chance_and_from_swinging():
    rng = np.random.default_rng(0)
    straight = np.ones((60, 300))
    chance = rng.normal(size=(60, 300))
    back_and_forth = straight * (-1.0) ** np.arange(60)[:, None]
    # A mean of equal steps is as long as each, which chance would have made (1 - m) / (1 + m).
    assert path_of(straight).efficiency == pytest.approx(1.8 / 0.2)
    assert path_of(chance).efficiency == pytest.approx(1, abs=0.2)
    assert path_of(back_and_forth).efficiency < 0.2
    assert path_of(straight).rounds_to_average < 0.1
    assert path_of(back_and_forth).rounds_to_average == LONGEST_MEAN
    half = straight + chance
    assert path_of(half).rounds_to_average == pytest.approx(2, rel=0.2)
    assert Path(0.8, 0.0, 0.0).efficiency == float("inf")


def test_steps_are_seen_over_about_as_many_rounds_as_it_takes_to_ask_everybody():
    assert fading_for(10, 10) == pytest.approx(2 / 3)
    assert fading_for(100, 10) > fading_for(10, 3) > fading_for(10, 10)


def test_the_served_model_is_the_mean_of_recent_ones_and_clients_train_the_last():
    strategy = FlammaPlus(PLAN, correction=0.0, **(PLAIN | {"averaging": 2.0}))
    state = played(strategy, {0: (4, 0)}, {1: (0, 4)})
    np.testing.assert_allclose(state.params, vector(0, 4))
    np.testing.assert_allclose(state.served, vector(1, 2))  # half-way to (4, 0), then to (0, 4)
    assert strategy.broadcast(state).params is state.params
    assert strategy.serving(state).params is state.served


def test_a_mean_is_taken_of_few_more_rounds_than_it_takes_to_ask_everybody():
    swinging = [{0: (4, 0)}, {1: (0, 0)}] * 4
    state = played(FlammaPlus(PLAN, correction=0.0, **(PLAIN | {"averaging": 1000.0})), *swinging)
    served = vector(0, 0)
    for number in range(8):  # three clients, two a round
        served = served + (vector(4 * (number % 2 == 0), 0) - served) / 4.5
    np.testing.assert_allclose(state.served, served, rtol=1e-5)


@pytest.mark.parametrize(("gets_on", "start"), [(False, 0.3), (True, 0.6)])
def test_the_decay_waits_as_long_as_the_model_gets_on(gets_on, start):
    strategy = FlammaPlus(PLAN, correction=0.0, **PLAIN)
    rounds = [{0: (n if gets_on else n % 2, 0)} for n in range(1, 8)]
    state = played(strategy, *rounds)
    assert strategy.starts(state) == pytest.approx(start, abs=0.051)


def test_clients_do_no_more_epochs_than_are_planned():
    world = ToyFederation.make(6)
    strategy = FlammaPlus(Plan(rounds=4, per_round=3, epochs=3, learning_rate=0.1))
    state = world.begin(strategy)
    while state.round < 4:
        state, record = world.play_round(strategy, state)
        assert max(record.outcome.local_epochs) <= 3


@pytest.mark.parametrize(
    "options", [{"correction": 1.5}, {"averaging": 0.5}, {"latest_decay_start": 0.0}]
)
def test_what_cannot_be_is_refused(options):
    with pytest.raises(StrategyError, match=next(iter(options))):
        FlammaPlus(PLAN, **options)


def test_a_round_without_answers_serves_what_was_served():
    strategy = FlammaPlus(PLAN, **PLAIN)
    state = played(strategy, {0: (4, 0)}, {1: (0, 4)})
    after, _ = strategy.aggregate(state, Offer(3, (Terms(0, 3),)), [])
    np.testing.assert_array_equal(after.served, state.served)
    assert replace(after, round=0).step_weight == state.step_weight

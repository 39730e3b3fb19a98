from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flamma.contributions import (
    CONTRIBUTIONS,
    RoundUpdates,
    SingleUpdate,
    cosine,
    distance,
    measure_round,
    round_measure,
)
from flamma.contributions.shapley import _CoalitionGame, exact_shapley, leave_one_out
from flamma.errors import StrategyError
from flamma.seeding import stream
from flamma.strategies.flamma import Flamma
from flamma.testing.parts import _updates_of, played_round
from flamma.testing.strategies import ToyFederation
from flamma.types import Plan


def measured(name, updates, **options):
    return measure_round(CONTRIBUTIONS.choose({"name": name, **options}, "measure"), updates)


def moved(*moves, before=(0.0, 0.0), target=None):
    """Return the updates of clients that moved so far from the received model."""
    start = np.array(before, dtype=np.float32)
    return _updates_of([start + np.array(move, dtype=np.float32) for move in moves], start, target)


@pytest.fixture
def added():
    names = []

    def add(name, measure):
        CONTRIBUTIONS.add(name, measure)
        names.append(name)

    yield add
    for name in names:
        CONTRIBUTIONS.discard(name)


@pytest.mark.parametrize("single", [distance, cosine])
def test_measures_of_one_client_have_the_same_bits_in_a_round(single):
    updates = played_round("work")
    alone = [single(SingleUpdate(w, updates.before, updates.after)) for w in updates.models]
    assert measured(single.__name__, updates).tolist() == alone


def test_only_trainable_weights_are_measured():
    updates = replace(played_round("work"), trainable_size=20)
    short = [model[:20] for model in (*updates.models, updates.before, updates.after)]
    cut = replace(updates, models=short[:-2], before=short[-2], after=short[-1])
    for name in ("distance", "cosine", "cosine-rescaled", "distance-earned", "cgsv"):
        np.testing.assert_array_equal(measured(name, updates), measured(name, cut))


def test_coalitions_are_scored_with_all_weights():
    seen = []

    def validate(params):
        seen.append(params.copy())
        return 1.0, 50.0

    updates = replace(played_round("work"), trainable_size=20, validate=validate)
    measured("leave-one-out", updates)
    np.testing.assert_allclose(seen[0], updates.after, rtol=1e-6)
    assert {params.size for params in seen} == {updates.before.size}


def test_cosines_are_rescaled_within_the_round():
    # With the mean of the others: 45 degrees, 90 degrees less atan(1/2), and 90 degrees.
    updates = moved((1, 0), (1, 1), (0, 2))
    others = np.array([1 / np.sqrt(10), 3 / np.sqrt(10), 1 / np.sqrt(5)])
    np.testing.assert_allclose(measured("cosine-rescaled", updates), others / others.max())
    common = np.array([2 / np.sqrt(13), 5 / np.sqrt(26), 3 / np.sqrt(13)])
    found = measured("cosine-rescaled", updates, reference="aggregate")
    np.testing.assert_allclose(found, common / common.max(), rtol=1e-6)
    halved = measured("cosine-rescaled", updates, quantile=0.5)
    np.testing.assert_allclose(halved, np.minimum(1, others / np.sort(others)[1]))


def test_a_client_cannot_steer_what_it_is_compared_with():
    near, far = moved((1, 0), (1, 1), (0, 2)), moved((100, 0), (1, 1), (0, 2))
    own = [measured("cosine-rescaled", updates, quantile=0.0)[0] for updates in (near, far)]
    assert own[0] == pytest.approx(own[1])
    enlarged = [
        measured("cosine", updates)[0] for updates in (near, far)
    ]  # which looks at the aggregate
    assert enlarged[1] > 1.5 * enlarged[0]


def test_distance_earned_is_the_approach_to_the_new_model_along_the_clients_way():
    updates = moved((4, 0), (1, 0), (0, 3), (-1, 1))  # the mean is (1, 1), at a distance of √2
    nearest = np.array([1.0, 1.0, 1.0, np.sqrt(2)])
    earned = 1 - nearest / np.sqrt(2)
    found = measured("distance-earned", updates, reference="aggregate")
    np.testing.assert_allclose(found, earned / earned.max(), atol=1e-6)


def test_a_client_alone_in_a_round_is_compared_with_the_server():
    for name in ("cosine-rescaled", "distance-earned", "cgsv"):
        assert measured(name, moved((1, 2))).tolist() == pytest.approx([1.0])
        assert measured(name, moved((0, 0))).tolist() == [0.0]


def test_cgsv_is_a_moving_average_of_relative_cosines():
    updates = moved((1, 0), (0, 5))  # both are at 45 degrees from (1, 1)
    np.testing.assert_allclose(measured("cgsv", updates), [1, 1])
    known = replace(updates, previous=np.array([0.6, 0.2]))
    cosines = np.array([0.6, 0.2]) / np.hypot(0.6, 0.2)
    expected = 0.5 * known.previous + 0.5 * cosines / cosines.max()
    np.testing.assert_allclose(measured("cgsv", known, memory=0.5), expected)


@pytest.mark.parametrize("seed", range(5))
def test_gradient_shapley_is_exact_for_a_quadratic_loss(seed):
    updates = played_round("work", seed)
    game = _CoalitionGame(updates)
    exact = exact_shapley(np.array([game.value(c) for c in range(game.everyone + 1)]))
    found = measured("gradient-shapley", updates, only_new=False)
    np.testing.assert_allclose(found, exact / exact.max(), atol=1e-5)
    np.testing.assert_allclose(measured("shapley", updates), found, atol=1e-5)


def test_who_does_nothing_is_a_null_player_of_idle_coalitions():
    """Of two clients one overshoots: the model of both is better than that of either."""
    updates = moved((3, 0), (0, 0), target=np.array([1.5, 0.0]))
    for name in ("leave-one-out", "shapley", "gradient-shapley"):
        assert measured(name, updates).tolist() == [1.0, 0.0]
    assert measured("shapley", updates, absent="gone")[1] > 0  # paid for diluting the other


def test_only_what_is_new_counts():
    """The last step of the global model is known to all, so it is worth nothing to send it."""
    known = replace(
        moved((2, 0), (1, 1), (0, 1), target=np.array([2.0, 2.0])),
        last_step=np.array([1, 0], dtype=np.float32),
    )
    assert measured("gradient-shapley", known).tolist() == pytest.approx([0.0, 1.0, 1.0])
    assert measured("gradient-shapley", known, only_new=False)[0] > 0.5
    opposite = replace(known, last_step=np.array([-1, 0], dtype=np.float32))  # turning back is new
    assert measured("gradient-shapley", opposite)[0] > 0.5
    still = replace(known, last_step=np.zeros(2, dtype=np.float32))
    np.testing.assert_array_equal(
        measured("gradient-shapley", still),
        measured("gradient-shapley", known, only_new=False),
    )


def test_of_two_equal_clients_neither_is_missed_and_shapley_pays_both():
    updates = moved((1, 0), (1, 0), target=np.array([1.0, 0.0]))
    missed = leave_one_out(updates, absent="gone")
    assert missed.tolist() == [0.0, 0.0]
    assert measured("shapley", updates).tolist() == [1.0, 1.0]


def test_accuracy_can_be_what_counts():
    updates = moved((1, 0), (0, 1), target=np.array([1.0, 0.0]))
    for name in ("leave-one-out", "shapley", "gradient-shapley"):
        assert measured(name, updates, worth="accuracy")[1] < 1


@pytest.mark.parametrize("name", ["leave-one-out", "shapley", "gradient-shapley"])
def test_without_a_validation_set_it_says_so(name):
    assert CONTRIBUTIONS[name].needs_validation
    with pytest.raises(StrategyError, match=r"validation_samples"):
        measured(name, replace(moved((1, 0)), validate=None))


@pytest.mark.parametrize("returned", [[0.5], [0.5, 1.5], [0.5, np.nan], 0.5])
def test_a_measure_that_returns_something_else_is_named(added, returned):
    added("odd", round_measure()(lambda updates: np.array(returned)))
    with pytest.raises(StrategyError, match="odd must return a number"):
        measured("odd", moved((1, 0), (0, 1)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosine-rescaled", {"quantile": 2.0}, "quantile"),
        ("distance-earned", {"quantile": -1.0}, "quantile"),
        ("cgsv", {"memory": 1.5}, "memory"),
        ("shapley", {"samples": 0}, "samples"),
        ("leave-one-out", {"quantile": 2.0}, "quantile"),
    ],
)
def test_impossible_options_are_refused(name, options, message):
    with pytest.raises(StrategyError, match=message):
        measured(name, moved((1, 0), (0, 1)), **options)


def test_large_rounds_are_sampled_and_keyed_by_the_round():
    rng = stream(0, "many")
    models = list((0.3 + 0.5 * rng.normal(size=(9, 12))).astype(np.float32))
    updates = _updates_of(models, np.zeros(12, np.float32), np.full(12, 0.3))
    calls = []

    def counted(params):
        calls.append(1)
        return updates.validate(params)

    few = replace(updates, validate=counted)
    first = measured("shapley", few, samples=9, tolerance=0.0)
    assert len(calls) <= 9 * 8 + 2
    np.testing.assert_array_equal(first, measured("shapley", few, samples=9, tolerance=0.0))
    again = measured("shapley", replace(few, round=3), samples=9, tolerance=0.0)
    assert np.any(again != first)
    exact = measured("shapley", few, samples=100)
    assert np.corrcoef(first, exact)[0, 1] > 0.9


@pytest.mark.parametrize("name", list(CONTRIBUTIONS))
def test_a_strategy_goes_by_the_measure_it_is_given(name):
    """After a warm-up the contributions are those of a round by itself."""
    world = ToyFederation.make()
    strategy = Flamma(Plan(rounds=5, per_round=3), contribution=name)
    start = world.begin(strategy)
    reports = world.answers(strategy, start, world.offer(strategy, start))
    state, _ = world.play_round(strategy, start)
    samples = np.array([report.samples for report in reports])
    updates = RoundUpdates(
        clients=world.all_clients,
        models=[report.params for report in reports],
        before=start.params,
        after=state.params,
        trainable_size=start.trainable_size,
        weights=samples / samples.sum(),
        previous=np.full(world.clients, np.nan),
        validate=world.validate,
    )
    np.testing.assert_array_equal(state.contributions, measured(name, updates))
    after, _ = world.play_round(strategy, state)
    assert np.count_nonzero(after.measured != state.measured) <= 3  # those who were selected

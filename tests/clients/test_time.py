"""The virtual clock: times by hand, who is late, and how fast clients are."""

from __future__ import annotations

import math
import time
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.clients.costs import CostedClients, PacedClients, true_costs, true_speeds
from flamma.clients.time import _SIMULATED_LATE, ClockConfig, Faults, Traffic, VirtualClock
from flamma.errors import ConfigError, InputFileError
from flamma.registry import Choice
from flamma.types import DataUse, Terms
from flat_work import work

SAMPLES = np.array([100, 40, 10])
SPEEDS = np.array([0.5, 0.25, 2.0])
NOTHING = Traffic(0, 0)


def clock(*tasks, **more):
    """A clock of clients that do these tasks, one each."""
    return VirtualClock(SPEEDS, SAMPLES, 32, lambda terms: [tasks[terms.client]], **more)


def task(client, epochs=1, **more):
    return work(client, 1, epochs, 0.1, **more)


def terms(*clients):
    return [Terms(client, 1) for client in clients]


def test_a_client_takes_its_epochs_samples_and_bytes():
    timed = clock(task(0, 3), task(1, 2), task(2, 5), bandwidth=1000.0)
    seconds = [timed.seconds(t, Traffic(3000, 1000)) for t in terms(0, 1, 2)]
    assert seconds == [3 * 100 * 0.5 + 4, 2 * 40 * 0.25 + 4, 5 * 10 * 2.0 + 4]


def test_mini_batches_shares_of_data_and_losses_take_what_they_are():
    timed = clock(
        task(0, 0, batches=7),
        task(1, 2, data=DataUse(share=0.5)),
        task(2, 0, train=False),
        bandwidth=10.0,
    )
    assert timed.seconds(Terms(0, 1), NOTHING) == 7 * 32 * 0.5
    assert timed.seconds(Terms(1, 1), NOTHING) == 2 * 20 * 0.25
    # It sends no weights back, and goes through its samples without a backward pass.
    assert timed.seconds(Terms(2, 1), Traffic(30, 30)) == pytest.approx(10 * 2.0 / 3 + 3)


def test_one_that_abstains_only_receives():
    assert clock(task(0, 0), bandwidth=10.0).seconds(Terms(0, 1), Traffic(50, 50)) == 5


def test_a_round_takes_as_long_as_its_slowest_client_or_until_the_deadline():
    works = [task(0), task(1), task(2)]  # 50, 10 and 20 seconds
    assert clock(*works).round_seconds(terms(0, 1, 2), {}, NOTHING) == 50
    assert clock(*works).round_seconds(terms(1, 2), {}, NOTHING) == 20
    assert clock(*works).late(terms(0, 1, 2), NOTHING) == {}
    hasty = clock(*works, deadline=20.0)
    assert hasty.late(terms(0, 1, 2), NOTHING) == {0: _SIMULATED_LATE}  # just in time is in time
    assert hasty.round_seconds(terms(0, 1, 2), {}, NOTHING) == 20
    assert hasty.round_seconds(terms(1), {}, NOTHING) == 10


def test_one_that_faults_have_struck_is_waited_for_only_if_it_is_late():
    works = [task(0), task(1), task(2)]
    for struck, expected in (({2: "failed (simulated)"}, 10), ({2: _SIMULATED_LATE}, 30)):
        timed = clock(*works, deadline=30.0)
        assert timed.round_seconds(terms(1, 2), struck, NOTHING) == expected
    assert clock(*works).round_seconds(terms(1, 2), {2: _SIMULATED_LATE}, NOTHING) == 10
    assert clock(*works).round_seconds(terms(2), {2: "failed (simulated)"}, NOTHING) == 0


def test_a_clock_without_speeds_is_refused():
    assert not ClockConfig().is_on
    assert ClockConfig().as_table() == {}
    with pytest.raises(ConfigError, match=r"clock\.speeds is missing"):
        ClockConfig(deadline=3.0)


@pytest.mark.parametrize("name", ["bandwidth", "deadline", "target_variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf])
def test_what_must_be_positive_is(name, value):
    with pytest.raises(ConfigError, match=rf"clock\.{name} must be above 0"):
        ClockConfig(Choice("constant"), **{name: value})


def test_fairness_needs_an_accuracy_to_count_from():
    with pytest.raises(ConfigError, match="target_accuracy too"):
        ClockConfig(Choice("constant"), target_variance=10.0)
    both = ClockConfig(Choice("constant"), target_accuracy=80.0, target_variance=10.0)
    assert both.targets == {"accuracy": 80.0, "accuracy_variance": 10.0}


def speeds(name, samples=SAMPLES, **options):
    clients = PacedClients(np.array(samples), 5, lambda: 0.01 * np.array(samples))
    return true_speeds(Choice(name, options), clients)


def test_speeds_are_given_drawn_or_measured():
    np.testing.assert_array_equal(speeds("constant", seconds_per_sample=0.2), [0.2] * 3)
    np.testing.assert_array_equal(speeds("list", seconds_per_sample=(1.0, 2.0, 3.0)), [1, 2, 3])
    np.testing.assert_allclose(speeds("measured", slowdown=20.0), [0.2] * 3)
    assert (speeds("lognormal", seconds_per_sample=0.2, spread=0.0) == 0.2).all()


def test_drawn_speeds_have_the_median_and_the_spread_and_are_each_clients_own():
    many = speeds("lognormal", np.ones(4000), seconds_per_sample=0.2, spread=1.0)
    assert np.median(many) == pytest.approx(0.2, rel=0.1)
    assert np.std(np.log(many)) == pytest.approx(1.0, rel=0.05)
    few = speeds("lognormal", np.ones(7), seconds_per_sample=0.2, spread=1.0)
    np.testing.assert_array_equal(few, many[:7])
    costs = true_costs(Choice("lognormal", {"value": 0.2, "spread": 1.0}), CostedClients(7, 5))
    assert not np.isin(few, costs).any()  # a slow client is not an expensive one by that


def test_speeds_of_a_file_are_its_column(tmp_path):
    file = tmp_path / "speeds.csv"
    file.write_text("name,seconds_per_sample\na,0.5\nb,0.25\nc,4\n")
    np.testing.assert_array_equal(speeds("csv", file=str(file)), [0.5, 0.25, 4])
    file.write_text("name,seconds_per_sample\na,0.5\n")
    with pytest.raises(ConfigError, match="lists speeds for 1 clients, but the federation has 3"):
        speeds("csv", file=str(file))
    file.write_text("name,speed\na,0.5\n")
    with pytest.raises(InputFileError, match="needs the column seconds_per_sample"):
        speeds("csv", file=str(file))


def test_speeds_that_cannot_be_used_are_refused():
    with pytest.raises(ConfigError, match=r"clock\.speeds\.file"):
        speeds("csv")
    with pytest.raises(ConfigError, match="the list lists speeds for 2 clients"):
        speeds("list", seconds_per_sample=(1.0, 2.0))
    with pytest.raises(ConfigError, match="client 1 has 0"):
        speeds("list", seconds_per_sample=(1.0, 0.0, 1.0))
    with pytest.raises(ConfigError, match="spread must be at least 0"):
        speeds("lognormal", spread=-1.0)


def test_costs_by_the_clock_are_in_proportion_to_an_epochs_seconds():
    seconds = SPEEDS * SAMPLES
    kind = Choice("clock", {"value": 0.01})
    costs = true_costs(kind, CostedClients(3, 0, clock_seconds=seconds))
    np.testing.assert_allclose(costs, [0.5, 0.1, 0.2])
    with pytest.raises(ConfigError, match=r"set clock\.speeds"):
        true_costs(kind, CostedClients(3, 0))


# Faults: as frequent as asked, and nobody's luck depends on the others.

HALF = Faults(dropout=0.5, stragglers=0.5, failures=0.5)
MANY = 100_000


def mishaps(faults, seed, number):
    """All three of all clients, as flags of something having gone wrong."""
    everyone = np.arange(MANY)
    return {
        "dropout": ~faults.available(seed, number, MANY),
        "stragglers": faults.late(seed, number, everyone),
        "failures": faults.fails(seed, number, everyone),
    }


def test_without_faults_nothing_happens():
    for kind, struck in mishaps(Faults(), 0, 1).items():
        assert not struck.any(), kind


def test_each_mishap_is_as_frequent_as_asked():
    found = mishaps(Faults(dropout=0.1, stragglers=0.3, failures=0.02), seed=3, number=2)
    for kind, share in (("dropout", 0.1), ("stragglers", 0.3), ("failures", 0.02)):
        # Five standard errors of a share of 100,000.
        assert found[kind].mean() == pytest.approx(share, abs=5 * (share / MANY) ** 0.5), kind


def test_mishaps_are_independent_of_each_other_of_the_round_and_of_the_seed():
    here, later, elsewhere = mishaps(HALF, 0, 1), mishaps(HALF, 0, 2), mishaps(HALF, 1, 1)
    draws = np.array([*here.values(), *later.values(), *elsewhere.values()], dtype=float)
    correlations = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlations).max() < 0.02  # six standard errors


def test_the_same_question_has_the_same_answer():
    first, second = mishaps(HALF, 5, 9), mishaps(HALF, 5, 9)
    for kind in first:
        np.testing.assert_array_equal(first[kind], second[kind])


@given(st.integers(0, 2**32), st.integers(1, 1000), st.lists(st.integers(0, 400), max_size=12))
def test_luck_does_not_depend_on_who_else_is_selected_or_in_which_order(seed, number, selected):
    for strikes in (HALF.late, HALF.fails):
        together = strikes(seed, number, selected)
        assert together.dtype == np.bool_
        assert together.tolist() == [strikes(seed, number, [i])[0] for i in selected]


def test_availability_does_not_depend_on_how_many_clients_there_are():
    few, many = HALF.available(1, 1, 30), HALF.available(1, 1, 3_000)
    assert few.any()
    np.testing.assert_array_equal(few, many[:30])


def test_who_is_away_at_a_low_dropout_is_away_at_a_higher_one():
    low, high = (Faults(dropout=p).available(2, 1, 1_000) for p in (0.2, 0.6))
    assert not np.any(high & ~low)
    assert high.sum() < low.sum()


def test_somebody_is_always_there():
    faults = Faults(dropout=0.999)
    rounds = [faults.available(0, number, 3) for number in range(1, 201)]
    assert all(present.sum() >= 1 for present in rounds)
    assert {int(np.argmax(present)) for present in rounds} == {0, 1, 2}  # not always the same one
    assert faults.available(0, 1, 0).size == 0


def test_nobody_selected_is_nobody_struck():
    assert HALF.late(0, 1, []).size == 0
    assert HALF.fails(0, 1, np.array([], dtype=np.int64)).size == 0


def test_clients_have_no_negative_numbers():
    with pytest.raises(ValueError, match="numbered from 0, but -1"):
        HALF.late(0, 1, [3, -1])


@pytest.mark.parametrize("name", ["dropout", "stragglers", "failures"])
@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5, float("nan")])
def test_a_probability_lies_below_one(name, value):
    with pytest.raises(ConfigError, match=rf"faults\.{name} must lie in \[0, 1\)"):
        Faults(**{name: value})


def test_faults_do_not_change():
    with pytest.raises(FrozenInstanceError):
        HALF.dropout = 0.1


def test_a_round_of_a_hundred_thousand_clients_takes_no_time():
    selected = np.arange(0, MANY, 100)
    start = time.perf_counter()
    for number in range(1, 21):
        HALF.available(0, number, MANY)
        HALF.late(0, number, selected)
        HALF.fails(0, number, selected)
    assert (time.perf_counter() - start) / 20 < 0.05  # seconds; measured: about 0.001

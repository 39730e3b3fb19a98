"""Faults: as frequent as asked, and nobody's luck depends on the others."""

from __future__ import annotations

import time
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.clients.time import Faults
from flamma.errors import ConfigError

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
@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5, float("nan"), "0.1", None])
def test_a_probability_lies_below_one(name, value):
    with pytest.raises(ConfigError, match=rf"{name} must be a probability in \[0, 1\)"):
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

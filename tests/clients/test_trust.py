"""How far answers of clients that are not our own are believed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.clients.trust import Trust, TrustLimits
from flamma.errors import ConfigError
from flamma.types import MOST_SAMPLES, Terms, Update

MODEL = np.zeros(4, dtype=np.float32)


def report(client, length=1.0, samples=10, loss=math.nan):
    params = np.array([length, 0, 0, 0], dtype=np.float32)
    return Update(client, params, samples, 1, loss)


def screened(trust, *reports, report_loss="no"):
    terms = [Terms(r.client, 1, report_loss=report_loss) for r in reports]
    return trust.screened(reports, terms, lambda client: MODEL)


def test_a_claim_counts_for_a_multiple_of_the_median_or_for_what_was_written_down():
    told = np.array([100, MOST_SAMPLES - 1, 300, 5000, 40])  # the median is 300
    most = TrustLimits(samples={"d": 6000}).most_samples("abcde", told)
    assert most.tolist() == [3000, 3000, 3000, 6000, 3000]
    assert np.minimum(told, most).tolist() == [100, 3000, 300, 5000, 40]
    assert TrustLimits(samples_ratio=0).most_samples("ab", told[:2]).min() == MOST_SAMPLES


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=9),
    st.integers(1, MOST_SAMPLES),
    st.floats(1, 100),
)
def test_who_lies_has_no_say_in_what_a_majority_counts_for(honest, lie, ratio):
    limits = TrustLimits(samples_ratio=ratio)
    told = np.array([*honest, *honest, lie])
    most = limits.most_samples([str(k) for k in range(told.size)], told)
    assert most[-1] <= ratio * max(honest)
    counted = np.minimum(told, most)
    again = limits.most_samples([str(k) for k in range(told.size)], counted)
    assert (np.minimum(counted, again) == counted).all()  # a run that goes on counts the same


def test_samples_of_answers_are_capped_by_those_that_come_with_them_if_nobody_was_introduced():
    found = screened(Trust(TrustLimits()), report(0), report(1, samples=10**9), report(2))
    assert [r.samples for r in found] == [10, 100, 10]
    found = screened(Trust(TrustLimits(), np.array([7, 70])), report(0), report(1, samples=99))
    assert [r.samples for r in found] == [7, 70]


def test_a_finite_update_that_drowns_all_others_is_refused():
    trust = Trust(TrustLimits())
    found = screened(trust, report(0), report(1, 3.4e38), report(2, 2.0))
    assert [bool(r.failure) for r in found] == [False, True, False]
    assert found[1].failure == (
        "refused: an update of length 3.4e+38, where at most 2e+03 is accepted"
    )
    assert found[1].params is None
    assert found[1].epochs == 0
    [alone] = screened(trust, report(1, 1e5))  # measured by the earlier rounds
    assert alone.failure.startswith("refused: an update of length 1e+05")


def test_the_first_answer_of_all_is_measured_by_the_model():
    [first] = screened(Trust(TrustLimits()), report(0, 1001.0))
    assert first.failure
    [first] = screened(Trust(TrustLimits()), report(0, 999.0))
    assert not first.failure


def test_tiny_updates_do_not_shut_out_an_honest_one():
    found = screened(Trust(TrustLimits()), report(0, 1e-12), report(1, 1e-12), report(2, 0.9))
    assert not any(r.failure for r in found)


def test_an_operator_may_bound_the_length_itself():
    found = screened(Trust(TrustLimits(longest_update=1.5)), report(0), report(1, 1.6))
    assert [bool(r.failure) for r in found] == [False, True]


@pytest.mark.parametrize(("loss", "asked", "refused"), [
    (math.inf, True, True), (math.inf, False, True), (math.nan, True, True),
    (math.nan, False, False), (0.5, True, False),
])  # fmt: skip
def test_a_loss_that_is_no_number_is_refused(loss, asked, refused):
    found = screened(
        Trust(TrustLimits()), report(0, loss=loss), report_loss="received" if asked else "no"
    )
    assert [r.failure for r in found] == ([f"refused: a loss of {loss:g}"] if refused else [""])


def test_what_is_not_finite_or_failed_is_left_to_the_strategy():
    failed = Update(5, None, 0, 0, failure="late")
    broken = report(1, math.nan)
    assert screened(Trust(TrustLimits()), failed, broken)[0].failure == "late"
    assert screened(Trust(TrustLimits()), broken)[0].failure == ""


@pytest.mark.parametrize(
    "options",
    [
        {"samples_ratio": 0.5},
        {"update_ratio": math.nan},
        {"longest_update": -1.0},
        {"samples": {"a": 0}},
        {"samples": {"a": 1.5}},
    ],
)
def test_limits_that_cannot_work_are_one_sentence(options):
    with pytest.raises(ConfigError, match=f"^{next(iter(options))}"):
        TrustLimits(**options)

"""Schedules of the step size, by hand and by their properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flamma.errors import ConfigError
from flamma.numerics import cosine_of_half_turns
from flamma.training.optimisers import (
    SCHEDULES,
    ConstantSchedule,
    CosineSchedule,
    StepSchedule,
    WarmUpSchedule,
)
from flamma.types import SMALLEST_FACTOR, Plan


def factors(schedule, rounds):
    return [schedule.factor(number, rounds) for number in range(1, rounds + 1)]


def test_factors_by_hand():
    half = math.sqrt(0.5)
    assert factors(ConstantSchedule(), 3) == [1, 1, 1]
    assert factors(WarmUpSchedule(3), 5) == [0.25, 0.5, 0.75, 1, 1]
    assert factors(StepSchedule(every=2, ratio=0.1), 6) == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    assert factors(CosineSchedule(), 4) == pytest.approx([1, (1 + half) / 2, 0.5, (1 - half) / 2])
    assert factors(CosineSchedule(floor=0.5), 2) == pytest.approx([1, 0.75])
    assert factors(CosineSchedule(warm_up=1), 3) == pytest.approx([0.5, 1, 0.5])
    assert factors(StepSchedule(warm_up=1, every=1), 4) == pytest.approx([0.5, 1, 0.5, 0.25])


def test_round_0_is_that_of_round_1():
    """Contributions may be measured before the first round."""
    for name in SCHEDULES:
        schedule = SCHEDULES[name]()
        assert schedule.factor(0, 9) == schedule.factor(1, 9)


@given(st.integers(1, 400), st.integers(0, 450), st.integers(0, 30))
def test_factors_are_above_0_and_at_most_1(rounds, number, warm_up):
    for schedule in (
        WarmUpSchedule(warm_up),
        CosineSchedule(warm_up=warm_up),
        StepSchedule(warm_up=warm_up, every=7),
    ):
        assert 0 <= schedule.factor(number, rounds) <= 1
        if number <= rounds:
            assert schedule.factor(number, rounds) > 0


@given(st.integers(2, 300), st.floats(0, 1))
def test_cosines_fall(rounds, floor):
    found = factors(CosineSchedule(floor=floor), rounds)
    assert found[0] == 1
    assert found == sorted(found, reverse=True)
    assert found[-1] >= floor - 1e-12


@given(st.floats(0, 1))
@example(0.7187149992724479)
def test_the_cosine_is_that_of_the_library_to_a_few_units(turns):
    # Of an angle within an eighth of a turn, so that the library's own error is small.
    if 0.25 < turns < 0.75:
        exact = math.sin(math.pi * (0.5 - turns))
    else:
        exact = math.cos(math.pi * turns) if turns < 0.5 else -math.cos(math.pi * (1 - turns))
    assert cosine_of_half_turns(turns) == pytest.approx(exact, abs=3e-16)


def test_cosines_that_have_a_closed_form():
    """These are √(2 + √2) / 2, (1 + √5) / 4, √(2 - √2) / 2 and the first again."""
    found = [cosine_of_half_turns(turns) for turns in (1 / 8, 1 / 5, 3 / 8, 7 / 8)]
    exact = [0.9238795325112867, 0.8090169943749475, 0.3826834323650898, -0.9238795325112867]
    assert found == pytest.approx(exact, abs=2.3e-16)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WarmUpSchedule(-1), "warm_up"),
        (lambda: CosineSchedule(floor=1.1), "floor"),
        (lambda: CosineSchedule(floor=math.nan), "floor"),
        (lambda: StepSchedule(every=0), "every"),
        (lambda: StepSchedule(ratio=0.0), "ratio"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_plan_multiplies_its_learning_rate():
    plan = Plan(4, 1, learning_rate=0.3)
    assert [plan.step_size(number) for number in range(5)] == [0.3] * 5
    falling = Plan(4, 1, learning_rate=0.3, schedule=StepSchedule(every=2))
    assert [falling.step_size(number) for number in (1, 2, 3, 4)] == [0.3, 0.3, 0.15, 0.15]


def test_a_step_size_is_never_0_since_strategies_divide_by_it():
    plan = Plan(10_000, 1, learning_rate=1.0, schedule=StepSchedule(every=1, ratio=0.1))
    assert plan.step_size(10_000) == SMALLEST_FACTOR

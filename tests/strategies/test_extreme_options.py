"""Every number that a strategy takes as an option works, however extreme, or is refused."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import flamma
from flamma.errors import FlammaError
from flamma.registry import options_of
from flamma.strategies import STRATEGIES
from flamma.testing.strategies import ToyFederation
from flamma.types import Plan

PLAN = Plan(rounds=2, per_round=3, epochs=1, learning_rate=0.1, batch_size=8)
SMALLEST, LARGEST = 5e-324, sys.float_info.max
EXTREMES = (SMALLEST, 1e-300, 1e-17, 0.0, 1 - 2**-53, 1 + 2**-52, 1e300, LARGEST, -1.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow: the weights are not finite then
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_rounds_with_an_extreme_option_end_or_are_refused(name):
    kind = STRATEGIES[name]
    floats = [o for o in options_of(kind).values() if "float" in str(o.annotation)]
    for option in floats:
        for value in EXTREMES:
            given = (value, value) if "tuple" in str(option.annotation) else value
            try:
                strategy = kind(plan=PLAN, **{option.field: given})
                state = ToyFederation.make(clients=5).play(strategy, rounds=2)
            except FlammaError:
                continue
            assert state.round == 2, (option.name, given)


@pytest.mark.parametrize(
    ("strategy", "option", "value"),
    [("cffl", "steepness", 1e-300), ("cffl", "steepness", SMALLEST), ("afl", "step", LARGEST)],
)
def test_a_run_with_an_extreme_option_ends(strategy, option, value):
    done = flamma.run(
        strategy={"name": strategy, option: value},
        model="logistic",
        rounds=2,
        clients=5,
        per_round=2,
        data__train_samples=150,
        progress=False,
    )
    assert done.finished
    assert np.isfinite(done.history[-1].metric("accuracy"))


def test_cffl_with_a_tiny_steepness_is_the_limit_of_ever_smaller_ones():
    world = ToyFederation.make(clients=5)
    states = [
        world.play(STRATEGIES["cffl"](plan=PLAN, steepness=steepness), rounds=2)
        for steepness in (1e-5, 1e-300)
    ]
    near, limit = (state.reputations for state in states)
    np.testing.assert_allclose(limit, near, rtol=1e-9)

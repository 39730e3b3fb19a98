"""A budget is kept whatever clients do, and a client's offer does not depend on the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import GameError
from flamma.game import Game, best_response
from flamma.game.pricing import affordable

PLAYS = ("most", "best", "any")


@settings(max_examples=150)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 8),
    st.just(0.0) | st.floats(1e-9, 200),
    st.sampled_from(PLAYS),
)
def test_no_play_exceeds_the_budget_not_even_by_rounding(seed, rounds, per_round, budget, play):
    rng, spent = np.random.default_rng(seed), 0.0
    for _ in range(rounds):
        omega = rng.uniform(0, 1, per_round)
        gamma = rng.uniform(0, 1, per_round) if rng.random() < 0.5 else np.ones(per_round)
        scale = affordable(gamma, omega, 10, budget=budget, rounds=rounds, per_round=per_round)
        assert ((scale >= 0) & (scale <= 1)).all()
        for pull, w in zip((gamma * scale).tolist(), omega.tolist(), strict=True):
            if play == "most":
                epochs = 10
            elif play == "any":
                epochs = int(rng.integers(0, 11))
            else:
                game = Game([w], [rng.uniform(0.01, 0.2)])
                epochs = int(best_response(game, pull)[0])
            spent += pull * w * epochs
            assert spent <= budget


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.floats(0.1, 50), st.data())
def test_an_offer_depends_on_no_other_offer(omega, budget, data):
    rule = {"budget": budget, "rounds": 10, "per_round": len(omega)}
    gamma = np.linspace(0.2, 1, len(omega))
    before = affordable(gamma, omega, 10, **rule)
    own = data.draw(st.integers(0, len(omega) - 1))
    others = gamma * data.draw(st.floats(0, 1))
    others[own] = gamma[own]
    assert affordable(others, omega, 10, **rule)[own] == before[own]


def test_a_budget_that_binds_is_used_whole_and_one_that_does_not_changes_nothing():
    rule = {"rounds": 5, "per_round": 2}
    omega = np.array([0.9, 0.8])
    scale = affordable(1.0, omega, 10, budget=20.0, **rule)
    assert 5 * float((scale * omega * 10).sum()) == pytest.approx(20.0, rel=1e-12)
    assert affordable(1.0, omega, 10, budget=91.0, **rule).tolist() == [1.0, 1.0]
    assert affordable(1.0, [0.0, 0.5], 10, budget=0.0, **rule).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("budget", [-1.0, float("nan"), float("inf")])
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(GameError, match="a budget must be a number from 0 on"):
        affordable(1.0, [0.5], 10, budget=budget, rounds=1, per_round=1)


def test_a_budget_needs_bounded_epochs():
    with pytest.raises(GameError, match="upper bound of the local epochs"):
        affordable(1.0, [0.5], float("inf"), budget=1.0, rounds=1, per_round=1)

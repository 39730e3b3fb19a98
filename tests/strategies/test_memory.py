"""The memory of what clients last sent: the plain formula, and what may be left out of it."""

from __future__ import annotations

import numpy as np
import pytest

from flamma.aggregators import AGGREGATORS
from flamma.errors import StrategyError
from flamma.strategies import rows
from flamma.strategies.memory import (
    OLDEST_SHARE,
    Mifa,
    is_significant,
    negligible_share,
    oldest_age,
)
from flamma.strategies.rows import Rows
from flamma.types import Plan, Population, Update

CLIENTS, SIZE, PER_ROUND = 30, 50, 3


class Plain:
    """The memory as a matrix, with every row in every sum, however old it is."""

    def __init__(self, params, samples, fading, persistence):
        self.params, self.samples = params, samples.astype(np.float64)
        self.fading, self.persistence = fading, persistence
        self.kept = np.zeros((samples.size, params.size), dtype=np.float32)
        self.heard = np.full(samples.size, -1)

    def step(self, number, reports):
        own = np.float32(self.persistence) * self.params
        for report in reports:
            self.kept[report.client] = report.params - own
            self.heard[report.client] = number
        known = np.flatnonzero(self.heard >= 0)
        total = np.sum(self.samples[known])
        moved = np.zeros(self.params.size)
        weight = 0.0
        for client in known:
            faded = self.samples[client] / total * self.fading ** (number - self.heard[client])
            moved += faded * self.kept[client].astype(np.float64)
            weight += faded
        stays = 1 - weight * (1 - self.persistence)
        self.params = (stays * self.params + moved).astype(np.float32)


def play(strategy, rounds, both):
    """Play random reports of a few clients a round, and let the plain formula see them too."""
    rng = np.random.default_rng(0)
    samples = rng.integers(5, 50, CLIENTS)
    start = rng.normal(size=SIZE).astype(np.float32)
    state = strategy.init(start, Population(samples, None, SIZE))
    plain = Plain(start, samples, strategy.memory, strategy.persistence)
    for number in range(1, rounds + 1):
        offer = strategy.offer(state, np.arange(CLIENTS), rng)
        reports = [
            Update(c, (state.params + rng.normal(size=SIZE)).astype(np.float32), int(samples[c]), 1)
            for c in offer.selected
        ]
        state, _ = strategy.aggregate(state, offer, reports)
        plain.step(number, reports)
        both(state, plain)
    return state


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("persistence", [0.0, 0.6, 1.0])
def test_rows_in_float32_give_the_plain_formula(memory, persistence):
    strategy = Mifa(Plan(40, PER_ROUND, 1), memory=memory, persistence=persistence)

    def same(state, plain):
        np.testing.assert_allclose(state.params, plain.params, rtol=0, atol=2e-6)

    play(strategy, 40, same)


def test_rows_in_float16_stay_close_to_the_plain_formula():
    strategy = Mifa(Plan(40, PER_ROUND, 1), memory=0.9, persistence=0.0, rows="float16")

    def close(state, plain):
        # Each row is off by 2^-11 of itself at most, and the step is a mean of rows.
        bound = 2.0**-11 * np.abs(plain.kept).max()
        assert np.abs(state.params - plain.params).max() <= bound
        plain.params = state.params

    play(strategy, 40, close)


def test_what_has_faded_away_is_forgotten_and_is_not_missed():
    strategy = Mifa(Plan(80, PER_ROUND, 1), memory=0.3, persistence=0.6)
    sizes = []

    def not_missed(state, plain):
        np.testing.assert_allclose(state.params, plain.params, rtol=0, atol=1e-6)
        sizes.append(state.kept.known.size)
        plain.params = state.params

    state = play(strategy, 80, not_missed)
    assert (state.heard >= 0).all()
    assert sizes[-1] < CLIENTS


@pytest.mark.parametrize("kept_as", ["float32", "float16"])
def test_what_is_left_out_weighs_together_less_than_rounding_may_change(kept_as):
    kept = Rows.empty(1, 1, kept_as, 1)
    rng = np.random.default_rng(3)
    for fading in (0.1, 0.5, 0.9, 0.99):
        # A hundred thousand heard from at once, long ago, and few since: a warm-up.
        ages = np.concatenate((np.repeat(np.arange(200), 10), np.full(100_000, 200)))
        faded = rng.random(ages.size) * fading ** ages.astype(np.float64)
        lasting = is_significant(ages, faded, fading, kept)
        old = ages > oldest_age(fading, kept)
        assert faded[~lasting & ~old].sum() <= negligible_share(kept) * faded.sum()
        assert (faded[old] <= negligible_share(kept) * OLDEST_SHARE).all()
        assert not lasting[old].any()
        assert ages[lasting].max() < ages[~lasting].min() if (~lasting).any() else True
    assert is_significant(ages, faded, 1.0, kept).all()


def test_no_more_rows_are_kept_than_room_was_checked_for():
    plan = Plan(rounds=300, per_round=PER_ROUND)
    strategy = Mifa(plan, memory=0.1)
    most = 0

    def count(state, plain):
        nonlocal most
        most = max(most, int(state.kept.slots.max()) + 1)

    state = play(strategy, 60, count)
    assert most <= state.kept.most_slots


def test_an_aggregator_other_than_mean_gets_the_rows_as_a_matrix():
    seen = []

    def middle(vectors, weights):
        seen.append(vectors)
        return np.median(vectors, axis=0) * weights.sum()

    AGGREGATORS.add("middle", middle)
    try:
        strategy = Mifa(Plan(4, PER_ROUND, 1), aggregator="middle")

        def same(state, plain):
            known = np.flatnonzero(plain.heard >= 0)
            np.testing.assert_array_equal(seen[-1], plain.kept[known])
            plain.params = state.params

        play(strategy, 4, same)
    finally:
        AGGREGATORS.discard("middle")


def test_an_aggregator_other_than_mean_is_refused_at_the_start_if_its_matrix_is_too_large(
    monkeypatch,
):
    monkeypatch.setattr(rows, "MATRIX_BYTES", 4 * SIZE * 11)
    AGGREGATORS.add("middle", lambda vectors, weights: np.median(vectors, axis=0))
    start, population = np.zeros(SIZE, np.float32), Population(np.ones(CLIENTS, int), None, SIZE)
    try:
        with pytest.raises(StrategyError, match="other than mean needs all rows at once"):
            Mifa(Plan(4, PER_ROUND, 1), aggregator="middle").init(start, population)
        Mifa(Plan(3, PER_ROUND, 1), aggregator="middle").init(start, population)
        Mifa(Plan(4, PER_ROUND, 1)).init(start, population)
    finally:
        AGGREGATORS.discard("middle")

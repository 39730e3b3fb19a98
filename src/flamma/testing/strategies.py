"""The contract that every strategy keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flamma.experiments.checkpoint import Checkpoints
from flamma.seeding import stream
from flamma.strategies import STRATEGIES
from flamma.strategies.base import State, Strategy
from flamma.testing.world import SIZE, LittleWorld, assert_same, random_plan, values_of
from flamma.types import Plan, Report

CONTRACT_ROUNDS = 25
PLAN = Plan(rounds=CONTRACT_ROUNDS, per_round=3, epochs=4, learning_rate=0.1)
RANDOM_PLANS = 40


def _model(report: Report) -> Any:
    assert report.params is not None
    return report.params


BAD_REPORTS: dict[str, Callable[[Report], Report]] = {
    "nan": lambda r: replace(r, params=np.full(SIZE, np.nan, np.float32)),
    "infinite": lambda r: replace(r, params=np.full(SIZE, np.inf, np.float32)),
    "too short": lambda r: replace(r, params=_model(r)[:-1]),
    "a matrix": lambda r: replace(r, params=_model(r).reshape(2, -1)),
    "doubles": lambda r: replace(r, params=_model(r).astype(np.float64)),
    "no samples": lambda r: replace(r, samples=0),
    "negative epochs": lambda r: replace(r, epochs=-1),
    "negative loss": lambda r: replace(r, loss=-1.0),
    "failed": lambda r: replace(r, params=None, failure="its battery is empty"),
}
"""Reports that no strategy may use."""


class StrategyContract:
    """The tests that a strategy passes; derive from it and set ``name``, or override ``make``."""

    name: str = ""

    def make(self, plan: Plan = PLAN) -> Strategy[Any]:
        """Return the strategy under test."""
        return STRATEGIES[self.name](plan=plan)

    @pytest.fixture
    def world(self) -> LittleWorld:
        """Return the clients it is played with."""
        return LittleWorld.make()

    def test_it_learns(self, world: LittleWorld) -> None:
        """After the plan's rounds the validation loss is well below that of the start."""
        strategy = self.make()
        trained = world.loss(strategy, world.play(strategy, CONTRACT_ROUNDS))
        assert trained < 0.5 * world.loss(strategy, world.begin(strategy))

    def test_a_state_is_never_changed(self, world: LittleWorld) -> None:
        """A round leaves the state it started from as it was."""
        strategy = self.make()
        state = world.begin(strategy)
        while state.round < 12:
            before = {k: np.array(v, copy=True) for k, v in values_of(state).items()}
            following, _ = world.play_round(strategy, state)
            for key, value in before.items():
                np.testing.assert_array_equal(value, getattr(state, key), err_msg=key)
            state = following

    def test_the_same_seed_gives_the_same_bits(self, world: LittleWorld) -> None:
        """Two plays with one seed end in the same state."""
        assert_same(
            world.play(self.make(), CONTRACT_ROUNDS), world.play(self.make(), CONTRACT_ROUNDS)
        )

    def test_selection_is_random_unless_contributions_decide(self, world: LittleWorld) -> None:
        """Another seed selects other clients, unless the offer says what selection went by."""
        selected: list[list[tuple[int, ...]]] = []
        by_contribution = []
        for seed in (0, 1):
            strategy, chosen = self.make(), []
            state = world.begin(strategy)
            while state.round < 6:
                heard = world.hear(strategy, state, seed)
                offer = world.offer(strategy, heard, seed)
                by_contribution.append(offer.effective is not None)
                chosen.append(offer.selected)
                state, _ = world.play_round(strategy, state, seed)
            selected.append(chosen)
        assert selected[0] != selected[1] or any(by_contribution)

    def test_the_order_of_reports_does_not_matter(self, world: LittleWorld) -> None:
        """Reports are reduced in client order, whatever order they come in."""
        backwards = world.play(self.make(), CONTRACT_ROUNDS, change=lambda reports: reports[::-1])
        assert_same(world.play(self.make(), CONTRACT_ROUNDS), backwards)

    def test_saved_and_loaded_it_goes_on_as_before(
        self, world: LittleWorld, tmp_path: Path
    ) -> None:
        """A state survives a checkpoint bit for bit, and so do the rounds after it."""
        strategy = self.make()
        state = world.play(strategy, 7)
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(state)
        loaded = checkpoints.load(world.begin(strategy))
        assert loaded is not None
        assert_same(state, loaded)
        while state.round < 12:
            state, _ = world.play_round(strategy, state)
            loaded, _ = world.play_round(strategy, loaded)
        assert_same(state, loaded)

    def test_selects_as_many_as_planned_of_those_available(self, world: LittleWorld) -> None:
        """Selected clients are available, different, in order, and as many as the plan says.

        Their number is free where the strategy says that it varies. Clients of an asynchronous
        one were available when they began.
        """
        strategy = self.make()
        state = world.begin(strategy)
        few, could_begin = np.array([1, 4]), set[int]()
        while state.round < 10:
            available = few if state.round % 3 == 2 else world.all_clients[state.round % 4 :]
            state, record = world.play_round(strategy, state, available=available)
            could_begin = set(available.tolist()) | (
                could_begin if strategy.asynchronous else set()
            )
            assert set(record.selected) <= could_begin
            assert list(record.selected) == sorted(set(record.selected))
            planned = min(PLAN.per_round, available.size)
            if record.round > 0 and not strategy.varies_selection:
                assert len(record.selected) == planned

    def test_an_honest_answer_is_never_refused(self, world: LittleWorld) -> None:
        """Whatever the plan, what clients do by the strategy's own ``respond`` is accepted."""
        for seed in range(RANDOM_PLANS):
            plan = random_plan(seed)
            costs = np.exp(stream(seed, "honest").normal(-2, 1, world.clients))
            own = LittleWorld.make(world.clients, costs=costs)
            strategy = self.make(plan)
            state = own.begin(strategy)
            while state.round < min(plan.rounds, 4):
                state, record = own.play_round(strategy, state, seed)
                assert not record.failed, f"{plan}: {record.failed}"

    @pytest.mark.parametrize("bad", BAD_REPORTS)
    def test_a_bad_report_is_left_out_and_recorded(self, world: LittleWorld, bad: str) -> None:
        """A report that cannot be used counts as a missing one, and the record has the reason."""
        strategy = self.make()
        state = self._before_two_answers(strategy, world)
        victims = []

        def spoil(reports: list[Report]) -> list[Report]:
            *others, last = reports
            victims.append(last.client)
            return [*others, BAD_REPORTS[bad](last)]

        def lose(reports: list[Report]) -> list[Report]:
            return reports[:-1]

        spoiled, record = world.play_round(strategy, state, change=spoil)
        without, missing = world.play_round(strategy, state, change=lose)
        assert list(record.failed) == victims
        assert record.failed[victims[0]]
        assert missing.failed == {victims[0]: "no answer"}
        assert np.isfinite(spoiled.params).all()
        assert_same(spoiled, without)

    def test_every_selected_client_is_accounted_for(self, world: LittleWorld) -> None:
        """A selected client is accepted, abstains or has failed; none is silently lost."""
        strategy = self.make()
        state = world.begin(strategy)
        while state.round < 10:
            state = world.hear(strategy, state)
            offer = world.offer(strategy, state)
            reports = world.answers(strategy, state, offer)[1:]
            state, record = strategy.aggregate(state, offer, reports, world.validate)
            accepted = {r.client for r in reports if r.params is not None}
            told = accepted | set(record.abstained) | set(record.failed)
            assert told == set(record.selected) == set(offer.selected)

    def test_a_round_without_any_answer_leaves_the_weights(self, world: LittleWorld) -> None:
        """If no client answers, the model stays and the round counts."""
        strategy = self.make()
        state = world.play(strategy, 3)
        after, record = world.play_round(strategy, state, change=lambda reports: [])
        np.testing.assert_array_equal(after.params, state.params)
        assert len(record.failed) == len(record.selected)
        assert after.round == state.round + 1

    def _before_two_answers(self, strategy: Strategy[Any], world: LittleWorld) -> State:
        """Return a state after two rounds or more whose next offer goes to two clients or more."""
        state = world.play(strategy, 2)
        while len(world.offer(strategy, world.hear(strategy, state)).selected) < 2:
            state, _ = world.play_round(strategy, state)
        return state

    def test_a_client_that_was_not_asked_is_ignored(self, world: LittleWorld) -> None:
        """Reports of clients that were not selected, and second reports, change nothing."""
        strategy = self.make()
        state = world.hear(strategy, self._before_two_answers(strategy, world))
        offer = world.offer(strategy, state)
        reports = world.answers(strategy, state, offer)
        stranger = next(c for c in range(world.clients) if c not in offer.selected)
        extra = replace(reports[0], client=stranger, params=_model(reports[0]) + 100)
        twice = replace(reports[0], params=_model(reports[0]) + 100)
        assert_same(
            strategy.aggregate(state, offer, reports, world.validate)[0],
            strategy.aggregate(state, offer, [*reports, extra, twice], world.validate)[0],
        )

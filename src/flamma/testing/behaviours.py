"""The contract of behaviours."""

from __future__ import annotations

import math

import numpy as np

from flamma.clients.behaviours import (
    BEHAVIOURS,
    Behaviour,
    Encounter,
    Introduction,
    Notes,
    make_behaviour,
)
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.seeding import stream
from flamma.strategies import STRATEGIES
from flamma.testing.parts import PartContract
from flamma.types import MOST_SAMPLES, LocalTask, Params, Plan, Population, Profile, Report, Terms


class BehaviourContract(PartContract):
    """The tests that a behaviour passes."""

    registry = BEHAVIOURS

    def make(self) -> Behaviour:
        """Return the behaviour under test."""
        return make_behaviour(self.choice, "entry")

    def encounters(self) -> list[Encounter]:
        """Return offers of two strategies: a warm-up, rounds that pay more or less, or nothing."""
        plan = Plan(rounds=10, per_round=2)
        offers = [
            Terms(1, 0, iterations=3),
            *(Terms(1, 4, gamma, 0.8, wants_loss=True) for gamma in (1.0, 0.4, 0.0)),
            Terms(2, 4, 1.0, 0.8),
        ]
        return [
            Encounter(terms, Profile(terms.client, 0.1, 20), chosen.respond, 0, group=(1, 2))
            for chosen in (STRATEGIES[name](plan=plan) for name in ("flamma", "fedavg"))
            for terms in offers
        ]

    def answer(self, encounter: Encounter, notes: Notes, failure: str = "") -> Report:
        """Return what the client sends back, with made-up weights where it trains."""
        behaviour = self.make()
        task, received = behaviour.act(encounter), _weights("received")
        idle = task.abstains or bool(failure)
        report = Report(
            task.client,
            params=None if idle else received + _weights("update"),
            samples=encounter.profile.samples,
            epochs=0 if idle else task.epochs,
            loss=math.nan if idle or not task.wants_loss else 0.5,
            failure=failure,
        )
        return behaviour.send(report, encounter, received, notes)

    def test_what_it_tells_could_be_true(self) -> None:
        """A cost that games can have, and a number of samples that messages can."""
        population = Population(np.array([10, 20]), np.array([0.1, 0.2]), trainable_size=6)
        said = self.make().tell(Introduction(Profile(1, 0.2, 20), population))
        assert said.client == 1
        assert SMALLEST_COST <= said.cost <= LARGEST_COST
        assert 1 <= said.samples <= MOST_SAMPLES

    def test_it_does_its_own_task_of_the_round(self) -> None:
        """A task of its own and of this round, with an effort that is not negative."""
        behaviour = self.make()
        for encounter in self.encounters():
            task = behaviour.act(encounter)
            assert isinstance(task, LocalTask)
            assert (task.client, task.round) == (encounter.terms.client, encounter.terms.round)
            assert task.epochs >= 0
            assert behaviour.effort(task, encounter) >= 0

    def test_it_answers_under_its_own_name(self) -> None:
        """An answer is of the client that was asked, and weights are as many as were received."""
        for encounter in self.encounters():
            sent = self.answer(encounter, Notes())
            assert sent.client == encounter.terms.client
            if sent.params is not None:
                assert sent.params.shape == (6,)
                assert sent.params.dtype == np.float32

    def test_who_failed_sends_no_weights(self) -> None:
        """What went wrong at a client is not covered up by its behaviour."""
        for encounter in self.encounters():
            sent = self.answer(encounter, Notes(), failure="late")
            assert sent.failure
            assert sent.params is None

    def test_it_depends_on_its_arguments_alone(self) -> None:
        """A round that is played again, after an interruption or elsewhere, gives the same bits."""
        notes = Notes()
        for encounter in self.encounters():
            first, again = (self.answer(encounter, notes) for _ in range(2))
            assert first.epochs == again.epochs
            assert (first.params is None) == (again.params is None)
            if first.params is not None:
                np.testing.assert_array_equal(first.params, again.params)


def _weights(what: str) -> Params:
    return stream(0, what).normal(size=6).astype(np.float32)

"""Contract suites of splits, costs, aggregators, metrics, behaviours and contributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from flamma.aggregators import AGGREGATORS, Reference, aggregated
from flamma.clients.behaviours import (
    BEHAVIOURS,
    Behaviour,
    Encounter,
    Introduction,
    Notes,
    make_behaviour,
)
from flamma.clients.costs import COSTS, CostedClients, true_costs
from flamma.contributions import CONTRIBUTIONS, RoundUpdates, measure_round
from flamma.data.splits import SPLITS, Pool, split_owners
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.metrics import METRICS, ScoreMetric, evaluate
from flamma.records import OfferRecord, Outcomes, RoundRecord
from flamma.registry import Choice, Registry
from flamma.seeding import stream
from flamma.strategies import STRATEGIES
from flamma.types import (
    MOST_SAMPLES,
    Floats,
    LocalWork,
    Params,
    Plan,
    Population,
    Profile,
    Scores,
    Terms,
    Update,
)


class _PartContract:
    """What the suites share: an entry by name, with options if it needs any."""

    name: str = ""
    options: ClassVar[dict[str, Any]] = {}
    registry: ClassVar[Registry[Any]]

    @property
    def choice(self) -> Choice:
        """The entry under test with all of its options."""
        return self.registry.choose({"name": self.name, **self.options}, "entry")


class SplitContract(_PartContract):
    """The tests that a split passes."""

    registry = SPLITS

    def make_pool(self, seed: int = 0) -> Pool:
        """Return samples of five classes in ten natural groups, for five clients."""
        labels = np.arange(400) % 5
        groups = stream(seed, "groups").permutation(400) % 10
        return Pool(labels, classes=5, clients=5, seed=seed, groups=groups)

    def test_every_sample_has_one_owner_and_every_client_two_samples(self) -> None:
        """The owners are clients, and no client is left without a sample to train on."""
        for seed in range(5):
            owners = split_owners(self.choice, self.make_pool(seed))
            assert owners.shape == (400,)
            assert np.bincount(owners, minlength=5).min() >= 2

    def test_the_same_seed_gives_the_same_split(self) -> None:
        """A split depends on its pool alone."""
        first, second = (split_owners(self.choice, self.make_pool(3)) for _ in range(2))
        np.testing.assert_array_equal(first, second)


class CostContract(_PartContract):
    """The tests that a kind of costs passes."""

    registry = COSTS

    def test_costs_are_positive_finite_and_one_per_client(self) -> None:
        """Whatever the number of clients, each has a usable cost."""
        for count in (1, 7, 1000):
            ones = partial(np.ones, count)
            clients = CostedClients(count, seed=1, seconds_per_epoch=ones, clock_seconds=ones())
            costs = true_costs(self.choice, clients)
            assert costs.shape == (count,)
            assert np.all(np.isfinite(costs) & (costs > 0))

    def test_the_same_seed_gives_the_same_costs(self) -> None:
        """Costs depend on the clients alone."""
        seconds = np.arange(1.0, 10.0)
        clients = CostedClients(9, 2, seconds_per_epoch=lambda: seconds, clock_seconds=seconds)
        np.testing.assert_array_equal(
            true_costs(self.choice, clients), true_costs(self.choice, clients)
        )


class AggregatorContract(_PartContract):
    """The tests that an aggregator passes."""

    registry = AGGREGATORS

    def test_equal_vectors_come_to_that_vector_times_the_weights(self) -> None:
        """Where all clients agree, every aggregator is the weighted sum."""
        vector = stream(0, "vector").normal(size=20).astype(np.float32)
        weights = np.array([0.2, 0.3, 0.1])
        for vectors in ([vector] * 3, np.stack([vector] * 3)):
            combined = aggregated(self.choice, vectors, weights, _reference(vector))
            np.testing.assert_allclose(combined, 0.6 * vector.astype(np.float64), rtol=1e-6)

    def test_it_is_finite_and_of_the_same_size(self) -> None:
        """The result is a vector in double precision."""
        vectors = stream(1, "vectors").normal(size=(5, 20)).astype(np.float32)
        combined = aggregated(self.choice, list(vectors), np.full(5, 0.2), _reference(vectors[0]))
        assert combined.shape == (20,)
        assert combined.dtype == np.float64
        assert np.isfinite(combined).all()


def _reference(server_update: Params) -> Reference:
    """Return what updates are measured from: zero, and an update of the server's own."""
    own = server_update.astype(np.float64)
    return Reference(np.zeros(own.size, dtype=np.float32), lambda: own)


class MetricContract:
    """The tests that a metric passes."""

    name: str = ""

    @pytest.mark.filterwarnings("error")
    def test_it_has_a_label_and_a_value_that_json_can_hold(self) -> None:
        """A score metric is finite or NaN on any scores, those of zero clients included."""
        metric = METRICS[self.name]
        assert metric.label
        assert self.name.isidentifier()
        if isinstance(metric, ScoreMetric):
            for accuracy in ([50.0, 90.0, 70.0], [math.nan, 80.0, 10.0], [math.nan] * 3):
                array = np.array(accuracy)
                scores = Scores(array, array / 100, np.array([5, 9, 2]), 60.0, 1.0)
                value = evaluate(scores)[self.name]
                assert value is None or math.isfinite(value)

    def test_a_run_without_rounds_has_no_value_or_zero(self) -> None:
        """Without rounds a metric is None or finite, so that JSON can hold it."""
        value = METRICS[self.name].of_run(self.name, [], 3)
        assert value is None or math.isfinite(value)

    def test_it_can_be_read_from_a_record_without_evaluation_or_game(self) -> None:
        """A round of another strategy has no such value, which is no error."""
        record = RoundRecord(1, (0, 1), OfferRecord(), Outcomes((), {}, (3, 3), 6))
        value = METRICS[self.name].of_round(self.name, record)
        assert value is None or math.isfinite(value)


# The contract of behaviours.


class BehaviourContract(_PartContract):
    """The tests that a behaviour passes."""

    registry = BEHAVIOURS

    def make(self) -> Behaviour:
        """Return the behaviour under test."""
        return make_behaviour(self.choice, "entry")

    def encounters(self) -> list[Encounter]:
        """Return offers of two strategies: a warm-up, rounds that pay more or less, or nothing."""
        plan = Plan(rounds=10, per_round=2)
        offers = [
            Terms(1, 0, batches=3),
            *(Terms(1, 4, gamma, 0.8, report_loss="received") for gamma in (1.0, 0.4, 0.0)),
            Terms(2, 4, 1.0, 0.8),
        ]
        return [
            Encounter(terms, Profile(terms.client, 0.1, 20), chosen.respond, 0, group=(1, 2))
            for chosen in (STRATEGIES[name](plan=plan) for name in ("flamma", "fedavg"))
            for terms in offers
        ]

    def answer(self, encounter: Encounter, notes: Notes, failure: str = "") -> Update:
        """Return what the client sends back, with made-up weights where it trains."""
        behaviour = self.make()
        task, received = behaviour.act(encounter), _weights("received")
        idle = task.abstains or bool(failure)
        report = Update(
            task.client,
            params=None if idle else received + _weights("update"),
            samples=encounter.profile.samples,
            epochs=0 if idle else task.epochs,
            loss=math.nan if idle or task.terms.report_loss != "received" else 0.5,
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
        """A task of this client and round, with an effort that is not negative."""
        behaviour = self.make()
        for encounter in self.encounters():
            task = behaviour.act(encounter)
            assert isinstance(task, LocalWork)
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


# The contracts of contribution measures.

_CLIENTS, _WEIGHTS = 5, 60
_Conduct = Literal["work", "idle", "noise", "repeat"]


def _updates_of(
    models: Sequence[Params], before: Params, target: Floats | None = None
) -> RoundUpdates:
    """Return the updates of clients with equal shares, their mean being the new model.

    The validation loss is the mean squared distance from ``target``, by default 0 everywhere.
    """
    count = len(models)
    goal = np.zeros(before.size) if target is None else target

    def validate(params: Params) -> tuple[float, float]:
        with np.errstate(over="ignore"):
            loss = float(np.mean((params.astype(np.float64) - goal) ** 2))
        return loss, 100 / (1 + loss)

    return RoundUpdates(
        clients=np.arange(count),
        models=list(models),
        before=before,
        after=np.stack(models).astype(np.float64).mean(axis=0).astype(np.float32),
        trainable_size=before.size,
        weights=np.full(count, 1 / count),
        previous=np.full(count, np.nan),
        round=2,
        validate=validate,
    )


def played_round(conduct: _Conduct, seed: int = 0, work: int = 5) -> RoundUpdates:
    """Return the second round of clients with quadratic losses, of which client 0 may cheat.

    Every client takes ``work`` gradient steps towards its optimum near the common one.
    Some directions are steep and learned in the first round, so the update of that round is of
    little use in the second.
    """
    rng = stream(seed, "quadratic-clients")
    steps = np.geomspace(0.6, 0.02, _WEIGHTS)  # step size times curvature
    common = 3 * rng.normal(size=_WEIGHTS)
    optima = common + 0.5 * rng.normal(size=(_CLIENTS, _WEIGHTS))

    def moves(model: Floats, epochs: Sequence[int]) -> Floats:
        way: Floats = 1 - (1 - steps) ** np.array(epochs)[:, np.newaxis]
        return way * (optima - model)

    first = moves(np.zeros(_WEIGHTS), [5] * _CLIENTS)
    received = first.mean(axis=0)
    now = moves(received, [work, *[5] * (_CLIENTS - 1)])
    noise = rng.normal(size=_WEIGHTS) / np.sqrt(_WEIGHTS)
    own = {
        "work": now[0],
        "idle": 1e-3 * noise,
        "noise": np.linalg.norm(now[1:], axis=1).mean() * noise,
        "repeat": first[0],
    }
    now[0] = own[conduct]
    before = received.astype(np.float32)
    updates = _updates_of([(received + move).astype(np.float32) for move in now], before, common)
    return replace(updates, last_step=before)  # the first round began at 0


def _scored_as(loss: float, params: Params) -> tuple[float, float]:
    return loss, math.nan


class ContributionContract(_PartContract):
    """The tests that a contribution measure passes."""

    registry = CONTRIBUTIONS

    def measured(self, updates: RoundUpdates) -> Floats:
        """Return the contributions, having checked that each lies between 0 and 1."""
        found = measure_round(self.choice, updates)
        assert found.shape == (len(updates.models),)
        assert np.all((found >= 0) & (found <= 1))
        return found

    def test_a_contribution_lies_between_0_and_1(self) -> None:
        """Whatever the updates are, of one client or several, and however large."""
        for seed in range(20):
            rng = stream(seed, "update")
            drawn = rng.normal(size=(_CLIENTS + 1, 30)).astype(np.float32) * 10**seed
            for count in (1, 2, _CLIENTS):
                self.measured(_updates_of(list(drawn[:count]), drawn[-1]))

    def test_updates_that_are_zero_or_cancel_out_are_no_error(self) -> None:
        """Where no client moved, or the server did not, there is still a number for each."""
        zero, one = np.zeros(30, dtype=np.float32), np.ones(30, dtype=np.float32)
        for before in (zero, one):
            for moves in ([zero], [zero, zero], [one, -one], [one, -one, zero], [one] * 3):
                self.measured(_updates_of([before + move for move in moves], before))

    def test_equal_updates_contribute_equally(self) -> None:
        """Clients of equal weight that send the same contribute equally."""
        found = self.measured(
            _updates_of([np.arange(1, 31, dtype=np.float32)] * 3, np.zeros(30, np.float32))
        )
        np.testing.assert_allclose(found, found[0], rtol=1e-9, atol=1e-12)

    def test_scores_that_are_not_finite_are_no_error(self) -> None:
        """A model whose validation loss overflows has one like any other."""
        updates = played_round("work")
        for loss in (np.nan, np.inf, -np.inf, 1e308):
            self.measured(replace(updates, validate=partial(_scored_as, loss)))

    def test_the_same_updates_give_the_same_contributions(self) -> None:
        """A measure depends on the updates alone, and does not change them."""
        updates = played_round("work")
        before = [model.copy() for model in (*updates.models, updates.before, updates.after)]
        first, second = self.measured(updates), self.measured(updates)
        np.testing.assert_array_equal(first, second)
        after = [*updates.models, updates.before, updates.after]
        for vector, copy in zip(after, before, strict=True):
            np.testing.assert_array_equal(vector, copy)


class RewardContract(ContributionContract):
    """The further tests of a measure that clients can be paid by."""

    cheats: ClassVar[tuple[_Conduct, ...]] = ("idle", "noise")

    def test_cheating_earns_less_than_working(self) -> None:
        """Doing nothing and sending noise, or what else ``cheats`` names, earn less."""
        for seed in range(5):
            honest = self.measured(played_round("work", seed))[0]
            for conduct in self.cheats:
                assert self.measured(played_round(conduct, seed))[0] < honest, conduct

    def test_more_work_is_never_paid_less(self) -> None:
        """The pay of a round, ω times epochs, does not fall with the epochs done."""
        for seed in range(5):
            pay = [
                work * self.measured(played_round("work", seed, work))[0] for work in range(1, 9)
            ]
            assert np.all(np.diff(pay) >= 0), pay
            assert pay[-1] > pay[0]

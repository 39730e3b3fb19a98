"""The contracts of what runs are made of besides strategies."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from flamma.aggregators import AGGREGATORS, Reference, aggregated
from flamma.clients.costs import COSTS, CostedClients, true_costs
from flamma.data.splits import SPLITS, Pool, split_owners
from flamma.metrics import METRICS, ScoreMetric, evaluate
from flamma.records import RoundRecord
from flamma.registry import Choice, Registry
from flamma.seeding import stream
from flamma.types import Params, Scores


class PartContract:
    """What the suites share: an entry by name, with options if it needs any."""

    name: str = ""
    options: ClassVar[dict[str, Any]] = {}
    registry: ClassVar[Registry[Any]]

    @property
    def choice(self) -> Choice:
        """The entry under test with all of its options."""
        return self.registry.choose({"name": self.name, **self.options}, "entry")


class SplitContract(PartContract):
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


class CostContract(PartContract):
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


class AggregatorContract(PartContract):
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
        record = RoundRecord(1, (0, 1), (), {}, 1.0, (3, 3), None, 6)
        value = METRICS[self.name].of_round(self.name, record)
        assert value is None or math.isfinite(value)

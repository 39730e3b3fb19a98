"""Sizes, tasks and plans that no trainer can use: a sentence each, never a crash."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch import nn

from flamma.errors import ConfigError, FlammaError
from flamma.models import FlatModel, build_model
from flamma.training import TorchTrainer
from flamma.training.lanes import LanesTrainer, available, library, why_not
from flamma.types import TaskVectors
from training.test_lanes import again, initial, job

pytestmark = pytest.mark.skipif(not available(), reason=why_not())


@pytest.mark.parametrize("make", [LanesTrainer, TorchTrainer])
@pytest.mark.parametrize("batch_size", [-(2**63), 0, 2**63, 2**64 + 1, 10**400])
def test_a_batch_size_that_cannot_be_counted_is_refused(make, batch_size):
    module = build_model("logistic", (4,), 3, seed=1)
    arguments = (module, (4,)) if make is LanesTrainer else (FlatModel(module),)
    with pytest.raises(ConfigError, match=r"^the batch size [^\n]{1,60}$|not -9223372036854775808"):
        make(*arguments, batch_size)


def trainers(batch_size):
    module = build_model("logistic", (4,), 3, seed=1)
    return [LanesTrainer(module, (4,), batch_size), TorchTrainer(FlatModel(module), batch_size)]


@pytest.mark.parametrize("batch_size", [2**31, 2**62, 2**63 - 1])
def test_a_batch_longer_than_the_data_is_the_data(batch_size):
    params = initial(build_model("logistic", (4,), 3, seed=1))
    jobs = [job(0, 9, (4,), 3, epochs=3), job(1, 5, (4,), 3, iterations=4, wants_loss=True)]
    for one, other in zip(trainers(batch_size), trainers(16), strict=True):
        results, expected = (
            dict(trainer.train_each(params, again(jobs))) for trainer in (one, other)
        )
        for number in range(2):
            assert results[number].params is not None
            assert results[number].loss == pytest.approx(expected[number].loss, nan_ok=True)
            np.testing.assert_allclose(
                results[number].params, expected[number].params, rtol=1e-5, atol=1e-7
            )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 2**63}, "epochs must be a whole number"),
        ({"epochs": -1}, "epochs must be a whole number"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"iterations": 10**400}, "iterations must be a whole number"),
        ({"iterations": -5}, "iterations must be a whole number"),
        ({"learning_rate": 10**400}, "step size is too large"),
        ({"proximal": -(10**400)}, "proximal weight is too large"),
        ({"tilt": 10**400}, "tilt of the loss is too large"),
        ({"tilt": math.nan}, "tilt of the loss must be a finite number, not nan"),
        ({"tilt": -math.inf}, "tilt of the loss must be a finite number, not -inf"),
        ({"loss_bound": 10**400}, "bound of the loss is too large"),
        ({"loss_bound": 0.0}, "bound of the loss must be above 0, not 0"),
        ({"loss_bound": math.nan}, "bound of the loss must be above 0, not nan"),
        ({"loss_bound": 2.0, "tilt": 1.0}, "tilted or bounded, not both"),
    ],
)
def test_a_task_that_no_trainer_can_do_is_the_failure_of_its_client(changes, message):
    params = initial(build_model("logistic", (4,), 3, seed=1))
    for trainer in trainers(4):
        jobs = [job(0, 5, (4,), 3), job(1, 5, (4,), 3, **changes), job(2, 0, (4,), 3, iterations=2)]
        results = dict(trainer.train_each(params, jobs))
        assert results[0].error is None
        assert isinstance(results[1].error, FlammaError)
        assert message in str(results[1].error)
        assert "no training data" in str(results[2].error)


WEIGHTS = np.zeros(15, np.float32)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (TaskVectors(received=WEIGHTS[1:]), "received weights must be a vector of 15 float32"),
        (TaskVectors(received=WEIGHTS.astype(np.float64)), "received weights must be a vector"),
        (TaskVectors(start=WEIGHTS.reshape(3, 5)), "weights to start from must be a vector of 15"),
        (TaskVectors(start=np.full(15, np.inf, np.float32)), "start from must be finite"),
        (TaskVectors(correction=np.zeros(16, np.float32)), "correction of the gradient must be"),
        (TaskVectors(correction=np.full(15, np.nan, np.float32)), "gradient must be finite"),
    ],
)
def test_vectors_that_do_not_fit_the_model_are_the_failure_of_their_client(vectors, message):
    for trainer in trainers(4):
        jobs = [job(0, 5, (4,), 3), job(1, 5, (4,), 3)._replace(vectors=vectors)]
        results = dict(trainer.train_each(WEIGHTS, jobs))
        assert results[0].error is None
        assert isinstance(results[1].error, FlammaError)
        assert message in str(results[1].error)


def test_a_correction_is_as_long_as_what_is_trained():
    module = build_model(lambda *_: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), (4,), 3, 1)
    trainer = TorchTrainer(FlatModel(module), 4)
    layout, params = trainer.model.layout, trainer.model.read()
    for size, refused in ((layout.trainable_size, False), (layout.size, True)):
        own = TaskVectors(correction=np.zeros(size, np.float32))
        [(_, trained)] = trainer.train_each(params, [job(0, 8, (4,), 3)._replace(vectors=own)])
        assert (trained.error is not None) == refused


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (np.zeros(3, np.int64), "a plan is a list of 64-bit whole numbers"),
        (np.array([4.0, 1, 1, 2, 1, 6, 2, 0, 0, 0, 0, 0, 0]), "a plan is a list of 64-bit"),
        (np.array([3, 1, 1, 2, 1, 6, 2, 0, 0, 0, 0, 0, 0]), "not for samples of shape"),
        (np.array([4, 1, 1, 2, 1, 6, -2, 0, 0, 0, 0, 0, 0]), "the plan is not one of a net"),
        (np.array([4, 1, 1, 2, 2, 6, 2, 0, 0, 0, 0, 0, 0]), "the plan is not one of a net"),
        (np.array([4, 1, 1, 2**31 - 1, 1, 6, 2**31 - 1, *[0] * 6]), "more memory than there is"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan, message):
    with pytest.raises(FlammaError, match=message):
        LanesTrainer(plan, (4,), 2)


def test_mini_batches_beyond_the_memory_fail_their_clients_only(monkeypatch):
    module = build_model("mlp", (20,), 3, seed=1, hidden=[64])
    params = initial(module)
    monkeypatch.setattr("flamma.training.lanes.trainer.memory_of_machine", lambda: 2_000_000)
    trainer = LanesTrainer(module, (20,), 10**6)
    large, small = trainer.train_many(params, [job(0, 90_000, (20,), 3), job(1, 50, (20,), 3)])
    assert "more memory than there is" in str(large.error)
    assert small.params is not None


def test_kernels_of_another_version_are_not_called(monkeypatch):
    library.library.cache_clear()
    monkeypatch.setattr(library, "INTERFACE", library.INTERFACE + 1)
    try:
        assert "install the package again" in why_not()
    finally:
        library.library.cache_clear()

"""A client's own weights, start and correction, and other losses than the mean, in every trainer.

The reference is SGD written out on logistic regression, in double precision.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flamma.models import FlatModel, build_model
from flamma.simulation.executor import one_thread
from flamma.training import StackedTrainer, TorchTrainer, TrainingJob
from flamma.training.lanes import LanesTrainer, available, instruction_sets
from flamma.training.torch_trainer import _BOUND_MARGIN
from flamma.types import TaskVectors
from flat_work import work

SHAPE, CLASSES, BATCH = (6,), 3, 8
SIZE = CLASSES * SHAPE[0] + CLASSES
IMAGE = (2, 16, 16)

KINDS = ["torch", "stacked", "lanes"] if available() else ["torch", "stacked"]
every_trainer = pytest.mark.parametrize("kind", KINDS)
needs_lanes = pytest.mark.skipif(not available(), reason="lanes are not compiled")


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def made(kind, model="logistic", shape=SHAPE, momentum=0.0, **options):
    module = build_model(model, shape, CLASSES, seed=1)
    if kind == "lanes":
        return LanesTrainer(module, shape, BATCH, momentum, **options)
    if kind == "stacked":
        return StackedTrainer(FlatModel(module), shape, BATCH, momentum)
    return TorchTrainer(FlatModel(module), BATCH, momentum)


def vector(seed, size=SIZE, scale=0.3):
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def job(client=0, samples=21, shape=SHAPE, vectors=None, **changes):
    rng = np.random.default_rng(client)
    task = work(**{"client": client, "round": 1, "epochs": 2, "learning_rate": 0.1} | changes)
    x = rng.standard_normal((samples, *shape)).astype(np.float32)
    own = TrainingJob(task, x, rng.integers(0, CLASSES, samples), rng)
    return own if vectors is None else own._replace(vectors=vectors)


def results(trainer, params, jobs):
    found = {}
    fresh = [each._replace(rng=np.random.default_rng([3, each.task.client])) for each in jobs]
    for number, trained in trainer.train_each(params, fresh):
        assert trained.error is None, trained.error
        found[number] = trained._replace(params=trained.params.copy())
    return [found[number] for number in range(len(jobs))]


def value(losses, task):
    """Return what a mini-batch minimises, as the formulas say."""
    if task.terms.objective.tilt:
        return (task.terms.objective.tilt * losses).exp().mean().log() / task.terms.objective.tilt
    mean, bound = losses.mean(), task.terms.objective.bound
    if bound == math.inf:
        return mean
    edge = bound - _BOUND_MARGIN
    if mean <= edge:
        return -bound * (1 - mean / bound).log()
    return -bound * math.log(_BOUND_MARGIN / bound) + bound / _BOUND_MARGIN * (mean - edge)


def losses_of(weights, x, y):
    cut = CLASSES * SHAPE[0]
    logits = torch.from_numpy(x).double() @ weights[:cut].view(CLASSES, -1).T + weights[cut:]
    return cross_entropy(logits, torch.from_numpy(y), reduction="none")


def by_hand(params, one, momentum=0.0):
    """Return weights, the loss at the start and that at the end, by SGD written out."""
    task, own, rng = one.task, one.vectors, np.random.default_rng([3, one.task.client])
    received = torch.from_numpy(params if own.received is None else own.received).double()
    weights = received if own.start is None else torch.from_numpy(own.start).double()
    added = 0 if own.correction is None else torch.from_numpy(own.correction).double()
    first, velocity = losses_of(weights, one.x, one.y).mean().item(), 0
    for _ in range(0 if not task.terms.train else task.epochs):
        order = rng.permutation(one.y.size)
        for begin in range(0, one.y.size, BATCH):
            batch, point = order[begin : begin + BATCH], weights.clone().requires_grad_()
            value(losses_of(point, one.x[batch], one.y[batch]), task).backward()
            pull = task.terms.objective.proximal * (weights - received)
            velocity = momentum * velocity + point.grad + added + pull
            weights = weights - task.learning_rate * velocity
    return weights.numpy(), first, losses_of(weights, one.x, one.y).mean().item()


CASES = {
    "plain": {},
    "correction": {"vectors": TaskVectors(correction=vector(1))},
    "own received": {"vectors": TaskVectors(received=vector(2)), "proximal": 0.7},
    "ditto": {"vectors": TaskVectors(start=vector(3)), "proximal": 0.7},
    "all vectors": {"vectors": TaskVectors(vector(2), vector(3), vector(4)), "proximal": 0.7},
    "bound": {"bound": 2.0},
    "bound below the loss": {"bound": 0.9},
    "tilt": {"tilt": 2.0},
    "negative tilt": {"tilt": -1.5},
    "everything": {
        "vectors": TaskVectors(vector(2), vector(3), vector(4)),
        "proximal": 0.3,
        "tilt": 0.7,
    },
}


@every_trainer
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_every_step_is_that_of_the_formula(kind, momentum):
    params = vector(0)
    jobs = [
        job(client, 17 + client, report_loss="received", **CASES[name])
        for client, name in enumerate(CASES)
    ]
    for one, trained in zip(
        jobs, results(made(kind, momentum=momentum), params, jobs), strict=True
    ):
        weights, first, _ = by_hand(params, one, momentum)
        np.testing.assert_allclose(trained.params, weights, atol=5e-6)
        assert trained.loss == pytest.approx(first, rel=1e-5)
        assert np.abs(weights - params).max() > 0.05


@every_trainer
def test_the_loss_told_is_that_of_the_trained_weights_where_the_task_wants_it(kind):
    params = vector(0)
    jobs = [
        job(0, report_loss="trained"),
        job(1, report_loss="trained", vectors=TaskVectors(start=vector(3))),
        job(2, report_loss="received"),
        job(3),
        job(4, report_loss="trained", epochs=0, batches=0),
    ]
    found = results(made(kind), params, jobs)
    hand = [by_hand(params, one) for one in jobs]
    for number in (0, 1, 4):
        assert found[number].loss == pytest.approx(hand[number][2], rel=1e-5)
    assert found[2].loss == pytest.approx(hand[2][1], rel=1e-5)
    assert math.isnan(found[3].loss)
    assert abs(hand[0][1] - hand[0][2]) > 0.1


@every_trainer
def test_who_evaluates_tells_the_loss_of_the_start_and_trains_nothing(kind):
    params, own = vector(0), TaskVectors(received=vector(2), start=vector(3))
    jobs = [
        job(0, train=False),
        job(1, train=False, vectors=TaskVectors(received=own.received)),
        job(2, train=False, vectors=own, batches=4),
        job(3, epochs=0, batches=0, report_loss="received", vectors=own),
        job(4, epochs=0, train=False, report_loss="trained"),
    ]
    found = results(made(kind), params, jobs)
    starts = [params, own.received, own.start, own.start, params]
    for one, trained, start in zip(jobs, found, starts, strict=True):
        losses = losses_of(torch.from_numpy(start).double(), one.x, one.y)
        assert trained.loss == pytest.approx(losses.mean().item(), rel=1e-5)
        assert trained.params.tobytes() == start.tobytes()


@every_trainer
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_correction_of_minus_the_gradient_stays_where_it_is(kind, momentum):
    params, one = vector(0), job(samples=BATCH, epochs=5)
    point = torch.from_numpy(params).double().requires_grad_()
    losses_of(point, one.x, one.y).mean().backward()
    correction = (-point.grad.numpy()).astype(np.float32)
    [still] = results(
        made(kind, momentum=momentum),
        params,
        [one._replace(vectors=TaskVectors(correction=correction))],
    )
    np.testing.assert_allclose(still.params, params, atol=1e-6)


@every_trainer
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_changes_nothing_changes_no_bit(kind, momentum):
    params, zeros = vector(0), np.zeros(SIZE, np.float32)
    plain = [job(client, proximal=0.2 * client, report_loss="received") for client in range(3)]
    given = TaskVectors(params.copy(), params.copy(), zeros)
    same = [
        each._replace(vectors=given, task=replace(each.task, terms=replace(each.task.terms)))
        for each in plain
    ]
    for one, two in zip(
        results(made(kind, momentum=momentum), params, plain),
        results(made(kind, momentum=momentum), params, same),
        strict=True,
    ):
        assert one.params.tobytes() == two.params.tobytes()
        assert one.loss == two.loss


@every_trainer
@pytest.mark.parametrize("tilt", [1e30, -1e30, 1e-30])
def test_extreme_tilts_stay_finite(kind, tilt):
    # The largest (or the smallest) loss alone, and the mean.
    params, one = vector(0), job(samples=BATCH, epochs=1, tilt=tilt)
    [trained] = results(made(kind), params, [one])
    losses = losses_of(point := torch.from_numpy(params).double().requires_grad_(), one.x, one.y)
    chosen = {1e30: losses.max(), -1e30: losses.min(), 1e-30: losses.mean()}[tilt]
    chosen.backward()
    np.testing.assert_allclose(trained.params, params - 0.1 * point.grad.numpy(), atol=1e-6)


def image_jobs(size):
    """Return clients on images that differ in all that is new, beside some without."""
    own = [vector(seed, size, 0.05) for seed in range(6)]
    return [
        job(0, 30, IMAGE, TaskVectors(correction=own[0]), learning_rate=0.05),
        job(1, 9, IMAGE, TaskVectors(own[1], own[2], own[3]), proximal=0.5, report_loss="received"),
        job(2, 25, IMAGE, bound=1.5, report_loss="trained"),
        job(3, 40, IMAGE, tilt=1.0, report_loss="received"),
        job(4, 12, IMAGE, proximal=0.5),
        job(5, 33, IMAGE),
        job(6, 14, IMAGE, TaskVectors(start=own[4]), train=False),
        job(7, 21, IMAGE, TaskVectors(own[5]), tilt=-0.5, proximal=0.1, report_loss="trained"),
    ]


@pytest.mark.parametrize("model", ["lenet5", "mlp"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_every_trainer_agrees_with_torch(kind, model):
    one, many = made("torch", model, IMAGE, 0.5), made(kind, model, IMAGE, 0.5)
    params = one.model.read()
    jobs = image_jobs(params.size)
    for each, found, expected in zip(
        jobs, results(many, params, jobs), results(one, params, jobs), strict=True
    ):
        change = np.linalg.norm(expected.params - each.start(params))
        assert np.linalg.norm(found.params - expected.params) <= 1e-3 * change
        assert found.loss == pytest.approx(expected.loss, rel=1e-4, nan_ok=True)


@needs_lanes
@pytest.mark.parametrize("model", ["lenet5", "mlp"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_lanes_give_the_same_bits_with_every_instruction_set(model, momentum):
    params = FlatModel(build_model(model, IMAGE, CLASSES, seed=1)).read()
    jobs = image_jobs(params.size)
    found = set()
    for name in instruction_sets():
        trained = results(made("lanes", model, IMAGE, momentum, instructions=name), params, jobs)
        found.add(tuple((one.params.tobytes(), np.float64(one.loss).tobytes()) for one in trained))
    assert len(found) == 1


@needs_lanes
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_neighbours_and_clients_before_change_no_bit_in_lanes(momentum):
    params = FlatModel(build_model("lenet5", IMAGE, CLASSES, seed=1)).read()
    jobs, trainer = image_jobs(params.size), made("lanes", "lenet5", IMAGE, momentum)
    together = results(trainer, params, jobs)
    backwards = results(trainer, params, jobs[::-1])[::-1]
    alone = [results(made("lanes", "lenet5", IMAGE, momentum), params, [one])[0] for one in jobs]
    for one, two, three in zip(together, backwards, alone, strict=True):
        assert one.params.tobytes() == two.params.tobytes() == three.params.tobytes()
        assert np.array_equal([one.loss] * 2, [two.loss, three.loss], equal_nan=True)


@needs_lanes
def test_vectors_may_be_views_of_others():
    params, wide = vector(0), vector(1, 2 * SIZE)
    strided = job(vectors=TaskVectors(correction=wide[::2]))
    copied = job(vectors=TaskVectors(correction=wide[::2].copy()))
    one, two = results(made("lanes"), params, [strided, copied])
    assert one.params.tobytes() == two.params.tobytes()

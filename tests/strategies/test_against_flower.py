"""The optimising servers and q-FFL beside Flower's own, on the same weights for three rounds.

Where the two differ it is said here how, and that nothing else does: a reference of a few lines
follows Flower's with Flower's choices, and ours with the paper's.
"""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
from flwr import app
from flwr.serverapp import strategy as flower
from flwr.supercore import task_identity as identity

from flamma.seeding import stream
from flamma.strategies.base import Offer
from flamma.strategies.loss_weights import QFFL
from flamma.strategies.server_optimisers import FedAdam, FedAvgM, FedYogi
from flamma.types import Plan, Population, Terms, Update
from quadratic_clients import START

SAMPLES = (10, 30, 20)
LOSSES = (0.4, 2.0, 0.0)
PLAN = Plan(rounds=3, per_round=3, epochs=1)
ADAPTIVE = {"eta": 0.1, "beta_1": 0.8, "beta_2": 0.9, "tau": 0.01}


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch):
    """Let messages be made outside of a running app.

    Flower looks for garbage at every conversion of weights, which takes long among all tests.
    """
    monkeypatch.setattr(gc, "collect", lambda: 0)
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(identity.TaskIdentity, name, 1)


def trained(weights, number):
    """Return what three clients make of the weights in a round."""
    moves = stream(5, "moves", number).normal(size=(3, weights.size))
    return [(weights + 0.1 * move).astype(np.float32) for move in moves]


def by_flower(strategy):
    """Return the weights after each of three rounds of Flower's strategy."""
    weights, after = START, []
    for number in (1, 2, 3):
        arrays = app.ArrayRecord({"w": app.Array(weights)})
        as_record = isinstance(strategy, flower.FedAvgM | flower.QFedAvg)
        strategy.current_arrays = arrays if as_record else {"w": weights}
        replies = []
        answers = zip(trained(weights, number), SAMPLES, LOSSES, strict=True)
        for model, samples, loss in answers:
            told = app.MetricRecord({"num-examples": samples, "train_loss": loss})
            content = {"arrays": app.ArrayRecord({"w": app.Array(model)}), "metrics": told}
            replies.append(app.Message(app.RecordDict(content), 1, "train"))
        found, _ = strategy.aggregate_train(number, replies)
        weights = found["w"].numpy().astype(np.float32)
        after.append(weights)
    return np.stack(after)


def by_ours(strategy):
    """Return the weights after each of three rounds of our strategy."""
    state = strategy.init(START, Population(np.array(SAMPLES), None, START.size))
    after = []
    for number in (1, 2, 3):
        made = Offer(number, tuple(Terms(k, number) for k in range(3)))
        models = trained(state.params, number)
        reports = [Update(k, model, SAMPLES[k], 1, LOSSES[k]) for k, model in enumerate(models)]
        state, _ = strategy.aggregate(state, made, reports)
        after.append(state.params)
    return np.stack(after)


def adaptive(kind, second, corrected):
    """Return the same by a reference; ``second`` is where v starts."""
    eta, beta_1, beta_2, tau = ADAPTIVE.values()
    weights, m, v, after = START, 0.0, second, []
    for number in (1, 2, 3):
        delta = np.average(trained(weights, number), axis=0, weights=SAMPLES) - weights
        m = beta_1 * m + (1 - beta_1) * delta
        if kind == "adam":
            v = beta_2 * v + (1 - beta_2) * delta**2
        else:
            v = v - (1 - beta_2) * delta**2 * np.sign(v - delta**2)
        rate = eta
        if corrected:  # Flower's exponent is one more than the number of rounds
            rate *= math.sqrt(1 - beta_2 ** (number + 1)) / (1 - beta_1 ** (number + 1))
        weights = (weights + rate * m / (np.sqrt(v) + tau)).astype(np.float32)
        after.append(weights)
    return np.stack(after)


def options():
    eta, beta_1, beta_2, tau = ADAPTIVE.values()
    return {"server_step": eta, "beta_1": beta_1, "beta_2": beta_2, "tau": tau}


@pytest.mark.parametrize(("momentum", "rate"), [(0.9, 1.0), (0.5, 0.7), (0.0, 0.5)])
def test_fedavgm_is_that_of_flower(momentum, rate):
    theirs = by_flower(flower.FedAvgM(server_momentum=momentum, server_learning_rate=rate))
    ours = by_ours(FedAvgM(PLAN, server_momentum=momentum, server_step=rate))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_fedadam_is_that_of_flower_but_for_the_start_and_its_correction():
    theirs, ours = by_flower(flower.FedAdam(**ADAPTIVE)), by_ours(FedAdam(PLAN, **options()))
    np.testing.assert_allclose(theirs, adaptive("adam", 0.0, True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours, adaptive("adam", 0.01**2, False), rtol=1e-4, atol=1e-6)
    assert np.abs(ours - theirs).max() > 0.01


def test_fedyogi_is_that_of_flower_but_for_the_start():
    theirs, ours = by_flower(flower.FedYogi(**ADAPTIVE)), by_ours(FedYogi(PLAN, **options()))
    np.testing.assert_allclose(theirs, adaptive("yogi", 0.0, False), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours, adaptive("yogi", 0.01**2, False), rtol=1e-4, atol=1e-6)
    assert np.abs(ours - theirs).max() > 1e-4


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_qffl_is_that_of_flower(q):
    theirs = by_flower(flower.QFedAvg(client_learning_rate=PLAN.learning_rate, q=q))
    np.testing.assert_allclose(by_ours(QFFL(PLAN, q=q)), theirs, rtol=1e-5, atol=1e-6)

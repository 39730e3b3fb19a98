"""Models of clients' own: Ditto, and everybody alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flamma.errors import StrategyError
from flamma.strategies import in_family
from flamma.strategies.fedavg import FedAvg
from flamma.strategies.personal import Ditto, Local
from flat_work import work
from quadratic_clients import PLAN, START, STEPS, TARGETS, play, selected

ETA = PLAN.learning_rate


def evaluated(strategy, states, side):
    """Return the model that each client evaluates in the end."""
    broadcast = strategy.broadcast(states[-1])
    return np.stack([side.model_of(client, broadcast) for client in range(4)])


def test_the_global_model_of_ditto_is_that_of_fedavg_to_the_bit():
    mine, records, _ = play(Ditto(PLAN), 5)
    plain, theirs, _ = play(FedAvg(PLAN), 5)
    for ours, other in zip(mine, plain, strict=True):
        np.testing.assert_array_equal(ours.params, other.params)
    assert [r.selected for r in records] == [r.selected for r in theirs]
    assert [r.cost for r in records] == [r.cost for r in theirs]


@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_the_own_models_of_ditto_over_four_rounds(proximal):
    strategy = Ditto(PLAN, proximal=proximal)
    states, _, side = play(strategy, 4)
    received = [START, *(state.params for state in states)]
    own = {}
    for number, chosen in enumerate(selected(4)):
        w = received[number].astype(np.float64)
        for k in chosen:
            v = own.get(k, w)
            for _ in range(STEPS[k]):
                v = v - ETA * ((v - TARGETS[k]) + proximal * (v - w))
            own[k] = v
    expected = [own.get(k, states[-1].params) for k in range(4)]
    np.testing.assert_allclose(evaluated(strategy, states, side), expected, rtol=1e-5, atol=1e-6)


def test_the_more_ditto_pulls_the_nearer_own_models_are():
    distances = []
    for proximal in (0.0, 1.0, 5.0):
        strategy = Ditto(PLAN, proximal=proximal)
        states, _, side = play(strategy, 6)
        models = evaluated(strategy, states, side)
        distances.append(np.abs(models - states[-1].params).sum())
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 1.5 * distances[2]


@pytest.mark.parametrize(("own_epochs", "counted"), [(None, 2 * (2 + 2)), (5, 2 * (2 + 5))])
def test_epochs_of_own_models_count_as_work(own_epochs, counted):
    strategy = Ditto(PLAN, own_epochs=own_epochs)
    _, records, _ = play(strategy, 1)
    assert records[0].outcome.epochs_total == counted
    task = strategy.personal_work(work(0, 1, 2, 0.1))
    assert (task.epochs, task.terms.objective.proximal) == (own_epochs or 2, 1.0)


def test_alone_everybody_goes_on_from_its_own_model():
    strategy = Local(PLAN)
    states, records, side = play(strategy, 5)
    plain, theirs, _ = play(FedAvg(PLAN), 5)
    assert [r.selected for r in records] == [r.selected for r in theirs]
    assert [r.outcome for r in records] == [r.outcome for r in theirs]
    times = np.bincount(np.concatenate(selected(5)), minlength=4)
    stays = (1 - ETA) ** (times * STEPS)
    expected = TARGETS + stays[:, None] * (START - TARGETS)
    np.testing.assert_allclose(evaluated(strategy, states, side), expected, rtol=1e-5, atol=1e-6)
    for state in states:
        np.testing.assert_array_equal(state.params, START)
    assert not np.array_equal(plain[-1].params, START)


def test_alone_no_model_travels():
    _, records, _ = play(Local(PLAN), 3)
    assert {(record.cost.bytes_up, record.cost.bytes_down) for record in records} == {(0, 0)}


def test_a_client_evaluates_the_initial_model_until_it_is_asked():
    strategy = Local(replace(PLAN, per_round=1))
    states, records, side = play(strategy, 1)
    models = evaluated(strategy, states, side)
    for client in set(range(4)) - set(records[0].selected):
        np.testing.assert_array_equal(models[client], START)


@pytest.mark.parametrize("options", [{"proximal": -1.0}, {"own_epochs": 0}])
def test_options_out_of_range_are_named(options):
    with pytest.raises(StrategyError, match=rf"^strategy\.{next(iter(options))} must (be|lie)"):
        Ditto(PLAN, **options)


def test_the_family():
    assert {"ditto", "local"} <= set(in_family("personal"))

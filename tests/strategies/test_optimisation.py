"""Optimisation under skew: identities to the bit, values by hand, and few-line references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.errors import StrategyError
from flamma.strategies import STRATEGIES, in_family
from flamma.strategies.base import Offer
from flamma.strategies.drift import FedDyn, Scaffold
from flamma.strategies.fedavg import FedAvg, FedProx, gradient_weight, stepped
from flamma.strategies.memory import FedVarp
from flamma.strategies.server_optimisers import FedAdam, FedAvgM, FedNova, FedYogi
from flamma.types import Plan, Population, Terms, Update
from flat_work import work
from quadratic_clients import (
    EVERYBODY,
    PLAN,
    SAMPLES,
    START,
    STEPS,
    TARGETS,
    everybody,
    play,
    selected,
)

EQUAL = np.full(4, 16)
ETA = PLAN.learning_rate


def vector(*numbers):
    return np.array(numbers, dtype=np.float32)


def one_round(strategy, start, models, samples, trainable_size=2, state=None):
    """Return the state after one round in which every client sends a model."""
    state = state or strategy.init(
        vector(*start), Population(np.array(samples), None, trainable_size)
    )
    number = state.round + 1
    made = Offer(number, tuple(Terms(k, number) for k in range(len(models))))
    reports = [
        Update(k, vector(*model), samples[k], strategy.plan.epochs)
        for k, model in enumerate(models)
    ]
    return strategy.aggregate(state, made, reports)[0]


def params_of(states):
    return np.stack([state.params for state in states])


@pytest.mark.parametrize(
    ("strategy", "samples"),
    [
        (FedNova(PLAN), EQUAL),  # as many steps each
        (FedAvgM(PLAN, server_momentum=0.0), SAMPLES),
        (FedVarp(everybody()), SAMPLES),
    ],
)
def test_it_is_fedavg_to_the_bit(strategy, samples):
    mine, _, _ = play(strategy, 5, samples)
    plain, _, _ = play(FedAvg(strategy.plan), 5, samples)
    np.testing.assert_array_equal(params_of(mine), params_of(plain))


def test_fednova_where_steps_differ_is_not_fedavg():
    mine, _, _ = play(FedNova(PLAN), 1)
    plain, _, _ = play(FedAvg(PLAN), 1)
    assert not np.allclose(mine[0].params, plain[0].params, atol=1e-3)


def test_scaffold_without_controls_is_fedavg_to_the_bit():
    mine, _, _ = play(Scaffold(PLAN), 2, EQUAL)
    plain, _, _ = play(FedAvg(PLAN), 2, EQUAL)
    np.testing.assert_array_equal(mine[0].params, plain[0].params)
    assert not np.allclose(mine[1].params, plain[1].params, atol=1e-4)


def test_the_first_round_of_feddyn_is_fedprox_with_a_longer_step():
    # h_k = 0, so clients do FedProx with μ = α; h / α = -(|S| / N) mean u, so w moves by
    # (1 + 2/4) mean u.
    mine, _, _ = play(FedDyn(PLAN, alpha=0.3), 1, EQUAL)
    proximal, _, _ = play(FedProx(PLAN, mu=0.3), 1, EQUAL)
    update = proximal[0].params.astype(np.float64) - START
    expected = (proximal[0].params + 0.5 * update).astype(np.float32)
    np.testing.assert_array_equal(mine[0].params, expected)


@pytest.mark.parametrize(
    ("momentum", "expected"),
    [
        # a = 1 and 3, p = 1/4 and 3/4: 2.5 (1/4 (4, 0) + 3/4 (0, 6) / 3).
        (0.0, (2.5, 3.75)),
        # ρ = 1/2: three steps hold 1.75 + 1.5 + 1 = 4.25 gradients; Σ p a = 3.4375.
        (0.5, (3.4375, 3.4375 * 0.75 * 6 / 4.25)),
    ],
)
def test_fednova_by_hand(momentum, expected):
    plan = Plan(rounds=3, per_round=2, epochs=1, batch_size=10, momentum=momentum)
    after = one_round(FedNova(plan), (0, 0), [(4, 0), (0, 6)], [10, 30])
    np.testing.assert_allclose(after.params, expected, rtol=1e-6)


@given(
    samples=st.integers(1, 300),
    epochs=st.integers(1, 4),
    momentum=st.floats(0, 0.99),
    batch_size=st.integers(1, 64),
)
def test_the_gradients_in_an_update_are_those_that_sgd_has_added_up(
    samples, epochs, momentum, batch_size
):
    plan = Plan(rounds=1, per_round=1, batch_size=batch_size, momentum=momentum)
    velocity = moved = 0.0
    for _ in range(epochs * int(np.ceil(samples / batch_size))):
        velocity = momentum * velocity + 1
        moved += velocity
    assert gradient_weight(plan, samples, epochs) == pytest.approx(moved, rel=1e-6)


def test_iterations_count_as_steps():
    assert gradient_weight(PLAN, samples=30, epochs=9, iterations=5) == 5


@pytest.mark.parametrize("server_step", [1.0, 0.5])
def test_scaffold_over_four_rounds(server_step):
    """Against Algorithm 1 of the paper, written down for quadratic losses."""
    w, c, own = START.astype(np.float64), np.zeros(5), np.zeros((4, 5))
    states, _, side = play(Scaffold(PLAN, server_step=server_step), 4)
    for number, chosen in enumerate(selected(4)):
        updates, moves = [], np.zeros(5)
        for k in chosen:
            v = w.copy()
            for _ in range(STEPS[k]):
                v -= ETA * ((v - TARGETS[k]) - own[k] + c)
            after = own[k] - c + (w - v) / (STEPS[k] * ETA)
            moves += after - own[k]
            updates.append(v - w)
            own[k] = after
        w, c = w + server_step * np.mean(updates, axis=0), c + moves / 4
        np.testing.assert_allclose(states[number].params, w, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(states[number].control, c, rtol=1e-4, atol=1e-5)
    for k in set(np.concatenate(selected(4))):
        np.testing.assert_allclose(side.kept.read(k, 5), own[k], rtol=1e-4, atol=1e-5)


def test_feddyn_over_four_rounds():
    """Against the paper's Algorithm 1, written down for quadratic losses."""
    alpha = 0.3
    w, h, own = START.astype(np.float64), np.zeros(5), np.zeros((4, 5))
    states, _, side = play(FedDyn(PLAN, alpha=alpha), 4)
    for number, chosen in enumerate(selected(4)):
        models = []
        for k in chosen:
            v = w.copy()
            for _ in range(STEPS[k]):
                v -= ETA * ((v - TARGETS[k]) - own[k] + alpha * (v - w))
            own[k] -= alpha * (v - w)
            models.append(v)
        h -= alpha / 4 * np.sum(np.array(models) - w, axis=0)
        w = np.mean(models, axis=0) - h / alpha
        np.testing.assert_allclose(states[number].params, w, rtol=1e-5, atol=1e-6)
    for k in set(np.concatenate(selected(4))):
        np.testing.assert_allclose(side.kept.read(k, 5), own[k], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", [Scaffold(everybody()), FedDyn(everybody(), alpha=0.5)])
def test_corrected_clients_agree_on_the_minimum_of_the_whole(strategy):
    """Where steps differ, FedAvg ends elsewhere than at the minimum of the mean loss."""
    minimum = TARGETS.mean(axis=0)
    mine, _, _ = play(strategy, 150)
    np.testing.assert_allclose(mine[-1].params, minimum, atol=1e-4)
    plain, _, _ = play(FedAvg(everybody()), 150)
    assert np.abs(plain[-1].params - minimum).max() > 0.05


def test_the_server_of_scaffold_learns_nothing_but_models():
    _, records, _ = play(Scaffold(PLAN), 1)
    models = 2 * START.nbytes
    assert records[0].cost.bytes_up == models
    assert records[0].cost.bytes_down == 2 * models  # with each model goes the server's control


@pytest.mark.parametrize("strategy", [Scaffold(PLAN), FedDyn(PLAN)])
def test_a_client_that_lost_what_it_kept_is_flagged(strategy):
    _, records, _ = play(strategy, 4, lost=[4])
    before = set(np.concatenate(selected(3)).tolist())
    assert set(records[3].outcome.flags) == before & set(records[3].selected) != set()
    assert not any(record.outcome.flags for record in records[:3])


def test_a_training_that_diverged_is_not_kept():
    strategy = Scaffold(PLAN)
    states, _, side = play(strategy, 1)
    client = int(selected(1)[0][0])
    before = side.kept.read(client, 2)
    task = work(client, 2, 2, ETA)
    vectors = side.vectors(task, states[-1].params, states[-1].control)
    lost = Update(client, np.full(5, np.inf, np.float32), 8, 2)
    side.settle(task, vectors, lost)
    np.testing.assert_array_equal(side.kept.read(client, 3), before)


def test_fedavgm_by_hand():
    # v = (2, 4), w = (1, 2); then the mean is (2, 2), u = (1, 0): v = (2, 2), w = (2, 3).
    strategy = FedAvgM(replace(PLAN, epochs=1), server_momentum=0.5, server_step=0.5)
    state = one_round(strategy, (0, 0), [(2, 4), (2, 4)], [10, 30])
    np.testing.assert_array_equal(state.params, vector(1, 2))
    state = one_round(strategy, (0, 0), [(5, 2), (1, 2)], [10, 30], state=state)
    np.testing.assert_array_equal(state.params, vector(2, 3))


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
def test_the_adaptive_servers_over_three_rounds(kind):
    """Against Algorithm 2 of Reddi et al., in its own words."""
    options = {"server_step": 0.1, "beta_1": 0.8, "beta_2": 0.7, "tau": 0.01}
    w, m, v = START.astype(np.float64), 0.0, 0.01**2
    states, _, _ = play(kind(PLAN, **options), 3)
    for number, chosen in enumerate(selected(3)):
        ways = [1 - (1 - ETA) ** STEPS[k] for k in chosen]
        updates = [way * (TARGETS[k] - w) for way, k in zip(ways, chosen, strict=True)]
        delta = np.average(updates, axis=0, weights=SAMPLES[chosen])
        m = 0.8 * m + 0.2 * delta
        if kind is FedAdam:
            v = 0.7 * v + 0.3 * delta**2
        else:
            v = v - 0.3 * delta**2 * np.sign(v - delta**2)
        w = w + 0.1 * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(states[number].params, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("server_step", [1.0, 0.7])
def test_fedvarp_over_five_rounds(server_step):
    """Against Algorithm 2 of the paper, with means by data size."""
    w, last = START.astype(np.float64), np.zeros((4, 5))
    states, _, _ = play(FedVarp(PLAN, server_step=server_step), 5)
    for number, chosen in enumerate(selected(5)):
        ways = 1 - (1 - ETA) ** STEPS[chosen]
        updates = ways[:, None] * (TARGETS[chosen] - w)
        fresh = np.average(updates - last[chosen], axis=0, weights=SAMPLES[chosen])
        w = w + server_step * (fresh + np.average(last, axis=0, weights=SAMPLES))
        last[chosen] = updates
        np.testing.assert_allclose(states[number].params, w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(states[-1].kept), last, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["fednova", "scaffold", "feddyn", "fedavgm", "fedadam", "fedvarp"])
def test_what_is_not_trained_becomes_the_mean(name):
    strategy = STRATEGIES[name](replace(PLAN, epochs=1))
    after = one_round(strategy, (0, 0, 9), [(1, 2, 4), (3, 1, 6)], [16, 16])
    assert after.params[2] == 5


@pytest.mark.parametrize("aggregator", ["median", "norm-clipping"])
@pytest.mark.parametrize("name", ["fednova", "scaffold", "feddyn", "fedavgm", "fedvarp"])
def test_one_liar_is_held_down_by_a_robust_aggregator(name, aggregator):
    strategy = STRATEGIES[name](everybody(), aggregator=aggregator)
    state = strategy.init(START, Population(EQUAL, None, 5))
    for number in range(1, 4):
        made = strategy.offer(state, EVERYBODY, np.random.default_rng(0))
        models = [state.params + np.float32(0.1 * k) for k in range(3)]
        models.append(state.params - np.float32(1e6))
        reports = [Update(k, model, 16, 2) for k, model in enumerate(models)]
        state, _ = strategy.aggregate(state, made, reports)
        assert state.round == number
    assert np.abs(state.params).max() < 20


def test_a_step_to_the_mean_is_the_mean_however_far_apart_they_are():
    received, mean = vector(1, 1e20), vector(1e-20, -1e-20)
    step = mean.astype(np.float64) - received
    np.testing.assert_array_equal(stepped(received, mean, step), mean)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Scaffold, {"server_step": 0.0}),
        (FedDyn, {"alpha": 0.0}),
        (FedDyn, {"alpha": float("nan")}),
        (FedAvgM, {"server_momentum": 1.0}),
        (FedAvgM, {"server_step": -1.0}),
        (FedAdam, {"beta_1": -0.1}),
        (FedAdam, {"beta_2": 1.0}),
        (FedYogi, {"tau": 0.0}),
        (FedVarp, {"server_step": 0.0}),
    ],
)
def test_options_out_of_range_are_named(kind, options):
    with pytest.raises(StrategyError, match=rf"^strategy\.{next(iter(options))} must (be|lie)"):
        kind(PLAN, **options)


def test_the_family():
    ours = ["fednova", "scaffold", "feddyn", "fedavgm", "fedadam", "fedyogi", "fedvarp"]
    assert set(ours) <= set(in_family("optimisation"))

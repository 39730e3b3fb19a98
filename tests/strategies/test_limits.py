"""Strategies at their limits: numbers stay finite, and what does not fit is refused at once."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

from flamma.errors import RunError, StrategyError
from flamma.experiments.run import run
from flamma.strategies import STRATEGIES
from flamma.strategies.fedavg import FedAvg
from flamma.strategies.flamma_plus import loss_factors
from flamma.types import Plan, Population, Update

PLAN = Plan(rounds=5, per_round=3, epochs=1, learning_rate=0.1, batch_size=8)
REMEMBERING = ["mifa", "flamma-plus", "fedvarp"]


def population(clients, size):
    return Population(np.full(clients, 10), np.full(clients, 0.1), size, np.full(clients, 2))


def played(strategy, losses, size=4):
    """Return the weights after a round in which clients tell these losses."""
    state = strategy.init(np.zeros(size, dtype=np.float32), population(len(losses), size))
    offer = strategy.offer(state, np.arange(len(losses)), np.random.default_rng(0))
    reports = [
        Update(k, np.full(size, k + 1, dtype=np.float32), samples=10, epochs=1, loss=loss)
        for k, loss in enumerate(losses)
    ]
    return strategy.aggregate(state, offer, reports)[0].params


@pytest.mark.parametrize("q", [0.5, 1.0, 5.0, 200.0, 1e18, 1e308])
@pytest.mark.parametrize("losses", [(1.0, 2.0, 3.0), (1e308, 1e308, 0.0), (0.0, 0.0, 0.0)])
def test_qffl_stays_finite_whatever_its_power_and_the_losses(q, losses):
    params = played(STRATEGIES["qffl"](PLAN, q=q), losses)
    assert np.isfinite(params).all()
    assert (np.abs(params) <= 3).all()


def test_qffl_gives_the_same_step_with_and_without_a_unit(monkeypatch):
    strategy = STRATEGIES["qffl"](PLAN, q=3.0)
    plain = played(strategy, (1.0, 2.0, 3.0))
    monkeypatch.setattr("flamma.strategies.base.MOST_EXPONENT", 0.0)
    np.testing.assert_allclose(played(strategy, (1.0, 2.0, 3.0)), plain, rtol=1e-6)


@pytest.mark.parametrize("power", [0.01, 1.0, 10.0])
def test_weights_by_loss_stay_finite_whatever_a_client_tells(power):
    weights = loss_factors(np.array([1e308, 1.7e308, np.nan]), power)
    assert np.isfinite(weights).all()
    assert weights.sum() > 0


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_round_that_does_not_fit_into_memory_is_refused_before_anything_is_trained(
    name, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        "flamma.strategies.memory.psutil.virtual_memory", lambda: SimpleNamespace(available=10**4)
    )
    with pytest.raises(StrategyError, match=r"weights of .* clients .* GB are free: "):
        run(strategy__name=name, model__name="logistic", rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run/config.toml").exists()


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_trillion_rounds_take_no_memory_or_are_refused(name):
    with suppress(StrategyError):
        strategy = STRATEGIES[name](Plan(10**12, 3, 1, 0.1, 8))
        state = strategy.init(np.zeros(4, dtype=np.float32), population(3, 4))
        offer = strategy.offer(state, np.arange(3), np.random.default_rng(0))
        assert offer.selected or strategy.needs.clock  # which asks when somebody is idle


def test_what_the_configuration_tells_is_checked_before_data_are_loaded(tmp_path, monkeypatch):
    def load(*_):
        raise AssertionError("data were loaded")

    monkeypatch.setattr("flamma.experiments.run.build_federation", load)
    monkeypatch.setattr("flamma.experiments.run.check_fetched", lambda *_: None)
    monkeypatch.setattr(
        "flamma.strategies.rows.shutil.disk_usage", lambda _: SimpleNamespace(free=10**9)
    )
    many = {"name": "mifa", "memory": 0.9}
    with pytest.raises(RunError, match=r"remembering 25,000 clients with 61,706 weights .* GB"):
        run(
            {
                "strategy": many,
                "per_round": 100,
                "rounds": 500,
                "model": "lenet5",
                "data": {"dataset": "mnist", "clients": 25_000},
            },
            out=tmp_path / "run",
        )


def test_a_warm_up_of_very_many_clients_is_refused_with_the_way_out():
    many, start = population(10**6, 44_426), np.zeros(44_426, dtype=np.float32)
    with pytest.raises(StrategyError, match=r"take 355\.4 GB, .* set strategy.warmup_iterations"):
        STRATEGIES["flamma-plus"](PLAN, warmup_iterations=10).init(start, many)
    STRATEGIES["flamma-plus"](PLAN).init(start, many)


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_memory_that_does_not_fit_on_the_disk_is_refused_before_anything_is_trained(
    name, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        "flamma.strategies.rows.shutil.disk_usage", lambda _: SimpleNamespace(free=10**4)
    )
    with pytest.raises(RunError, match=r"remembering 10 clients with .* GB are free in .*: make"):
        run(strategy__name=name, model__name="logistic", rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run/config.toml").exists()


@pytest.mark.parametrize(
    "old", [{"combine": lambda self, state, answers: state}, {"clients_keep": True}]
)
def test_a_strategy_of_the_old_contract_gets_one_sentence_and_the_page(old):
    with pytest.raises(StrategyError, match=r"^the strategy Mine has .*docs/how-to/upgrade.md"):
        type("Mine", (FedAvg,), old)

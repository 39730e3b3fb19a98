"""Optimisers, schedules, clipping and augmentation in configurations and in whole runs."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from flamma.data.federated import federated_from_arrays
from flamma.errors import ConfigError, RunError
from flamma.experiments.config import make_config
from flamma.experiments.run import resume, run
from flamma.strategies.base import Offer
from flamma.strategies.drift import Scaffold
from flamma.strategies.fedavg import FedAvg
from flamma.strategies.flamma import Flamma
from flamma.strategies.loss_weights import QFFL
from flamma.strategies.markets import Pricing
from flamma.training.optimisers import StepSchedule, WarmUpSchedule
from flamma.types import Plan, Population, Profile, Report, Terms

TRAINING = {"learning_rate": 0.05, "epochs": 1}
SMALL = {
    "rounds": 3,
    "per_round": 2,
    "data": {"clients": 4, "train_samples": 120, "validation_samples": 20},
    "model": "mlp",
    "strategy": "fedavg",
}
ALL = {
    "optimiser": {"name": "adam", "betas": [0.8, 0.99]},
    "weight_decay": 0.01,
    "clip": 2,
    "schedule": {"name": "cosine", "warm_up": 1},
    "augmentation": ["flip", {"name": "crop", "padding": 1}],
}


def small(**training):
    return {**SMALL, "training": {**TRAINING, **training}}


def test_options_at_their_defaults_are_not_written_so_ids_stay():
    table = tomllib.loads(make_config({}).as_toml())["training"]
    assert list(table) == [
        *("epochs", "batch_size", "learning_rate", "momentum", "trainer", "device", "precision"),
    ]
    spelled_out = {
        "optimiser": {"name": "sgd"},
        "weight_decay": 0,
        "schedule": "constant",
        "augmentation": [],
    }
    assert make_config({"training": spelled_out}) == make_config({})


def test_options_read_back_the_same():
    config = make_config({"training": ALL})
    assert make_config(tomllib.loads(config.as_toml())) == config
    assert config.training.as_table()["optimiser"]["betas"] == (0.8, 0.99)
    assert config.with_settings({"training.clip": 3.0}).training.clip == 3.0


def test_both_spellings_are_understood():
    assert make_config(small(optimizer="adam")) == make_config(small(optimiser="adam"))
    with pytest.raises(ConfigError, match="leave one of them out"):
        make_config(small(optimizer="adam", optimiser="sgd"))


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"optimiser": "adam2"}, "did you mean adam"),
        ({"optimiser": {"name": "adam", "beta": 1}}, "did you mean betas"),
        ({"optimiser": "adamw"}, "without weight decay is adam"),
        ({"optimiser": "adam", "momentum": 0.9}, "momentum is that of the optimiser sgd"),
        ({"clip": -1}, "clip must be a number above 0"),
        ({"weight_decay": -1}, "weight_decay must be at least 0"),
        ({"schedule": "cosin"}, "did you mean cosine"),
        ({"schedule": {"name": "step", "ratio": 2}}, "ratio of the schedule"),
        ({"augmentation": {"name": "flip", "chance": -1}}, "chance of the augmentation"),
        ({"trainer": "lans"}, "did you mean lanes"),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(training, words):
    with pytest.raises(ConfigError, match=words) as caught:
        make_config({"training": training})
    assert "\n" not in str(caught.value)


def test_strategies_that_read_gradients_need_sgd():
    with pytest.raises(ConfigError, match=r"use training\.optimiser sgd"):
        make_config({**small(optimiser="adam"), "strategy": "scaffold"})


@pytest.mark.parametrize(
    ("training", "trainer"),
    [
        ({"weight_decay": 0.1}, "lanes"),
        ({"clip": 0.1}, "lanes"),
        ({"schedule": "cosine"}, "lanes"),
        ({"optimiser": "adam"}, "torch"),
        ({"augmentation": "crop"}, "lanes"),
    ],
)
def test_every_option_changes_the_run_and_processes_do_not(tmp_path, training, trainer):
    plain = run(small(trainer=trainer), out=tmp_path / "plain")
    changed = run(small(**training), out=tmp_path / "changed")
    assert changed.about["trainer"] == trainer
    assert not any(record.failed for record in changed.history)
    assert changed.params_sha256 != plain.params_sha256
    again = run(small(**training), out=tmp_path / "again", engine__processes=2)
    assert again.params_sha256 == changed.params_sha256


def noisy(samples, rng):
    return samples + 0.1 * rng.standard_normal(samples.shape)


def test_a_function_augments_and_is_needed_again(tmp_path):
    done = run(small(), out=tmp_path / "run", augment=noisy)
    assert done.config.training.has_own_augmentation
    assert done.params_sha256 != run(small(trainer="torch"), out=tmp_path / "x").params_sha256

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small(), out=tmp_path / "cut", augment=noisy, on_round=stop)
    with pytest.raises(RunError, match="augment="):
        resume(tmp_path / "cut")
    assert resume(tmp_path / "cut", augment=noisy).params_sha256 == done.params_sha256


def test_one_that_does_not_fit_the_samples_is_refused_before_the_first_round(tmp_path):
    one = np.zeros((8, 3)), np.arange(8) % 2
    data = federated_from_arrays(clients=[one, one], held_out=[one, one])
    with pytest.raises(ConfigError, match="is for pictures"):
        run(small(augmentation="flip"), out=tmp_path / "run", data=data)


def test_clients_in_other_processes_need_a_name_for_it():
    with pytest.raises(ConfigError, match="entry point"):
        make_config({**small(augmentation="own"), "engine": "flower"})


def test_a_schedule_multiplies_what_a_strategy_offers():
    plan = Plan(9, 1, learning_rate=0.4, schedule=StepSchedule(every=2))
    profile = Profile(0, 0.1, 10)
    terms = [Terms(0, number, 0.9, 0.8, step_scale=0.5) for number in (0, 1, 2, 3, 5)]
    for strategy in (FedAvg(plan), Flamma(plan)):
        rates = [strategy.respond(own, profile).learning_rate for own in terms]
        assert rates == [0.2, 0.2, 0.2, 0.1, 0.05]


@pytest.mark.parametrize("strategy", [Scaffold, QFFL, Pricing])
def test_strategies_that_divide_by_the_step_size_divide_by_that_of_the_round(strategy):
    """A first round at half of 0.2 is one at 0.1."""
    halved = Plan(4, 2, epochs=1, learning_rate=0.2, schedule=WarmUpSchedule(1))
    states = []
    for plan in (halved, Plan(4, 2, epochs=1, learning_rate=0.1)):
        own = strategy(plan)
        samples = np.array([4, 4])
        state = own.init(np.ones(2, np.float32), Population(samples, np.array([0.1, 0.1]), 2))
        offer = Offer(1, (Terms(0, 1), Terms(1, 1)), probabilities=(0.5, 0.5))
        reports = [
            Report(client, np.array([0.5, client], np.float32), 4, 1, loss=1.0 + client)
            for client in range(2)
        ]
        states.append(own.aggregate(state, offer, reports)[0])
    for name, value in vars(states[0]).items():
        np.testing.assert_array_equal(value, getattr(states[1], name), err_msg=name)

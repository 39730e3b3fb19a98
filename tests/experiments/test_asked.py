"""Keyword arguments from Python: what they stand for, and errors that name them."""

from __future__ import annotations

import inspect

import pytest

import flamma
from flamma.errors import ConfigError, RunError
from flamma.experiments.config import make_config, with_settings
from flamma.experiments.run import (
    COMMON_SETTINGS,
    OF_DATA,
    asked_settings,
    in_python_terms,
    python_terms,
)

LISTED = {"strategy", "dataset", "split", "seed"}
"""What a comparison has several of."""


@pytest.mark.parametrize(
    ("function", "without"),
    [(flamma.run, set()), (flamma.tune, set()), (flamma.audit, set()), (flamma.compare, LISTED)],
)
def test_common_settings_are_arguments_with_types(function, without):
    parameters = inspect.signature(function).parameters
    wanted = {*COMMON_SETTINGS, *OF_DATA, "data", "model", "out", "progress"} - without
    assert wanted <= parameters.keys()
    assert all(parameters[name].annotation is not inspect.Parameter.empty for name in wanted)
    documented = inspect.getdoc(function)
    assert all(name in documented for name in wanted)


@pytest.mark.parametrize(("name", "setting"), COMMON_SETTINGS.items())
def test_a_common_setting_is_one_of_the_configuration(name, setting):
    values = {
        "strategy": "fedprox",
        "dataset": "mnist",
        "split": "iid",
        "learning_rate": 0.25,
        "momentum": 0.5,
        "device": "cpu",
    }
    value = values.get(name, 2)
    config = make_config(
        {"per_round": 1} | with_settings({}, asked_settings({name: value, "settings": {}}))
    )
    found = config.as_tables()
    for part in setting.split("."):
        found = found[part]
    assert (found["name"] if isinstance(found, dict) else found) == value


def test_a_strategy_may_be_a_table_and_options_follow_a_name():
    table = {"name": "fedprox", "mu": 2}
    asked = asked_settings({"strategy": table, "settings": {"strategy__mu": 3}})
    assert make_config(with_settings({}, asked)).strategy.mu == 3
    assert table["mu"] == 2
    before = {"strategy": {"name": "flamma", "decay_start": 0.5}}
    asked = asked_settings({"strategy": "fedavg", "settings": {}})
    assert make_config(with_settings(before, asked)).strategy.name == "fedavg"


@pytest.mark.parametrize(
    ("settings", "guess"),
    [
        ({"learning_rat": 0.1}, "learning_rat=: did you mean learning_rate=?"),
        ({"mu": 0.1}, "mu=: did you mean strategy__mu=?"),
        ({"alpha": 0.1}, "alpha=: did you mean data__alpha=?"),
        ({"per_rounds": 2}, "per_rounds=: did you mean per_round=?"),
        ({"training__learning_rat": 1}, "training__learning_rat=: did you mean learning_rate=?"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_nearest_one(settings, guess):
    with pytest.raises(ConfigError) as caught:
        flamma.run(**settings)
    assert f"unknown argument {guess}" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"per_round": 12}, "per_round= is 12, but there are only 10 clients: lower per_round="),
        ({"per_round": 12}, "raise clients=."),
        ({"rounds": 0}, "rounds= must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate= must be positive"),
        ({"learning_rate": "fast"}, "learning_rate= must be a number, not 'fast'"),
        ({"processes": 0}, "processes= must lie between"),
        ({"evaluation__every": 0}, "evaluation__every="),
    ],
)
def test_errors_name_arguments_and_not_keys_or_flags(settings, text):
    with pytest.raises(ConfigError) as caught:
        flamma.run(**settings)
    assert text in str(caught.value)
    assert "--" not in str(caught.value)


def test_a_directory_that_is_taken_is_called_out(tmp_path):
    small = {"rounds": 1, "model": "logistic", "data__train_samples": 200}
    flamma.run(out=tmp_path / "one", **small)
    with pytest.raises(RunError) as caught:
        flamma.run(out=tmp_path / "one", **small)
    assert "--out" not in str(caught.value)


def test_an_audit_means_something_else_by_clients():
    with pytest.raises(ConfigError, match=r"how many there are is data__clients=\."):
        flamma.audit(clients=3)
    with pytest.raises(ConfigError, match="raise data__clients="):
        flamma.audit(per_round=30)
    with pytest.raises(ConfigError, match="by seeds=, and from which on by first_seed="):
        flamma.compare(seed=4)


def test_words_that_only_look_like_settings_stay():
    text = "see docs/how-to/data.md and model.safetensors, or `flamma data fetch --all`."
    assert python_terms(text) == text


def test_an_error_keeps_its_type_and_others_pass():
    with pytest.raises(RunError, match="another out="), in_python_terms():
        raise RunError("name another --out.")
    with pytest.raises(KeyError, match=r"data\.clients"), in_python_terms():
        raise KeyError("data.clients")


def test_the_package_says_what_it_has():
    names = dir(flamma)
    assert {"run", "compare", "audit", "tune", "resume", "Run", "Comparison"} <= set(names)
    assert all(hasattr(flamma, name) for name in flamma.__all__)
    everything: dict[str, object] = {}
    exec("from flamma import *", everything)
    assert everything["compare"] is flamma.compare

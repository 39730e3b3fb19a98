"""Arguments of a wrong type are refused in a sentence, before anything is trained or written."""

from __future__ import annotations

import inspect
import json
import re

import numpy as np
import pytest

import flamma
from flamma.cli import main
from flamma.data import from_arrays
from flamma.errors import ConfigError, FlammaError
from flamma.experiments.settings import SETTINGS

FUNCTIONS = ("run", "compare", "tune", "audit")


class Thing:
    """An object of no use anywhere."""


def nothing(*anything):
    """A function of no use anywhere."""


WRONG = {
    "float": 3.5,
    "whole number": -3,
    "list": [3, 7],
    "list of None": [None],
    "empty tuple": (),
    "mapping": {"a": 1},
    "mapping of numbers": {1: 2},
    "object": Thing(),
    "class": Thing,
    "function": nothing,
    "numpy's whole number": np.int64(-2),
    "numpy's number": np.float64(-0.5),
    "array": np.array([1, 2]),
    "bytes": b"x",
    "NaN": float("nan"),
    "truth": True,
    "set": {1, 2},
    "text": "no such thing",
}
CALLABLES = {"class", "function"}
ACCEPTED = {
    "loss": CALLABLES,
    "metric": CALLABLES,
    "augment": CALLABLES | {"empty tuple"},
    "model": CALLABLES,
    "callbacks": {"empty tuple"},
    "on_round": CALLABLES,
    "on_progress": CALLABLES,
    "on_trial": CALLABLES,
    "progress": {"truth"},
    "out": {"text"},
    "data_dir": {"text"},
    "learning_rate": {"float"},
    "clients": {"list", "array", "set"},
    "start": {"text"},  # a file, a pattern and a device are looked for once the data are there
    "freeze": {"text", "empty tuple"},
    "device": {"text"},
    "training__augmentation": {"empty tuple"},
    "data__drop": {"empty tuple"},
    "data__size": {"empty tuple", "list", "array"},
    "model__freeze": {"empty tuple"},
}
FURTHER = {
    "run": ("data_dir",),
    "compare": ("first_seed", "processes", "data_dir"),
    "tune": ("on_trial", "data_dir"),
    "audit": ("processes", "data_dir"),
}
"""What a function takes beyond its parameters and the settings of a run."""
DOTTED = (
    *("strategy__mu", "strategy__name", "costs__kind", "faults__dropout", "engine__name"),
    *("training", "training__augmentation", "evaluation__metric", "model__freeze", "behaviours"),
    *("data__file", "data__drop", "data__size", "data__split"),
)


def arguments():
    for function in FUNCTIONS:
        parameters = inspect.signature(getattr(flamma, function)).parameters.values()
        names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        every = dict.fromkeys([*names, *FURTHER[function], *SETTINGS, *DOTTED])
        yield from ((function, name) for name in every)


@pytest.mark.parametrize(("function", "argument"), list(arguments()))
def test_a_value_of_a_wrong_type_is_refused_in_a_sentence(
    function, argument, tmp_path, monkeypatch
):
    """The dataset is not on this machine: with all arguments accepted, that would be said."""
    monkeypatch.chdir(tmp_path)
    own = {"data": (np.zeros((40, 3)), np.arange(40) % 2)}
    usual = {"datasets": ["mnist"]} if function == "compare" else {"dataset": "mnist"}
    of_data = argument in ("data", "target", "group", "task", "data__file")
    known = {"out": "out", "data_dir": tmp_path / "none"}
    known |= {} if argument in ("data", "data__file", "dataset") else own if of_data else usual
    for kind, value in WRONG.items():
        if kind in ACCEPTED.get(argument, ()):
            continue
        with pytest.raises(FlammaError) as caught:
            getattr(flamma, function)(**(known | {argument: value}))
        said = str(caught.value)
        assert "get it with" not in said, kind
        assert "\n" not in said
        assert len(said) < 700
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        ("compare", {"seeds": [3, 7, 11]}, r"^seeds= must be a whole number, how many seeds"),
        ("compare", {"metric": [nothing, "auc"]}, "^metric= must be one function, or the name of"),
        ("compare", {"strategies": 3}, "^strategies= must be a list of names, or one text"),
        ("compare", {"processes": -3}, "^processes(=)? must be at least 1"),
        ("tune", {"trials": 0}, "^trials(=)? must be at least 1"),
        ("tune", {"grid": {"learning_rate": 0.1}}, "grid= must have a list of values for each"),
        ("audit", {"clients": 3}, r"\[0, 3\] or 'dearest': how many there are is data__clients="),
        ("audit", {"clients": "deerest"}, "no client 'deerest' to audit"),
        ("run", {"training__augmentation": nothing}, "give it from Python, augment="),
        ("run", {"augment": {}}, "^name in training__augmentation= must be a text, not None"),
        ("run", {"training__schedule": {"nme": 1}}, "^name in training__schedule= must be a text"),
        ("run", {"data": {"a": [1.0, 2.0]}, "target": 3}, "^target= must be a text, the name of"),
    ],
)
def test_what_is_accepted_is_said(function, given, said):
    with pytest.raises(ConfigError, match=said):
        getattr(flamma, function)(**given)


SMALL = {"rounds": 1, "model": "logistic", "data__train_samples": 100}


def test_names_may_be_a_text_as_on_the_command_line(tmp_path):
    found = flamma.compare(strategies="fedavg, qffl", splits="iid", seeds=1, **SMALL)
    assert [row.strategy for row in found.rows] == ["fedavg", "qffl"]
    audited = flamma.audit(
        clients="dearest", deviations="drop", seeds=np.int64(1), costs__value=0.1, **SMALL
    )
    assert [finding.subject for finding in audited.cases[0].findings] == ["dearest"]


def test_numbers_of_numpy_are_numbers():
    done = flamma.run(
        **SMALL | {"rounds": np.int64(1), "strategy": "fedavg"},
        seed=np.int32(3),
        learning_rate=np.float32(0.25),
    )
    assert (done.config.rounds, done.config.seed) == (1, 3)
    assert done.config.training.learning_rate == 0.25


def test_a_metric_and_an_augmentation_have_names():
    named = {"metric": "balanced-accuracy", "augment": "flip", "strategy": "fedavg"}
    done = flamma.run(**SMALL, **named)
    assert done.config.evaluation.metric == "balanced-accuracy"
    assert [one.name for one in done.config.training.augmentation] == ["flip"]


@pytest.mark.parametrize(
    ("function", "typed", "guess"),
    [
        ("run", "augmentation", "augment="),
        ("run", "metrics", "metric="),
        ("run", "seeds", "seed="),
        ("compare", "strategie", "strategies="),
        ("run", "num_clients", "clients="),
        ("audit", "num_clients", "clients="),
        ("run", "local_epochs", "epochs="),
        ("tune", "callback", None),
        ("run", "callback", "callbacks="),
        ("run", "optimizer", "training__optimiser="),
        ("run", "train_sampels", "train_samples="),
        ("run", "test", None),
        ("run", "verbose", None),
        ("run", "trials", None),
    ],
)
def test_a_suggestion_is_an_argument_of_the_function_or_there_is_none(function, typed, guess):
    with pytest.raises(ConfigError) as caught:
        getattr(flamma, function)(**{typed: 1})
    said = str(caught.value)
    assert said.startswith(f"unknown argument {typed}=")
    hint = said.partition(" (an option")[0].partition(": did you mean ")[2]
    assert hint == ("" if guess is None else f"{guess}?")
    if guess is not None and "__" not in guess:
        assert guess[:-1] in {*inspect.signature(getattr(flamma, function)).parameters, *SETTINGS}


@pytest.mark.parametrize("path", [3, None, 0.5, ["run"], b"run", Thing()])
@pytest.mark.parametrize("read", [flamma.Run.load, flamma.resume])
def test_a_run_is_named_by_its_path(read, path):
    with pytest.raises(FlammaError, match="a run is loaded by the path of its directory, not"):
        read(path)


@pytest.mark.parametrize("parts", [3, None, "ab", {"a": 1}, np.ones(3), Thing()])
def test_a_federation_of_arrays_is_made_of_lists(parts):
    with pytest.raises(FlammaError, match=r"^clients must be a list of .x, y., one for"):
        from_arrays(parts, parts)


@pytest.mark.parametrize("model", [dict, int, type, print])
def test_what_python_brings_is_no_model(model):
    with pytest.raises(FlammaError, match=f"a function of .*, or a name, not {model.__name__}"):
        flamma.run(model=model, rounds=1, progress=False)


# What cannot be run is refused before a directory is written, a worker started or data read.

SHORT = {"rounds": 1, "model": "logistic", "clients": 4, "per_round": 2}
MISTAKES = {
    "dataset": ({"data.dataset": "mnits"}, "unknown dataset 'mnits': did you mean mnist"),
    "split": ({"data.split": "shard"}, "unknown split 'shard': did you mean shards"),
    "split's option": (
        {"data.shards_per_clients": 3},
        r"did you mean (data..?)?shards_per_client",
    ),
    "strategy": ({"strategy.name": "fedavgg"}, "unknown strategy 'fedavgg': did you mean fedavg"),
    "strategy's option": (
        {"strategy.name": "flamma", "strategy.decay_start": 7.0},
        "decay_start=? must lie in",
    ),
    "setting": ({"training.learning_rate": -1.0}, "learning.rate=? must be above 0"),
    "numbers": ({"per_round": 12}, "there are only 4 clients"),
    "task": ({"data.task": "regression"}, "the task of this dataset is classification"),
    "metric of another task": (
        {"evaluation.metric": "perplexity"},
        "unknown metric of classification|of which more is better",
    ),
    "validation set": (
        {"strategy.name": "cffl", "data.validation_samples": 0},
        "cffl scores updates on the server's own data",
    ),
    "samples": ({"data.held_out": 1.5}, "held_out must lie between 0 and 1"),
    "clients": ({"data.clients": 1000}, "1000 clients need at least 2000 samples"),
    "few samples": ({"data.train_samples": 3}, "4 clients need at least 8 samples"),
    "many samples": ({"data.validation_samples": 5000}, "has 1442 training samples, but these"),
    "files": ({"data.dataset": "mnist"}, "mnist is not in .*: get it with"),
    "model": (
        {"data.dataset": "synthetic", "model.name": "lenet5"},
        "lenet5 needs images .* but the samples are",
    ),
    "weights": ({"model.start": "nowhere.npz"}, "cannot read .*nowhere.npz"),
    "frozen parts": (
        {"model.freeze": ["nothing.*"]},
        "freeze=? names an unknown parameter",
    ),
    "device": ({"training.device": "no such"}, "'no such' cannot be used here .devices are called"),
    "own parts": ({"training.loss": "own"}, "loss of your own"),
}


def in_python(command, settings):
    """The keyword arguments that stand for dotted settings."""
    given = {"data__clients" if key == "clients" else key: value for key, value in SHORT.items()}
    for setting, value in settings.items():
        if command == "compare" and setting in LISTS:
            given[LISTS[setting]] = ["digits", value] if setting == "data.dataset" else [value]
        else:
            given[NAMED.get(setting, setting.replace(".", "__"))] = value
    return given


LISTS = {"strategy.name": "strategies", "data.dataset": "datasets", "data.split": "splits"}
NAMED = {"strategy.name": "strategy", "data.dataset": "dataset", "model.name": "model"}
NAMED |= {"model.start": "start"}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", ["run", "compare", "tune", "audit"])
def test_from_python_nothing_is_written(elsewhere, command, mistake):
    settings, said = MISTAKES[mistake]
    given = in_python(command, settings)
    with pytest.raises(FlammaError, match=said):
        getattr(flamma, command)(out="out", data_dir=elsewhere / "data", **given)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", ["run", "compare", "tune", "audit"])
def test_from_the_command_line_nothing_is_written(elsewhere, command, mistake, capsys):
    settings, said = MISTAKES[mistake]
    given = {"rounds": 1, "model.name": "logistic", "data.clients": 4, "per_round": 2} | settings
    words = [command, "--data-dir", str(elsewhere / "data")]
    for setting, value in given.items():
        if command == "compare" and setting in LISTS:
            words += [f"--{LISTS[setting]}", value]
        else:
            words += ["--set", f"{setting}={json.dumps(value)}"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert re.search(said, error), error
    assert "runs, " not in error  # no progress
    assert not list(elsewhere.iterdir())

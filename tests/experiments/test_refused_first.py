"""What cannot be run is refused before a directory is written, a worker started or data read."""

from __future__ import annotations

import json
import re

import pytest

import flamma
from flamma.cli import main
from flamma.errors import FlammaError

SHORT = {"rounds": 1, "model": "logistic", "clients": 4, "per_round": 2}

MISTAKES = {
    "dataset": ({"data.dataset": "mnits"}, "unknown dataset 'mnits': did you mean mnist"),
    "split": ({"data.split": "shard"}, "unknown split 'shard': did you mean shards"),
    "split's option": ({"data.shards_per_clients": 3}, "did you mean (data__)?shards_per_client"),
    "strategy": ({"strategy.name": "fedavgg"}, "unknown strategy 'fedavgg': did you mean fedavg"),
    "strategy's option": (
        {"strategy.name": "flamma", "strategy.decay_start": 7.0},
        "decay_start must lie in",
    ),
    "setting": ({"training.learning_rate": -1.0}, "learning_rate=? must be positive"),
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
    "frozen parts": ({"model.freeze": ["nothing.*"]}, "unknown parameter in model.freeze|freeze="),
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

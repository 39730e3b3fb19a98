"""The JSON Schemas for editors accept what FLamma does, and refuse what it refuses."""

from __future__ import annotations

import tomllib

import jsonschema
import pytest

from documented import ROOT
from flamma.errors import FlammaError
from flamma.experiments.config import make_config
from flamma.experiments.schema import config_schema, suite_schema
from flamma.strategies import STRATEGIES

SUITES = [
    *sorted((ROOT / "src" / "flamma" / "experiments" / "suites").glob("*.toml")),
    *sorted((ROOT / "benchmarks").glob("*.toml")),
]


@pytest.fixture(scope="module")
def runs():
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
def test_every_suite_of_the_repository_is_valid(suite):
    schema = suite_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(tomllib.loads(suite.read_text(encoding="utf-8")), schema)


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_complete_configurations_are_valid(runs, strategy):
    tables = {"strategy": strategy, "training": {"optimiser": "adam", "schedule": "step"}}
    if not STRATEGIES[strategy].needs.sgd:
        runs.validate(tomllib.loads(make_config(tables).as_toml()))
    runs.validate(tomllib.loads(make_config({"strategy": strategy}).as_toml()))


@pytest.mark.parametrize(
    "tables",
    [
        {"ruonds": 3},
        {"rounds": 0},
        {"rounds": "many"},
        {"training": {"momentum": 1}},
        {"training": {"optimiser": {"name": "adam", "betas": [0.1, 1]}}},
        {"data": {"split": "shard"}},
        {"model": {"name": "mlp", "width": 2.0}},
        {"strategy": "flama"},
        {"strategy": {"mu": 1}},
        {"strategy": {"name": "fedavg", "mu": 1}},
        {"strategy": {"name": "flamma", "decay_start": 7}},
        {"strategy": {"name": "fedavg", "aggregator": {"name": "krum", "hostle": 1}}},
        {"behaviours": {"sign-flip": {"factor": 2}}},
    ],
)
def test_what_is_refused_is_not_valid(runs, tables):
    assert not runs.is_valid(tables)
    with pytest.raises(FlammaError):
        make_config(tables)


def test_the_command_prints_it(capsys):
    from flamma.cli import main

    assert main(["list", "--schema", "suite"]) == 0
    assert '"title": "A suite of FLamma"' in capsys.readouterr().out

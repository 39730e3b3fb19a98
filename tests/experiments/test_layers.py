"""Settings in layers: a flag beats an override, an override beats the suite, and it is told."""

from __future__ import annotations

import json
import tomllib

import pytest

from flamma.cli import main
from flamma.experiments.suite import (
    narrowed,
    origin_notes,
    read_suite,
    suite_as_json,
    suite_as_lines,
    suite_names,
)

SUITE = {
    "seeds": 2,
    "strategies": ["fedavg", "fedprox"],
    "splits": ["iid"],
    "run": {"rounds": 4, "training": {"learning_rate": 0.3, "epochs": 2}, "model": "logistic"},
    "overrides": {
        "fedavg": {"training": {"learning_rate": 0.2}},
        "fedprox": {"strategy": {"mu": 0.5}, "model": {"name": "mlp", "hidden": [7]}},
    },
}


def origins(suite, strategy):
    [cell] = [c for c in suite.cells() if c.strategy == strategy and c.seed == 0]
    return {s.name: (s.value, s.origin, s.part) for s in suite.traced(cell)}


def test_a_flag_beats_what_a_suite_overrides_for_a_strategy():
    flagged = narrowed(read_suite(SUITE), settings={"training.learning_rate": 0.01})
    assert {cell.config.training.learning_rate for cell in flagged.cells()} == {0.01}
    assert {c.config.training.learning_rate for c in read_suite(SUITE).cells()} == {0.2, 0.3}


def test_every_setting_tells_where_it_comes_from():
    suite = narrowed(read_suite(SUITE), settings={"training.batch_size": 8})
    fedavg, fedprox = origins(suite, "fedavg"), origins(suite, "fedprox")
    assert fedavg["training.learning_rate"] == (0.2, "override", "fedavg")
    assert fedprox["training.learning_rate"] == (0.3, "suite", "")
    assert fedavg["training.batch_size"] == (8, "flag", "")
    assert fedavg["training.momentum"] == (0.0, "default", "")
    assert fedprox["strategy.mu"] == (0.5, "override", "fedprox")
    assert fedprox["model.hidden"][1:] == ("override", "fedprox")
    assert fedavg["data.dataset"] == ("digits", "suite", "")


def test_a_flag_that_names_another_model_takes_no_options_of_the_override():
    flagged = narrowed(read_suite(SUITE), settings={"model.name": "lenet5"})
    assert {cell.config.model.name for cell in flagged.cells()} == {"lenet5"}
    assert origins(flagged, "fedprox")["strategy.mu"][0] == 0.5


def test_flags_are_kept_in_the_text_of_a_suite_and_a_suite_without_has_none():
    flagged = narrowed(read_suite(SUITE), settings={"training.learning_rate": 0.01})
    assert read_suite(tomllib.loads(flagged.as_toml())) == flagged
    assert "flags" not in read_suite(SUITE).as_toml()


def test_steps_that_were_tuned_for_digits_stay_with_digits():
    quick = read_suite("quick")
    steps = {c.strategy: c.config.training.learning_rate for c in quick.cells()}
    assert steps["fedavg"] == steps["fedprox"] == 0.1
    assert steps["flamma"] == 0.05
    elsewhere = narrowed(quick, datasets=["mnist"])
    assert {c.config.training.learning_rate for c in elsewhere.cells()} == {0.05}
    assert {"q": 0.1} not in [s.get("strategy") for s in elsewhere.overrides.values()]


@pytest.mark.parametrize("name", suite_names())
def test_no_suite_of_ours_has_steps_for_datasets_it_does_not_name(name):
    suite = read_suite(name)
    own = {n for n, o in suite.overrides.items() if "learning_rate" in o.get("training", {})}
    assert {n.partition("/")[0] for n in own} <= set(suite.datasets)


def test_what_would_run_is_told_with_what_a_flag_beats():
    suite = narrowed(read_suite(SUITE), settings={"training.learning_rate": 0.01})
    lines = suite_as_lines(suite)
    assert lines[0].startswith("4 runs")
    assert "  training.learning_rate = 0.01  (flag instead of 0.2 for fedavg)" in lines
    assert "  strategy.mu = 0.5  (override fedprox)" in lines
    flags, overrides = origin_notes(suite)
    assert flags == (
        "From flags, for all runs, over what the suite has for fedavg: training.learning_rate 0.01."
    )
    assert "strategy.mu 0.5 for fedprox" in overrides
    assert "learning_rate" not in overrides
    cells = suite_as_json(suite)["cells"]
    assert [cell["strategy"] for cell in cells] == ["fedavg", "fedprox"]
    [mu] = [s for s in cells[1]["settings"] if s["name"] == "strategy.mu"]
    assert mu == {"name": "strategy.mu", "value": 0.5, "origin": "override", "for": "fedprox"}


def test_show_suite_prints_a_suite_that_can_be_read_back(capsys):
    arguments = ["compare", "--show-suite", "--learning-rate", "0.01", "--strategies", "fedavg"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    asked = narrowed(
        read_suite("quick"), settings={"training.learning_rate": 0.01}, strategies=["fedavg"]
    )
    assert read_suite(tomllib.loads(text)) == asked
    assert "(flag instead of 0.1 for digits/fedavg)" in text
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 6

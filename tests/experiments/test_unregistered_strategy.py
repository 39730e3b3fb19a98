"""A run can be read without the code of its strategy, and goes on only with it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import flamma
from flamma.cli import main
from flamma.errors import FlammaError
from flamma.experiments.run import Run, resume
from flamma.strategies import STRATEGIES
from flamma.strategies.base import State
from flamma.strategies.fedavg import Averaging

SMALL = {"rounds": 2, "clients": 4, "per_round": 2, "model": "logistic", "progress": False}
MISSING = "needs the strategy 'mine', which is not registered: import the module that registers it"


@dataclass(frozen=True)
class Mine(Averaging[State]):
    """FedAvg under another name, with an option."""

    name: ClassVar[str] = "mine"
    label: ClassVar[str] = "Mine"

    shade: float = 0.5

    def init(self, params, population):
        return State(params, 0, population.samples)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run and an interrupted one of a strategy that is gone."""
    folder = tmp_path_factory.mktemp("mine")
    STRATEGIES.add("mine", Mine)

    def stop(record):
        raise KeyboardInterrupt

    try:
        flamma.run(**SMALL, strategy={"name": "mine", "shade": 0.25}, out=folder / "done")
        with pytest.raises(KeyboardInterrupt):
            flamma.run(**SMALL, strategy="mine", out=folder / "begun", on_round=stop)
    finally:
        STRATEGIES.discard("mine")
    return folder


def test_a_finished_run_is_read_without_its_strategy(runs):
    done = Run.load(runs / "done")
    assert done.finished
    assert done.config.strategy.name == "mine"
    assert done.config.as_toml() == (runs / "done" / "config.toml").read_text()
    assert "<Run mine on digits" in repr(done)
    assert len(done.history) == len(done.frame()) == 2
    assert done.summary().rounds == 2
    assert "mine" in done._repr_html_()
    assert done.predict(np.zeros((3, 1, 28, 28), dtype=np.float32)).shape == (3,)
    assert done.save(runs / "weights.npz").exists()
    assert done.report(runs / "page.html").exists()
    assert resume(runs / "done").params_sha256 == done.params_sha256  # nothing is left to do


def test_what_needs_the_strategy_says_in_one_sentence_what_is_missing(runs, capsys):
    with pytest.raises(FlammaError, match=f"going on with .*begun {MISSING}"):
        resume(runs / "begun")
    assert main(["resume", str(runs / "begun")]) == 2
    assert MISSING in capsys.readouterr().err
    with pytest.raises(FlammaError, match=f"a client's own model {MISSING}"):
        Run.load(runs / "done").predict(np.zeros((1, 1, 28, 28)), client=0)
    with pytest.raises(FlammaError, match="unknown strategy 'mine'"):
        flamma.run(**SMALL, strategy="mine")
    STRATEGIES.add("mine", Mine)
    try:
        assert resume(runs / "begun").finished
    finally:
        STRATEGIES.discard("mine")


COMMANDS = """
import sys
from flamma.cli import main
run, out = sys.argv[1:]
for words in (
    ["show", run], ["show", run, "--json"], ["report", run, "--out", out + ".html"],
    ["export", run, "--out", out + ".safetensors"],
):
    assert main(words) == 0, words
"""


def test_a_fresh_process_shows_reports_and_exports_it(runs):
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(runs / "done"), str(runs / "fresh")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "mine on digits" in done.stdout
    assert '"strategy": "mine"' in done.stdout


def test_a_comparison_with_it_is_shown_and_reported(tmp_path, capsys):
    STRATEGIES.add("mine", Mine)
    try:
        flamma.compare(
            strategies=["fedavg", "mine"],
            splits=["iid"],
            seeds=1,
            processes=1,
            out=tmp_path,
            **SMALL,
        )
    finally:
        STRATEGIES.discard("mine")
    assert main(["show", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["strategy"] for row in rows] == ["fedavg", "mine"]
    (tmp_path / "table.json").unlink()  # so that the page computes it from the runs
    assert main(["report", str(tmp_path)]) == 0
    assert "cannot be used" not in capsys.readouterr().err

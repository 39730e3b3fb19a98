"""Directories that version 0.2 wrote load, show, report, predict, export and resume for good.

``fixtures/version-0.2.tar.gz`` was written by commit 5770684: runs of FLamma-honest (with a client
that misreports its cost), on a table of a user, and of a deployment; a run of FLamma-plus that was
interrupted after round 2 of 4; a comparison and an audit.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import flamma
from flamma.cli import main
from flamma.data.datasets import load_dataset

FIXTURE = Path(__file__).parent / "fixtures" / "version-0.2.tar.gz"
RESUMED = "50f2ff22831aeb86dc688981f87895e770b31a6ca5bcd9646fc36d11ca0cd7b5"
RUNS = ("run", "hospitals", "deployed", "comparison/runs/digits/shards/flamma/seed-1")


@pytest.fixture
def old(tmp_path, monkeypatch):
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_a_run_loads_shows_reports_and_exports(old, name, capsys):
    run = flamma.Run.load(old / name)
    assert run.finished
    assert [record.round for record in run.history] == list(range(1, len(run.history) + 1))
    assert main(["show", name, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["params_sha256"] == run.params_sha256
    assert main(["report", name]) == 0
    assert (old / name / "report.html").stat().st_size > 100_000
    assert main(["export", name, "--out", "model.safetensors"]) == 0
    assert load_file(old / "model.safetensors").keys() == run.model().state_dict().keys()


@pytest.mark.parametrize("name", [name for name in RUNS if name != "hospitals"])
def test_a_run_predicts_as_well_as_it_scored(old, name):
    run = flamma.Run.load(old / name)
    digits = load_dataset("digits")
    accuracy = 100 * np.mean(run.predict(digits.train_x) == digits.train_y)
    assert accuracy == pytest.approx(run.history[-1].evaluation.metrics["accuracy"], abs=8)


def test_predictions_are_those_of_version_0_2(old):
    table = np.genfromtxt(old / "hospitals.csv", delimiter=",", dtype=str, skip_header=1)
    columns = {"age": table[:, 0].astype(float), "dose": table[:, 1].astype(float)}
    columns["ward"] = table[:, 2]
    found = flamma.Run.load(old / "hospitals").predict(columns)
    assert np.mean(found == table[:, 3]) > 0.7


def test_an_interrupted_run_ends_with_the_weights_of_version_0_2(old, capsys):
    assert main(["resume", "interrupted", "-q"]) == 0
    assert flamma.Run.load(old / "interrupted").params_sha256 == RESUMED


def test_a_comparison_shows_and_reports(old, capsys):
    assert main(["show", "comparison", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["report", "comparison"]) == 0
    assert (old / "comparison" / "report.html").stat().st_size > 100_000


def test_an_audit_shows_and_reports(old, capsys):
    assert main(["show", "audit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main(["report", "audit"]) == 0
    assert (old / "audit" / "report.html").stat().st_size > 100_000


def test_the_ledger_of_a_run_is_whole(old, capsys):
    assert main(["ledger", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)

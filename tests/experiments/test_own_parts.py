"""Data and models of one's own in comparisons, audits and searches."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pandas
import pytest
from torch import nn

import flamma
from flamma.cli import main
from flamma.errors import ConfigError, RunError
from flamma.experiments.jobs import do_jobs
from flamma.experiments.result import Run
from flamma.experiments.suite import asked_suite, read_suite
from flamma.experiments.user_objects import OwnParts, configured, content_sha256

SHORT = {"rounds": 2, "per_round": 2, "epochs": 1}


class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, classes))


def patients():
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(90, 2)), columns=["age", "dose"])
    frame["hospital"] = np.repeat(["north", "south", "west"], 30)
    frame["label"] = np.where(frame.age > 0, "ill", "well")
    return frame


@pytest.fixture(scope="module")
def asked():
    return {"data": patients(), "target": "label", "group": "hospital", "model": Net, **SHORT}


@pytest.fixture(scope="module")
def compared(asked, tmp_path_factory):
    out = tmp_path_factory.mktemp("own") / "out"
    own = asked | {"strategies": ["fedavg", "flamma"], "seeds": 2, "processes": 2}
    return flamma.compare(out=out, **own), own, out


def test_a_comparison_takes_a_frame_and_a_class(compared):
    comparison, _, out = compared
    assert [row.strategy for row in comparison.rows] == ["fedavg", "flamma"]
    run = Run.load(out / comparison.folders[0])
    assert (run.config.data.dataset, run.config.data.clients) == ("own", 3)
    assert run.config.model.name == "own"
    assert run.config.training.learning_rate == 0.05  # that of the suite, not that of digits
    again = flamma.run(strategy="fedavg", seed=0, **_of_one(compared[1]))
    assert again.params_sha256 == comparison.rows[0].weights_sha256[0]


def _of_one(own):
    return {k: v for k, v in own.items() if k not in ("strategies", "seeds", "processes")}


def test_a_comparison_of_own_data_goes_on_and_refuses_other_data(compared):
    comparison, own, out = compared
    told = []
    again = flamma.compare(out=out, on_progress=told.append, **own)
    assert again == comparison
    assert {news.runs_done for news in told} == {4}
    changed = patients()
    changed.loc[0, "age"] += 1
    with pytest.raises(RunError, match="give the same data"):
        flamma.compare(out=out, **(own | {"data": changed}))


def test_an_interrupted_run_of_own_data_goes_on_with_the_same_data_only(asked, tmp_path):
    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flamma.run(out=tmp_path / "run", on_round=stop, **asked)
    changed = patients()
    changed.loc[3, "dose"] = 9.0
    with pytest.raises(RunError, match="give the same data"):
        flamma.resume(tmp_path / "run", data=changed, model=Net)
    done = flamma.resume(tmp_path / "run", data=patients(), model=Net)
    assert done.params_sha256 == flamma.run(**asked).params_sha256


def test_without_a_fork_the_runs_go_one_after_the_other(asked, tmp_path, monkeypatch):
    own = asked | {"strategies": ["fedavg", "fedprox"], "seeds": 1}
    monkeypatch.delattr(os, "fork")
    with pytest.warns(UserWarning, match="one after the other"):
        here = flamma.compare(out=tmp_path / "here", processes=2, **own)
    monkeypatch.undo()
    there = flamma.compare(out=tmp_path / "there", processes=2, **own)
    assert [row.weights_sha256 for row in here.rows] == [row.weights_sha256 for row in there.rows]
    assert all(row.weights_sha256[0] for row in here.rows)


def test_an_audit_takes_a_frame_and_a_run(asked, tmp_path):
    small = {"deviations": ["free-ride"], "clients": [0], "processes": 1}
    found = flamma.audit(seeds=1, strategy="flamma", out=tmp_path / "one", **asked, **small)
    assert [finding.client for finding in found.cases[0].findings] == [0]
    run = flamma.run(strategy="flamma", out=tmp_path / "run", **asked)
    with pytest.raises(ConfigError, match="data="):
        flamma.audit(run, **small)
    again = flamma.audit(run, data=asked["data"], out=tmp_path / "two", **small)
    assert again.cases[0].baselines[0].params_sha256 == run.params_sha256


def test_a_search_takes_a_frame_and_python_names(asked, tmp_path):
    grid = {"learning_rate": [1e-6, 0.5]}
    own = _of_one(asked)
    found = flamma.tune(out=tmp_path, grid=grid, **own)
    assert list(found.options) == ["training.learning_rate"]
    assert len(found.trials) == 2
    assert found.config.seed == 1000
    changed = patients().assign(dose=0.0)
    with pytest.raises(RunError, match="other data"):
        flamma.tune(out=tmp_path, grid=grid, **(own | {"data": changed}))


def test_the_same_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    patients().to_csv("hospitals.csv", index=False)
    flags = ["--data", "hospitals.csv", "--target", "label", "--group", "hospital", "--seeds", "1"]
    few = ["--strategies", "fedavg", "--rounds", "1", "--per-round", "2"]
    assert main(["compare", *flags, *few, "--processes", "1"]) == 0
    assert "FedAvg" in capsys.readouterr().out
    assert (tmp_path / "out" / "quick-hospitals" / "table.json").exists()


def test_a_suite_may_name_a_file_and_no_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    patients().to_csv("hospitals.csv", index=False)
    file = {"file": "hospitals.csv", "target": "label", "group": "hospital"}
    tables = {"strategies": ["fedavg"], "seeds": 1, "run": {"rounds": 3, "data": file}}
    suite, own = asked_suite(tables, first_seed=7)
    assert list(suite.all_seeds()) == [7]
    [cell] = suite.cells()
    assert (cell.dataset, cell.split, cell.config.data.clients) == ("own", "groups", 3)
    assert own.federation(cell.config).client_names == ("north", "south", "west")
    with pytest.raises(ConfigError, match="leave one out"):
        asked_suite(tables, lists={"datasets": ["mnist"]})


def test_steps_of_a_suite_that_were_tuned_for_digits_do_not_reach_own_data():
    suite, _ = asked_suite(read_suite("quick"), data=patients(), flags=COLUMNS)
    assert {c.config.training.learning_rate for c in suite.cells()} == {0.05}


COLUMNS = {"data.target": "label", "data.group": "hospital"}


def test_the_hash_of_data_is_of_what_is_in_them():
    config, own = configured({"per_round": 2}, COLUMNS, patients())
    data = own.federation(config)
    assert data.sha256 == content_sha256(data)
    moved = replace(data, train_offsets=data.train_offsets + np.array([0, 1, 0, 0]))
    renumbered = replace(data, train_y=1 - data.train_y)
    hashes = {content_sha256(d) for d in (data, moved, renumbered, replace(data, name="other"))}
    assert len(hashes) == 3


def test_each_seed_deals_own_samples_anew():
    config, own = configured({"per_round": 2}, COLUMNS, patients())
    first, other = (own.federation(config.with_settings({"seed": seed})) for seed in (0, 1))
    assert first.sha256 != other.sha256
    assert own.federation(config).sha256 == first.sha256


def test_nothing_to_do_needs_no_fork(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "fork")
    assert do_jobs([], tmp_path, own=OwnParts(model=Net)) == {}

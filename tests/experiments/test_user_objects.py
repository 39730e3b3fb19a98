"""Runs on one's own data: what the data decide, the file's checksum, names, and predictions."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pandas
import pytest
from torch import nn

import flamma
from flamma.cli import main
from flamma.data import from_arrays
from flamma.data.own import gather
from flamma.errors import ConfigError, DataError, FlammaError, RunError
from flamma.experiments.audit import audit
from flamma.experiments.comparison import compare
from flamma.experiments.config import make_config
from flamma.experiments.folder import ABOUT, POPULATION
from flamma.experiments.jobs import do_jobs
from flamma.experiments.population import read_names
from flamma.experiments.result import Run
from flamma.experiments.suite import asked_suite, read_suite
from flamma.experiments.user_objects import (
    UserObjects,
    completed,
    configured,
    content_sha256,
    default_model,
)

SITES = ("north, east", "south", "west")


def federation(*asked):
    """Return a configuration for one's own data, and these as a run has them."""
    config, own = configured(*asked)
    return config, own.federation(config)


def rows(count=20, seed=0):
    """Return a table whose label follows from its first two columns."""
    rng = np.random.default_rng(seed)
    age, marker = rng.normal(60, 12, 3 * count), rng.normal(size=3 * count)
    return {
        "age": age.round(3),
        "marker": marker.round(3),
        "ward": rng.choice(["a", "b"], 3 * count).tolist(),
        "label": np.where(age + 8 * marker > 60, "ill", "well").tolist(),
        "hospital": np.repeat(SITES, count).tolist(),
    }


@pytest.fixture
def file(tmp_path):
    table = rows()
    lines = [",".join(table)]
    for row in zip(*table.values(), strict=True):
        lines.append(",".join(f'"{cell}"' for cell in row))
    path = tmp_path / "three hospitals.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


NAMED = {"target": "label", "group": "hospital"}
BRIEF = {"rounds": 2, "strategy": "fedavg"}


def test_natural_clients_decide_what_nobody_asked_for(tmp_path):
    run = flamma.run(data=rows(), **NAMED, **BRIEF, out=tmp_path / "run")
    config = run.config
    assert (config.data.dataset, config.data.split.name, config.data.clients) == (
        "own",
        "groups",
        3,
    )
    assert (config.per_round, config.model.name, config.data.validation_samples) == (3, "mlp", 0)
    assert (config.data.target, config.data.group, config.data.file) == ("label", "hospital", None)
    assert read_names((run.path / POPULATION).read_text()) == SITES


def test_what_is_asked_for_wins(tmp_path):
    asked = {"data.clients": 2, "per_round": 1, "model.name": "logistic", "seed": 3}
    config, data = federation(
        None, asked | {"data.target": "label", "data.group": "hospital"}, rows()
    )
    assert (config.data.clients, config.per_round, config.model.name) == (2, 1, "logistic")
    assert data.clients == 2
    assert (config.data.split.name, config.seed) == ("groups", 3)
    with pytest.raises(ConfigError, match="per_round= is 4, but there are only 3 clients"):
        flamma.run(data=rows(), **NAMED, per_round=4, out=tmp_path / "run")


def test_two_clients_are_both_selected(tmp_path):
    table = {name: column[:40] for name, column in rows().items()}
    run = flamma.run(data=table, **NAMED, **BRIEF, out=tmp_path / "run")
    assert run.config.per_round == 2


def test_without_a_group_samples_are_dealt_by_the_split_of_the_configuration():
    table = {name: column for name, column in rows().items() if name != "hospital"}
    config, data = federation({"data": {"target": "label"}}, {}, table)
    assert (config.data.split.name, config.data.clients, data.clients) == ("iid", 10, 10)
    asked = {"data": {"target": "label", "split": "shards", "clients": 4, "shards_per_client": 1}}
    config, data = federation(asked, {}, table)
    assert (data.class_counts() > 0).sum(axis=1).tolist() == [1, 1, 1, 1]


def test_a_complete_configuration_at_its_defaults_asks_for_nothing():
    asked = make_config({"rounds": 7, "data": {"target": "label", "group": "hospital"}})
    config, data = federation(asked, {}, rows())
    assert (config.rounds, config.data.clients, config.per_round, config.model.name) == (
        7,
        3,
        3,
        "mlp",
    )
    assert configured(config, {}, data)[0] == config


def test_the_default_model_takes_the_samples():
    shapes = {(1, 28, 28): "lenet5", (3, 12, 12): "lenet5", (3, 11, 12): "mlp", (8,): "mlp"}
    assert {shape: default_model(shape) for shape in shapes} == shapes


def test_a_federation_with_a_table_gets_a_model_for_tables(tmp_path):
    site = (np.eye(6, 4), [0, 1] * 3)
    data = from_arrays([site] * 2, [site] * 2)
    run = flamma.run(data=data, **BRIEF, out=tmp_path / "run")
    assert (run.config.model.name, run.config.per_round) == ("mlp", 2)


def test_two_sets_of_data_are_refused(file):
    with pytest.raises(ConfigError, match="data of your own and the dataset 'mnist'"):
        completed({"data": {"dataset": "mnist"}}, gather(file, **NAMED))


def test_a_file_is_the_same_as_its_table_and_its_run_says_which_file_it_was(file, tmp_path):
    of_file = flamma.run(data=file, **NAMED, **BRIEF, out=tmp_path / "file")
    of_table = flamma.run(data=rows(), **NAMED, **BRIEF, out=tmp_path / "table")
    assert of_file.params_sha256 == of_table.params_sha256
    assert of_file.config.data.file == str(file)
    assert of_file.config.data.title == "three-hospitals"
    assert len(json.loads((of_file.path / ABOUT).read_text())["data_sha256"]) == 64
    again = flamma.run(of_file.path / "config.toml", out=tmp_path / "again")
    assert again.params_sha256 == of_file.params_sha256


class StopError(Exception):
    """Ends a run after its first round."""


def begun(out, data, **options):
    def stop(record):
        raise StopError

    with pytest.raises(StopError):
        flamma.run(data=data, **NAMED, **(BRIEF | options), out=out, on_round=stop)
    return out


def test_a_run_of_a_file_resumes_by_itself_but_not_with_another_file(file, tmp_path):
    whole = flamma.run(data=file, **NAMED, **BRIEF, out=tmp_path / "whole")
    path = begun(tmp_path / "part", file)
    before = file.read_text()
    file.write_text(before.replace("well", "ill", 1))
    with pytest.raises(RunError, match=r"'three hospitals' is not as it was when .*part began"):
        flamma.resume(path)
    file.write_text(before)
    assert flamma.resume(path).params_sha256 == whole.params_sha256


def test_a_run_of_a_table_resumes_with_the_table_alone(tmp_path):
    whole = flamma.run(data=rows(), **NAMED, **BRIEF, out=tmp_path / "whole")
    path = begun(tmp_path / "part", rows())
    with pytest.raises(RunError, match="your own data: resume it from Python"):
        flamma.resume(path)
    assert flamma.resume(path, data=rows()).params_sha256 == whole.params_sha256


def test_a_file_that_is_gone_is_named(file, tmp_path):
    path = begun(tmp_path / "part", file)
    file.unlink()
    with pytest.raises(DataError, match=r"cannot read .*three hospitals\.csv"):
        flamma.resume(path)


def test_predictions_are_labels_as_they_were_given(tmp_path):
    table = rows(60)
    run = flamma.run(data=table, **NAMED, rounds=10, out=tmp_path / "run")
    new = {name: column for name, column in rows(60, seed=1).items() if name != "hospital"}
    said = flamma.Run.load(run.path).predict(new)
    assert set(said.tolist()) <= {"ill", "well"}
    assert np.mean(said == np.array(new["label"])) > 0.85


def test_whole_numbers_reach_a_named_model_as_real_ones(tmp_path):
    x = np.arange(80).reshape(40, 2)
    run = flamma.run(data=(x, [0, 1] * 20), group=[0, 1] * 20, **BRIEF, out=tmp_path / "run")
    assert run.finished
    assert run.predict(x / 2).shape == (40,)


def test_regression_of_a_table(tmp_path):
    table = rows()
    run = flamma.run(
        data=table,
        target="marker",
        group="hospital",
        task="regression",
        **BRIEF,
        data__drop=["label"],
        out=tmp_path / "run",
    )
    assert run.predict(table).dtype == np.float32
    with pytest.raises(DataError, match='task="regression"'):
        flamma.run(data=table, target="marker", group="hospital", out=tmp_path / "other")


def test_a_suite_takes_the_file_and_its_natural_clients(file, tmp_path):
    suite = read_suite(
        {
            "strategies": ["fedavg", "incentive"],
            "seeds": 1,
            "run": {
                "rounds": 1,
                "model": "lenet5",
                "data": {"file": str(file), "clients": 10, **NAMED},
            },
        }
    )
    fitted, _ = asked_suite(suite)
    assert (fitted.datasets, fitted.splits) == (("own",), ("groups",))
    [fedavg, incentive] = [cell.config for cell in fitted.cells()]
    assert (fedavg.data.clients, fedavg.per_round, fedavg.model.name) == (3, 3, "mlp")
    assert fedavg.data.validation_samples == incentive.data.validation_samples == 6
    assert asked_suite("quick")[0] == read_suite("quick")
    table = compare(suite, out=tmp_path / "out", processes=1)
    assert {row.strategy for row in table.rows} == {"fedavg", "incentive"}


def test_an_audit_takes_a_file(file, tmp_path):
    found = audit(
        {"rounds": 1, "data": {"file": str(file), **NAMED}},
        out=tmp_path / "out",
        deviations=["cost-x2"],
        clients=[0],
        seeds=1,
        processes=1,
    )
    assert [case.clients for case in found.cases] == [3]


def test_a_mapping_that_is_no_data_is_refused(tmp_path):
    with pytest.raises(FlammaError, match="no form of data that is known"):
        flamma.run(data={"a": 1, "b": 2}, out=tmp_path / "run")


# Data and models of one's own in comparisons, audits and searches.

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
    named = replace(data, about=replace(data.about, name="other"))
    hashes = {content_sha256(d) for d in (data, moved, renumbered, named)}
    assert len(hashes) == 3


def test_each_seed_deals_own_samples_anew():
    config, own = configured({"per_round": 2}, COLUMNS, patients())
    first, other = (own.federation(config.with_settings({"seed": seed})) for seed in (0, 1))
    assert first.sha256 != other.sha256
    assert own.federation(config).sha256 == first.sha256


def test_nothing_to_do_needs_no_fork(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "fork")
    assert do_jobs([], tmp_path, own=UserObjects(model=Net)) == {}

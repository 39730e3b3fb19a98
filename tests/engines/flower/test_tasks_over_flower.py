"""Other tasks than classification, at sites and in simulations."""

from __future__ import annotations

import os

import numpy as np
import pytest

from engines.flower.loopback import LoopGrid, partitions
from flamma.data import sites
from flamma.data.federated import FederatedData
from flamma.engines.flower import client_app
from flamma.engines.flower.handover import DATA_VARIABLE, hand_over, take_over
from flamma.engines.flower.server_app import serve
from flamma.errors import DataError, RunError
from flamma.experiments.config import make_config
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run, run
from tasks.federations_of_tasks import CLIENTS, numbers

CONFIG = {
    "rounds": 3,
    "per_round": 2,
    "data": {"dataset": "own", "clients": CLIENTS},
    "model": "logistic",
    "strategy": "qffl",
    "engine": "flower",
    "costs": {"value": 0.07},
}


def site(data: FederatedData, client: int, **more: object) -> sites.SiteData:
    own = slice(*data.train_offsets[client : client + 2])
    held = slice(*data.held_offsets[client : client + 2])
    parts = (data.train_x[own], data.train_y[own], data.held_x[held], data.held_y[held])
    told = {"tells_cost": True, "task": data.task, **more}
    return sites.SiteData("abcd"[client], 0.07, *parts, sites.SiteClasses(data.classes), **told)


def assert_same_scores(one: Run, other: Run) -> None:
    assert one.params_sha256 == other.params_sha256
    for ours, theirs in zip(one.history, other.history, strict=True):
        assert ours.metric("accuracy") == theirs.metric("accuracy")
        assert ours.metric("loss") == theirs.metric("loss")
        assert ours.evaluation.scored_by == theirs.evaluation.scored_by == "R²"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    place = tmp_path_factory.mktemp("local") / "run"
    return run(CONFIG | {"engine": "local", "data": {}}, data=numbers(), out=place)


def test_sites_of_regression_score_by_r2_as_on_the_local_engine(tmp_path, monkeypatch, local):
    held = {name: site(numbers(), k) for k, name in enumerate("abcd")}
    monkeypatch.setattr(sites, "load_site", lambda where: held[str(where)])
    monkeypatch.chdir(tmp_path)  # the folder of all sites, which keep the final model
    grid = LoopGrid({k + 5: {"site": name} for k, name in enumerate("abcd")})
    serve(grid, make_config(CONFIG), RunFolder(tmp_path / "run"), names=list("abcd"))
    there = Run.load(tmp_path / "run")
    assert_same_scores(there, local)
    assert there.about["metric"] == "r2"
    assert local.history[-1].metric("test_accuracy") is not None  # which the server has no data for
    assert there.history[-1].metric("test_accuracy") is None


def test_a_simulation_of_regression_is_the_local_run(tmp_path, monkeypatch, local):
    hand_over(numbers(), tmp_path / "data")
    monkeypatch.setitem(os.environ, DATA_VARIABLE, str(tmp_path / "data"))
    client_app._federation.cache_clear()
    folder, grid = RunFolder(tmp_path / "run"), LoopGrid(partitions(CLIENTS))
    serve(grid, make_config(CONFIG), folder, data=take_over(tmp_path / "data"))
    client_app._federation.cache_clear()
    assert_same_scores(Run.load(tmp_path / "run"), local)


def test_sites_of_different_tasks_are_told_before_anything_begins(tmp_path, monkeypatch):
    held = {name: site(numbers(), k) for k, name in enumerate("abc")}
    held["d"] = site(numbers(), 3, task="classification")
    monkeypatch.setattr(sites, "load_site", lambda where: held[str(where)])
    grid = LoopGrid({k + 5: {"site": name} for k, name in enumerate("abcd")})
    with pytest.raises(RunError, match="one of classification, but clients have data of regr"):
        serve(grid, make_config(CONFIG), RunFolder(tmp_path / "run"), names=list("abcd"))


def test_what_is_handed_over_comes_back(tmp_path):
    from dataclasses import replace

    data = numbers()
    given = replace(data, about=replace(data.about, labels=("price",), client_names=tuple("abcd")))
    hand_over(given, tmp_path)
    found = take_over(tmp_path)
    assert (found.task, found.labels, found.client_names) == (
        "regression",
        ("price",),
        ("a", "b", "c", "d"),
    )
    np.testing.assert_array_equal(found.train_y, given.train_y)
    assert found.train_y.dtype == np.float32


def write_site(folder, task, **arrays):
    np.savez(folder / "own.npz", **arrays)
    file = folder / "site.toml"
    told = f'task = "{task}"\n' if task else ""
    file.write_text(f'name = "a"\ncost = 0.1\n[data]\nnpz = "own.npz"\n{told}')
    return file


def test_a_site_file_names_the_task(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    found = sites.load_site(write_site(tmp_path, "regression", x=x, y=y))
    assert (found.task, found.classes, found.y.dtype) == ("regression", 1, np.float32)
    assert (found.y.size, found.held_y.size) == (16, 4)
    with pytest.raises(DataError, match="the task is regression"):
        sites.load_site(write_site(tmp_path, "", x=x, y=y))
    with pytest.raises(DataError, match="unknown task 'regresion': did you mean regression"):
        sites.load_site(write_site(tmp_path, "regresion", x=x, y=y))


def test_a_site_keeps_token_ids_whole(tmp_path):
    tokens = np.arange(60).reshape(12, 5) % 9
    found = sites.load_site(write_site(tmp_path, "next-token", x=tokens, y=tokens))
    assert found.x.dtype == found.y.dtype == np.int64
    assert (found.classes, found.shape, found.y.shape) == (9, (5,), (10, 5))

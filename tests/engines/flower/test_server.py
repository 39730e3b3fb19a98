"""The real ServerApp's loop and the real ClientApp, with Flower's bytes but without a network."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from engines.flower.loopback import LoopGrid, partitions
from engines.flower.misbehaving import MISCHIEF, spoil
from flamma.data import site_data
from flamma.data.federated import federated_from_arrays
from flamma.engines.flower import client_app, roster, server_app, wire
from flamma.engines.flower.server_app import serve
from flamma.errors import ConfigError, RunError
from flamma.experiments import checkpoint
from flamma.experiments.config import make_config
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run, run
from flamma.seeding import stream
from flamma.strategies import STRATEGIES

CLIENTS = 4
SMALL = {
    "rounds": 3,
    "per_round": 3,
    "data": {"clients": CLIENTS, "train_samples": 80, "validation_samples": 40},
    "model": {"name": "logistic"},
    "training": {"learning_rate": 0.1, "epochs": 2},
    "costs": {"kind": "lognormal", "value": 0.05},
}
SAME = (
    *("selected", "failed", "abstained", "local_epochs", "decay_factor", "contributions"),
    *("accuracy", "accuracy_variance", "test_accuracy", "follower_gap", "leader_regret"),
)


def tables(name="flamma", **more):
    return {**SMALL, "strategy": {"name": name}, **more}


def served(place, config, grid=None, **options):
    grid = grid or LoopGrid(partitions(config["data"]["clients"]))
    serve(grid, make_config(config), RunFolder(place), **options)
    return Run.load(place)


def assert_same(ours, theirs):
    assert ours.params_sha256 == theirs.params_sha256
    for one, other in zip(ours.history, theirs.history, strict=True):
        assert {k: one[k] for k in SAME} == {k: other[k] for k in SAME}


@pytest.mark.parametrize("name", [n for n in STRATEGIES if not STRATEGIES[n].pools_data])
def test_every_strategy_gives_what_the_local_engine_gives(tmp_path, name):
    config = tables(name)
    ours = served(tmp_path / "flower", config)
    assert_same(ours, run(config, out=tmp_path / "local"))
    ours_table, theirs = (
        np.loadtxt(tmp_path / kind / "clients.csv", delimiter=",", skiprows=1)
        for kind in ("flower", "local")
    )
    np.testing.assert_allclose(ours_table, theirs, rtol=1e-5)
    population = (tmp_path / "local" / "population.csv").read_text()
    short = [",".join(line.split(",")[:4]) for line in population.splitlines()]
    assert (tmp_path / "flower" / "population.csv").read_text().splitlines() == short


@pytest.mark.parametrize("name", [n for n in STRATEGIES if not STRATEGIES[n].pools_data])
def test_batch_norms_go_through_every_strategy(tmp_path, name):
    config = tables(
        name,
        rounds=2,
        data={"clients": 3, "train_samples": 24, "validation_samples": 10, "split": "iid"},
        model={"name": "resnet18", "width": 0.01, "norm": "batch"},
        training={"epochs": 1, "batch_size": 4, "learning_rate": 0.05},
    )
    ours = served(tmp_path / "flower", config)
    assert [record["failed"] for record in ours.history] == [{}, {}]
    assert ours.about["trainer"] == "torch"
    assert_same(ours, run(config, out=tmp_path / "local"))


def test_one_message_serves_training_and_judging(tmp_path):
    grid = LoopGrid(partitions(CLIENTS))
    served(tmp_path / "run", tables("fedavg"), grid)
    kinds = [kind for _, kind in grid.sent]
    rounds, others = SMALL["rounds"], CLIENTS - SMALL["per_round"]
    assert kinds.count("query") == CLIENTS
    assert kinds.count("train") == rounds * SMALL["per_round"]
    # Who does not train judges by itself, and everybody does after the last round.
    assert kinds.count("evaluate") == (rounds - 1) * others + CLIENTS
    assert len(kinds) == CLIENTS + rounds * SMALL["per_round"] + (rounds - 1) * others + CLIENTS


def test_judging_every_other_round_is_as_on_the_local_engine(tmp_path):
    config = tables("fedavg", rounds=5, evaluation={"every": 2})
    ours = served(tmp_path / "flower", config)
    assert [record["accuracy"] is not None for record in ours.history] == [0, 1, 0, 1, 1]
    assert_same(ours, run(config, out=tmp_path / "local"))


class StopError(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 2])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch, stop):
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)

    def interrupt(record):
        if record["round"] == stop:
            raise StopError

    whole = served(tmp_path / "whole", tables())
    with pytest.raises(StopError):
        served(tmp_path / "cut", tables(), on_round=interrupt)
    assert_same(served(tmp_path / "cut", tables()), whole)


@pytest.mark.parametrize("mischief", MISCHIEF)
def test_a_hostile_answer_is_refused_and_the_round_goes_on(tmp_path, mischief):
    grid = LoopGrid(partitions(CLIENTS))
    villain = next(node for node, c in grid.nodes.items() if c.node_config["partition-id"] == 2)

    def interfere(node, content):
        playing = wire.PROFILE not in content and (villain, "query") in grid.sent
        if node == villain and playing and grid.sent.count((node, "train")) > 1:  # not warm-up
            return spoil(content, mischief)
        return content

    grid.interfere = interfere
    config = tables(per_round=CLIENTS, rounds=2)
    done = served(tmp_path / "run", config, grid)
    about_scores = mischief in ("accuracy", "held out", "score name", "no score")
    first, last = done.history
    for record in (first, last):
        assert list(record["failed"]) == ([] if about_scores else ["2"])
        assert all("refused: " in reason for reason in record["failed"].values())
        assert record["follower_gap"] < 1e-9
    # What was said of the first round's model came in the second round.
    assert (first["clients_scored"] == CLIENTS - 1) == about_scores
    assert first.get("unscored", {}).keys() == ({"2"} if about_scores else set())
    table = np.loadtxt(tmp_path / "run" / "clients.csv", delimiter=",", skiprows=1)
    assert np.isnan(table[table[:, 1] == 2][0, 2]) == about_scores
    if not about_scores:  # the same as if the client had not answered
        other = LoopGrid(partitions(CLIENTS))
        other.interfere = lambda node, content: (
            None if node == villain and other.sent.count((node, "train")) > 1 else content
        )
        silent = served(tmp_path / "silent", {**config, "engine": {"wait": 0.1}}, other)
        assert silent.params_sha256 == done.params_sha256
        assert silent.history[0]["failed"] == {"2": "no answer in 0.1 s"}


def test_a_client_that_raises_is_told_in_one_line(tmp_path, monkeypatch):
    grid = LoopGrid(partitions(CLIENTS))
    score = client_app.Site.score

    def broken(site, order, params):
        if site.holdings.name == "1":
            raise ValueError("the disk is gone\nand more")
        return score(site, order, params)

    monkeypatch.setattr(client_app.Site, "score", broken)
    done = served(tmp_path / "run", tables("fedavg", per_round=CLIENTS), grid)
    for record in done.history:
        assert record["unscored"] == {"1": "ValueError: the disk is gone"}
        assert record["failed"] == {}  # it could still train
        assert record["clients_scored"] == CLIENTS - 1


def test_who_is_away_is_said_and_comes_back(tmp_path):
    grid = LoopGrid(partitions(CLIENTS))
    gone = next(node for node, c in grid.nodes.items() if c.node_config["partition-id"] == 0)

    def follow(record):
        grid.away = {gone} if record["round"] == 1 else set()

    done = served(tmp_path / "run", tables("fedavg", per_round=4, rounds=4), grid, on_round=follow)
    # Round 1 is told when round 2 has been played, so it is round 3 that misses somebody.
    assert [r["failed"] for r in done.history] == [{}, {}, {"0": "not connected"}, {}]
    assert [r.get("unscored") for r in done.history] == [None, {"0": "not connected"}, None, None]
    assert [r["clients_scored"] for r in done.history] == [4, 3, 4, 4]


def test_without_everybody_a_run_does_not_begin_but_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(server_app, "GATHER", 0.1)
    monkeypatch.setattr(server_app, "REJOIN", 0.1)
    monkeypatch.setattr(roster, "LOOK", 0.05)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)
    grid = LoopGrid(partitions(CLIENTS))
    gone = next(node for node, c in grid.nodes.items() if c.node_config["partition-id"] == 3)
    grid.away = {gone}
    with pytest.raises(RunError, match="these clients did not come: 3"):
        served(tmp_path / "never", tables(), grid)
    assert not (tmp_path / "never" / "config.toml").exists()
    grid.away = set()

    def interrupt(record):
        raise StopError

    config = tables("fedavg", per_round=4)
    with pytest.raises(StopError):
        served(tmp_path / "run", config, grid, on_round=interrupt)
    again = LoopGrid(partitions(CLIENTS))
    again.away = {gone}
    done = served(tmp_path / "run", config, again)
    assert done.finished
    assert done.history[-1]["failed"] == {"3": "not connected"}
    assert done.history[-1]["clients_scored"] == 3


def places(names="abc", cost=0.07):
    found = {}
    for number, name in enumerate(names):
        rng = stream(number, "place")
        y = rng.integers(0, 3, 40)
        x = (rng.normal(size=(40, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32)
        parts = (x[:30], y[:30], x[30:], y[30:])
        found[name] = site_data.SiteData(name, cost, *parts, classes=3, tells_cost=True)
    return found


SITES = {
    "rounds": 3,
    "per_round": 2,
    "data": {"dataset": "own", "clients": 3},
    "model": {"name": "logistic"},
    "strategy": {"name": "flamma"},
}


@pytest.fixture
def sites(monkeypatch):
    held = places()
    monkeypatch.setattr(site_data, "load_site", lambda where: held[str(where)])
    return held


def nodes(names):
    return {90 - 11 * k: {"site": name} for k, name in enumerate(names)}


def test_sites_are_known_by_name_whatever_their_nodes(tmp_path, sites):
    first = served(tmp_path / "one", SITES, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    second = served(tmp_path / "two", SITES, LoopGrid(nodes("cab")), names=["a", "b", "c"])
    assert first.params_sha256 == second.params_sha256
    assert first.history[0]["test_accuracy"] is None  # the server has no data
    population = (tmp_path / "one" / "population.csv").read_text().splitlines()
    assert population[1] == "0,30,10,0.07,a"
    data = federated_from_arrays(
        [(p.x, p.y) for p in sites.values()], [(p.held_x, p.held_y) for p in sites.values()]
    )
    local = run({**SITES, "data": {}, "costs": {"value": 0.07}}, data=data, out=tmp_path / "local")
    assert local.params_sha256 == first.params_sha256


def test_a_site_may_lack_a_class(tmp_path, sites):
    few = sites["b"].y < 2
    kept = replace(sites["b"], x=sites["b"].x[few], y=sites["b"].y[few], classes=2)
    sites["b"] = replace(kept, held_y=np.minimum(kept.held_y, 1))
    config = {**SITES, "per_round": 3}
    done = served(tmp_path / "run", config, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    assert [record["failed"] for record in done.history] == [{}, {}, {}]
    assert done.history[-1]["clients_scored"] == 3


def test_a_client_slower_than_the_limit_is_late(tmp_path):
    config = tables("fedavg", rounds=1, engine={"time_limit": 1e-9})
    done = served(tmp_path / "run", config)
    assert set(done.history[0]["failed"].values()) == {"late: over 1e-09 s"}
    assert len(done.history[0]["failed"]) == SMALL["per_round"]
    assert done.history[0]["clients_scored"] == CLIENTS  # judging was not late


def test_a_cost_that_is_not_asked_for_stays_at_the_site(tmp_path, sites):
    config = {**SITES, "strategy": {"name": "flamma", "server_costs": "revealed"}}
    grid = LoopGrid(nodes("abc"))
    costs = []
    grid.interfere = lambda node, content: (
        (costs.append(content[wire.PROFILE]["cost"]) if wire.PROFILE in content else None)
        or content
    )
    done = served(tmp_path / "run", config, grid, names=["a", "b", "c"])
    assert np.isnan(costs).all()
    assert len(costs) == 3
    assert ",nan,a" in (tmp_path / "run" / "population.csv").read_text()
    assert done.finished


def test_a_site_that_keeps_its_cost_to_itself_is_estimated(tmp_path, sites):
    sites["b"] = replace(sites["b"], tells_cost=False)
    done = served(tmp_path / "run", SITES, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    told = (tmp_path / "run" / "population.csv").read_text()
    assert "0.07,a" in told
    assert "nan,b" in told
    assert all(record["leader_regret"] is not None for record in done.history)


def test_a_stranger_and_a_second_of_the_same_name_are_refused(tmp_path, sites):
    sites["z"] = replace(sites["a"], name="z")
    sites["again"] = sites["b"]
    crowd = LoopGrid({**nodes("abc"), 999: {"site": "z"}, 998: {"site": "again"}})
    done = served(tmp_path / "run", SITES, crowd, names=["a", "b", "c"])
    alone = served(tmp_path / "alone", SITES, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    assert done.params_sha256 == alone.params_sha256
    assert done.about["refused"] == {
        "node 998": "the name 'b' is taken by another node",
        "node 999": "nobody of the name 'z' belongs to this run",
    }


def test_a_name_must_be_that_of_the_key(tmp_path, sites):
    names = {node: c["site"] for node, c in nodes("abc").items()}
    sites["liar"] = sites["a"]
    crowd = LoopGrid({5: {"site": "liar"}, **nodes("abc")}, names=names | {5: "d"})
    done = served(tmp_path / "run", SITES, crowd, names=["a", "b", "c"])
    assert done.about["refused"] == {"d": "it says that it is 'a', but its key is that of 'd'"}
    assert done.history[-1]["failed"] == {}


def test_sites_whose_samples_differ_are_told_before_anything_begins(tmp_path, sites):
    sites["b"] = replace(sites["b"], x=sites["b"].x[:, :3])
    with pytest.raises(RunError, match=r"the clients have \(3,\), \(4,\)"):
        served(tmp_path / "run", SITES, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    with pytest.raises(ConfigError, match=r"there are 2 sites, but data\.clients is 3"):
        served(tmp_path / "run", SITES, LoopGrid(nodes("abc")), names=["a", "b"])


def test_measured_costs_last_through_a_run_and_its_resumption(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)
    config = tables(costs={"kind": "measured", "value": 20.0})

    def interrupt(record):
        raise StopError

    with pytest.raises(StopError):
        served(tmp_path / "run", config, on_round=interrupt)
    before = (tmp_path / "run" / "population.csv").read_text()
    done = served(tmp_path / "run", config)
    assert (tmp_path / "run" / "population.csv").read_text() == before
    assert done.summary()["certificate"]["follower_gap"] < 1e-9


def test_torch_is_needed_once_a_run_where_clients_train_in_lanes(tmp_path, monkeypatch):
    """A later message of a run finds the plan in the context, as a new process would."""
    from flamma.engines.flower import site

    made = []
    real = site.lanes_plan
    monkeypatch.setattr(site, "lanes_plan", lambda *a: made.append(1) or real(*a))
    grid = LoopGrid(partitions(CLIENTS))
    done = served(tmp_path / "run", tables("fedavg", per_round=CLIENTS), grid)
    if done.about["trainer"] != "lanes":
        pytest.skip("the lanes were not compiled here")
    assert len(made) == CLIENTS  # one for each client, whatever the rounds
    assert all(client_app.MEMORY in context.state for context in grid.nodes.values())


def test_the_server_needs_to_be_told_where(monkeypatch):
    from flwr.app import Context, RecordDict

    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(RunError, match="needs a run directory"):
        server_app.app(LoopGrid({}), context)


def test_the_app_runs_what_lies_in_the_directory(tmp_path, sites):
    from flwr.app import Context, RecordDict

    folder = tmp_path / "run"
    RunFolder(folder).write("config.toml", make_config(SITES).as_toml())
    where = {"run-dir": str(folder), "sites": "a, b,c"}
    server_app.app(LoopGrid(nodes("abc")), Context(1, 1, {}, RecordDict(), where))
    done = Run.load(folder)
    assert done.finished
    assert json.loads((folder / "run.json").read_text())["params_sha256"] == done.params_sha256

"""The real ServerApp's loop and the real ClientApp, with Flower's bytes but without a network."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import ClassVar

import numpy as np
import pytest
from torch import nn

from engines.flower.loopback import OVER_MESSAGES, LoopGrid, partitions
from engines.flower.misbehaving import MISCHIEF, spoil
from flamma.clients.costs import CostedClients, true_costs
from flamma.data import sites as site_data
from flamma.data.federated import from_arrays
from flamma.engines.flower import client_app, codec, roster, server_app
from flamma.engines.flower.messages import Order
from flamma.engines.flower.server_app import serve
from flamma.engines.flower.simulation import FlowerSimulation
from flamma.engines.flower.site import Site
from flamma.errors import ConfigError, RunError
from flamma.experiments import checkpoint
from flamma.experiments.callbacks import (
    BestCheckpoint,
    Callbacks,
    EarlyStopping,
    best_round,
    record_callbacks,
)
from flamma.experiments.config import make_config
from flamma.experiments.engine import ENGINES, NetworkEngine
from flamma.experiments.folder import RunFolder
from flamma.experiments.loop import RunClients, evaluated_clients
from flamma.experiments.run import Run, run
from flamma.models import MODELS
from flamma.seeding import stream
from flamma.training import Trained

CLIENTS = 4
SMALL = {
    "rounds": 3,
    "per_round": 3,
    "data": {"clients": CLIENTS, "train_samples": 80, "validation_samples": 40},
    "model": {"name": "logistic"},
    "training": {"learning_rate": 0.1, "epochs": 2},
    "costs": {"kind": "lognormal", "value": 0.05},
    "engine": {"name": "flower"},
}
same_parts = attrgetter("selected", "offer", "outcome", "game")
SAME_METRICS = ("accuracy", "accuracy_variance", "test_accuracy")


def tables(name="flamma", **more):
    return {**SMALL, "strategy": {"name": name}, **more}


def served(place, config, grid=None, on_round=None, **options):
    grid = grid or LoopGrid(partitions(config["data"]["clients"]))
    callbacks = options.pop("callbacks", Callbacks(on_round=on_round))
    serve(grid, make_config(config), RunFolder(place), callbacks=callbacks, **options)
    return Run.load(place)


def assert_same(ours, theirs):
    assert ours.params_sha256 == theirs.params_sha256
    for one, other in zip(ours.history, theirs.history, strict=True):
        assert same_parts(one) == same_parts(other)
        for name in SAME_METRICS:
            assert one.metric(name) == other.metric(name)


@pytest.mark.parametrize("name", OVER_MESSAGES)
def test_every_strategy_gives_what_the_local_engine_gives(tmp_path, name):
    config = tables(name)
    ours = served(tmp_path / "flower", config)
    assert_same(ours, run(config, out=tmp_path / "local", engine__name="local"))
    ours_table, theirs = (
        np.loadtxt(tmp_path / kind / "clients.csv", delimiter=",", skiprows=1)
        for kind in ("flower", "local")
    )
    np.testing.assert_allclose(ours_table, theirs, rtol=1e-5)
    population = (tmp_path / "local" / "population.csv").read_text()
    short = [",".join(line.split(",")[:4]) for line in population.splitlines()]
    assert (tmp_path / "flower" / "population.csv").read_text().splitlines() == short


def with_batch_norm(shape, classes):
    """Two layers: a residual net of eighteen has nothing more for a strategy to get wrong."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes),
    )  # fmt: skip


@pytest.mark.parametrize("name", OVER_MESSAGES)
def test_batch_norms_go_through_every_strategy(tmp_path, name, monkeypatch):
    monkeypatch.setitem(MODELS._ours, "with-batch-norm", with_batch_norm)
    config = tables(
        name,
        rounds=2,
        data={"clients": 3, "train_samples": 24, "validation_samples": 10, "split": "iid"},
        model={"name": "with-batch-norm"},
        training={"epochs": 1, "batch_size": 4, "learning_rate": 0.05},
    )
    ours = served(tmp_path / "flower", config)
    assert [record.outcome.failed for record in ours.history] == [{}, {}]
    assert ours.about["trainer"] == "torch"
    assert_same(ours, run(config, out=tmp_path / "local", engine__name="local"))


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1, "clip": 0.5, "schedule": {"name": "step", "every": 1}},
        {"optimiser": "adamw", "weight_decay": 0.1, "augmentation": ["flip", "crop"]},
    ],
)
def test_options_of_training_travel_to_the_clients(tmp_path, options):
    config = tables(training={**SMALL["training"], "learning_rate": 0.002, **options})
    ours = served(tmp_path / "flower", config)
    assert [record.outcome.failed for record in ours.history] == [{}, {}, {}]
    assert_same(ours, run(config, out=tmp_path / "local", engine__name="local"))


@pytest.mark.parametrize("name", ["fedavg", "flamma-plus"])
@pytest.mark.parametrize("aggregator", ["trimmed-mean", "fltrust"])
def test_robust_aggregators_give_what_they_give_on_the_local_engine(tmp_path, name, aggregator):
    config = tables(strategy={"name": name, "aggregator": aggregator})
    ours = served(tmp_path / "flower", config)
    assert_same(ours, run(config, out=tmp_path / "local", engine__name="local"))
    plain = run(config, out=tmp_path / "mean", engine__name="local", strategy__aggregator="mean")
    assert plain.params_sha256 != ours.params_sha256


def test_an_aggregator_that_needs_a_validation_set_is_refused_without_one(tmp_path):
    data = SMALL["data"] | {"validation_samples": 0}
    config = tables(strategy={"name": "fedavg", "aggregator": "fltrust"}, data=data)
    expected = (
        r"the aggregator fltrust scores updates on the server's own data: "
        r"set data(\.|__)validation_samples"
    )
    with pytest.raises(ConfigError, match=expected):
        served(tmp_path / "flower", config)
    with pytest.raises(ConfigError, match=expected):
        run(config, out=tmp_path / "local", engine__name="local")


def test_only_the_clients_that_were_drawn_are_asked_to_evaluate(tmp_path):
    grid = LoopGrid(partitions(CLIENTS))
    config = tables("fedavg", evaluation={"clients": 2})
    ours = served(tmp_path / "flower", config, grid)
    assert_same(ours, run(config, out=tmp_path / "local", engine__name="local"))
    assert [r.evaluation.sample for r in ours.history] == [2] * SMALL["rounds"]
    asked = [kind for _, kind in grid.sent].count("evaluate")
    drawn = set(evaluated_clients(ours.config).tolist())
    idle = sum(len(drawn - set(record.selected)) for record in ours.history[1:])
    assert asked == idle + 2  # the others trained, or were asked after the last round


def test_one_message_serves_training_and_evaluation(tmp_path):
    grid = LoopGrid(partitions(CLIENTS))
    served(tmp_path / "run", tables("fedavg"), grid)
    kinds = [kind for _, kind in grid.sent]
    rounds, others = SMALL["rounds"], CLIENTS - SMALL["per_round"]
    assert kinds.count("query") == CLIENTS
    assert kinds.count("train") == rounds * SMALL["per_round"]
    # Clients that do not train get a message to evaluate, and so do all after the last round.
    assert kinds.count("evaluate") == (rounds - 1) * others + CLIENTS
    assert len(kinds) == CLIENTS + rounds * SMALL["per_round"] + (rounds - 1) * others + CLIENTS


def test_scores_that_cannot_wait_are_asked_for_at_once_and_only_once(tmp_path, monkeypatch):
    ahead = served(tmp_path / "ahead", tables("fedavg"))
    monkeypatch.setattr(
        server_app, "RunClients", lambda **parts: RunClients(**{**parts, "looks_ahead": False})
    )
    grid = LoopGrid(partitions(CLIENTS))
    assert_same(served(tmp_path / "at once", tables("fedavg"), grid), ahead)
    kinds = [kind for _, kind in grid.sent]
    assert kinds.count("train") == SMALL["rounds"] * SMALL["per_round"]
    assert kinds.count("evaluate") == SMALL["rounds"] * CLIENTS


def test_evaluating_every_other_round_is_as_on_the_local_engine(tmp_path):
    config = tables("fedavg", rounds=5, evaluation={"every": 2})
    ours = served(tmp_path / "flower", config)
    assert [record.evaluated for record in ours.history] == [0, 1, 0, 1, 1]
    assert_same(ours, run(config, out=tmp_path / "local", engine__name="local"))


class StopError(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 2])
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch, stop):
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)

    def interrupt(record):
        if record.round == stop:
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
        playing = codec._PROFILE_RECORD not in content and (villain, "query") in grid.sent
        if node == villain and playing and grid.sent.count((node, "train")) > 1:  # not warm-up
            return spoil(content, mischief)
        return content

    grid.interfere = interfere
    config = tables(per_round=CLIENTS, rounds=2)
    done = served(tmp_path / "run", config, grid)
    about_scores = mischief in ("accuracy", "held out", "score name", "no score")
    first, last = done.history
    for record in (first, last):
        assert list(record.outcome.failed) == ([] if about_scores else [2])
        assert all("refused: " in reason for reason in record.outcome.failed.values())
        assert record.game.certificate.follower_gap < 1e-9
    # What was said of the first round's model came in the second round.
    assert (first.metric("clients_scored") == CLIENTS - 1) == about_scores
    assert first.evaluation.unscored.keys() == ({2} if about_scores else set())
    table = np.loadtxt(tmp_path / "run" / "clients.csv", delimiter=",", skiprows=1)
    assert np.isnan(table[table[:, 1] == 2][0, 2]) == about_scores
    if not about_scores:  # the same as if the client had not answered
        other = LoopGrid(partitions(CLIENTS))
        other.interfere = lambda node, content: (
            None if node == villain and other.sent.count((node, "train")) > 1 else content
        )
        silent = served(
            tmp_path / "silent", {**config, "engine": {"name": "flower", "wait": 0.1}}, other
        )
        assert silent.params_sha256 == done.params_sha256
        assert silent.history[0].outcome.failed == {2: "no answer in 0.1 s"}


def test_a_client_that_raises_is_told_in_one_line(tmp_path, monkeypatch):
    grid = LoopGrid(partitions(CLIENTS))
    score = client_app.Site.score

    def broken(site, order, params):
        if site.data.name == "1":
            raise ValueError("the disk is gone\nand more")
        return score(site, order, params)

    monkeypatch.setattr(client_app.Site, "score", broken)
    done = served(tmp_path / "run", tables("fedavg", per_round=CLIENTS), grid)
    for record in done.history:
        assert record.evaluation.unscored == {1: "ValueError: the disk is gone"}
        assert record.outcome.failed == {}  # it could still train
        assert record.metric("clients_scored") == CLIENTS - 1


def test_who_is_away_is_said_and_comes_back(tmp_path):
    grid = LoopGrid(partitions(CLIENTS))
    gone = next(node for node, c in grid.nodes.items() if c.node_config["partition-id"] == 0)

    def follow(record):
        grid.away = {gone} if record.round == 1 else set()

    done = served(tmp_path / "run", tables("fedavg", per_round=4, rounds=4), grid, on_round=follow)
    # Round 1 is told when round 2 has been played, so it is round 3 that misses somebody.
    assert [r.outcome.failed for r in done.history] == [{}, {}, {0: "not connected"}, {}]
    unscored = [r.evaluation.unscored for r in done.history]
    assert unscored == [{}, {0: "not connected"}, {}, {}]
    assert [r.metric("clients_scored") for r in done.history] == [4, 3, 4, 4]


def test_a_run_begins_with_all_clients_only_but_goes_on_without_some(tmp_path, monkeypatch):
    monkeypatch.setattr(server_app, "_GATHER_SECONDS", 0.1)
    monkeypatch.setattr(server_app, "_REJOIN_SECONDS", 0.1)
    monkeypatch.setattr(roster, "NODE_CHECK_SECONDS", 0.05)
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
    assert done.history[-1].outcome.failed == {3: "not connected"}
    assert done.history[-1].metric("clients_scored") == 3


def places(names="abc", cost=0.07):
    found = {}
    for number, name in enumerate(names):
        rng = stream(number, "place")
        y = rng.integers(0, 3, 40)
        x = (rng.normal(size=(40, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32)
        parts = (x[:30], y[:30], x[30:], y[30:])
        found[name] = site_data.SiteData(
            name, cost, *parts, site_data.SiteClasses(3), tells_cost=True
        )
    return found


SITES = {
    "rounds": 3,
    "per_round": 2,
    "data": {"dataset": "own", "clients": 3},
    "model": {"name": "logistic"},
    "strategy": {"name": "flamma"},
    "engine": {"name": "flower"},
}


@pytest.fixture
def sites(monkeypatch, tmp_path):
    held = places()
    monkeypatch.setattr(site_data, "load_site", lambda where: held[str(where)])
    monkeypatch.chdir(tmp_path)  # the folder of all sites
    return held


def nodes(names):
    return {90 - 11 * k: {"site": name} for k, name in enumerate(names)}


def test_sites_are_known_by_name_whatever_their_nodes(tmp_path, sites):
    first = served(tmp_path / "one", SITES, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    second = served(tmp_path / "two", SITES, LoopGrid(nodes("cab")), names=["a", "b", "c"])
    assert first.params_sha256 == second.params_sha256
    assert first.history[0].metric("test_accuracy") is None  # the server has no data
    population = (tmp_path / "one" / "population.csv").read_text().splitlines()
    assert population[1] == "0,30,10,0.07,a"
    data = from_arrays(
        [(p.x, p.y) for p in sites.values()], [(p.held_x, p.held_y) for p in sites.values()]
    )
    here = {**SITES, "data": {}, "engine": "local", "costs": {"value": 0.07}}
    local = run(here, data=data, out=tmp_path / "local")
    assert local.params_sha256 == first.params_sha256


def test_a_site_may_lack_a_class(tmp_path, sites):
    few = sites["b"].y < 2
    kept = replace(
        sites["b"], x=sites["b"].x[few], y=sites["b"].y[few], agreed=site_data.SiteClasses(2)
    )
    sites["b"] = replace(kept, held_y=np.minimum(kept.held_y, 1))
    config = {**SITES, "per_round": 3}
    done = served(tmp_path / "run", config, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    assert [record.outcome.failed for record in done.history] == [{}, {}, {}]
    assert done.history[-1].metric("clients_scored") == 3


def test_a_client_slower_than_the_limit_is_late(tmp_path):
    config = tables("fedavg", rounds=1, engine={"name": "flower", "time_limit": 1e-9})
    done = served(tmp_path / "run", config)
    assert set(done.history[0].outcome.failed.values()) == {"late: over 1e-09 s"}
    assert len(done.history[0].outcome.failed) == SMALL["per_round"]
    assert done.history[0].metric("clients_scored") == CLIENTS  # the evaluation was not late


def test_a_cost_that_is_not_asked_for_stays_at_the_site(tmp_path, sites):
    config = {**SITES, "strategy": {"name": "flamma", "server_costs": "revealed"}}
    grid = LoopGrid(nodes("abc"))
    costs = []
    grid.interfere = lambda node, content: (
        (
            costs.append(content[codec._PROFILE_RECORD]["cost"])
            if codec._PROFILE_RECORD in content
            else None
        )
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
    assert all(record.game.certificate is not None for record in done.history)


def test_a_stranger_and_a_second_of_the_same_name_are_refused(tmp_path, sites):
    sites["z"] = replace(sites["a"], name="z")
    sites["again"] = sites["b"]
    crowd = LoopGrid({**nodes("abc"), 999: {"site": "z"}, 998: {"site": "again"}})
    done = served(tmp_path / "run", SITES, crowd, names=["a", "b", "c"])
    alone = served(tmp_path / "alone", SITES, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    assert done.params_sha256 == alone.params_sha256
    assert done.about["refused"] == {
        "node 998": "the name 'b' is taken by another node",
        "node 999": "no client of this run has the name 'z'",
    }


def test_a_name_must_be_that_of_the_key(tmp_path, sites):
    names = {node: c["site"] for node, c in nodes("abc").items()}
    sites["liar"] = sites["a"]
    crowd = LoopGrid({5: {"site": "liar"}, **nodes("abc")}, names=names | {5: "d"})
    done = served(tmp_path / "run", SITES, crowd, names=["a", "b", "c"])
    assert done.about["refused"] == {"d": "it says that it is 'a', but its key is that of 'd'"}
    assert done.history[-1].outcome.failed == {}


def test_a_site_with_a_new_key_is_the_same_client(tmp_path, sites):
    """Its old node is gone for good, and the new one has its name by its key."""
    known = nodes("abc")
    grid = LoopGrid(known, names={node: c["site"] for node, c in known.items()})

    def follow(record):
        if record.round == 1:
            grid.away = {79}
            grid.nodes[7], grid.names[7] = grid.nodes[79], "b"

    config = SITES | {"per_round": 3, "strategy": {"name": "fedavg"}}
    done = served(tmp_path / "run", config, grid, on_round=follow, names=["a", "b", "c"])
    assert [record.outcome.failed for record in done.history] == [{}] * 3
    assert 7 in {node for node, _ in grid.sent}
    assert "refused" not in done.about


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
    assert done.summary()["follower_gap"] < 1e-9


def test_a_client_goes_by_its_own_cost_or_by_the_one_in_its_order(tmp_path, sites, monkeypatch):
    sites["a"] = replace(sites["a"], cost=None)
    sites["c"] = replace(sites["c"], cost=0.3, tells_cost=False)
    used, real = {}, client_app.Site.cost
    monkeypatch.setattr(
        client_app.Site,
        "cost",
        lambda site, order: used.setdefault((site.data.name, order.client), real(site, order)),
    )
    costs = {"kind": "lognormal", "value": 0.05}
    config = {**SITES, "per_round": 3, "costs": costs}
    done = served(tmp_path / "run", config, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    drawn = true_costs(done.config.costs, CostedClients(3, done.config.seed))
    assert {key: cost for key, cost in used.items() if key[1] >= 0} == {
        ("a", 0): drawn[0],  # by the configuration: the server drew it and sent it along
        ("b", 1): 0.07,
        ("c", 2): 0.3,
    }
    population = (tmp_path / "run" / "population.csv").read_text().splitlines()[1:]
    assert [line.split(",")[3] for line in population] == [repr(float(drawn[0])), "0.07", "nan"]


def test_a_measured_cost_is_timed_once_and_what_the_order_repeats_is_not_timed(sites, monkeypatch):
    here = replace(sites["a"], cost=None)
    text = make_config({**SITES, "costs": {"kind": "measured", "value": 3.0}}).as_toml()
    seconds = iter([9.0, 0.25])  # the first epoch warms the machine up
    monkeypatch.setattr(Site, "_train", lambda *_: Trained(None, seconds=next(seconds)))
    site = Site(here, text, {})
    assert site.cost(Order(text)) == 0.75
    assert site.cost(Order(text)) == 0.75
    assert Site(here, text, {}).cost(Order(text, cost=0.5)) == 0.5
    assert Site(replace(here, cost=0.2), text, {}).cost(Order(text, cost=0.5)) == 0.2


def test_a_client_that_was_not_told_its_cost_does_not_draw_one(sites):
    text = make_config({**SITES, "costs": {"kind": "lognormal"}}).as_toml()
    site = Site(replace(sites["a"], cost=None), text, {})
    with pytest.raises(ConfigError, match="a was not told its cost of the kind lognormal"):
        site.cost(Order(text))
    assert site.cost(Order(text, cost=0.5)) == 0.5


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
    assert all(client_app._MEMORY_RECORD in context.state for context in grid.nodes.values())


def test_the_server_needs_to_be_told_where(monkeypatch):
    from flwr.app import Context, RecordDict

    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(RunError, match="needs a run directory"):
        server_app.app(LoopGrid({}), context)


@dataclass(frozen=True)
class Elsewhere(NetworkEngine):
    """Stands for any engine whose server part is our ServerApp."""

    name: ClassVar[str] = "elsewhere"
    server: str = ""

    def execute(self, assignment):
        raise NotImplementedError


def test_any_engine_with_a_network_is_served_and_clients_only_learn_its_time_limit(
    tmp_path, sites, monkeypatch
):
    monkeypatch.setitem(ENGINES._ours, "elsewhere", Elsewhere)
    engine = {"name": "elsewhere", "server": "/secret/place", "time_limit": 50.0, "wait": 9.0}
    seen = []

    def answer(message, context):
        seen.append(message.content[codec._ORDER_RECORD]["config"])
        return client_app.app(message, context)

    grid = LoopGrid(nodes("abc"), answer=answer)
    config = {**SITES, "engine": engine}
    done = served(tmp_path / "run", config, grid, names=["a", "b", "c"])
    other = served(tmp_path / "other", SITES, LoopGrid(nodes("abc")), names=["a", "b", "c"])
    assert done.params_sha256 == other.params_sha256
    assert done.config.engine == Elsewhere(time_limit=50.0, wait=9.0, server="/secret/place")
    assert len(seen) > 3
    for text in seen:
        assert "secret" not in text
        assert make_config(tomllib.loads(text)).engine == FlowerSimulation(time_limit=50.0)


def test_a_run_of_the_local_engine_is_not_served(tmp_path):
    with pytest.raises(ConfigError, match="the engine local has no clients behind a network"):
        served(tmp_path / "run", tables(engine="local"))
    assert not (tmp_path / "run").exists()


def test_the_app_runs_what_lies_in_the_directory(tmp_path, sites):
    from flwr.app import Context, RecordDict

    folder = tmp_path / "run"
    RunFolder(folder).write("config.toml", make_config(SITES).as_toml())
    where = {"run-dir": str(folder), "sites": "a, b,c"}
    server_app.app(LoopGrid(nodes("abc")), Context(1, 1, {}, RecordDict(), where))
    done = Run.load(folder)
    assert done.finished
    assert json.loads((folder / "run.json").read_text())["params_sha256"] == done.params_sha256


def test_what_a_run_directory_names_is_told_where_the_rounds_happen(tmp_path):
    named = [EarlyStopping(patience=2), BestCheckpoint()]
    config = tables("flamma", rounds=30)
    local = run({**config, "engine": {"name": "local"}}, out=tmp_path / "local", callbacks=named)
    record_callbacks(tmp_path / "run", named)  # as whoever submits a run does
    done = served(tmp_path / "run", config, callbacks=None)
    assert done.stopped == local.stopped
    assert done.params_sha256 == local.params_sha256
    assert len(done.history) == local.stopped.round < 30
    ours, theirs = best_round(done.path), best_round(local.path)
    assert ours.round == theirs.round
    np.testing.assert_array_equal(ours.params, theirs.params)


@pytest.mark.parametrize("name", ["fedavg", "flamma-plus", "ditto"])
def test_frozen_parts_do_not_travel_and_are_the_same_at_every_client(tmp_path, name):
    config = tables(name, model={"name": "mlp", "hidden": [5], "freeze": ["1.*"]})
    ours = served(tmp_path / "flower", config)
    assert ours.about["trainer"] == "torch"
    assert [record.outcome.failed for record in ours.history] == [{}, {}, {}]
    assert ours.history[-1].cost.bytes_up == 3 * 4 * (5 * 10 + 10)
    assert_same(ours, run(config, out=tmp_path / "local", engine__name="local"))
    for one in ("flower", "local"):
        card = json.loads((tmp_path / one / "model.json").read_text())
        assert card["names"] == ["3.weight", "3.bias"]
    ours.save(tmp_path / "ours.npz")
    with np.load(tmp_path / "ours.npz") as saved:
        assert sorted(saved.files) == ["1.bias", "1.weight", "3.bias", "3.weight"]


def test_a_run_begins_with_the_weights_of_a_file(tmp_path, monkeypatch):
    config = tables("fedavg", model={"name": "mlp", "hidden": [5]})
    before = run(config, out=tmp_path / "before", engine__name="local", training__learning_rate=0.3)
    start = str(before.save(tmp_path / "start.npz"))
    fine = tables("fedavg", model={"name": "mlp", "hidden": [5], "start": start})
    ours = served(tmp_path / "flower", fine)
    assert_same(ours, run(fine, out=tmp_path / "local", engine__name="local"))
    frozen = tables("fedavg", model=fine["model"] | {"freeze": ["1.*"]})
    refused = served(tmp_path / "refused", frozen)
    assert "frozen weights of a file do not travel" in next(
        iter(refused.history[0].outcome.failed.values())
    )
    monkeypatch.setenv("FLAMMA_FLOWER_KEPT", str(tmp_path / "kept"))
    ours = served(tmp_path / "frozen", frozen)
    assert_same(ours, run(frozen, out=tmp_path / "both", engine__name="local"))


def test_a_deployment_cannot_have_frozen_weights_of_a_file():
    model = {"name": "mlp", "start": "weights.npz", "freeze": ["1.*"]}
    engine = {"name": "deployment", "server": "somewhere"}
    with pytest.raises(ConfigError, match="do not travel to sites"):
        make_config(tables("fedavg", model=model, engine=engine, data={"dataset": "own"}))

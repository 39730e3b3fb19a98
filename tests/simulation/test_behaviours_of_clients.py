"""Behaviours are the same on every engine: in any number of processes, and behind messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engines.flower.loopback import LoopGrid, partitions
from flamma.clients.behaviours import BEHAVIOURS
from flamma.data import sites as site_data
from flamma.engines.flower.conduct import site_conduct
from flamma.engines.flower.environment import NOTES_VARIABLE
from flamma.engines.flower.messages import Order
from flamma.engines.flower.server_app import serve
from flamma.engines.flower.site import Site
from flamma.errors import ConfigError
from flamma.experiments import checkpoint
from flamma.experiments.callbacks import Callbacks
from flamma.experiments.config import make_config
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run, resume, run
from flamma.seeding import stream
from flamma.training import Trained

CLIENTS = 20
SMALL = {
    "rounds": 3,
    "per_round": 17,
    "data": {"clients": CLIENTS, "train_samples": 300, "validation_samples": 20},
    "model": {"name": "logistic"},
    "training": {"epochs": 2},
    "costs": {"kind": "lognormal", "value": 0.05},
}
ALL = {
    "cost-liar": {"clients": [0], "factor": 0.3},
    "imitator": {"clients": [1]},
    "free-rider": {"clients": [2], "sends": "repeat"},
    "riders": {
        "name": "free-rider",
        "clients": [3, 4],
        "sends": "noise",
        "claimed": "most",
        "colluding": True,
    },
    "epoch-faker": {"clients": [5], "claimed": "most"},
    "part-trainer": {"clients": [6]},
    "data-inflater": {"clients": [7]},
    "late-inflater": {"name": "data-inflater", "clients": [8], "from_start": False},
    "loss-inflater": {"clients": [9]},
    "sybil": {"clients": [10, 11]},
    "dropper": {"clients": [12]},
    "sign-flip": {"clients": [13]},
    "scaled-update": {"clients": [14], "factor": 2.0},
    "label-flip": {"clients": [15]},
    "gaussian-noise": {"clients": 2, "colluding": True},
    "honest": {"clients": 1},
}


def test_all_behaviours_are_among_those_compared():
    assert {own.get("name", key) for key, own in ALL.items()} == set(BEHAVIOURS)


def tables(strategy="flamma", behaviours=ALL, **more):
    return {**SMALL, "strategy": {"name": strategy}, "behaviours": behaviours, **more}


def served(place, config, grid=None, on_round=None, **options):
    grid = grid or LoopGrid(partitions(config["data"]["clients"]))
    config = make_config({**config, "engine": {"name": "flower"}})
    serve(grid, config, RunFolder(place), callbacks=Callbacks(on_round=on_round), **options)
    return Run.load(place)


def comparable(record):
    """A record without its times, and without the run that it belongs to."""
    warmup = record.warmup and replace(record.warmup, seconds=0)
    cost = replace(record.cost, seconds=0, seconds_train=0, seconds_evaluate=0)
    return replace(record, run=None, warmup=warmup, cost=cost)


def assert_same(ours, theirs):
    assert [comparable(r) for r in ours.history] == [comparable(r) for r in theirs.history]
    assert ours.params_sha256 == theirs.params_sha256


@pytest.mark.parametrize("strategy", ["flamma", "flamma-plus", "flamma-honest", "qffl"])
def test_messages_and_processes_change_nothing(tmp_path, strategy):
    config = tables(strategy, faults={"stragglers": 0.1})
    local = run(config, out=tmp_path / "local")
    assert_same(run(config, out=tmp_path / "two", engine__processes=2), local)
    assert_same(served(tmp_path / "flower", config), local)
    population, other = (
        np.loadtxt(tmp_path / kind / "population.csv", delimiter=",", skiprows=1)[:, :4]
        for kind in ("local", "flower")
    )
    np.testing.assert_array_equal(population, other)  # the truth, on both


def test_the_record_has_the_truth_and_what_the_server_was_told(tmp_path):
    local = run(tables(per_round=CLIENTS, rounds=1), out=tmp_path / "run")
    [record] = local.history
    table = np.loadtxt(tmp_path / "run" / "population.csv", delimiter=",", skiprows=1)
    true = table[:, 3]
    np.testing.assert_allclose(record.game.costs[0], 0.3 * true[0])
    np.testing.assert_array_equal(record.game.costs[1:], true[1:])
    np.testing.assert_array_equal(record.selected, range(CLIENTS))
    assert [record.outcome.efforts[c] for c in (2, 3, 4, 11)] == [0, 0, 0, 0]
    assert record.outcome.local_epochs[3] == record.outcome.local_epochs[4] == 10
    assert record.outcome.efforts[5] == 1
    assert record.outcome.efforts[6] == record.outcome.local_epochs[6] ** 2 / 2
    assert record.outcome.failed[8].startswith("refused: ")
    assert record.outcome.efforts[8] > 0  # it worked in vain
    honest = 19 if record.outcome.efforts[19] else 18
    assert record.outcome.efforts[honest] == record.outcome.local_epochs[honest] ** 2


@pytest.mark.parametrize("strategy", ["flamma", "fedavg"])
def test_an_honest_population_is_the_same_as_no_behaviours_at_all(tmp_path, strategy):
    nobody = run(tables(strategy, {}), out=tmp_path / "nobody")
    honest = tables(strategy, {"honest": {"clients": 1.0}})
    for processes in (1, 2):
        place = tmp_path / f"honest-{processes}"
        assert_same(run(honest, out=place, engine__processes=processes), nobody)
        assert (place / "clients.csv").read_text() == (nobody.path / "clients.csv").read_text()
    assert_same(served(tmp_path / "flower", honest), nobody)


class StopError(Exception):
    pass


@pytest.mark.parametrize("strategy", ["flamma", "fedavg"])  # with and without a warm-up
def test_a_run_with_repeaters_goes_on_to_the_same_bits(tmp_path, monkeypatch, strategy):
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)

    def interrupt(record):
        if record.round == 2:
            raise StopError

    repeaters = {"free-rider": {"clients": 0.5, "sends": "repeat"}}
    config = tables(strategy, repeaters, rounds=5, per_round=6)
    whole = run(config, out=tmp_path / "whole")
    place = tmp_path / "cut"
    with pytest.raises(StopError):
        run(config, out=place, on_round=interrupt)
    assert_same(resume(place), whole)
    # Behind messages: clients are new, with nothing but the folder of their notes.
    place = tmp_path / "flower"
    monkeypatch.setenv(NOTES_VARIABLE, str(place / "notes"))
    with pytest.raises(StopError):
        served(place, config, on_round=interrupt)
    assert_same(served(place, config), whole)
    assert (place / "notes").is_dir()


def test_who_is_not_asked_has_made_no_effort(tmp_path):
    behaviours = {"part-trainer": {"clients": 1.0}}
    config = tables("fedavg", behaviours, rounds=2, faults={"failures": 0.5})
    for record in run(config, out=tmp_path / "run").history:
        assert record.outcome.failed
        for place, client in enumerate(record.selected):
            assert record.outcome.efforts[place] == (
                0 if client in record.outcome.failed else 0.5 * 2**2
            )


SITES = {
    "rounds": 3,
    "per_round": 3,
    "data": {"dataset": "own", "clients": 3},
    "model": {"name": "logistic"},
    "strategy": {"name": "flamma"},
}


@pytest.fixture
def sites(monkeypatch, tmp_path):
    """Three sites; each test gives some of them a behaviour."""
    held = {}
    for number, name in enumerate("abc"):
        rng = stream(number, "place")
        y = rng.integers(0, 3, 40)
        x = (rng.normal(size=(40, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32)
        parts = (x[:30], y[:30], x[30:], y[30:])
        held[name] = site_data.SiteData(name, 0.1, *parts, site_data.SiteClasses(3), True)
    monkeypatch.setattr(site_data, "load_site", lambda where: held[str(where)])
    monkeypatch.chdir(tmp_path)  # the folder of all sites, which keep the final model
    return held


def deployed(place, config=SITES):
    grid = LoopGrid({90 - 11 * k: {"site": name} for k, name in enumerate("abc")})
    return served(place, config, grid, names=["a", "b", "c"])


def behaving(data, name, **options):
    return replace(data, behaviour=BEHAVIOURS[name](**options))


def test_a_site_behaves_as_its_own_file_says_and_the_server_does_not_know(tmp_path, sites):
    honest = deployed(tmp_path / "honest")
    sites["a"] = behaving(sites["a"], "free-rider", claimed="most", sends="repeat")
    sites["b"] = behaving(sites["b"], "cost-liar", factor=0.5)
    sites["c"] = behaving(sites["c"], "data-inflater")
    done = deployed(tmp_path / "run")
    table = (tmp_path / "run" / "population.csv").read_text().splitlines()[1:]
    assert table == ["0,30,10,0.1,a", "1,30,10,0.05,b", "2,300,10,0.1,c"]
    for record, before in zip(done.history, honest.history, strict=True):
        assert record.outcome.efforts is None
        assert record.outcome.failed == {}
        assert record.outcome.local_epochs[0] == 10
        assert record.game.costs == (0.1, 0.05, 0.1)
        # At the cost that it told, it would have done about twice as many.
        assert record.outcome.local_epochs[1] <= before.outcome.local_epochs[1] + 1
    assert done.params_sha256 != honest.params_sha256


def test_a_site_that_lies_about_a_measured_cost_does_not_come_to_believe_it(sites, monkeypatch):
    text = make_config(
        {**SITES, "engine": "flower", "costs": {"kind": "measured", "value": 2.0}}
    ).as_toml()
    monkeypatch.setattr(Site, "_train", lambda *_: Trained(None, seconds=0.25))
    data = behaving(replace(sites["a"], cost=None), "cost-liar", factor=10)
    memory = {}
    site = Site(data, text, memory, site_conduct(data.behaviour, memory))
    said = site.profile(Order(text, wants_cost=True))
    assert said.cost == 5.0
    assert site.cost(Order(text, cost=said.cost)) == 0.5
    again = Site(data, text, {}, site_conduct(data.behaviour, {}))  # after an interruption
    assert again.cost(Order(text, cost=said.cost)) == 0.5


def test_a_site_has_nobody_elses_data(sites):
    data = behaving(sites["a"], "sybil")
    text = make_config({**SITES, "engine": "flower"}).as_toml()
    conduct = site_conduct(data.behaviour, {})
    assert conduct.group == ()  # so that it trains on its own
    with pytest.raises(ConfigError, match="a site has no data of client 4"):
        conduct.samples_of(4)
    assert Site(data, text, {}, conduct).profile(Order(text)).samples == 30


def test_a_server_cannot_give_sites_a_behaviour(tmp_path, sites):
    config = {**SITES, "behaviours": {"free-rider": {"clients": 1}}}
    with pytest.raises(ConfigError, match=r"put behaviour = \{name = \.\.\.\} into the site.toml"):
        deployed(tmp_path / "run", config)
    text = make_config({**config, "engine": "flower"}).as_toml()
    [honest] = {type(site_conduct(d.behaviour, {}).behaviour) for d in sites.values()}
    assert honest is BEHAVIOURS["honest"]
    assert Site(sites["a"], text, {}).conduct.behaviour == BEHAVIOURS["honest"]()

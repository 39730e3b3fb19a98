"""Sites behind Flower's messages that claim too much, and sites that do not do everything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import RecordDict

from engines.flower.loopback import LoopGrid
from engines.flower.test_server import SITES, nodes, places, served
from engines.flower.test_server import sites as sites
from flamma.clients.trust import TrustLimits
from flamma.data.sites import SiteLimits
from flamma.deploy.engine import Deployment
from flamma.deploy.hosts import read_server
from flamma.deploy.init import init
from flamma.engines.flower import codec
from flamma.errors import ConfigError, DataError, DeployError, RunError
from flamma.experiments.engine import NetworkEngine
from flamma.types import MOST_SAMPLES

NAMES = ["a", "b", "c"]
FEDAVG = {**SITES, "per_round": 3, "strategy": {"name": "fedavg"}}


def run(place, change, config=FEDAVG):
    """Serve three sites, of which ``c`` answers what ``change`` makes of its answer."""
    grid = LoopGrid(nodes("abc"))
    villain = next(n for n, c in grid.nodes.items() if c.node_config["site"] == "c")

    def interfere(node: int, content: RecordDict) -> RecordDict:
        if node == villain:
            change(content)
        return content

    grid.interfere = interfere
    return served(place, config, grid, names=NAMES)


def test_a_claim_of_very_many_samples_counts_for_ten_times_the_median(tmp_path, sites):
    def lie(content):
        for name in (codec._PROFILE_RECORD, codec._REPORT_RECORD):
            if name in content:
                content[name]["samples"] = MOST_SAMPLES - 1

    done = run(tmp_path / "run", lie)
    table = (tmp_path / "run" / "population.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in table[1:]] == ["30", "30", "300"]
    assert [dict(record.outcome.failed) for record in done.history] == [{}, {}, {}]
    assert done.about["capped"] == {"c": MOST_SAMPLES - 1}


def test_weights_of_the_largest_finite_numbers_do_not_end_everybody_elses_training(tmp_path, sites):
    def drown(content):
        if codec._WEIGHTS_RECORD in content:
            size = codec._read_params(content).size
            huge = np.full(size, 3.4e38, dtype=np.float32)
            content[codec._WEIGHTS_RECORD] = codec._pack_params(huge)

    done = run(tmp_path / "run", drown)
    for record in done.history:
        assert list(record.outcome.failed) == [2]
        assert record.outcome.failed[2].startswith("refused: an update of length")
    assert done.history[-1].metric("clients_scored") == 3


@pytest.mark.parametrize("loss", [float("inf"), float("nan")])
def test_losses_that_are_no_numbers_are_refused(tmp_path, sites, loss):
    def blur(content):
        for name in (codec._REPORT_RECORD, codec._SCORE_RECORD):
            if name in content:
                content[name]["loss"] = loss

    done = run(tmp_path / "run", blur, {**FEDAVG, "strategy": {"name": "qffl"}})
    for record in done.history:
        assert dict(record.outcome.failed) == {2: f"refused: a loss of {loss:g}"}
        assert dict(record.evaluation.unscored) == {2: f"refused: a loss of {loss:g}"}


def test_honest_sites_have_the_bits_that_they_have_without_limits(tmp_path, sites, monkeypatch):
    bounded = run(tmp_path / "bounded", lambda content: None)
    free = TrustLimits(samples_ratio=0, update_ratio=0)
    monkeypatch.setattr(NetworkEngine, "trust_limits", lambda self: free)
    assert run(tmp_path / "free", lambda content: None).params_sha256 == bounded.params_sha256


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (SiteLimits(epochs=4), "the order is for 5 epochs, and this site does at most 4"),
        (SiteLimits(seconds=1e-9), "late: over 1e-09 s"),
        (SiteLimits(bytes=20), "weights of 60 bytes, and this site takes at most 20"),
    ],
)
def test_a_site_does_not_do_more_than_it_says_in_its_file(tmp_path, sites, limits, why):
    sites["b"] = replace(sites["b"], limits=limits)
    done = run(tmp_path / "run", lambda content: None)
    for record in done.history:
        assert list(record.outcome.failed) == [1]
        assert record.outcome.failed[1].endswith(why)


def test_an_order_of_a_million_epochs_is_done_nowhere(tmp_path, sites):
    config = {**FEDAVG, "training": {"epochs": 10**6}, "rounds": 1}
    done = run(tmp_path / "run", lambda content: None, config)
    assert set(done.history[0].outcome.failed.values()) == {
        "the order is for 1e+06 epochs, and this site does at most 1000"
    }


@pytest.fixture
def server(tmp_path):
    """A deployment's server whose host.toml can be added to."""
    init(tmp_path / "fed", NAMES, {"dataset": "own", "held_out": 0.2})
    return tmp_path / "fed" / "server"


def add(server, text):
    with open(server / "host.toml", "a", encoding="utf-8") as file:
        file.write(text)


def test_what_the_operator_wrote_down_is_in_the_servers_file(server):
    add(server, "\n[samples]\nb = 400\n")
    limits = Deployment(server=str(server)).trust_limits()
    assert limits == TrustLimits(samples={"b": 400})
    assert limits.most_samples(NAMES, np.array([10, 10**6, 20])).tolist() == [200, 400, 200]


@pytest.mark.parametrize(
    ("text", "why"),
    [("[samples]\nd = 3\n", "unknown site in samples 'd'"), ("[samples]\na = 0\n", "samples.a")],
)
def test_what_cannot_have_been_meant_there_is_said(server, text, why):
    add(server, "\n" + text)
    with pytest.raises(DeployError, match=why):
        read_server(server)


def test_a_deployment_refuses_limits_that_cannot_work():
    with pytest.raises(ConfigError, match=r"^engine\.samples_ratio must be at least 1"):
        Deployment(samples_ratio=0.5)


def deployed(server, **tables):
    return {**FEDAVG, "engine": {"name": "deployment", "server": str(server)}, **tables}


def test_a_deployed_server_may_have_a_validation_set_of_its_own(tmp_path, sites, server):
    config = deployed(server, strategy={"name": "incentive"})
    with pytest.raises(ConfigError, match=r"name a validation set in the server's host\.toml"):
        run(tmp_path / "none", lambda content: None, config)
    own = places("v")["v"]
    np.savez(server / "own.npz", x=own.x, y=own.y)
    add(server, "\n[validation]\nnpz = 'own.npz'\n")
    x, y = Deployment(server=str(server)).validation_set()
    assert sorted(map(tuple, x.tolist())) == sorted(map(tuple, own.x.tolist()))  # all, in any order
    assert np.bincount(y).tolist() == np.bincount(own.y).tolist()
    done = run(tmp_path / "run", lambda content: None, config)
    assert [dict(record.outcome.failed) for record in done.history] == [{}, {}, {}]
    assert done.history[-1].metric("accuracy") > 60


@pytest.mark.parametrize(
    ("table", "error", "why"),
    [
        ("dataset = 'digits'", DataError, "data of one's own"),
        ("npz = 'lost.npz'", DataError, "lost.npz, which does not exist"),
        ("npz = 'own.npz'\nhold_out = 0.5", DataError, "did you mean held_out"),
        (
            "npz = 'own.npz'",
            RunError,
            r"shape \(5,\) with labels up to 1, but the sites have \(4,\)",
        ),
    ],
)
def test_a_validation_set_that_cannot_be_used_is_one_sentence(
    tmp_path, sites, server, table, error, why
):
    np.savez(server / "own.npz", x=np.ones((8, 5), dtype=np.float32), y=np.arange(8) % 2)
    add(server, f"\n[validation]\n{table}\n")
    with pytest.raises(error, match=why):
        run(tmp_path / "run", lambda content: None, deployed(server))

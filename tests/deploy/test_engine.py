"""A deployed run is begun and resumed like any other; Flower is replaced by the local engine."""

from __future__ import annotations

import json
import subprocess
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import flamma
from flamma.cli import main
from flamma.deploy import denials, following, runs
from flamma.deploy.control import FlowerRun
from flamma.deploy.engine import Deployment
from flamma.deploy.hosts import read_server
from flamma.errors import ConfigError, DeployError, RunError
from flamma.experiments.callbacks import Callbacks, EarlyStopping, StopRun, recorded_callbacks
from flamma.experiments.config import make_config
from flamma.experiments.engine import GIVEN_UP, LocalEngine, RunParts
from flamma.experiments.folder import RunFolder, SiteStates
from flamma.experiments.run import Run
from flamma.experiments.user_objects import NO_OBJECTS

WORDS = ("--strategy", "fedavg", "--model", "logistic", "--rounds", "3", "--epochs", "1")


class Flower:
    """Stands for a federation: a submitted run is carried out when its status is asked for."""

    def __init__(self):
        self.offline = ()
        self.refuses = ""
        self.interrupts = False
        self.rounds = None
        self.deaths = 0
        self.folders = []
        self.stopped = []
        self.states = {}

    def flwr(self, server, verb, *words):
        if verb == "log":
            return subprocess.CompletedProcess(words, 0, "what the ServerApp said", "")
        if self.refuses:
            told = {"success": False, "error-message": self.refuses}
            return subprocess.CompletedProcess(words, 1, json.dumps(told), "")
        lines = words[-1].replace(" sites=", "\nsites=").replace(" agreed=", "\nagreed=")
        settings = tomllib.loads(lines)
        assert settings["sites"] == "site0,site1,site2"
        self.folders.append(Path(settings["run-dir"]))
        run_id = len(self.folders)
        self.states[run_id] = FlowerRun(run_id, "pending", "", "")
        told = {"success": True, "run-id": str(run_id)}
        return subprocess.CompletedProcess(words, 0, json.dumps(told), "")

    def status(self, run_id):
        if self.interrupts:
            raise KeyboardInterrupt
        found = self.states[run_id]
        if found.status == "pending":
            self.states[run_id] = replace(found, status="running")
        elif found.status == "running":
            try:
                self.server_app(RunFolder(self.folders[run_id - 1]))
                self.states[run_id] = FlowerRun(run_id, "finished", "completed", "")
            except RuntimeError as error:
                why = f"{GIVEN_UP}{error}" if self.deaths == 0 else "No heartbeat received"
                self.deaths = max(0, self.deaths - 1)
                self.states[run_id] = FlowerRun(run_id, "finished", "failed", why)
        return self.states[run_id]

    def server_app(self, folder):
        """Do what the ServerApp does: lock the folder, read its configuration, run the rounds."""
        tables = tomllib.loads((folder.path / "config.toml").read_text())
        assert tables.pop("engine")["name"] in ("deployment", "flower")

        def stop(record):
            if record.round == self.rounds or self.deaths:
                raise RuntimeError("the ServerApp gave up")

        heard = Callbacks(recorded_callbacks(folder.path), on_round=stop)
        LocalEngine().execute(RunParts(make_config(tables), folder, NO_OBJECTS, heard))


@pytest.fixture
def flower(monkeypatch):
    made = Flower()

    class Control:
        def __init__(self, host):
            self.host = host

        def offline(self):
            return made.offline

        def nodes(self):
            return []

        def run(self, run_id):
            if run_id not in made.states:
                raise DeployError(f"the server knows no run {run_id}.")
            return made.status(run_id)

        def stop(self, run_id):
            made.stopped.append(run_id)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    for module in (runs, following, denials):
        monkeypatch.setattr(module, "Control", Control)
    for module in (runs, following):
        monkeypatch.setattr(module, "flwr", made.flwr)
    monkeypatch.setattr(following, "_ROUND_POLL_SECONDS", 0.0)
    monkeypatch.setattr(following, "_STATUS_POLL_SECONDS", 0.0)
    return made


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine") / "fed"
    assert main(["deploy", "init", str(folder), "--seed", "4"]) == 0
    return folder


def deploy_run(fed, out, *words):
    return main(["deploy", "run", str(fed), "--out", str(out), *WORDS, *words])


def stopped(fed, flower, out, rounds=1):
    """A run directory whose ServerApp gave up after some rounds."""
    flower.rounds = rounds
    assert deploy_run(fed, out) == 2
    flower.rounds = None
    return out


def test_deploy_run_is_a_run_of_the_deployment_engine(fed, flower, tmp_path, capsys):
    out = tmp_path / "run"
    assert deploy_run(fed, out) == 0
    told = capsys.readouterr()
    assert [f"round {number}/3" in told.err for number in (1, 2, 3)] == [True] * 3
    assert "offline" not in told.err
    done = Run.load(out)
    assert done.finished
    assert done.params_sha256 in told.out
    assert done.config.engine == Deployment(server=str(fed / "server"))
    assert (done.config.seed, done.config.data.clients, done.config.per_round) == (4, 3, 3)
    assert flower.folders == [out]
    assert flamma.resume(out).params_sha256 == done.params_sha256
    assert flower.folders == [out]  # a finished run is not submitted again


def test_resume_submits_a_stopped_run_again(fed, flower, tmp_path, capsys):
    """From Python and from the command line, and the result is that of a run in one go."""
    outs = [stopped(fed, flower, tmp_path / name) for name in ("python", "cli")]
    assert f"flamma resume {outs[-1]}" in capsys.readouterr().err
    assert (outs[0] / "server.log").read_text() == "what the ServerApp said"
    told = []
    assert isinstance(Run.load(outs[0]).config.engine, Deployment)
    done = flamma.resume(outs[0], on_round=lambda record: told.append(record.round))
    assert told == [2, 3]
    assert main(["resume", str(outs[1])]) == 0
    assert flower.folders == [*outs, *outs]
    assert deploy_run(fed, tmp_path / "whole") == 0
    expected = Run.load(tmp_path / "whole").params_sha256
    assert [done.params_sha256, Run.load(outs[1]).params_sha256] == [expected] * 2
    table = json.loads((outs[0] / "deployment.json").read_text())
    sites = ("site0", "site1", "site2")
    assert table == {"server": str(fed / "server"), "run_id": "3", "sites": list(sites)}
    later = replace(read_server(fed), sites=("site0", "west"))
    assert runs.run_sites(later, RunFolder(outs[0])) == sites, "those that it began with"
    assert runs.run_sites(later, RunFolder(tmp_path / "new")) == ("site0", "west")


def test_a_run_whose_server_app_dies_goes_on_by_itself(fed, flower, tmp_path, capsys):
    out = tmp_path / "run"
    flower.deaths = 2
    assert deploy_run(fed, out) == 0
    assert flower.folders == [out] * 3
    told = capsys.readouterr().err
    assert "flamma: No heartbeat received; the run goes on after round 1 by itself" in told
    assert "the run goes on after round 2 by itself" in told
    assert deploy_run(fed, tmp_path / "whole") == 0
    assert Run.load(out).params_sha256 == Run.load(tmp_path / "whole").params_sha256


def test_a_server_app_that_dies_without_a_round_is_given_up(fed, flower, tmp_path, capsys):
    out, flower.deaths = tmp_path / "run", 99

    def die(folder):
        raise RuntimeError

    flower.server_app = die
    assert deploy_run(fed, out) == 2
    assert len(flower.folders) == 1 + following._FRUITLESS_ATTEMPTS
    assert f"No heartbeat received; see {out}/server.log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "reason"), [("min_sites=0", "at least 1"), ("min_sites=4", "there are 3 sites")]
)
def test_a_quorum_that_cannot_be_is_refused(fed, flower, tmp_path, capsys, settings, reason):
    assert deploy_run(fed, tmp_path / "run", "--set", f"engine.{settings}") == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_quorum_is_more_than_half_of_the_sites_if_not_said():
    assert [Deployment().quorum(n) for n in (1, 2, 3, 4, 10)] == [1, 2, 2, 3, 6]
    assert Deployment(min_sites=2).quorum(10) == 2


def test_what_the_server_app_tells_of_its_sites_is_told(fed, flower, tmp_path, capsys):
    real = flower.server_app

    def outage(folder):
        SiteStates(2, 3, 2, {"site1": "not connected"}, time.time()).write(folder.path)
        flower.server_app = real
        raise RuntimeError

    flower.server_app, flower.deaths = outage, 1
    flower.offline = ("site1",)
    assert deploy_run(fed, tmp_path / "run") == 0
    told = capsys.readouterr().err
    assert "flamma: round 2 waits: 2 of 3 sites are connected, 2 are needed; site1: " in told


def test_resume_follows_a_run_that_flower_still_carries_out(fed, flower, tmp_path):
    out = tmp_path / "run"
    flower.interrupts = True
    assert deploy_run(fed, out) == 130
    assert flower.stopped == [1]
    flower.interrupts = False
    assert flamma.resume(out).finished
    assert flower.folders == [out]


def test_the_directory_is_free_for_the_server_app(fed, flower, tmp_path, monkeypatch):
    """The ServerApp is another process, which locks the directory itself."""
    locked = []
    monkeypatch.setattr(flower, "server_app", lambda folder: locked.append(folder.lock()))
    assert deploy_run(fed, tmp_path / "run") == 2
    assert locked == [None]


def test_a_run_that_flower_does_not_take_leaves_nothing_behind(fed, flower, tmp_path, capsys):
    flower.refuses = "The app\nis broken."
    assert deploy_run(fed, tmp_path / "run") == 2
    assert capsys.readouterr().err == "flamma: Flower did not take the run: The app is broken.\n"
    assert not (tmp_path / "run").exists()


def test_a_stopped_run_that_flower_does_not_take_again_is_kept(fed, flower, tmp_path):
    out = stopped(fed, flower, tmp_path / "run")
    flower.refuses = "not now"
    with pytest.raises(DeployError, match="not now"):
        flamma.resume(out)
    flower.refuses = ""
    assert flamma.resume(out).finished


def test_offline_sites_are_named_and_without_any_site_there_is_no_run(
    fed, flower, tmp_path, capsys
):
    flower.offline = ("site1",)
    assert deploy_run(fed, tmp_path / "some") == 0
    told = capsys.readouterr().err
    assert "flamma: offline: site1 (site1: it is offline); the run begins once 2 of 3" in told
    flower.offline = ("site0", "site1", "site2")
    assert deploy_run(fed, tmp_path / "none") == 2
    assert "none of the 3 sites is online" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_directory_that_holds_a_run_is_refused(fed, flower, tmp_path, capsys):
    out = stopped(fed, flower, tmp_path / "run")
    capsys.readouterr()
    assert deploy_run(fed, out) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert len(flower.folders) == 1


def test_a_run_on_sites_with_their_own_data_needs_none_to_be_resumed(fed, flower, tmp_path):
    flower.interrupts = True
    assert deploy_run(fed, tmp_path / "run", "--set", "data.dataset=own") == 130
    with pytest.raises(KeyboardInterrupt):  # it got as far as asking Flower
        flamma.resume(tmp_path / "run")


def test_the_engine_of_a_deployed_run_cannot_be_set(fed, flower, tmp_path):
    words = ("--set", "engine.name=local", "--set", "engine.server=elsewhere")
    assert deploy_run(fed, tmp_path / "run", *words, "--set", "engine.wait=7") == 0
    engine = Run.load(tmp_path / "run").config.engine
    assert engine == Deployment(server=str(fed / "server"), wait=7.0)


def test_run_takes_the_engine_by_name(fed, flower, tmp_path):
    settings = {"rounds": 1, "model.name": "logistic", "data.clients": 3}
    done = flamma.run(
        out=tmp_path / "run", **settings, engine__name="deployment", engine__server=str(fed)
    )
    assert done.finished
    assert flower.folders == [tmp_path / "run"]
    assert json.loads((done.path / "deployment.json").read_text())["server"] == str(fed / "server")


def test_a_deployed_run_stops_early_and_tells_its_rounds_here(fed, flower, tmp_path):
    settings = {"rounds": 9, "model.name": "logistic", "data.clients": 3}
    engine = {"engine__name": "deployment", "engine__server": str(fed)}
    told = []
    done = flamma.run(
        out=tmp_path / "run",
        callbacks=[EarlyStopping(patience=2, min_delta=100)],  # nothing is an improvement
        on_round=lambda record: told.append(record.round),
        **settings,
        **engine,
    )
    assert done.stopped.round == 3
    assert told == [1, 2, 3]

    def stop(record):
        raise StopRun("it is enough")

    with pytest.raises(RunError, match="cannot stop a run whose rounds happen in another process"):
        flamma.run(out=tmp_path / "other", on_round=stop, **settings, **engine)


def test_what_a_deployment_cannot_run_is_refused_before_anything_is_written(fed, flower, tmp_path):
    for engine, settings, reason in (
        (Deployment(), {}, "engine.server is missing"),
        (Deployment(server=str(tmp_path)), {}, "holds no deployment"),
        (Deployment(server=str(fed)), {"data": {"clients": 5}}, "3 sites, not 5"),
    ):
        config = make_config(settings)
        with pytest.raises((ConfigError, DeployError), match=reason):
            engine.execute(RunParts(config, RunFolder(tmp_path / "run"), NO_OBJECTS))
    with pytest.raises(ConfigError, match="no model from Python"):
        flamma.run(
            out=tmp_path / "run",
            model=lambda shape, classes: None,
            engine__name="deployment",
            engine__server=str(fed),
        )
    assert not (tmp_path / "run").exists()
    assert flower.folders == []

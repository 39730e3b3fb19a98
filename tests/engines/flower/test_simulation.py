"""``flamma run --engine flower``: Flower's real simulation, with Ray's processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from operator import attrgetter
from pathlib import Path

import numpy as np
import psutil
import pytest

import vector_strategies
from engines.flower.misbehaving import MISCHIEF
from flamma.engines.flower import simulation
from flamma.engines.flower.simulation import simulate
from flamma.errors import ConfigError, MissingExtraError, RunError
from flamma.experiments.callbacks import BestCheckpoint, EarlyStopping, best_round
from flamma.experiments.config import make_config
from flamma.experiments.engine import ENGINES, NetworkEngine, RunParts
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run, resume, run
from flamma.experiments.user_objects import NO_OBJECTS

TESTS = Path(__file__).parents[2]
MARK = "FLAMMA_TESTED_BY"
SMALL = {
    "rounds": 3,
    "per_round": 3,
    "data": {"clients": 5, "train_samples": 150, "validation_samples": 0},
    "model": {"name": "mlp"},
    "training": {"learning_rate": 0.1, "epochs": 2},
    "costs": {"kind": "lognormal", "value": 0.05},
}
same_parts = attrgetter("selected", "offer.decay_factor", "outcome")
LIARS = {
    "loss-inflater": {"clients": [0]},
    "part-trainer": {"clients": [1]},
    "label-flip": {"clients": [2]},
    "data-inflater": {"clients": [3]},
    "epoch-faker": {"clients": [4]},
}
SHIRKERS = {
    "free-rider": {"clients": [0], "sends": "repeat"},
    "cost-liar": {"clients": [1]},
    "sybil": {"clients": [2, 3]},
    "dropper": {"clients": [4], "rate": 0.2},
}


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    """Mark what these tests start: other tests may run simulations at the same time."""
    monkeypatch.setenv(MARK, str(os.getpid()))


def leftovers():
    """Processes of our simulations that are still there, by what they were started with."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        variables = process.info["environ"] or {}
        ours = variables.get(MARK) == str(os.getpid())
        simulates = Path(variables.get("FLWR_HOME", "")).name.startswith("flamma-")
        if ours and simulates and process.status() != psutil.STATUS_ZOMBIE:
            found.append(" ".join(process.info["cmdline"] or [])[:100])
    return found


def nothing_is_left(within=15.0):
    end = time.monotonic() + within
    while leftovers() and time.monotonic() < end:
        time.sleep(0.2)
    return leftovers() == []


def assert_same(ours, theirs):
    assert ours.params_sha256 == theirs.params_sha256
    for one, other in zip(ours.history, theirs.history, strict=True):
        assert same_parts(one) == same_parts(other)
        assert one.metric("accuracy") == other.metric("accuracy")


@pytest.mark.parametrize(
    ("name", "trainer", "behaviours"),
    [("qffl", "torch", LIARS), pytest.param("fedavg", "auto", {}, marks=pytest.mark.slow)],
)
def test_it_gives_what_the_local_engine_gives(tmp_path, name, trainer, behaviours):
    tables = {**SMALL, "strategy": {"name": name}, "behaviours": behaviours}
    local = run(tables, out=tmp_path / "local", training__trainer=trainer)
    told = []
    ours = run(
        tables,
        out=tmp_path / "flower",
        training__trainer=trainer,
        engine__name="flower",
        on_round=told.append,
    )
    assert_same(ours, local)
    assert told == ours.history
    assert ours.about["trainer"] == local.about["trainer"]
    for file in ("population.csv", "clients.csv"):
        ours_table, theirs = (
            np.loadtxt(tmp_path / kind / file, delimiter=",", skiprows=1)
            for kind in ("flower", "local")
        )
        np.testing.assert_allclose(ours_table, theirs, rtol=1e-5)
    assert nothing_is_left()


@pytest.mark.slow
def test_it_stops_early_where_the_local_engine_does(tmp_path):
    tables = {**SMALL, "rounds": 30, "strategy": {"name": "flamma"}}
    named = [EarlyStopping(patience=1), BestCheckpoint()]
    local = run(tables, out=tmp_path / "local", callbacks=named)
    told = []
    ours = run(
        tables,
        out=tmp_path / "flower",
        engine__name="flower",
        callbacks=named,
        on_round=lambda record: told.append(record.round),
    )
    assert ours.stopped == local.stopped
    assert len(local.history) < 30
    assert_same(ours, local)
    assert told == [record.round for record in local.history]
    best = best_round(ours.path)
    assert best.round == best_round(local.path).round
    np.testing.assert_array_equal(best.params, best_round(local.path).params)
    assert nothing_is_left()


def begun(command, place, rounds):
    """Start a command, and return it when so many rounds are written."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flamma", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Whoever runs the tests in the background may have them ignore an interrupt.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        text=True,
    )
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        if len(RunFolder(place).rounds()) >= rounds:
            return process
        time.sleep(0.02)
    raise AssertionError(process.communicate()[1])


@pytest.mark.slow
def test_interrupted_and_killed_it_leaves_nothing_behind_and_goes_on_to_the_same_bits(tmp_path):
    tables = {**SMALL, "rounds": 40, "strategy": {"name": "flamma"}, "behaviours": SHIRKERS}
    local = run(tables, out=tmp_path / "local")
    place, file = tmp_path / "flower", tmp_path / "config.toml"
    file.write_text(make_config(tables).as_toml(), encoding="utf-8")
    first = begun(["run", str(file), "--engine", "flower", "--out", str(place)], place, 3)
    assert leftovers() != []  # the test would see them
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=30)
    assert first.returncode == 130, errors
    assert "interrupted" in errors
    assert "round  1/40" in errors
    assert nothing_is_left(0.0)
    second = begun(["resume", str(place)], place, len(RunFolder(place).rounds()) + 5)
    second.kill()
    second.communicate(timeout=30)
    assert nothing_is_left()
    assert not Run.load(place).finished
    assert_same(resume(place), local)
    assert nothing_is_left()


WAIT = 60  # on a busy machine a dead process was known of only after 25 s


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """A run in which almost every client does something else than asked."""
    names = ["", "", *MISCHIEF, "raises", "dies once", "hangs"]
    place = tmp_path_factory.mktemp("troubled") / "run"
    config = make_config(
        {
            **SMALL,
            "rounds": 2,
            "per_round": len(names),
            "data": {
                "clients": len(names),
                "split": "iid",
                "train_samples": 8 * len(names),
                "validation_samples": 0,
            },
            "model": {"name": "logistic"},
            "costs": {"value": 0.05},
            "strategy": {"name": "flamma", "warmup_iterations": 0},  # so that work pays for all
            "engine": {"name": "flower", "processes": 2, "wait": WAIT},
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("FLAMMA_TEST_MISCHIEF", json.dumps(dict(enumerate(names))))
        assignment = RunParts(config, RunFolder(place), NO_OBJECTS)
        simulate(assignment, client_app="engines.flower.misbehaving:app")
    assert nothing_is_left()
    return names, Run.load(place)


def test_a_run_survives_everything_and_says_who_was_missing(troubled):
    names, done = troubled
    assert done.finished
    by_name = {name: k for k, name in enumerate(names)}
    good = {0, 1}
    about_scores = {by_name[name] for name in ("accuracy", "held out", "score name", "no score")}
    first, second = (record.outcome.failed for record in done.history)
    assert first.keys() == set(range(len(names))) - good - about_scores
    # Who died or hung once is there again, and nobody else has suffered from it.
    assert second.keys() == first.keys() - {by_name["dies once"], by_name["hangs"]}
    assert first[by_name["raises"]] == "it raised: this client is broken"
    assert first[by_name["dies once"]] == "the client's process died"
    assert first[by_name["hangs"]] == f"no answer in {WAIT} s"
    hostile = [first[by_name[name]] for name in MISCHIEF if by_name[name] not in about_scores]
    assert all(reason.startswith("refused: ") for reason in hostile)
    assert first[by_name["epochs"]] == "refused: 1000 epochs where 1 to 10 were on offer"
    assert all(record.game.certificate.follower_gap < 1e-9 for record in done.history)


def test_an_evaluation_says_over_how_many_it_is(troubled):
    names, done = troubled
    missing = {"accuracy", "held out", "score name", "no score", "raises"}
    table = np.genfromtxt(done.path / "clients.csv", delimiter=",", skip_header=1)
    for record in done.history:
        unscored = record.evaluation.unscored
        assert {names[client] for client in unscored} == missing
        assert record.metric("clients_scored") == len(names) - len(missing)
        rows = table[table[:, 0] == record.round]
        assert len(rows) == len(names)
        assert {int(row[1]) for row in rows if np.isnan(row[2])} == set(unscored)
        assert record.metric("accuracy") == pytest.approx(np.nanmean(rows[:, 2]), rel=1e-5)


def test_without_flower_it_says_what_to_install(tmp_path, monkeypatch):
    for module in ("flwr", "ray"):
        with monkeypatch.context() as hidden:
            hidden.setitem(sys.modules, module, None)
            with pytest.raises(MissingExtraError, match=r"constraints.txt '\.\[flower\]'"):
                run(SMALL, out=tmp_path / "run", engine__name="flower")
    assert not (tmp_path / "run").exists()


def test_it_is_a_registered_engine_of_clients_behind_a_network():
    assert ENGINES["flower"] is simulation.FlowerSimulation
    engine = make_config({"engine": {"name": "flower", "wait": 7}}).engine
    assert isinstance(engine, NetworkEngine)
    assert (engine.name, engine.wait) == ("flower", 7.0)


def test_a_model_of_ones_own_needs_a_name(tmp_path):
    with pytest.raises(ConfigError, match="must have a name"):
        run(SMALL, out=tmp_path / "run", engine__name="flower", model=lambda shape, classes: None)


def test_what_the_simulation_cannot_do_is_one_sentence(tmp_path):
    """The child is stopped before Ray starts: another process writes to the directory."""
    done = run({**SMALL, "rounds": 1, "strategy": {"name": "fedavg"}}, out=tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{}")
    holder = RunFolder(tmp_path / "run")
    holder.lock()
    config = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(config.replace('"local"', '"flower"'))
    (tmp_path / "run" / "manifest.json").unlink()  # which would tell that it was changed
    with pytest.raises(RunError, match="in use by another process"):
        resume(tmp_path / "run")
    holder.close()
    assert done.finished
    assert nothing_is_left()


@pytest.fixture
def registered():
    with vector_strategies.registered():
        yield


@pytest.mark.parametrize(
    "name",
    [
        "controlled",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("surveying", "own-downloads")),
        pytest.param("own-models", marks=pytest.mark.slow),
    ],
)
def test_vectors_and_surveys_give_what_the_local_engine_gives(
    tmp_path, monkeypatch, registered, name
):
    monkeypatch.setenv("PYTHONPATH", vector_strategies.search_path(tmp_path / "package"))
    tables = {**SMALL, "strategy": {"name": name}}
    local = run(tables, out=tmp_path / "local")
    ours = run(tables, out=tmp_path / "flower", engine__name="flower", engine__processes=2)
    assert_same(ours, local)
    assert [r.survey for r in ours.history] == [r.survey for r in local.history]
    kept = [path.name for path in tmp_path.glob("flower/kept/*/*.note")]
    assert bool(kept) == vector_strategies.STRATEGIES[name].needs.client_memory
    assert nothing_is_left()

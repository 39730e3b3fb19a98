"""Runs on real data and a real engine: records, resume, faults, determinism, bad places."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import flamma
from flamma.contributions import CONTRIBUTIONS
from flamma.data.federated import from_arrays
from flamma.errors import EmptyRunError, FlammaError, RunError
from flamma.experiments import checkpoint
from flamma.experiments.config import make_config
from flamma.experiments.engine import RunParts
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run, resume, run
from flamma.experiments.user_objects import NO_OBJECTS
from flamma.game import Game, best_response
from flamma.records import CostRecord
from flamma.seeding import stream
from flamma.strategies import STRATEGIES

SMALL = {
    "rounds": 6,
    "per_round": 3,
    "data": {"dataset": "digits", "clients": 6, "train_samples": 200, "validation_samples": 60},
    "model": {"name": "mlp"},
    "training": {"learning_rate": 0.1, "epochs": 2},
}


def small(**settings):
    return {**SMALL, **settings}


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_strategy_runs_and_records(tmp_path, name):
    done = run(small(strategy={"name": name}), out=tmp_path / "run")
    assert [record.round for record in done.history] == [1, 2, 3, 4, 5, 6]
    selected = 1 if STRATEGIES[name].needs.pooled_data else 3
    for record in done.history:
        assert len(record.selected) == len(record.outcome.local_epochs)
        assert len(record.selected) == selected or STRATEGIES[name].needs.varies_selection
        assert not record.outcome.failed
        assert 0 <= record.metric("accuracy") <= 100
        assert record.metric("accuracy_variance") >= 0
        if record.game is not None:
            assert abs(record.game.certificate.follower_gap) < 1e-9
            if name != "flamma-honest":  # whose server neither asks for costs nor plays for all
                assert abs(record.game.certificate.leader_regret) < 1e-9
            assert record.game.certificate.individual_rationality_slack >= -1e-12
            assert record.game.measure in CONTRIBUTIONS
            assert record.game.decay_bounds[0] <= record.offer.decay_factor <= 1
            assert all(0 <= omega <= 1 for omega in record.game.effective)
    assert done.finished
    assert len(done.params_sha256) == 64
    again = Run.load(tmp_path / "run")
    assert again.history == done.history
    table = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert table[0] == "round,client,accuracy,loss,held_out"
    assert len(table) == 1 + 6 * 6


def sha(tmp_path, name, tables, **options):
    return run(tables, out=tmp_path / name, **options).params_sha256


def test_the_same_configuration_gives_the_same_bits_whatever_the_processes(tmp_path):
    tables = small(strategy={"name": "flamma"})
    digests = {
        sha(tmp_path, f"p{processes}", tables, engine__processes=processes)
        for processes in (1, 2, 3)
    }
    assert len(digests) == 1
    histories = [
        [replace(r, cost=CostRecord(), warmup=None, run=None) for r in h]
        for h in (Run.load(tmp_path / f"p{p}").history for p in (1, 2))
    ]
    assert histories[0] == histories[1]
    assert sha(tmp_path, "other", tables, seed=1) not in digests


def test_fedprox_with_mu_0_is_fedavg_bit_for_bit(tmp_path):
    fedavg = sha(tmp_path, "a", small(strategy={"name": "fedavg"}))
    assert fedavg == sha(tmp_path, "b", small(strategy={"name": "fedprox", "mu": 0.0}))
    assert fedavg != sha(tmp_path, "c", small(strategy={"name": "fedprox", "mu": 0.1}))


def test_flamma_without_game_is_fedavg_bit_for_bit(tmp_path):
    fixed = {
        "name": "flamma",
        "selection": "uniform",
        "epoch_bounds": [2, 2],
        "warmup_iterations": 0,
        "decay_floor": 1.0,
    }
    plain = small(costs={"value": 0.01})
    fedavg = sha(tmp_path, "a", {**plain, "strategy": {"name": "fedavg"}})
    assert fedavg == sha(tmp_path, "b", {**plain, "strategy": fixed})


def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path):
    tables = small(strategy={"name": "flamma-plus"})
    whole = run(tables, out=tmp_path / "whole")

    class StopError(Exception):
        pass

    for stop in (1, 4):

        def interrupt(record, stop=stop):
            if record.round == stop:
                raise StopError

        with pytest.raises(StopError):
            run(tables, out=tmp_path / f"cut{stop}", on_round=interrupt)
        assert not Run.load(tmp_path / f"cut{stop}").finished
        resumed = resume(tmp_path / f"cut{stop}")
        assert resumed.params_sha256 == whole.params_sha256
        same = attrgetter("selected", "offer", "outcome", "evaluation", "game")
        for ours, theirs in zip(resumed.history, whole.history, strict=True):
            assert same(ours) == same(theirs)
        assert (tmp_path / f"cut{stop}" / "clients.csv").read_text() == (
            tmp_path / "whole" / "clients.csv"
        ).read_text()


COMMAND = [
    *(sys.executable, "-m", "flamma", "run", "--strategy", "flamma", "--dataset", "digits"),
    *("--clients", "6", "--per-round", "3", "--rounds", "12", "--model", "mlp"),
    *("--train-samples", "200", "--set", "data.validation_samples=60", "--processes", "2"),
]


def test_killed_at_any_moment_and_resumed_it_ends_the_same(tmp_path):
    subprocess.run([*COMMAND, "--out", tmp_path / "whole"], check=True, capture_output=True)
    whole = Run.load(tmp_path / "whole").params_sha256
    for number, moment in enumerate((0, 1.5, 7.25, 11)):
        place = tmp_path / f"killed{number}"
        victim = subprocess.Popen(
            [*COMMAND, "--out", place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        rounds = place / "rounds.jsonl"
        deadline = time.monotonic() + 60
        while victim.poll() is None and time.monotonic() < deadline:
            lines = rounds.read_bytes().count(b"\n") if rounds.exists() else -1
            if lines >= int(moment):
                time.sleep((moment % 1) * 0.02)
                break
            time.sleep(0.001)
        victim.kill()
        victim.wait()
        if not (place / "config.toml").exists():
            continue  # killed before there was anything to resume
        assert resume(place).params_sha256 == whole


def test_faults_are_survived_and_recorded(tmp_path):
    done = run(
        small(strategy={"name": "flamma"}, rounds=15),
        out=tmp_path / "run",
        faults__dropout=0.4,
        faults__stragglers=0.4,
        faults__failures=0.2,
    )
    reasons = {reason for record in done.history for reason in record.outcome.failed.values()}
    assert reasons == {"late (simulated)", "failed (simulated)"}
    assert min(len(record.selected) for record in done.history) < 3  # too few available
    for record in done.history:
        assert set(record.outcome.failed) <= set(record.selected)
        assert record.outcome.epochs_total == sum(
            e
            for c, e in zip(record.selected, record.outcome.local_epochs, strict=True)
            if c not in record.outcome.failed
        )
    assert done.summary().failures == sum(len(r.outcome.failed) for r in done.history)


def test_a_client_slower_than_the_limit_is_late(tmp_path):
    with pytest.raises(EmptyRunError, match='3 of them with "late: over 1e-09 s"'):
        run(
            small(strategy={"name": "fedavg"}, rounds=1),
            out=tmp_path / "run",
            engine__time_limit=1e-9,
        )
    done = Run.load(tmp_path / "run")
    assert all("late" in reason for reason in done.history[0].outcome.failed.values())
    assert len(done.history[0].outcome.failed) == 3


@pytest.mark.parametrize("kind", ["lognormal", "measured"])
def test_other_costs_change_what_clients_choose(tmp_path, kind):
    value = {"lognormal": 0.06, "measured": 20.0}[kind]
    done = run(small(), out=tmp_path / "run", costs__kind=kind, costs__value=value, rounds=2)
    costs = np.loadtxt(tmp_path / "run" / "population.csv", delimiter=",", skiprows=1)[:, 3]
    assert (costs > 0).all()
    if kind == "lognormal":
        assert len(set(costs)) == 6
        for record in done.history:  # everybody answers by its own cost
            game = Game(record.offer.contributions, costs[list(record.selected)])
            best = best_response(game, record.offer.decay_factor).tolist()
            assert list(record.outcome.local_epochs) == best
            assert len(set(best)) > 1


def test_who_abstains_makes_room_for_others(tmp_path):
    tables = small(rounds=8, costs={"kind": "lognormal", "value": 0.6, "spread": 1.5})
    done = run(tables, out=tmp_path / "run")
    assert done.summary().abstentions > 0
    assert done.summary()["epochs_total"] > done.summary().epochs_warmup


def test_costs_from_a_file(tmp_path):
    file = tmp_path / "costs.csv"
    file.write_text("cost\n" + "\n".join(str(0.05 * (i + 1)) for i in range(6)))
    run(small(), out=tmp_path / "run", costs__kind="csv", costs__file=str(file), rounds=1)
    costs = np.loadtxt(tmp_path / "run" / "population.csv", delimiter=",", skiprows=1)[:, 3]
    np.testing.assert_allclose(costs, 0.05 * np.arange(1, 7))


def test_the_price_of_not_knowing_costs_shows_as_a_gap(tmp_path):
    tables = small(rounds=10, costs={"kind": "lognormal", "value": 0.1, "spread": 0.8})
    given = run(tables, out=tmp_path / "given", strategy__decay_start=0.2)
    blind = run(
        tables,
        out=tmp_path / "blind",
        strategy__decay_start=0.2,
        strategy__server_costs="revealed",
        strategy__prior_cost=0.02,
    )
    assert given.summary()["leader_regret"] < 1e-9
    assert blind.summary()["leader_regret"] > 1e-6
    assert blind.summary()["follower_gap"] < 1e-9  # clients know their own costs


def own_data():
    rng = stream(1, "own")
    parts = []
    for _ in range(4):
        x = rng.normal(size=(40, 5)).astype(np.float32)
        parts.append((x, (x[:, 0] > 0).astype(int)))
    return from_arrays([(x[:30], y[:30]) for x, y in parts], [(x[30:], y[30:]) for x, y in parts])


def test_own_arrays_and_own_model(tmp_path):
    from torch import nn

    def model(shape, classes):
        return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, classes))

    done = flamma.run(
        data=own_data(),
        model=model,
        out=tmp_path / "run",
        rounds=15,
        per_round=2,
        strategy="flamma",
        training__learning_rate=0.5,
    )
    assert done.history[-1].metric("accuracy") > 80
    (tmp_path / "run" / "run.json").write_text("{}")  # as if it had not finished
    with pytest.raises(RunError, match="own data"):
        resume(tmp_path / "run", model=model)
    with pytest.raises(RunError, match="own model"):
        resume(tmp_path / "run", data=own_data())
    resumed = resume(tmp_path / "run", data=own_data(), model=model)
    assert resumed.params_sha256 == done.params_sha256


def test_an_own_strategy_is_one_class(tmp_path):
    from flamma.strategies.fedavg import FedAvg

    class Twice(FedAvg):
        name = "twice"

        def respond(self, terms, profile):
            return replace(super().respond(terms, profile), epochs=2 * self.plan.epochs)

    STRATEGIES.add("twice", Twice)
    try:
        done = run(small(strategy={"name": "twice"}, rounds=1), out=tmp_path / "run")
    finally:
        STRATEGIES.discard("twice")
    assert done.history[0].outcome.local_epochs == (4, 4, 4)


def test_a_directory_that_holds_a_run_is_not_overwritten(tmp_path):
    run(small(rounds=1), out=tmp_path)
    with pytest.raises(RunError, match="already holds a run"):
        run(small(rounds=1), out=tmp_path)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FlammaError, match="cannot write"):
        run(small(rounds=1), out=tmp_path / "file" / "run")


def test_a_full_disk_loses_nothing_written_before(tmp_path, monkeypatch):
    append = RunFolder.append

    def fill(self, record, rows):
        if record.round == 4:
            self._rounds._file.close()
            self._rounds._file = open("/dev/full", "w")  # noqa: SIM115 - a disk without room
        append(self, record, rows)

    monkeypatch.setattr(RunFolder, "append", fill)
    with pytest.raises(RunError, match="No space left"):
        run(small(), out=tmp_path / "run")
    monkeypatch.undo()
    assert len(Run.load(tmp_path / "run").history) == 3
    whole = run(small(), out=tmp_path / "whole")
    assert resume(tmp_path / "run").params_sha256 == whole.params_sha256


def interrupted(place, monkeypatch=None):
    if monkeypatch is not None:  # a checkpoint every round, however quick the rounds are
        monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=place, on_round=_stop_at_4)
    return place


def _stop_at_4(record):
    if record.round == 4:
        raise KeyboardInterrupt


@pytest.mark.parametrize("harm", ["cut", "flip", "gone"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, monkeypatch, harm):
    whole = run(small(), out=tmp_path / "whole").params_sha256
    place = interrupted(tmp_path / "run", monkeypatch)
    latest = json.loads((place / "manifest.json").read_text())["checkpoints"]
    damage(place / "checkpoint" / latest[0]["file"], harm)
    assert resume(place).params_sha256 == whole


def test_without_any_intact_checkpoint_it_says_so(tmp_path):
    place = interrupted(tmp_path / "run")
    for file in (place / "checkpoint").glob("*.safetensors"):
        damage(file, "flip")
    before = (place / "rounds.jsonl").read_bytes()
    with pytest.raises(RunError, match="damaged"):
        resume(place)
    assert (place / "rounds.jsonl").read_bytes() == before


def damage(file: Path, harm: str):
    content = file.read_bytes()
    if harm == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif harm == "flip":
        file.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    else:
        file.unlink()


def test_a_torn_last_line_is_left_out(tmp_path):
    place = interrupted(tmp_path / "run")
    with open(place / "rounds.jsonl", "a") as file:
        file.write('{"round": 5, "sel')
    assert len(Run.load(place).history) == 4


def test_two_processes_cannot_write_to_one_run(tmp_path):
    place = interrupted(tmp_path / "run")
    holder = RunFolder(place)
    holder.lock()
    with pytest.raises(RunError, match="in use"):
        resume(place)
    holder.close()
    assert resume(place).finished


def test_a_run_goes_on_with_the_trainer_it_began_with(tmp_path):
    done = run(small(), out=tmp_path / "whole", training__trainer="torch")
    place = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=place, on_round=_stop_at_4, training__trainer="torch")
    about = json.loads((place / "run.json").read_text())
    assert about["trainer"] == "torch"
    assert resume(place).params_sha256 == done.params_sha256
    assert Run.load(place).about["trainer"] == "torch"


def test_no_run_here(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        Run.load(tmp_path)


def test_evaluation_every_few_rounds_and_at_the_end(tmp_path):
    done = run(small(rounds=5), out=tmp_path / "run", evaluation__every=2)
    assert [r.evaluated for r in done.history] == [False, True, False, True, True]


def test_killed_parent_leaves_no_workers(tmp_path):
    parent = subprocess.Popen(
        [*COMMAND, "--rounds", "500", "--out", tmp_path / "run"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    rounds = tmp_path / "run" / "rounds.jsonl"
    while not rounds.exists() or not rounds.stat().st_size:
        assert parent.poll() is None
        time.sleep(0.05)
    children = _children(parent.pid)
    assert len(children) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(_alive(pid) for pid in children):
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in children)


def _children(pid):
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def finished(tmp_path):
    place = tmp_path / "run"
    return place, run(small(), out=place)


def damaged_line(place, number):
    """Change one digit of a line of ``rounds.jsonl``, which is JSON afterwards, too."""
    lines = (place / "rounds.jsonl").read_text().splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace("0.", "1.", 1)
    (place / "rounds.jsonl").write_text("".join(lines))
    return "".join(lines)


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.csv", "ledger.csv"])
def test_any_damage_of_a_finished_run_is_named_and_the_run_stays_finished(tmp_path, name):
    place, done = finished(tmp_path)
    whole = (place / name).read_bytes()
    rng = np.random.default_rng(0)
    flipped = bytearray(whole)
    damages = [whole[:-1], whole + b"1,1,1,1,1\n", whole[: len(whole) // 2], b""]
    for spot in rng.choice(len(whole), 40, replace=False):
        flipped = bytearray(whole)
        flipped[spot] ^= 1
        damages.append(bytes(flipped))
    for damage in damages:
        (place / name).write_bytes(damage)
        assert any(name in problem for problem in Run.load(place).problems)
    again = resume(place)
    assert again.finished
    assert again.params_sha256 == done.params_sha256
    assert (place / name).read_bytes() == damages[-1]


def test_what_is_damaged_since_the_checkpoint_before_is_computed_again(tmp_path, monkeypatch):
    whole = run(small(), out=tmp_path / "whole")
    place = interrupted(tmp_path / "run", monkeypatch)
    damaged_line(place, 4)
    resumed = resume(place)
    assert resumed.problems == ()
    assert [r.evaluation for r in resumed.history] == [r.evaluation for r in whole.history]
    assert resumed.params_sha256 == whole.params_sha256


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.csv"])
def test_what_is_damaged_in_all_checkpoints_is_set_aside_and_named(tmp_path, monkeypatch, name):
    whole = run(small(), out=tmp_path / "whole").params_sha256
    place = interrupted(tmp_path / "run", monkeypatch)
    before = (place / name).read_text().replace("0.", "1.", 1)
    (place / name).write_text(before)
    with pytest.warns(UserWarning, match=f"{name} is damaged: .* were set aside"):
        resumed = resume(place)
    assert resumed.params_sha256 == whole
    assert (place / f"{name.partition('.')[0]}.damaged").read_text() == before
    assert (place / name).read_text() not in before
    if name == "rounds.jsonl":
        assert [record.round for record in resumed.history] == [5, 6]
        assert "rounds.jsonl has no record of round 3" in resumed.problems


def test_a_lost_tail_is_computed_again(tmp_path, monkeypatch):
    whole = run(small(), out=tmp_path / "whole")
    for kept in (0, 1, 3):
        place = interrupted(tmp_path / f"run{kept}", monkeypatch)
        lines = (place / "rounds.jsonl").read_text().splitlines(keepends=True)
        (place / "rounds.jsonl").write_text("".join(lines[:kept]))
        resumed = resume(place)
        assert resumed.params_sha256 == whole.params_sha256
        assert [r.evaluation for r in resumed.history] == [r.evaluation for r in whole.history]


def test_records_are_on_the_disk_before_a_checkpoint_depends_on_them(tmp_path, monkeypatch):
    synced = {"rounds.jsonl": 0, "clients.csv": 0}
    checked = []
    fsync, rename = os.fsync, os.replace

    def noting_sync(descriptor):
        fsync(descriptor)
        file = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if file.name in synced:
            synced[file.name] = file.read_text().count("\n")

    def noting_rename(source, target):
        if Path(target).name == "manifest.json":
            known = json.loads(Path(source).read_text())["checkpoints"]
            if known and known[0]["round"] > 0:
                last = known[0]["round"]
                checked.append(last)
                # One line per round, and one per client and round below a header.
                assert synced["rounds.jsonl"] >= last
                assert synced["clients.csv"] >= 1 + last * SMALL["data"]["clients"]
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(os, "replace", noting_rename)
    run(small(), out=tmp_path / "run")
    assert checked[-1] == SMALL["rounds"]


@pytest.mark.parametrize("name", ["config.toml", "population.csv", "manifest.json"])
def test_a_run_whose_files_were_changed_is_refused(tmp_path, name):
    place = interrupted(tmp_path / "run")
    content = (place / name).read_bytes()
    (place / name).write_bytes(content.replace(b"1", b"2", 1))
    with pytest.raises(RunError, match=name):
        resume(place)
    (place / name).write_bytes(content)
    assert resume(place).finished


def test_a_checkpoint_of_another_run_is_not_taken(tmp_path, monkeypatch):
    whole = run(small(), out=tmp_path / "whole").params_sha256
    other = interrupted(tmp_path / "other", monkeypatch)
    place = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(), out=place, on_round=_stop_at_4, seed=5)
    mine = {file.name: file.read_bytes() for file in (place / "checkpoint").iterdir()}
    for file in mine:
        (place / "checkpoint" / file).write_bytes((other / "checkpoint" / file).read_bytes())
    with pytest.raises(RunError, match="damaged"):
        resume(place)
    for file, content in mine.items():
        (place / "checkpoint" / file).write_bytes(content)
    assert resume(place).params_sha256 != whole


def test_a_directory_belongs_to_the_configuration_it_was_begun_with(tmp_path):
    """Two runs into one directory: whoever comes second is told, whatever the timing."""
    place = interrupted(tmp_path / "run")
    folder = RunFolder(place)
    another = make_config(small(rounds=7))
    with pytest.raises(RunError, match="already holds a run"):
        another.engine.execute(RunParts(another, folder, NO_OBJECTS, begins=True))
    with pytest.raises(RunError, match="another configuration"):
        another.engine.execute(RunParts(another, folder, NO_OBJECTS))


def test_a_summary_is_read_like_a_table(tmp_path):
    found = run(small(), out=tmp_path / "run", rounds=1).summary()
    assert "accuracy" in found
    assert "acuracy" not in found
    assert dict(found) == found.metrics
    assert list(found) == list(found.metrics)
    with pytest.raises(KeyError, match="unknown metric 'acuracy': did you mean accuracy"):
        found["acuracy"]

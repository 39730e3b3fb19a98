"""Checkpoints of states with rows: written beside the training, and only what has changed."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file

from flamma.errors import InputFileError, RunError
from flamma.experiments import checkpoint
from flamma.experiments.checkpoint import Checkpoints
from flamma.experiments.comparison import compare
from flamma.experiments.folder import Manifest, RunFolder
from flamma.experiments.run import resume, run
from flamma.strategies.memory import Mifa
from flamma.types import Plan, Population, Update

REMEMBERING = ["mifa", "flamma-plus", "fedvarp"]


def small(name="flamma-plus", **options):
    return {
        "rounds": 6,
        "per_round": 2,
        "data": {"clients": 5, "train_samples": 150, "validation_samples": 0},
        "model": {"name": "logistic"},
        "strategy": {"name": name, **options},
    }


def _stop_at_4(record):
    if record.round == 4:
        raise KeyboardInterrupt


@pytest.fixture
def every_round(monkeypatch):
    """A checkpoint after every round, however quick the rounds are."""
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)


def interrupted(place, tables):
    with pytest.raises(KeyboardInterrupt):
        run(tables, out=place, on_round=_stop_at_4)
    return place


def entries(place):
    return Manifest.read(place).checkpoints


def tables_of(place):
    """Return the slots of the rows of each kept checkpoint, the newest first."""
    files = [load_file(place / "checkpoint" / entry.file) for entry in entries(place)]
    return [file["kept.slots"] for file in files]


@pytest.mark.parametrize("kept_as", ["float32", "float16"])
@pytest.mark.parametrize("name", REMEMBERING)
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, every_round, name, kept_as):
    tables = small(name, rows=kept_as)
    whole = run(tables, out=tmp_path / "whole").params_sha256
    place = interrupted(tmp_path / "run", tables)
    assert [entry.round for entry in entries(place)] == [4, 3]
    assert resume(place).params_sha256 == whole


def test_a_checkpoint_costs_what_has_changed(tmp_path, every_round, monkeypatch):
    written, real = [], os.pwrite

    def counted(descriptor, content, place):
        written.append(len(content))
        return real(descriptor, content, place)

    monkeypatch.setattr(os, "pwrite", counted)
    done = run(small("mifa"), out=tmp_path / "run")
    row = 4 + 4 * 7850
    assert written == [row] * sum(len(record.selected) for record in done.history)
    # Weights, and a few numbers per client, but no row.
    newest = done.path / "checkpoint" / entries(done.path)[0].file
    assert newest.stat().st_size < row + 3000


def flip(place, slot, row):
    file = place / "checkpoint" / "kept.rows"
    content = bytearray(file.read_bytes())
    content[slot * row + row // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_row_leads_to_the_checkpoint_before(tmp_path, every_round):
    whole = run(small(), out=tmp_path / "whole").params_sha256
    place = interrupted(tmp_path / "run", small())
    newest, before = tables_of(place)
    [slot, *_] = set(newest.tolist()) - set(before.tolist())
    flip(place, slot, 4 + 4 * 7850)
    done = resume(place)
    assert done.params_sha256 == whole
    assert [record.round for record in done.history] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("harm", ["a row of both", "cut", "gone"])
def test_damaged_rows_of_all_checkpoints_are_told(tmp_path, every_round, harm):
    place = interrupted(tmp_path / "run", small())
    file, before = place / "checkpoint" / "kept.rows", (place / "rounds.jsonl").read_bytes()
    if harm == "gone":
        file.unlink()
    elif harm == "cut":
        file.write_bytes(file.read_bytes()[:20_000])
    else:
        newest, older = tables_of(place)
        flip(place, (set(newest.tolist()) & set(older.tolist())).pop(), 4 + 4 * 7850)
    with pytest.raises(RunError, match=r"every checkpoint in .* is damaged: remove that folder"):
        resume(place)
    assert (place / "rounds.jsonl").read_bytes() == before


def test_rows_of_another_run_are_not_taken(tmp_path, every_round):
    place = interrupted(tmp_path / "run", small())
    other = interrupted(tmp_path / "other", small() | {"seed": 5})
    rows = (other / "checkpoint" / "kept.rows").read_bytes()
    (place / "checkpoint" / "kept.rows").write_bytes(rows)
    with pytest.raises(RunError, match="damaged"):
        resume(place)


def test_checkpoints_are_written_while_the_next_rounds_train(tmp_path, monkeypatch):
    third, in_time, real = threading.Event(), [], RunFolder.sync

    def slow(self):
        in_time.append(third.wait(60))
        real(self)

    monkeypatch.setattr(RunFolder, "sync", slow)
    tables, place = small(), tmp_path / "run"
    done = run(tables, out=place, on_round=lambda r: third.set() if r.round == 3 else None)
    assert in_time[0]
    assert entries(done.path)[0].round == 6


def test_what_goes_wrong_beside_the_training_ends_the_run(tmp_path, monkeypatch):
    def full(path, content):
        raise InputFileError(f"cannot write {path}: No space left on device; name another place.")

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    with pytest.raises(InputFileError, match=r"round-00000[16].* No space left on device"):
        run(small(), out=tmp_path / "run")
    monkeypatch.undo()
    assert resume(tmp_path / "run").finished


def test_no_row_of_a_kept_checkpoint_is_overwritten(tmp_path):
    """Whatever is played after it, from whichever state."""
    strategy, rng = Mifa(Plan(100, 3, 1)), np.random.default_rng(0)
    population = Population(np.full(6, 10), None, 4)
    checkpoints = Checkpoints(tmp_path)
    state = checkpoints.settle(strategy.init(np.zeros(4, dtype=np.float32), population))
    for number in range(1, 31):
        offer = strategy.offer(state, np.arange(6), rng)
        vectors = rng.normal(size=(3, 4)).astype(np.float32)
        reports = [Update(c, v, 10, 1) for c, v in zip(offer.selected, vectors, strict=True)]
        state, _ = strategy.aggregate(state, offer, reports)
        if number % 7 == 0:
            checkpoints.save(state)
        if number > 7:
            saved = Checkpoints(tmp_path)
            like = saved.settle(strategy.init(np.zeros(4, dtype=np.float32), population))
            found = [saved.load(like, entry.round) for entry in entries(tmp_path)]
            assert [back.round for back in found] == [e.round for e in entries(tmp_path)]
    # No more slots were taken than the state, the one before and two checkpoints can need.
    assert state.kept.known.size == 6
    assert (tmp_path / "checkpoint" / "kept.rows").stat().st_size <= 4 * 6 * 20


def test_rows_that_are_elsewhere_are_copied_once(tmp_path):
    strategy, population = Mifa(Plan(100, 3, 1)), Population(np.full(6, 10), None, 4)
    begun = strategy.init(np.zeros(4, dtype=np.float32), population)
    offer = strategy.offer(begun, np.arange(6), np.random.default_rng(0))
    reports = [Update(c, np.full(4, c, np.float32), 10, 1) for c in offer.selected]
    state, _ = strategy.aggregate(begun, offer, reports)
    Checkpoints(tmp_path).save(state)
    loaded = Checkpoints(tmp_path).load(begun)
    np.testing.assert_array_equal(np.asarray(loaded.kept), np.asarray(state.kept))
    assert loaded.kept.file.path == tmp_path / "checkpoint" / "kept.rows"


def test_a_resumed_run_keeps_the_rows_of_the_checkpoints_it_did_not_take(tmp_path, every_round):
    """The records reach the older one only, so the run goes on from there."""
    place = interrupted(tmp_path / "run", small())
    lines = (place / "rounds.jsonl").read_text().splitlines(keepends=True)
    (place / "rounds.jsonl").write_text("".join(lines[:3]))
    with pytest.raises(KeyboardInterrupt):
        resume(place, on_round=_stop_at_4)
    whole = run(small(), out=tmp_path / "whole").params_sha256
    assert resume(place).params_sha256 == whole


# Whole runs of strategies whose clients keep or correct something.

SMALL = {
    "rounds": 4,
    "per_round": 2,
    "data": {"clients": 4, "train_samples": 160, "validation_samples": 40, "split": "shards"},
    "model": {"name": "logistic"},
}


def done(tmp_path, strategy, **settings):
    name = "-".join([strategy, *(str(value) for value in settings.values())])
    return run({**SMALL, "strategy": strategy}, out=tmp_path / name, **settings)


def test_the_global_model_of_ditto_is_that_of_fedavg_to_the_bit(tmp_path):
    ditto, plain = done(tmp_path, "ditto"), done(tmp_path, "fedavg")
    assert ditto.params_sha256 == plain.params_sha256
    assert all(record.evaluation.personal for record in ditto.history)
    assert ditto.summary()["epochs_total"] == 2 * plain.summary()["epochs_total"]
    assert ditto.summary()["accuracy"] != plain.summary()["accuracy"]


@pytest.mark.parametrize("strategy", ["scaffold", "fednova", "fedvarp"])
def test_a_first_round_with_equal_data_is_fedavg_to_the_bit(tmp_path, strategy):
    settings = {"rounds": 1, "per_round": 4, "data__split": "iid"}
    found = [done(tmp_path, name, **settings) for name in (strategy, "fedavg")]
    assert found[0].params_sha256 == found[1].params_sha256


def test_controls_change_what_clients_do_from_the_second_round(tmp_path):
    found = [done(tmp_path, name, per_round=4) for name in ("scaffold", "feddyn", "fedavg")]
    assert len({one.params_sha256 for one in found}) == 3


@pytest.mark.parametrize("strategy", ["scaffold", "feddyn", "ditto", "local"])
def test_what_clients_keep_survives_an_interruption(tmp_path, strategy):
    whole = done(tmp_path, strategy)

    def stop(record):
        if record.round == 3:
            raise KeyboardInterrupt

    part = tmp_path / "part"
    with pytest.raises(KeyboardInterrupt):
        run({**SMALL, "strategy": strategy}, out=part, on_round=stop)
    again = resume(part)
    assert again.params_sha256 == whole.params_sha256
    last = [one.history[-1].evaluation.metrics for one in (again, whole)]
    assert last[0] == last[1]
    assert not any(record.outcome.flags for record in again.history)


def test_alone_the_model_stays_and_nothing_travels(tmp_path):
    alone = done(tmp_path, "local")
    once = done(tmp_path, "local", rounds=1)
    assert alone.params_sha256 == once.params_sha256
    summary = alone.summary()
    assert (summary["bytes_up"], summary["bytes_down"]) == (0, 0)
    # One or two digits each: whoever has trained alone knows them.
    trained = sorted({client for record in alone.history for client in record.selected})
    assert np.mean(alone.scores.rounds[4][trained]) > 80


def test_a_comparison_with_local_tells_who_is_better_off(tmp_path):
    suite = {
        "name": "joining",
        "seeds": 2,
        "splits": ["iid"],
        "strategies": ["fedavg", "local"],
        "run": {key: value for key, value in SMALL.items() if key != "data"}
        | {"data": {"clients": 4, "train_samples": 80, "validation_samples": 40}},
    }
    comparison = compare(suite, out=tmp_path / "joining", processes=1)
    shares = comparison.row("digits", "iid", "fedavg").values["better_off"]
    assert len(shares) == 2
    assert min(shares) >= 50  # with 20 alike samples each, joining pays
    assert "better_off" not in comparison.row("digits", "iid", "local").values

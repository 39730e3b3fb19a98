"""The weights of the best round."""

from __future__ import annotations

import hashlib

import pytest

from experiments.callbacks.small_runs import TABLES, accuracies
from flamma.errors import RunError
from flamma.experiments.callbacks import (
    BEST_CHECKPOINT,
    BestCheckpoint,
    EarlyStopping,
    StopRun,
    best_round,
)
from flamma.experiments.run import resume, run


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run(
        {**TABLES, "rounds": 12},
        out=tmp_path_factory.mktemp("runs") / "run",
        callbacks=[BestCheckpoint()],
    )


def digest(params):
    return hashlib.sha256(params.tobytes()).hexdigest()


def test_the_first_of_the_best_rounds_is_kept(tmp_path, done):
    best = best_round(done.path)
    values = accuracies(done)
    assert best.round == values.index(max(values)) + 1 < 12
    assert (best.metric, best.value) == ("accuracy", max(values))

    def stop(record):
        if record.round == best.round:
            raise StopRun("here")

    until = run({**TABLES, "rounds": 12}, out=tmp_path / "until", on_round=stop)
    assert digest(best.params) == until.params_sha256


def test_the_lowest_variance_is_the_best(tmp_path):
    done = run(TABLES, out=tmp_path / "run", callbacks=[BestCheckpoint("accuracy_variance")])
    values = [record.metric("accuracy_variance") for record in done.history]
    assert best_round(done.path).round == values.index(min(values)) + 1


@pytest.mark.parametrize("last", [1, 4, 7, 9])
def test_killed_and_resumed_it_is_the_same(tmp_path, done, last, monkeypatch):
    monkeypatch.setattr("flamma.experiments.checkpoint.Checkpoints.is_due", lambda self: last == 4)

    def interrupt(record):
        if record.round == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            {**TABLES, "rounds": 12},
            out=tmp_path / "run",
            callbacks=[BestCheckpoint()],
            on_round=interrupt,
        )
    again = resume(tmp_path / "run")
    ours, theirs = best_round(again.path), best_round(done.path)
    assert (ours.round, ours.value) == (theirs.round, theirs.value)
    assert digest(ours.params) == digest(theirs.params)


def test_with_early_stopping_the_best_round_is_the_one_it_names(tmp_path):
    done = run(
        {**TABLES, "rounds": 30},
        out=tmp_path / "run",
        callbacks=[EarlyStopping(patience=2), BestCheckpoint()],
    )
    assert done.stopped.reason.endswith(f"in round {best_round(done.path).round}")


def test_without_it_or_damaged_or_of_another_run_it_is_refused(tmp_path, done):
    other = run(TABLES, out=tmp_path / "other")
    with pytest.raises(RunError, match=r"callbacks=\[BestCheckpoint\(\)\]"):
        best_round(other.path)
    assert best_round(other.path, missing_ok=True) is None
    content = (done.path / BEST_CHECKPOINT).read_bytes()
    for wrong in (content, content[:-1], content[:-4] + b"\0\0\0\1", b""):
        (other.path / BEST_CHECKPOINT).write_bytes(wrong)
        with pytest.raises(RunError, match="damaged or of another run"):
            best_round(other.path)

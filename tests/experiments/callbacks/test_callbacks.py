"""What callbacks hear, how they end a run, and what their errors cost."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flamma
from experiments.callbacks.small_runs import TABLES, Diary, without_times
from flamma.errors import ConfigError, RunError
from flamma.experiments.callbacks import (
    CALLBACKS,
    RECORDED_CALLBACKS,
    Callback,
    Callbacks,
    EarlyStopping,
    StopRun,
)
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run, resume, run
from flamma.reports.reading import read_run
from flamma.reports.run import run_document


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(TABLES, out=tmp_path_factory.mktemp("runs") / "whole")


def test_callbacks_and_on_round_hear_of_start_rounds_and_end(tmp_path, whole):
    diary, numbers = Diary(), []
    done = run(
        TABLES, out=tmp_path / "run", callbacks=[diary], on_round=lambda r: numbers.append(r.round)
    )
    rounds = list(range(1, 9))
    assert numbers == rounds
    assert diary.told == [("start", 0), *(("round", n) for n in rounds), ("end", True)]
    assert (diary.start.config, diary.start.path) == (done.config, done.path)
    assert done.params_sha256 == whole.params_sha256  # who listens changes nothing
    assert not (done.path / RECORDED_CALLBACKS).exists()


def test_the_weights_are_those_after_the_round_that_was_told(tmp_path, whole):
    class Weights(Diary):
        def on_round(self, record):
            self.told.append(self.start.weights().copy())

    hears = Weights()
    run(TABLES, out=tmp_path / "run", callbacks=[hears])
    for number in (3, 8):
        shorter = run(TABLES, out=tmp_path / str(number), on_round=_stop_at(number))
        weights = np.concatenate([w.ravel() for w in shorter.model().state_dict().values()])
        np.testing.assert_array_equal(hears.told[number], weights)


def _stop_at(number):
    def on_round(record):
        if record.round == number:
            raise StopRun("it is enough.")

    return on_round


def test_a_stopped_run_is_finished_and_says_why(tmp_path, whole):
    late = Diary()
    done = run(TABLES, out=tmp_path / "run", on_round=_stop_at(5), callbacks=[late])
    assert ("round", 5) in late.told  # all hear of the round before it ends the run
    assert done.finished
    assert done.problems == ()
    assert len(done.history) == 5
    assert str(done.stopped) == "stopped after round 5 by RoundFunction: it is enough"
    assert [without_times(r) for r in done.history] == [without_times(r) for r in whole.history[:5]]
    assert done.summary().rounds == 5
    assert resume(done.path).params_sha256 == done.params_sha256  # returned as it is
    assert whole.stopped is None


def test_going_past_a_stop_ends_where_a_run_without_it_ends(tmp_path, whole):
    stopped = run(TABLES, out=tmp_path / "run", on_round=_stop_at(5))
    with pytest.raises(KeyboardInterrupt):  # killed on the way, it is an unfinished run
        resume(stopped.path, past_stop=True, on_round=_raise(KeyboardInterrupt, 6))
    assert not Run.load(stopped.path).finished
    done = resume(stopped.path)
    assert done.stopped is None
    assert done.params_sha256 == whole.params_sha256
    assert [without_times(r) for r in done.history] == [without_times(r) for r in whole.history]


def _raise(error, number):
    def on_round(record):
        if record.round == number:
            raise error

    return on_round


def test_a_stop_after_the_last_round_is_none(tmp_path, whole):
    done = run(TABLES, out=tmp_path / "run", on_round=_stop_at(8))
    assert done.stopped is None
    assert done.params_sha256 == whole.params_sha256


def test_a_stop_before_the_first_round_is_an_error(tmp_path):
    class Never(Callback):
        def on_start(self, start):
            raise StopRun("nothing to do.")

    with pytest.raises(StopRun, match="nothing to do"):
        run(TABLES, out=tmp_path / "run", callbacks=[Never()])


def test_a_stop_is_told_by_pages(tmp_path):
    done = run(TABLES, out=tmp_path / "run", on_round=_stop_at(5), ledger__currency="EUR")
    view = read_run(done.path)
    assert view.finished
    assert view.problems == []
    document = run_document(done.path)
    assert "5 of 8 rounds" in document.subtitle
    assert "stopped after round 5 by RoundFunction: it is enough" in document.subtitle
    assert not document.notices


def test_a_callbacks_error_ends_the_run_and_costs_no_round(tmp_path, whole):
    diary = Diary({4: RuntimeError("the disk of my tracker is full")})
    with pytest.raises(RuntimeError, match="my tracker"):
        run(TABLES, out=tmp_path / "run", callbacks=[diary])
    assert diary.told[-1] == ("end", False)
    again = Diary()
    done = resume(tmp_path / "run", callbacks=[again])
    assert again.told[:2] == [("start", 4), ("round", 5)]
    assert done.params_sha256 == whole.params_sha256


def test_an_error_that_is_not_essential_is_one_warning(tmp_path, whole):
    class Fragile(Diary):
        essential = False

    fragile, other = Fragile({3: OSError("no network")}), Diary()
    with pytest.warns(UserWarning, match=r"Fragile failed .* the run goes on: no network") as told:
        done = run(TABLES, out=tmp_path / "run", callbacks=[fragile, other])
    assert len(told) == 1
    assert fragile.told[-1] == ("round", 3)
    assert other.told[-1] == ("end", True)
    assert done.params_sha256 == whole.params_sha256


def test_a_function_among_the_callbacks_is_refused():
    with pytest.raises(ConfigError, match="a function goes to on_round"):
        run(TABLES, callbacks=[print])


def test_what_another_process_finishes_is_told_once_and_cannot_be_stopped(tmp_path, whole):
    diary = Diary({3: StopRun("enough")})
    callbacks = Callbacks([diary, EarlyStopping()])
    assert [type(c) for c in callbacks.hand_over()] == [EarlyStopping]
    told = callbacks.following(whole.config, RunFolder(tmp_path / "not-there-yet"))
    for record in (whole.history[0], whole.history[1], whole.history[0], whole.history[1]):
        told(record)
    assert diary.told == [("start", 0), ("round", 1), ("round", 2)]
    assert diary.start.weights is None
    with pytest.raises(RunError, match=r"Diary cannot stop a run .* in another process"):
        told(whole.history[2])


def test_callbacks_with_a_name_are_taken_up_again(tmp_path):
    place = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(
            TABLES,
            out=place,
            callbacks=[EarlyStopping("worst_10", patience=3)],
            on_round=_raise(KeyboardInterrupt, 1),
        )
    [table] = json.loads((place / RECORDED_CALLBACKS).read_text())["callbacks"]
    wanted = {"name": "early-stopping", "metric": "worst_10", "patience": 3}
    assert wanted.items() <= table.items()
    resume(place, callbacks=[EarlyStopping("worst_10", patience=7)])
    [table] = json.loads((place / RECORDED_CALLBACKS).read_text())["callbacks"]
    assert table["patience"] == 7


@pytest.mark.parametrize("damage", ["{}", '{"callbacks": [{"name": "eval"}], "checksum": "0"}'])
def test_a_damaged_record_of_callbacks_is_refused(tmp_path, damage):
    place = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(TABLES, out=place, on_round=_raise(KeyboardInterrupt, 1))
    (place / RECORDED_CALLBACKS).write_text(damage)
    with pytest.raises(RunError, match=r"callbacks\.json cannot be used .* remove it"):
        resume(place)


def test_a_callback_of_another_package_is_recorded_by_its_fields(tmp_path):
    class Named(Diary):
        name = "diary"

    CALLBACKS.add("diary", Named)
    try:
        with pytest.raises(ConfigError, match="diary must be a dataclass"):
            run(TABLES, out=tmp_path / "run", callbacks=[Named()])
    finally:
        CALLBACKS.discard("diary")


def test_the_names_of_callbacks_are_those_they_are_found_by():
    assert {name: CALLBACKS[name].name for name in CALLBACKS} == {n: n for n in CALLBACKS}
    assert flamma.StopRun is StopRun

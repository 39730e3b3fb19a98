"""What callbacks hear, how they end a run, and what their errors cost."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flamma
from experiments.small_runs import TABLES, Diary, accuracies, without_times
from flamma.errors import ConfigError, RunError
from flamma.experiments.callbacks import (
    BEST_CHECKPOINT,
    CALLBACKS,
    BestCheckpoint,
    Callback,
    Callbacks,
    EarlyStopping,
    RunStart,
    StopRun,
    best_round,
)
from flamma.experiments.folder import CALLBACKS_FILE, RunFolder
from flamma.experiments.run import Run, resume, run
from flamma.records import Evaluation, OfferRecord, Outcomes, RoundRecord
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
    assert not (done.path / CALLBACKS_FILE).exists()


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
    assert str(done.stopped) == "stopped after round 5 by _RoundFunction: it is enough"
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
    assert "stopped after round 5 by _RoundFunction: it is enough" in document.subtitle
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
    [table] = json.loads((place / CALLBACKS_FILE).read_text())["callbacks"]
    wanted = {"name": "early-stopping", "metric": "worst_10", "patience": 3}
    assert wanted.items() <= table.items()
    resume(place, callbacks=[EarlyStopping("worst_10", patience=7)])
    [table] = json.loads((place / CALLBACKS_FILE).read_text())["callbacks"]
    assert table["patience"] == 7


@pytest.mark.parametrize("damage", ["{}", '{"callbacks": [{"name": "eval"}], "checksum": "0"}'])
def test_a_damaged_record_of_callbacks_is_refused(tmp_path, damage):
    place = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(TABLES, out=place, on_round=_raise(KeyboardInterrupt, 1))
    (place / CALLBACKS_FILE).write_text(damage)
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


# The weights of the best round.


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


# When a run ends early, by an independent loop over its accuracies; and after a kill.


def record(number, value, metric="accuracy"):
    evaluation = None if value is ... else Evaluation({metric: value})
    return RoundRecord(
        number, (0,), OfferRecord(0.5), Outcomes((), {}, (1,), 1), evaluation=evaluation
    )


def heard(callback, values, metric="accuracy"):
    """Return the round after which the callback stops, None if it does not."""
    callback.on_start(RunStart(None, None))
    for number, value in enumerate(values, start=1):
        try:
            callback.on_round(record(number, value, metric))
        except StopRun:
            return number
    return None


@pytest.mark.parametrize(
    ("values", "options", "last"),
    [
        ([1, 2, 3, 3, 3], {"patience": 2}, 5),
        ([1, 2, 3, 2, 4, 4, 5], {"patience": 2}, None),
        ([1, 2, 3, 3, 3], {"patience": 3}, None),
        ([10, 10.4, 10.8, 11.2], {"patience": 2, "min_delta": 0.5}, None),  # 10.8 is 0.8 above 10
        ([10, 10.4, 10.5, 11.2], {"patience": 2, "min_delta": 0.5}, 3),
        ([3, 2, 1], {"patience": 2}, 3),
        ([3, 2, 1], {"patience": 2, "mode": "min"}, None),
        ([5, ..., ..., 5, ..., 5], {"patience": 2}, 6),  # rounds that are not evaluated
        ([5, None, None], {"patience": 2}, 3),  # the model diverged
        ([None, None], {"patience": 2}, 2),
    ],
)
def test_patience_by_hand(values, options, last):
    assert heard(EarlyStopping(**options), values) == last


def test_the_table_of_metrics_says_which_way_is_better():
    assert heard(EarlyStopping("accuracy_variance", 2), [9, 8, 7, 8, 8], "accuracy_variance") == 5
    assert heard(EarlyStopping("worst_10", 2), [9, 8, 7], "worst_10") == 3


@given(st.lists(st.integers(0, 5), min_size=1), st.integers(1, 4), st.integers(0, 20))
def test_what_was_done_before_counts_as_if_it_had_been_heard(values, patience, cut):
    callback = EarlyStopping(patience=patience)
    last = heard(callback, values)
    records = [record(n, v) for n, v in enumerate(values, start=1)]
    before = records[: min(cut, last or len(values))]
    try:
        callback.on_start(RunStart(None, None, tuple(before)))
        for after in records[len(before) :]:
            before.append(after)
            callback.on_round(after)
        assert last is None
    except StopRun:
        assert before[-1].round == last


def test_what_cannot_be_watched_is_refused():
    with pytest.raises(ConfigError, match="did you mean accuracy"):
        EarlyStopping("acuracy")
    with pytest.raises(ConfigError, match="unknown metric of an evaluation 'seconds'"):
        EarlyStopping("seconds")
    with pytest.raises(ConfigError, match="neither way of clients_scored is better"):
        EarlyStopping("clients_scored")
    with pytest.raises(ConfigError, match="patience must be at least 1"):
        EarlyStopping(patience=0)
    with pytest.raises(ConfigError, match="min_delta must be at least 0"):
        EarlyStopping(min_delta=float("nan"))
    with pytest.raises(ConfigError, match="mode must be auto, max or min"):
        EarlyStopping(mode="up")


def expected_last(values, patience):
    """The rule once more: the first round that has been without an improvement for so long."""
    for last in range(patience + 1, len(values) + 1):
        if max(values[: last - patience]) >= max(values[last - patience : last]):
            return last
    return None


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return run(
        {**TABLES, "rounds": 30},
        out=tmp_path_factory.mktemp("runs") / "stopped",
        callbacks=[EarlyStopping(patience=2)],
    )


def test_a_run_stops_where_its_accuracies_say(stopped):
    assert stopped.stopped.round == len(stopped.history) == expected_last(accuracies(stopped), 2)
    assert 3 < len(stopped.history) < 30
    assert stopped.stopped.by == "early-stopping"
    best = max(accuracies(stopped))
    first = accuracies(stopped).index(best) + 1
    assert stopped.stopped.reason == (
        f"accuracy has not improved for 2 evaluations, the best was {best:.4g} in round {first}"
    )


def same(one, other):
    assert one.stopped == other.stopped
    assert one.params_sha256 == other.params_sha256
    assert [without_times(r) for r in one.history] == [without_times(r) for r in other.history]


@pytest.mark.parametrize("back", [0, 1, 2, 3])
def test_killed_and_resumed_it_stops_after_the_same_round(tmp_path, stopped, back):
    last = stopped.stopped.round - back

    def interrupt(record):
        if record.round == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            {**TABLES, "rounds": 30},
            out=tmp_path / "run",
            callbacks=[EarlyStopping(patience=2)],
            on_round=interrupt,
        )
    assert not Run.load(tmp_path / "run").finished
    same(resume(tmp_path / "run"), stopped)  # nobody says again that it is to stop


def test_killed_before_the_stop_is_written_down_it_stops_at_once(tmp_path, stopped, monkeypatch):
    def killed(*_, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "write_about", killed)
    with pytest.raises(KeyboardInterrupt):
        run({**TABLES, "rounds": 30}, out=tmp_path / "run", callbacks=[EarlyStopping(patience=2)])
    monkeypatch.undo()
    heard = []
    same(resume(tmp_path / "run", on_round=heard.append), stopped)
    assert heard == []  # the checkpoint of the stop was written, so no round was done again


def test_past_the_stop_it_goes_on_without_it_or_with_another_patience(tmp_path, stopped):
    place = tmp_path / "run"
    shutil.copytree(stopped.path, place)
    again = resume(place, past_stop=True, callbacks=[EarlyStopping(patience=2)])
    assert len(again.history) == stopped.stopped.round  # what is done is enough for it
    done = resume(place, past_stop=True)
    assert len(done.history) == 30
    assert done.stopped is None

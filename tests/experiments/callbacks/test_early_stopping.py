"""When a run ends early, by an independent loop over its accuracies; and after a kill."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.callbacks.small_runs import TABLES, accuracies, without_times
from flamma.errors import ConfigError
from flamma.experiments.callbacks import EarlyStopping, RunStart, StopRun
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run, resume, run
from flamma.records import Evaluation, RoundRecord


def record(number, value, metric="accuracy"):
    evaluation = None if value is ... else Evaluation({metric: value})
    return RoundRecord(number, (0,), (), {}, 0.5, (1,), None, 1, evaluation)


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

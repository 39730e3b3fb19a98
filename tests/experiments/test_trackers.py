"""Trackers against the real packages, which write to a folder; what they wrote is read back."""

from __future__ import annotations

import sys

import pytest

from experiments.small_runs import TABLES, accuracies
from flamma.errors import ConfigError, MissingExtraError
from flamma.experiments.callbacks import EarlyStopping, StopRun
from flamma.experiments.run import resume, run
from flamma.experiments.trackers import (
    TRACKERS,
    Tracker,
    _flat_config,
    _round_numbers,
    _summary_numbers,
)

SHORT = {**TABLES, "rounds": 4}


def interrupted(place, trackers):
    """Begin a run that is killed in its third round."""

    def interrupt(record):
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SHORT, out=place, callbacks=trackers, on_round=interrupt)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(SHORT, out=tmp_path_factory.mktemp("runs") / "plain")


class Memory(Tracker):
    """A tracker that writes to lists."""

    def __init__(self):
        self.rounds, self.summary = {}, {}

    def open(self, run, config):
        self.config = dict(config)
        return max(self.rounds, default=0)

    def log(self, numbers, step):
        assert step not in self.rounds
        self.rounds[step] = dict(numbers)

    def close(self, summary, finished):
        self.summary = {**summary, "finished": finished}


def test_every_number_of_a_round_and_of_the_run_is_written(tmp_path):
    memory = Memory()
    done = run(SHORT, out=tmp_path / "run", callbacks=[memory])
    record = done.history[-1]
    numbers = memory.rounds[4]
    assert numbers == _round_numbers(record)
    known = {k: v for k, v in record.evaluation.metrics.items() if v is not None}
    assert known.items() <= numbers.items()
    assert numbers["follower_gap"] == record.game.certificate.follower_gap
    assert numbers["seconds"] == record.cost.seconds
    assert numbers["decay_factor"] == record.offer.decay_factor
    assert numbers["clients_selected"] == 2
    assert all(isinstance(value, float) for value in numbers.values())
    assert memory.summary.pop("finished")
    assert memory.summary == _summary_numbers(done)
    assert memory.summary["rounds"] == 4
    assert memory.summary["certificate.follower_gap"] == done.summary()["follower_gap"]
    assert memory.config == _flat_config(done.config)
    assert memory.config["strategy.name"] == "flamma-plus"
    assert memory.config["training.learning_rate"] == "0.05"


def test_a_tracker_that_joins_late_writes_the_rounds_before(tmp_path):
    interrupted(tmp_path / "run", [])
    memory = Memory()
    done = resume(tmp_path / "run", callbacks=[memory])
    assert {n: numbers["accuracy"] for n, numbers in memory.rounds.items()} == dict(
        enumerate(accuracies(done), start=1)
    )


def test_trackers_are_no_part_of_a_run(tmp_path, plain):
    done = run(SHORT, out=tmp_path / "run", callbacks=[Memory()])
    assert done.params_sha256 == plain.params_sha256
    assert done.about["run"] == plain.about["run"]


def test_a_missing_package_is_told_before_the_run(monkeypatch):
    for name in TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=rf"constraints.txt '\.\[{name}\]'"):
            TRACKERS[name]()


def test_an_unknown_tracker_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean tensorboard"):
        TRACKERS["tensorbord"]


def test_tensorboard_reads_what_was_written_also_after_a_kill(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    place = tmp_path / "run"
    interrupted(place, [TRACKERS["tensorboard"]()])
    done = resume(place, callbacks=[TRACKERS["tensorboard"]()])
    found = EventAccumulator(str(place / "tensorboard"))
    found.Reload()
    told = [(event.step, event.value) for event in found.Scalars("accuracy")]
    assert told == [(n, pytest.approx(v)) for n, v in enumerate(accuracies(done), start=1)]
    assert {*_round_numbers(done.history[-1])} <= {*found.Tags()["scalars"]}
    [config] = found.Tensors("config")[-1].tensor_proto.string_val
    assert "| strategy.name | `flamma-plus` |" in config.decode()
    [summary] = found.Tensors("summary")[-1].tensor_proto.string_val
    assert "| rounds | 4 |" in summary.decode()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # between MLflow and SQLAlchemy
def test_mlflow_reads_what_was_written_also_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    place = tmp_path / "run"
    interrupted(place, [TRACKERS["mlflow"]()])
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("flamma").experiment_id
    assert client.search_runs([experiment])[0].info.status == "KILLED"
    done = resume(place, callbacks=[TRACKERS["mlflow"]()])
    [ours] = client.search_runs([experiment])
    assert ours.info.status == "FINISHED"
    assert ours.info.run_name == "run"
    told = {m.step: m.value for m in client.get_metric_history(ours.info.run_id, "accuracy")}
    assert told == dict(enumerate(accuracies(done), start=1))
    assert ours.data.params == _flat_config(done.config)
    assert ours.data.metrics["summary.rounds"] == 4


def test_wandb_writes_a_run_offline_also_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    place = tmp_path / "run"
    interrupted(place, [TRACKERS["wandb"]()])
    done = resume(place, callbacks=[TRACKERS["wandb"]()])
    files = sorted(place.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1  # the same id, so that they are one run
    store = DataStore()
    store.open_for_scan(str(files[-1]))
    rounds, summary = {}, {}
    while (content := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record.FromString(content)
        row = {
            item.key or ".".join(item.nested_key): item.value_json for item in record.history.item
        }
        if "accuracy" in row:
            rounds[int(row["_step"])] = float(row["accuracy"])
        summary |= {i.key: i.value_json for i in record.summary.update}
    store._fp.close()
    assert rounds == dict(enumerate(accuracies(done), start=1))
    assert summary["summary.rounds"] == "4.0"


def test_a_tracker_hears_of_an_early_stop(tmp_path):
    memory = Memory()
    done = run(
        {**TABLES, "rounds": 30},
        out=tmp_path / "run",
        callbacks=[EarlyStopping(patience=1), memory],
    )
    assert done.stopped
    assert memory.summary["rounds"] == len(done.history) == max(memory.rounds)
    assert memory.summary["finished"]


def test_a_tracker_that_fails_does_not_cost_the_run(tmp_path, plain):
    class Broken(Memory):
        def log(self, numbers, step):
            raise OSError("no space left")

    with pytest.warns(UserWarning, match="Broken failed and is left out"):
        done = run(SHORT, out=tmp_path / "run", callbacks=[Broken()])
    assert done.params_sha256 == plain.params_sha256


def test_a_tracker_may_stop_a_run(tmp_path):
    class Stops(Memory):
        def log(self, numbers, step):
            raise StopRun("seen enough")

    assert run(SHORT, out=tmp_path / "run", callbacks=[Stops()]).stopped.by == "Stops"

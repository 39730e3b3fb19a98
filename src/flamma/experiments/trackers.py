"""Trackers: callbacks that write a run's numbers for a program that shows them.

Another package adds one by an entry point of the group ``flamma.trackers`` that names a class
derived from :class:`Tracker` whose parameters all have defaults.
"""

from __future__ import annotations

import hashlib
import os
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from flamma.experiments.callbacks import Callback, RunStart
from flamma.experiments.folder import ABOUT, RunFolder
from flamma.extras import require
from flamma.metrics import usable
from flamma.records import RoundRecord
from flamma.registry import Registry, toml_value

if TYPE_CHECKING:
    from flamma.experiments.config import Config
    from flamma.experiments.run import Run


TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker",
    "flamma.trackers",
    {
        "tensorboard": "flamma.experiments.trackers:TensorBoard",
        "mlflow": "flamma.experiments.trackers:MLflow",
        "wandb": "flamma.experiments.trackers:WeightsAndBiases",
    },
)
"""All trackers by name."""


class Tracker(Callback):
    """Writes the configuration, the numbers of every round and those of the whole run.

    An error of a tracker is a warning, and never costs the run. What was done before the tracker
    was told of the run is written first, so that its log is whole.

    Attributes
    ----------
    needs : tuple of str
        The modules that it writes with, which may be missing.
    """

    essential: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require(f"the tracker {type(self).__name__}", *self.needs)

    def on_start(self, start: RunStart) -> None:
        """Open the log and write the configuration, and the rounds that are not in it yet."""
        written = self.open(start.path, _flat_config(start.config))
        for record in start.history:
            if record.round > written:
                self.on_round(record)

    def on_round(self, record: RoundRecord) -> None:
        """Write the numbers of a round."""
        self.log(_round_numbers(record), record.round)

    def on_end(self, run: Run) -> None:
        """Write the numbers of the whole run and close the log."""
        self.close(_summary_numbers(run), run.finished)

    @abstractmethod
    def open(self, run: Path, config: Mapping[str, str]) -> int:
        """Open the log of a run directory; return the last round that it has already."""

    @abstractmethod
    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers of a round."""

    @abstractmethod
    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Write the numbers of the whole run, and close the log."""


def _round_numbers(record: RoundRecord) -> dict[str, float]:
    """Return every number of a round by name: its metrics, and how the round went."""
    found = {name: metric.of_round(name, record) for name, metric in usable().items()}
    epochs = record.outcome.local_epochs
    return {name: float(value) for name, value in found.items() if value is not None} | {
        "decay_factor": record.offer.decay_factor,
        "local_epochs": sum(epochs) / len(epochs) if epochs else 0.0,
        "clients_selected": float(len(record.selected)),
        "clients_failed": float(len(record.outcome.failed)),
        "clients_abstained": float(len(record.outcome.abstained)),
    }


def _summary_numbers(run: Run) -> dict[str, float]:
    """Return every number of a run's summary, those of its tables with a dotted name."""
    return {
        name: float(value)
        for name, value in _flat(run.summary().as_json()).items()
        if isinstance(value, int | float)
    }


def _flat_config(config: Config) -> dict[str, str]:
    """Return a configuration as dotted keys and values, which are as TOML writes them."""
    return {
        key: value if isinstance(value, str) else toml_value(value)
        for key, value in _flat(config.as_tables()).items()
    }


def _tracked_id(run: Path) -> str:
    """Return what a run directory is known by in a tracker's log, however often it is resumed."""
    folder = RunFolder(run)
    begun = folder.read_json(ABOUT).get("started", "")
    own = f"{run.absolute()} {folder.run_id} {begun}"
    return hashlib.sha256(own.encode()).hexdigest()[:16]


def _flat(tables: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{before}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


# The tracker for TensorBoard.


@dataclass
class TensorBoard(Tracker):
    """Write event files for TensorBoard: ``tensorboard --logdir runs``.

    Parameters
    ----------
    folder : str
        Where to; by default ``tensorboard`` in the run directory.
    """

    folder: str = ""
    _writer: Any = field(default=None, init=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def open(self, run: Path, config: Mapping[str, str]) -> int:
        """Begin an event file; TensorBoard drops what earlier ones have of the same rounds."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        place = Path(self.folder) if self.folder else run / "tensorboard"
        place.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(place))
        begun = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=1, session_log=begun))
        rows = "\n".join(f"| {key} | `{value}` |" for key, value in config.items())
        self._add_text("config", f"| key | value |\n|---|---|\n{rows}")
        return 0

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers of a round as scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=x) for name, x in numbers.items()]
        self._add(Summary(value=values), step)

    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Write the numbers of the whole run as a table, and close the file."""
        rows = "\n".join(f"| {name} | {value:.6g} |" for name, value in summary.items())
        self._add_text("summary", f"| metric | value |\n|---|---|\n{rows}")
        self._writer.close()

    def _add_text(self, tag: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        one = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=one)
        about = create_summary_metadata(display_name="", description="")
        self._add(Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=about)]), 0)

    def _add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()


# The tracker for MLflow.

_PARAMS_AT_ONCE = 100
"""Parameters that MLflow takes in one call."""

_RUN_TAG = "flamma.run"
"""The tag by which a run that goes on finds its own log."""


@dataclass
class MLflow(Tracker):
    """Write a run of an MLflow experiment, to the store of ``MLFLOW_TRACKING_URI`` if it is set.

    Parameters
    ----------
    folder : str
        Where the database ``mlflow.db`` is otherwise; by default beside the run directory, so that
        runs of one folder share it.
    experiment : str
        The name of the experiment.
    """

    folder: str = ""
    experiment: str = "flamma"
    _client: Any = field(default=None, init=False, repr=False)
    _run: str = field(default="", init=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("mlflow",)

    def open(self, run: Path, config: Mapping[str, str]) -> int:
        """Begin a run of MLflow's, or go on with the one of this run directory."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self._store(run))
        own = _tracked_id(run)
        known = self._client.get_experiment_by_name(self.experiment)
        experiment = str(known.experiment_id if known else self._create(run))
        found = self._client.search_runs([experiment], f"tags.`{_RUN_TAG}` = '{own}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            told = self._client.get_metric_history(self._run, "decay_factor")
            return max((metric.step for metric in told), default=0)
        begun = self._client.create_run(experiment, run_name=run.name, tags={_RUN_TAG: own})
        self._run = begun.info.run_id
        params = [Param(key, value) for key, value in config.items()]
        for first in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=params[first : first + _PARAMS_AT_ONCE])
        return 0

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers of a round as metrics, with the round as their step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Write the numbers of the whole run as metrics ``summary.…``, and end MLflow's run."""
        if finished:
            self.log({f"summary.{name}": value for name, value in summary.items()}, 0)
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")

    def _store(self, run: Path) -> str:
        if told := os.environ.get("MLFLOW_TRACKING_URI", ""):
            return told
        folder = Path(self.folder or run.parent).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return f"sqlite:///{folder / 'mlflow.db'}"

    def _create(self, run: Path) -> str:
        """Create the experiment; another run may do so at the same moment."""
        from mlflow.exceptions import MlflowException

        place = (Path(self.folder or run.parent).absolute() / "mlartifacts").as_uri()
        try:
            return str(self._client.create_experiment(self.experiment, artifact_location=place))
        except MlflowException:
            return str(self._client.get_experiment_by_name(self.experiment).experiment_id)


# The tracker for Weights & Biases.


@dataclass
class WeightsAndBiases(Tracker):
    """Write a run of Weights & Biases, offline unless ``WANDB_MODE`` says otherwise.

    ``wandb sync`` uploads what was written offline.

    Parameters
    ----------
    folder : str
        Where its folder ``wandb`` is; by default in the run directory.
    project : str
        The name of the project.
    """

    folder: str = ""
    project: str = "flamma"
    _run: Any = field(default=None, init=False, repr=False)

    needs: ClassVar[tuple[str, ...]] = ("wandb",)

    def open(self, run: Path, config: Mapping[str, str]) -> int:
        """Begin a run of theirs; one that goes on has the same id, and all its rounds again."""
        import wandb

        place = Path(self.folder or run)
        place.mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=self.project,
            name=run.name,
            id=_tracked_id(run),
            dir=str(place),
            mode=mode,
            config=dict(config),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        return 0

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers of a round, with the round as their step."""
        self._run.log(dict(numbers), step=step)

    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Write the numbers of the whole run as its summary, and finish it."""
        if finished:
            self._run.summary.update({f"summary.{name}": x for name, x in summary.items()})
        self._run.finish(exit_code=0 if finished else 1)

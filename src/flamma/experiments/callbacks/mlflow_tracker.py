"""The tracker for MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from flamma.experiments.callbacks.tracker import Tracker, tracked_id

MOST_PARAMS_AT_ONCE = 100
"""Parameters that MLflow takes in one call."""

RUN_TAG = "flamma.run"
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
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self._store(run))
        own, experiment = tracked_id(run), self._experiment(run)
        found = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{own}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            told = self._client.get_metric_history(self._run, "decay_factor")
            return max((metric.step for metric in told), default=0)
        begun = self._client.create_run(experiment, run_name=run.name, tags={RUN_TAG: own})
        self._run = begun.info.run_id
        self._log_params(config)
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

    def _experiment(self, run: Path) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        return str(found.experiment_id if found else self._create(run))

    def _create(self, run: Path) -> str:
        """Create the experiment; another run may do so at the same moment."""
        from mlflow.exceptions import MlflowException

        place = (Path(self.folder or run.parent).absolute() / "mlartifacts").as_uri()
        try:
            return str(self._client.create_experiment(self.experiment, artifact_location=place))
        except MlflowException:
            return str(self._client.get_experiment_by_name(self.experiment).experiment_id)

    def _log_params(self, config: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        params = [Param(key, value) for key, value in config.items()]
        for part in _batches(params, MOST_PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=part)


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part

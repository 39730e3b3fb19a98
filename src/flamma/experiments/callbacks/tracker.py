"""Trackers: callbacks that write a run's numbers for a program that shows them.

Another package adds one by an entry point of the group ``flamma.trackers`` that names a class
derived from :class:`Tracker` whose parameters all have defaults.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from flamma.experiments.callbacks.base import Callback, RunStart
from flamma.experiments.folder import ABOUT, RunFolder
from flamma.extras import require
from flamma.metrics import usable
from flamma.options import toml_value
from flamma.records import RoundRecord
from flamma.registry import Registry

if TYPE_CHECKING:
    from flamma.experiments.config import Config
    from flamma.experiments.run import Run

TRACKERS: Registry[type[Tracker]] = Registry(
    "tracker",
    "flamma.trackers",
    {
        "tensorboard": "flamma.experiments.callbacks.tensorboard_tracker:TensorBoard",
        "mlflow": "flamma.experiments.callbacks.mlflow_tracker:MLflow",
        "wandb": "flamma.experiments.callbacks.wandb_tracker:WeightsAndBiases",
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
        written = self.open(start.path, flat_config(start.config))
        for record in start.history:
            if record.round > written:
                self.on_round(record)

    def on_round(self, record: RoundRecord) -> None:
        """Write the numbers of a round."""
        self.log(round_numbers(record), record.round)

    def on_end(self, run: Run) -> None:
        """Write the numbers of the whole run and close the log."""
        self.close(summary_numbers(run), run.finished)

    @abstractmethod
    def open(self, run: Path, config: Mapping[str, str]) -> int:
        """Open the log of a run directory; return the last round that it has already."""

    @abstractmethod
    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Write the numbers of a round."""

    @abstractmethod
    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Write the numbers of the whole run, and close the log."""


def round_numbers(record: RoundRecord) -> dict[str, float]:
    """Return every number of a round by name: its metrics, and how the round went."""
    found = {name: metric.of_round(name, record) for name, metric in usable().items()}
    epochs = record.local_epochs
    return {name: float(value) for name, value in found.items() if value is not None} | {
        "decay_factor": record.decay_factor,
        "local_epochs": sum(epochs) / len(epochs) if epochs else 0.0,
        "clients_selected": float(len(record.selected)),
        "clients_failed": float(len(record.failed)),
        "clients_abstained": float(len(record.abstained)),
    }


def summary_numbers(run: Run) -> dict[str, float]:
    """Return every number of a run's summary, those of its tables with a dotted name."""
    return {
        name: float(value)
        for name, value in _flat(run.summary().as_json()).items()
        if isinstance(value, int | float)
    }


def flat_config(config: Config) -> dict[str, str]:
    """Return a configuration as dotted keys and values, which are as TOML writes them."""
    return {
        key: value if isinstance(value, str) else toml_value(value)
        for key, value in _flat(config.as_tables()).items()
    }


def tracked_id(run: Path) -> str:
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

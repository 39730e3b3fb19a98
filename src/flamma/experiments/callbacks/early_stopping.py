"""Ending a run when a metric no longer improves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from flamma.errors import ConfigError
from flamma.experiments.callbacks.base import Callback, RunStart, StopRun
from flamma.experiments.callbacks.watched_metric import Mode, WatchedMetric
from flamma.metrics import METRICS
from flamma.records import RoundRecord
from flamma.types import ACCURACY_SCORE, ScoreKind


@dataclass
class EarlyStopping(Callback):
    """End the run when a metric has not improved for some evaluations.

    Only evaluated rounds count; one in which the metric is not defined is no improvement. A run
    that was killed and goes on stops after the same round, with the same weights.

    Parameters
    ----------
    metric : str
        A metric of the evaluations, such as ``accuracy`` or ``worst_10``.
    patience : int
        Evaluations without an improvement after which the run ends.
    min_delta : float
        How much more than this the metric must change for an improvement, in its own unit.
    mode : {"auto", "max", "min"}
        Which way is better; by default as the table of metrics says.
    """

    metric: str = "accuracy"
    patience: int = 10
    min_delta: float = 0.0
    mode: Mode = "auto"
    _best: RoundRecord | None = field(default=None, init=False, repr=False)
    _without: int = field(default=0, init=False, repr=False)
    _kind: ScoreKind = field(default=ACCURACY_SCORE, init=False, repr=False)

    name: ClassVar[str] = "early-stopping"

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigError(f"patience must be at least 1, not {self.patience}.")
        self._watched = WatchedMetric(self.metric, self.mode, self.min_delta)

    def on_start(self, start: RunStart) -> None:
        """Begin anew with the rounds that are done; they may be enough."""
        self._best, self._without = None, 0
        for record in start.history:
            self._hear(record)
        self._check()

    def on_round(self, record: RoundRecord) -> None:
        """End the run if the patience is over."""
        self._hear(record)
        self._check()

    def _hear(self, record: RoundRecord) -> None:
        if record.evaluation is None:
            return
        self._kind = record.evaluation.score_kind
        best = None if self._best is None else self._best.metric(self.metric)
        if self._watched.improves(record, best):
            self._best, self._without = record, 0
        else:
            self._without += 1

    def _check(self) -> None:
        if self._without < self.patience:
            return
        label = METRICS[self.metric].scored_by(self._kind).label
        best = (
            "it was never defined"
            if self._best is None
            else f"the best was {self._best.metric(self.metric):.4g} in round {self._best.round}"
        )
        raise StopRun(f"{label} has not improved for {self._without} evaluations, {best}")

"""A metric of the evaluations that a callback watches, and the best round by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flamma.errors import ConfigError
from flamma.metrics import METRICS, ScoreMetric
from flamma.names import unknown
from flamma.records import RoundRecord
from flamma.types import ScoreKind

Mode = Literal["auto", "max", "min"]


@dataclass(frozen=True)
class WatchedMetric:
    """A metric of the evaluations and which way is better.

    ``mode`` is "auto" for what the table of metrics says of what clients are scored by. A change of
    up to ``min_delta`` is none.

    Raises
    ------
    ConfigError
        If there is no such metric of an evaluation, or it does not say which way is better.
    """

    name: str
    mode: Mode = "auto"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        metrics = [name for name in METRICS if isinstance(METRICS[name], ScoreMetric)]
        if self.name not in metrics:
            raise ConfigError(unknown("metric of an evaluation", self.name, metrics))
        if self.mode not in ("auto", "max", "min"):
            raise ConfigError(f"mode must be auto, max or min, not {self.mode!r}.")
        if self.mode == "auto" and METRICS[self.name].better == "neither":
            raise ConfigError(f"neither way of {self.name} is better: set mode to max or min.")
        if not self.min_delta >= 0:
            raise ConfigError(f"min_delta must be at least 0, not {self.min_delta:g}.")

    def sign(self, kind: ScoreKind) -> int:
        """Return whether larger (1) or smaller values (-1) are better of clients scored so."""
        if self.mode == "auto":
            return 1 if METRICS[self.name].scored_by(kind).better == "higher" else -1
        return 1 if self.mode == "max" else -1

    def improves(self, record: RoundRecord, best: float | None) -> bool:
        """Return whether a round is better than the best value before it."""
        value = record.metric(self.name)
        if value is None or record.evaluation is None:
            return False
        sign = self.sign(record.evaluation.score_kind)
        return best is None or sign * (value - best) > self.min_delta

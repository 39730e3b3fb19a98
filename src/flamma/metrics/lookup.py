"""Which metrics there are, where each is shown, and what an evaluation comes to."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from flamma.errors import FlammaError
from flamma.metrics.functions import check_percent
from flamma.metrics.kinds import Metric, Place, ScoreMetric, TimeToMetric
from flamma.metrics.readings import finite_or_none
from flamma.metrics.table import METRICS
from flamma.records import Evaluation, RoundRecord
from flamma.types import ACCURACY_SCORE, ScoreKind, Scores


def shown_in(place: Place, kind: ScoreKind = ACCURACY_SCORE) -> dict[str, Metric]:
    """Return the metrics that are shown in one place, by name.

    ``kind`` is what clients are scored by: it is in the labels, and says which way is better.
    """
    return {
        name: metric.scored_by(kind) for name, metric in usable().items() if place in metric.shown
    }


def usable() -> dict[str, Metric]:
    """Return all metrics by name but for those of other packages that cannot be loaded."""
    found = {}
    for name in METRICS:
        try:
            found[name] = METRICS[name]
        except FlammaError as error:
            warnings.warn(str(error), stacklevel=2)
    return found


def of_run(
    name: str, records: Sequence[RoundRecord], clients: int, targets: Mapping[str, float]
) -> float | None:
    """Return a metric of a run, None where its records do not have it.

    ``targets`` are those that times are measured to, by the names of the metrics.
    """
    metric = METRICS[name]
    if isinstance(metric, TimeToMetric):
        return metric.first(records, targets)
    return metric.of_run(name, records, clients)


def evaluate(scores: Scores) -> Evaluation:
    """Return every metric of an evaluation, and who gave no score.

    A metric of another package that fails has no value, and a warning says so.
    """
    if scores.is_share:
        check_percent(scores.accuracy)
    values: dict[str, float | None] = {}
    for name, metric in usable().items():
        if isinstance(metric, ScoreMetric):
            try:
                values[name] = finite_or_none(metric.score(scores))
            except FlammaError:  # these are no scores
                raise
            except Exception as error:  # whatever a function of another package may do
                warnings.warn(f"the metric {name} failed: {error}", stacklevel=2)
                values[name] = None
    sample = None if scores.clients is None else int(scores.clients.size)
    missing = dict(sorted(scores.missing.items()))
    kind = scores.kind
    return Evaluation(values, missing, sample, scores.personal, kind.title, kind.less_is_better)

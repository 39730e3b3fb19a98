"""Metrics: functions of arrays, and the table of their names, aggregation and presentation.

Examples
--------
>>> from flamma.metrics import METRICS, jain, variance, worst_10
>>> accuracies = [90.0, 80.0, 70.0]
>>> round(variance(accuracies), 2), worst_10(accuracies), round(jain(accuracies), 4)
(66.67, 70.0, 0.9897)
>>> METRICS["accuracy_variance"].title, METRICS["accuracy_variance"].better
('variance, %²', 'lower')
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from flamma.errors import FlammaError
from flamma.metrics.functions import (
    UTILITY_ROUNDING,
    best_10,
    better_off,
    check_percent,
    collaborative_fairness,
    coverage,
    entropy,
    gini,
    highest,
    ir_ratio,
    jain,
    kl_uniform,
    lowest,
    mean,
    participation,
    spread,
    std,
    variance,
    variance_weighted,
    worst_10,
)
from flamma.numerics import total
from flamma.records import Evaluation, RoundRecord
from flamma.registry import Registry
from flamma.types import ACCURACY_SCORE, Floats, ScoreKind, Scores

__all__ = [
    "LAST_ROUNDS",
    "METRICS",
    "UTILITY_ROUNDING",
    "ComparedMetric",
    "Metric",
    "RoundMetric",
    "RunMetric",
    "ScoreMetric",
    "TimeToMetric",
    "best_10",
    "better_off",
    "collaborative_fairness",
    "coverage",
    "entropy",
    "evaluate",
    "gini",
    "ir_ratio",
    "jain",
    "kl_uniform",
    "lowest",
    "mean",
    "of_run",
    "participation",
    "shown_in",
    "spread",
    "std",
    "variance",
    "variance_weighted",
    "worst_10",
]

# The kinds of metrics.
#
# There are six kinds, by what a metric is computed from. A new metric is one function and one
# entry of :data:`flamma.metrics.METRICS`, or an entry point of the group ``flamma.metrics``.

LAST_ROUNDS = 10
"""Metrics of a run are means over the evaluated ones of this many final rounds."""


def last_rounds(averaged: Iterable[int] = ()) -> str:
    """Return the rounds of a mean, in words, given their number in each run.

    Examples
    --------
    >>> last_rounds([10, 10]), last_rounds([3]), last_rounds([1, 5])
    ('the last 10 rounds', 'the last 3 evaluated rounds', 'the last 1 to 5 evaluated rounds')
    >>> last_rounds()  # not known
    'the evaluated ones of the last 10 rounds'
    """
    known = [count for count in averaged if count]
    if not known:
        return f"the evaluated ones of the last {LAST_ROUNDS} rounds"
    low, high = min(known), max(known)
    if low == LAST_ROUNDS:
        return f"the last {LAST_ROUNDS} rounds"
    if high == 1:
        return "the last evaluated round"
    return f"the last {low if low == high else f'{low} to {high}'} evaluated rounds"


_UNKNOWN_LAST_ROUNDS = last_rounds()


Place = Literal["show", "table", "csv", "page", "curves"]
"""Where a metric is shown: ``flamma show``, the tables of a comparison in the terminal and in
Markdown, its files for scripts, the HTML page, and curves over the rounds."""

_EVERYWHERE: tuple[Place, ...] = ("show", "table", "csv", "page", "curves")

_Direction = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Metric:
    """The words of a metric, and where it is shown.

    Over seeds, every metric is reported as the mean and the standard deviation.

    Attributes
    ----------
    label : str
        The name that is shown, such as ``"variance"``.
    unit : str
        Its unit, empty if it has none.
    better : {"higher", "lower", "neither"}
        Which direction is better.
    shown : tuple
        Where it is shown; see :data:`Place`.
    group : str
        The table of a run's summary that it belongs to; empty for the summary itself.
    """

    label: str
    unit: str = ""
    better: _Direction = "neither"
    shown: tuple[Place, ...] = _EVERYWHERE
    group: str = ""

    of_scores: ClassVar[bool] = False
    """Whether it is computed from clients' scores, so that a unit of percent is theirs."""

    def aggregation(self, last: str = _UNKNOWN_LAST_ROUNDS) -> str:
        """Return how a run's metric is computed from its rounds; ``last`` names those of a mean."""
        return ""

    @property
    def title(self) -> str:
        """The label with its unit, as on an axis."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def scored_by(self, kind: ScoreKind) -> Self:
        """Return the metric of clients with another score than accuracy.

        Where lower scores are better, so are metrics in the unit of a score.

        Examples
        --------
        >>> Metric(label="test accuracy").scored_by(ScoreKind("R²")).label
        'test R²'
        """
        label = self.label.replace("accuracy", kind.name)
        if not (kind.lower_is_better and self.of_scores and self.unit.startswith("%")):
            return replace(self, label=label)
        return replace(self, label=label, unit="", better="lower")

    def of_round(self, name: str, record: RoundRecord) -> float | None:
        """Return the metric of one round, None where it has none."""
        return None

    def of_run(self, name: str, records: Sequence[RoundRecord], clients: int) -> float | None:
        """Return the metric of a run, None where its records do not have it."""
        return None


@dataclass(frozen=True, kw_only=True)
class ScoreMetric(Metric):
    """A metric of an evaluation: computed from the clients' scores and recorded.

    ``score`` takes the :class:`~flamma.types.Scores` of all clients.
    """

    score: Callable[[Scores], float]

    of_scores: ClassVar[bool] = True

    def aggregation(self, last: str = _UNKNOWN_LAST_ROUNDS) -> str:
        """Return how a run's metric is computed from its rounds."""
        return f"mean over {last}"

    def of_round(self, name: str, record: RoundRecord) -> float | None:
        """Return what was recorded."""
        return record.metric(name)

    def of_run(self, name: str, records: Sequence[RoundRecord], clients: int) -> float | None:
        """Return the mean over those of the last ten rounds that were evaluated."""
        values = [record.metric(name) for record in records[-LAST_ROUNDS:]]
        known = [value for value in values if value is not None]
        return mean_of(known)


@dataclass(frozen=True, kw_only=True)
class RoundMetric(Metric):
    """A metric that every record has: work, traffic, the certificate.

    ``warmup`` reads the value of the warm-up, which is added.
    """

    read: Callable[[RoundRecord], float | None]
    over_rounds: Literal["sum", "max", "min"]
    warmup: Callable[[RoundRecord], float] | None = None

    def aggregation(self, last: str = _UNKNOWN_LAST_ROUNDS) -> str:
        """Return how a run's metric is computed from its rounds."""
        words = {
            "sum": "sum over rounds",
            "max": "largest of a round",
            "min": "smallest of a round",
        }
        return words[self.over_rounds] + (", with the warm-up" if self.warmup else "")

    def of_round(self, name: str, record: RoundRecord) -> float | None:
        """Return it as the record has it."""
        return self.read(record)

    def of_run(self, name: str, records: Sequence[RoundRecord], clients: int) -> float | None:
        """Return the sum, the largest or the smallest over the rounds."""
        values = [value for record in records if (value := self.read(record)) is not None]
        if self.over_rounds == "sum":
            before = self.warmup(records[0]) if records and self.warmup else 0
            return float(sum(values) + before)
        if not values:
            return None
        return float(max(values) if self.over_rounds == "max" else min(values))


@dataclass(frozen=True, kw_only=True)
class RunMetric(Metric):
    """A metric of all rounds of a run together, such as how evenly clients took part."""

    measure: Callable[[Sequence[RoundRecord], int], float | None]

    def aggregation(self, last: str = _UNKNOWN_LAST_ROUNDS) -> str:
        """Return how a run's metric is computed from its rounds."""
        return "all rounds together"

    def of_run(self, name: str, records: Sequence[RoundRecord], clients: int) -> float | None:
        """Return it for all rounds together."""
        return self.measure(records, clients)


@dataclass(frozen=True, kw_only=True)
class TimeToMetric(Metric):
    """The virtual time until a run first reaches its targets, if ever.

    ``reaches`` has the metrics of an evaluation that must have reached their targets in one and
    the same round, and which direction is better.
    """

    reaches: tuple[tuple[str, _Direction], ...]

    def aggregation(self, last: str = _UNKNOWN_LAST_ROUNDS) -> str:
        """Return how a run's metric is computed from its rounds."""
        return "end of the first evaluated round that reaches it, where every seed has one"

    def first(self, records: Sequence[RoundRecord], targets: Mapping[str, float]) -> float | None:
        """Return the virtual time of the first round that reaches the targets, None if none does.

        A metric without a target is not reached.
        """

        def is_reached(record: RoundRecord) -> bool:
            for name, better in self.reaches:
                value, target = record.metric(name), targets.get(name)
                if value is None or target is None:
                    return False
                if value < target if better == "higher" else value > target:
                    return False
            return True

        return next((r.cost.virtual_seconds for r in records if is_reached(r)), None)


@dataclass(frozen=True, kw_only=True)
class ComparedMetric(Metric):
    """A metric that only a comparison has, since it depends on other runs."""


@dataclass(frozen=True, kw_only=True)
class EqualWorkMetric(ComparedMetric):
    """Another metric, when a run has used as many local epochs as the run with the fewest."""

    of: str

    of_scores: ClassVar[bool] = True

    def aggregation(self, last: str = _UNKNOWN_LAST_ROUNDS) -> str:
        """Return how a run's metric is computed from its rounds."""
        return f"mean over {_UNKNOWN_LAST_ROUNDS} within the budget"


@dataclass(frozen=True, kw_only=True)
class BesideLocalMetric(ComparedMetric):
    """A metric of a run beside that of ``local``, in which every client trains alone.

    ``compare`` takes the clients' accuracies alone and in the run, each the mean over the last
    ten rounds, NaN where there is none; scores are negated where lower is better. ``about`` names
    the result in a clause.
    """

    about: str
    compare: Callable[[Floats, Floats], float]

    def aggregation(self, last: str = _UNKNOWN_LAST_ROUNDS) -> str:
        """Return how a run's metric is computed from its rounds."""
        return f"{self.about}, by each one's mean over {last}"


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean of some values, None if there are none."""
    return total(values) / len(values) if values else None


# Readers of clients' scores, the record of a round, and all records of a run.


def _of_accuracies(function: Callable[[ArrayLike], float]) -> Callable[[Scores], float]:
    """Return the metric of the clients' accuracies."""
    return lambda scores: function(scores.accuracy)


def _of_one_end(
    function: Callable[[ArrayLike], float], opposite: Callable[[ArrayLike], float]
) -> Callable[[Scores], float]:
    """Return the metric of one end of the clients; the other end where less is better."""
    return lambda scores: (opposite if scores.kind.lower_is_better else function)(scores.accuracy)


def _of_amounts(function: Callable[[ArrayLike], float]) -> Callable[[Scores], float]:
    """Return the metric of accuracies as shares of a whole; NaN where one is negative."""

    def score(scores: Scores) -> float:
        known = scores.accuracy[~np.isnan(scores.accuracy)]
        whole = scores.is_share or bool((np.isfinite(known) & (known >= 0)).all())
        return function(known) if whole else math.nan

    return score


def _held_out_loss(scores: Scores) -> float:
    """Return the mean held-out loss of the clients that gave a score."""
    scored = scores.loss[~np.isnan(scores.accuracy)]
    return total(scored) / scored.size if scored.size else math.nan


def _rational_moves(records: Sequence[RoundRecord], clients: int) -> float | None:
    """Return the share of moves by which a client did not lose; None where no game was played."""
    moves = [u for r in records for u in r.outcome.client_utilities or () if u is not None]
    return ir_ratio(moves) if moves else None


def finite_or_none(value: float) -> float | None:
    """Return a number, or None where JSON has no number for it."""
    return float(value) if math.isfinite(value) else None


def _summed(
    label: str, unit: str, better: _Direction, read: Callable[[RoundRecord], float], warmup: str
) -> RoundMetric:
    """Return the metric of a number of a record, summed over rounds; ``warmup`` names it there."""

    def of_warmup(first: RoundRecord) -> float:
        return 0 if first.warmup is None else getattr(first.warmup, warmup)

    return RoundMetric(
        label, unit, better, ("csv", "page"), read=read, over_rounds="sum", warmup=of_warmup
    )


def _evenness(
    name: str, label: str, shown: tuple[Place, ...] = (), better: _Direction = "higher"
) -> RunMetric:
    """Return a metric of how often clients were selected, or of the epochs they trained."""

    def measure(records: Sequence[RoundRecord], clients: int) -> float | None:
        counts, epochs = np.zeros(clients), np.zeros(clients)
        for record in records:
            outcome, selected = record.outcome, np.array(record.selected, int)
            done = np.array(outcome.local_epochs, float)
            np.add.at(counts, selected, 1)
            if outcome.failed:
                done[np.isin(selected, list(outcome.failed))] = 0
            np.add.at(epochs, selected, done)
        return finite_or_none(participation(counts, epochs)[name])

    return RunMetric(label, "", better, shown, "participation", measure=measure)


def _certified(name: str, label: str, shown: tuple[Place, ...] = ()) -> RoundMetric:
    """Return the metric of a number of a round's certificate."""

    def read(record: RoundRecord) -> float | None:
        certificate = None if record.game is None else record.game.certificate
        return None if certificate is None else float(getattr(certificate, name))

    return RoundMetric(
        label, "utility", "lower", shown, "certificate", read=read, over_rounds="max"
    )


# The table of metrics: one entry each, read by ``show``, tables, CSV, pages and pictures.

METRICS: Registry[Metric] = Registry(
    "metric",
    "flamma.metrics",
    {
        "accuracy": ScoreMetric("accuracy", "%", "higher", score=_of_accuracies(mean)),
        "accuracy_variance": ScoreMetric("variance", "%²", "lower", score=_of_accuracies(variance)),
        "accuracy_variance_weighted": ScoreMetric(
            "variance by samples",
            "%²",
            "lower",
            (),
            score=lambda scores: variance_weighted(scores.accuracy, scores.samples),
        ),
        "accuracy_std": ScoreMetric(
            "standard deviation", "%", "lower", (), score=_of_accuracies(std)
        ),
        "worst_10": ScoreMetric(
            "worst 10%",
            "%",
            "higher",
            ("show", "csv", "page"),
            score=_of_one_end(worst_10, best_10),
        ),
        "best_10": ScoreMetric(
            "best 10%", "%", "higher", ("show", "csv"), score=_of_one_end(best_10, worst_10)
        ),
        "min": ScoreMetric("worst accuracy", "%", "higher", (), score=_of_one_end(lowest, highest)),
        "range": ScoreMetric("range of accuracy", "%", "lower", (), score=_of_accuracies(spread)),
        "jain": ScoreMetric("Jain's index", "", "higher", (), score=_of_amounts(jain)),
        "gini": ScoreMetric("Gini coefficient", "", "lower", (), score=_of_amounts(gini)),
        "entropy": ScoreMetric("entropy", "nats", "higher", (), score=_of_amounts(entropy)),
        "kl_uniform": ScoreMetric(
            "divergence from even", "nats", "lower", (), score=_of_amounts(kl_uniform)
        ),
        "clients_scored": ScoreMetric(
            "clients scored",
            "",
            "neither",
            (),
            score=lambda scores: float(np.count_nonzero(~np.isnan(scores.accuracy))),
        ),
        "test_accuracy": ScoreMetric(
            "test accuracy",
            "%",
            "higher",
            ("show", "csv"),
            score=lambda scores: scores.test_accuracy,
        ),
        "loss": ScoreMetric("held-out loss", "", "lower", ("show",), score=_held_out_loss),
        "equal_work_accuracy": EqualWorkMetric(
            "accuracy at equal work", "%", "higher", ("csv",), of="accuracy"
        ),
        "equal_work_accuracy_variance": EqualWorkMetric(
            "variance at equal work", "%²", "lower", ("csv",), of="accuracy_variance"
        ),
        "better_off": BesideLocalMetric(
            "share better off",
            "%",
            "higher",
            ("table", "csv", "page"),
            about="clients at least as accurate as alone, in the run of local with the same seed",
            compare=lambda alone, joint: 100 * better_off(alone, joint, ties=True),
        ),
        "epochs_total": _summed(
            "local epochs", "", "neither", lambda r: r.outcome.epochs_total, "epochs"
        ),
        "bytes_up": _summed(
            "sent by clients", "bytes", "lower", lambda r: r.cost.bytes_up, "bytes_up"
        ),
        "bytes_down": _summed(
            "sent to clients", "bytes", "lower", lambda r: r.cost.bytes_down, "bytes_down"
        ),
        "seconds": _summed("time", "s", "lower", lambda r: r.cost.seconds, "seconds"),
        "virtual_seconds": RoundMetric(
            "virtual time",
            "virtual s",
            "lower",
            ("csv", "page"),
            read=lambda record: record.cost.virtual_seconds,
            over_rounds="max",
        ),
        "seconds_to_accuracy": TimeToMetric(
            "time to accuracy",
            "virtual s",
            "lower",
            ("table", "csv", "page"),
            reaches=(("accuracy", "higher"),),
        ),
        "seconds_to_fairness": TimeToMetric(
            "time to fairness",
            "virtual s",
            "lower",
            ("table", "csv", "page"),
            reaches=(("accuracy", "higher"), ("accuracy_variance", "lower")),
        ),
        "selection_jain": _evenness("selection_jain", "Jain's index of selections", ("csv",)),
        "selection_gini": _evenness("selection_gini", "Gini of selections", better="lower"),
        "selection_coverage": _evenness("selection_coverage", "clients ever selected"),
        "epochs_jain": _evenness("epochs_jain", "Jain's index of epochs", ("csv",)),
        "epochs_gini": _evenness("epochs_gini", "Gini of epochs", better="lower"),
        "epochs_coverage": _evenness("epochs_coverage", "clients that ever trained"),
        "follower_gap": _certified("follower_gap", "follower gap", ("csv", "page")),
        "leader_regret": _certified("leader_regret", "leader regret", ("csv", "page")),
        "leader_regret_uncertainty": _certified(
            "leader_regret_uncertainty", "uncertainty of the leader regret"
        ),
        "individual_rationality_slack": replace(
            _certified("individual_rationality_slack", "smallest utility"),
            better="higher",
            over_rounds="min",
        ),
        "individual_rationality_ratio": RunMetric(
            "moves without a loss", "", "higher", ("csv",), "certificate", measure=_rational_moves
        ),
    },
)
"""All metrics by name, in the order in which they are listed."""


# All metrics, those shown in a place, and the values of an evaluation.


def shown_in(place: Place, kind: ScoreKind = ACCURACY_SCORE) -> dict[str, Metric]:
    """Return the metrics that are shown in one place, by name.

    ``kind`` is the kind of the clients' scores: its name is in the labels.
    """
    return {
        name: metric.scored_by(kind) for name, metric in usable().items() if place in metric.shown
    }


def usable() -> dict[str, Metric]:
    """Return all metrics by name, except those of other packages that cannot be loaded."""
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
    """Return every metric of an evaluation, and the clients without a score.

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
    return Evaluation(values, missing, sample, scores.personal, kind.title, kind.lower_is_better)

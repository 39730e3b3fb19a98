"""Metrics: functions of arrays, and the table that says how each is named, aggregated and shown."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from flamma.errors import FlammaError
from flamma.metrics import functions
from flamma.metrics.functions import UTILITY_ROUNDING as UTILITY_ROUNDING
from flamma.metrics.functions import best_10 as best_10
from flamma.metrics.functions import better_off as better_off
from flamma.metrics.functions import check_percent
from flamma.metrics.functions import collaborative_fairness as collaborative_fairness
from flamma.metrics.functions import coverage as coverage
from flamma.metrics.functions import entropy as entropy
from flamma.metrics.functions import gini as gini
from flamma.metrics.functions import ir_ratio as ir_ratio
from flamma.metrics.functions import jain as jain
from flamma.metrics.functions import kl_uniform as kl_uniform
from flamma.metrics.functions import lowest as lowest
from flamma.metrics.functions import mean as mean
from flamma.metrics.functions import participation as participation
from flamma.metrics.functions import spread as spread
from flamma.metrics.functions import std as std
from flamma.metrics.functions import variance as variance
from flamma.metrics.functions import variance_weighted as variance_weighted
from flamma.metrics.functions import worst_10 as worst_10
from flamma.numerics import total
from flamma.records import Evaluation, RoundRecord
from flamma.registry import Registry
from flamma.types import ACCURACY_SCORE, Floats, ScoreKind, Scores

# What a metric is: its words, which way is better, and what it is of a round and of a run.
#
# There are six kinds, by what a metric is computed from. A new metric is one function and one
# entry of :data:`flamma.metrics.METRICS`, or an entry point of the group ``flamma.metrics``.

LAST_ROUNDS = 10
"""A metric of a run is its mean over the evaluated ones of this many final rounds."""


def last_rounds(averaged: Iterable[int] = ()) -> str:
    """Return which rounds a mean is over, given how many went into that of each run.

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


UNKNOWN_LAST_ROUNDS = last_rounds()


Place = Literal["show", "table", "csv", "page", "curves"]
"""Where a metric is shown: ``flamma show``, the tables of a comparison in the terminal and in
Markdown, its files for scripts, the HTML page, and curves over the rounds."""

EVERYWHERE: tuple[Place, ...] = ("show", "table", "csv", "page", "curves")

Direction = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What every metric has.

    Over seeds, every metric is told as the mean and the standard deviation.

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
    better: Direction = "neither"
    shown: tuple[Place, ...] = EVERYWHERE
    group: str = ""

    of_scores: ClassVar[bool] = False
    """Whether it is computed from clients' scores, so that a unit of percent is theirs."""

    def aggregation(self, last: str = UNKNOWN_LAST_ROUNDS) -> str:
        """How the metric of a run comes from its rounds; ``last`` names those of a mean."""
        return ""

    @property
    def title(self) -> str:
        """The label with its unit, as on an axis."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def scored_by(self, kind: ScoreKind) -> Self:
        """Return the metric of clients that are scored by something else than accuracy.

        Of a score of which less is better, so is what is a score itself; variances and the like,
        of which less is better anyway, stay as they are.

        Examples
        --------
        >>> Metric(label="test accuracy").scored_by(ScoreKind("R²")).label
        'test R²'
        """
        label = self.label.replace("accuracy", kind.name)
        if not (kind.less_is_better and self.of_scores and self.unit.startswith("%")):
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
    """A metric of an evaluation: computed from the clients' scores and kept in the record.

    ``score`` takes the :class:`~flamma.types.Scores` of all clients.
    """

    score: Callable[[Scores], float]

    of_scores: ClassVar[bool] = True

    def aggregation(self, last: str = UNKNOWN_LAST_ROUNDS) -> str:
        """How the metric of a run comes from its rounds."""
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
    """A metric that a record has in any case: work, traffic, the certificate.

    ``warmup`` is whether what the warm-up took is added.
    """

    read: Callable[[RoundRecord], float | None]
    over_rounds: Literal["sum", "max", "min"]
    warmup: Callable[[RoundRecord], float] | None = None

    def aggregation(self, last: str = UNKNOWN_LAST_ROUNDS) -> str:
        """How the metric of a run comes from its rounds."""
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

    def aggregation(self, last: str = UNKNOWN_LAST_ROUNDS) -> str:
        """How the metric of a run comes from its rounds."""
        return "all rounds together"

    def of_run(self, name: str, records: Sequence[RoundRecord], clients: int) -> float | None:
        """Return it for all rounds together."""
        return self.measure(records, clients)


@dataclass(frozen=True, kw_only=True)
class TimeToMetric(Metric):
    """The virtual time until a run has first reached its targets, which it may never do.

    ``reaches`` has the metrics of an evaluation that must have reached their targets in one and
    the same round, and which direction is better.
    """

    reaches: tuple[tuple[str, Direction], ...]

    def aggregation(self, last: str = UNKNOWN_LAST_ROUNDS) -> str:
        """How the metric of a run comes from its rounds."""
        return "end of the first evaluated round that reaches it, where every seed has one"

    def first(self, records: Sequence[RoundRecord], targets: Mapping[str, float]) -> float | None:
        """Return the virtual time of the first round that reaches the targets, None if none does.

        A metric without a target is not reached.
        """
        return next((r.cost.virtual_seconds for r in records if self._is_reached(r, targets)), None)

    def _is_reached(self, record: RoundRecord, targets: Mapping[str, float]) -> bool:
        for name, better in self.reaches:
            value, target = record.metric(name), targets.get(name)
            if value is None or target is None:
                return False
            if value < target if better == "higher" else value > target:
                return False
        return True


@dataclass(frozen=True, kw_only=True)
class ComparedMetric(Metric):
    """A metric that only a comparison has, since it depends on other runs."""


@dataclass(frozen=True, kw_only=True)
class EqualWorkMetric(ComparedMetric):
    """Another metric when a run has spent as many local epochs as the thriftiest one in all."""

    of: str

    of_scores: ClassVar[bool] = True

    def aggregation(self, last: str = UNKNOWN_LAST_ROUNDS) -> str:
        """How the metric of a run comes from its rounds."""
        return f"mean over {UNKNOWN_LAST_ROUNDS} within the budget"


@dataclass(frozen=True, kw_only=True)
class BesideLocalMetric(ComparedMetric):
    """A metric of a run beside that of ``local``, in which every client trains alone.

    ``compare`` takes the clients' accuracies alone and in the run, each the mean over the last
    ten rounds, NaN where there is none; scores of which less is better come negated. ``about``
    says in a clause what comes out.
    """

    about: str
    compare: Callable[[Floats, Floats], float]

    def aggregation(self, last: str = UNKNOWN_LAST_ROUNDS) -> str:
        """How the metric of a run comes from its rounds."""
        return f"{self.about}, by each one's mean over {last}"


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean of some values, None if there are none."""
    return total(values) / len(values) if values else None


# What metrics read in clients' scores, in the record of a round, and in all records of a run.


def _of_accuracies(function: Callable[[ArrayLike], float]) -> Callable[[Scores], float]:
    """Return the metric of the clients' accuracies."""
    return lambda scores: function(scores.accuracy)


def _of_one_end(
    function: Callable[[ArrayLike], float], opposite: Callable[[ArrayLike], float]
) -> Callable[[Scores], float]:
    """Return the metric of one end of the clients; the other end where less is better."""
    return lambda scores: (opposite if scores.kind.less_is_better else function)(scores.accuracy)


def _of_amounts(function: Callable[[ArrayLike], float]) -> Callable[[Scores], float]:
    """Return the metric of accuracies as shares of a whole; NaN where one is negative."""

    def score(scores: Scores) -> float:
        known = scores.accuracy[~np.isnan(scores.accuracy)]
        whole = scores.is_share or bool((np.isfinite(known) & (known >= 0)).all())
        return function(known) if whole else math.nan

    return score


def mean_held_out_loss(scores: Scores) -> float:
    """Return the mean held-out loss of the clients that gave a score."""
    scored = scores.loss[~np.isnan(scores.accuracy)]
    return total(scored) / scored.size if scored.size else math.nan


def _of_participation(name: str) -> Callable[[Sequence[RoundRecord], int], float | None]:
    """Return the metric of how often clients were selected, or of the epochs they trained."""
    return lambda records, clients: finite_or_none(_took_part(records, clients)[name])


def rational_moves(records: Sequence[RoundRecord], clients: int) -> float | None:
    """Return the share of moves by which a client did not lose; None where no game was played."""
    moves = [
        u for record in records for u in record.outcome.client_utilities or () if u is not None
    ]
    return functions.ir_ratio(moves) if moves else None


def _of_certificate(name: str) -> Callable[[RoundRecord], float | None]:
    """Return the metric that a number of a round's certificate is."""
    return lambda record: (
        None
        if record.game is None or record.game.certificate is None
        else float(getattr(record.game.certificate, name))
    )


def _of_warmup(name: str) -> Callable[[RoundRecord], float]:
    """Return what reads a number of the warm-up, which is told with the first round."""
    return lambda first: 0 if first.warmup is None else getattr(first.warmup, name)


def finite_or_none(value: float) -> float | None:
    """Return a number, or None where JSON has no number for it."""
    return float(value) if math.isfinite(value) else None


def _took_part(records: Sequence[RoundRecord], clients: int) -> dict[str, float]:
    counts, epochs = np.zeros(clients), np.zeros(clients)
    for record in records:
        selected = np.array(record.selected, int)
        done = np.array(record.outcome.local_epochs, float)
        np.add.at(counts, selected, 1)
        if record.outcome.failed:
            done[np.isin(selected, list(record.outcome.failed))] = 0
        np.add.at(epochs, selected, done)
    return functions.participation(counts, epochs)


# The table of metrics: one entry each, read by ``show``, tables, CSV, pages and pictures.

METRICS: Registry[Metric] = Registry(
    "metric",
    "flamma.metrics",
    {
        "accuracy": ScoreMetric(
            label="accuracy", unit="%", better="higher", score=_of_accuracies(functions.mean)
        ),
        "accuracy_variance": ScoreMetric(
            label="variance", unit="%²", better="lower", score=_of_accuracies(functions.variance)
        ),
        "accuracy_variance_weighted": ScoreMetric(
            label="variance by samples",
            unit="%²",
            better="lower",
            shown=(),
            score=lambda scores: functions.variance_weighted(scores.accuracy, scores.samples),
        ),
        "accuracy_std": ScoreMetric(
            label="standard deviation",
            unit="%",
            better="lower",
            shown=(),
            score=_of_accuracies(functions.std),
        ),
        "worst_10": ScoreMetric(
            label="worst 10%",
            unit="%",
            better="higher",
            shown=("show", "csv", "page"),
            score=_of_one_end(functions.worst_10, functions.best_10),
        ),
        "best_10": ScoreMetric(
            label="best 10%",
            unit="%",
            better="higher",
            shown=("show", "csv"),
            score=_of_one_end(functions.best_10, functions.worst_10),
        ),
        "min": ScoreMetric(
            label="worst accuracy",
            unit="%",
            better="higher",
            shown=(),
            score=_of_one_end(functions.lowest, functions.highest),
        ),
        "range": ScoreMetric(
            label="range of accuracy",
            unit="%",
            better="lower",
            shown=(),
            score=_of_accuracies(functions.spread),
        ),
        "jain": ScoreMetric(
            label="Jain's index", better="higher", shown=(), score=_of_amounts(functions.jain)
        ),
        "gini": ScoreMetric(
            label="Gini coefficient", better="lower", shown=(), score=_of_amounts(functions.gini)
        ),
        "entropy": ScoreMetric(
            label="entropy",
            unit="nats",
            better="higher",
            shown=(),
            score=_of_amounts(functions.entropy),
        ),
        "kl_uniform": ScoreMetric(
            label="divergence from even",
            unit="nats",
            better="lower",
            shown=(),
            score=_of_amounts(functions.kl_uniform),
        ),
        "clients_scored": ScoreMetric(
            label="clients scored",
            shown=(),
            score=lambda scores: float(np.count_nonzero(~np.isnan(scores.accuracy))),
        ),
        "test_accuracy": ScoreMetric(
            label="test accuracy",
            unit="%",
            better="higher",
            shown=("show", "csv"),
            score=lambda scores: scores.test_accuracy,
        ),
        "loss": ScoreMetric(
            label="held-out loss", better="lower", shown=("show",), score=mean_held_out_loss
        ),
        "equal_work_accuracy": EqualWorkMetric(
            label="accuracy at equal work",
            unit="%",
            better="higher",
            shown=("csv",),
            of="accuracy",
        ),
        "equal_work_accuracy_variance": EqualWorkMetric(
            label="variance at equal work",
            unit="%²",
            better="lower",
            shown=("csv",),
            of="accuracy_variance",
        ),
        "better_off": BesideLocalMetric(
            label="share better off",
            unit="%",
            better="higher",
            shown=("table", "csv", "page"),
            about="clients at least as accurate as alone, in the run of local with the same seed",
            compare=lambda alone, joint: 100 * functions.better_off(alone, joint, ties=True),
        ),
        "epochs_total": RoundMetric(
            label="local epochs",
            shown=("csv", "page"),
            read=lambda record: record.outcome.epochs_total,
            over_rounds="sum",
            warmup=_of_warmup("epochs"),
        ),
        "bytes_up": RoundMetric(
            label="sent by clients",
            unit="bytes",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.cost.bytes_up,
            over_rounds="sum",
            warmup=_of_warmup("bytes_up"),
        ),
        "bytes_down": RoundMetric(
            label="sent to clients",
            unit="bytes",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.cost.bytes_down,
            over_rounds="sum",
            warmup=_of_warmup("bytes_down"),
        ),
        "seconds": RoundMetric(
            label="time",
            unit="s",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.cost.seconds,
            over_rounds="sum",
            warmup=_of_warmup("seconds"),
        ),
        "virtual_seconds": RoundMetric(
            label="virtual time",
            unit="virtual s",
            better="lower",
            shown=("csv", "page"),
            read=lambda record: record.cost.virtual_seconds,
            over_rounds="max",
        ),
        "seconds_to_accuracy": TimeToMetric(
            label="time to accuracy",
            unit="virtual s",
            better="lower",
            shown=("table", "csv", "page"),
            reaches=(("accuracy", "higher"),),
        ),
        "seconds_to_fairness": TimeToMetric(
            label="time to fairness",
            unit="virtual s",
            better="lower",
            shown=("table", "csv", "page"),
            reaches=(("accuracy", "higher"), ("accuracy_variance", "lower")),
        ),
        "selection_jain": RunMetric(
            label="Jain's index of selections",
            better="higher",
            shown=("csv",),
            group="participation",
            measure=_of_participation("selection_jain"),
        ),
        "selection_gini": RunMetric(
            label="Gini of selections",
            better="lower",
            shown=(),
            group="participation",
            measure=_of_participation("selection_gini"),
        ),
        "selection_coverage": RunMetric(
            label="clients ever selected",
            better="higher",
            shown=(),
            group="participation",
            measure=_of_participation("selection_coverage"),
        ),
        "epochs_jain": RunMetric(
            label="Jain's index of epochs",
            better="higher",
            shown=("csv",),
            group="participation",
            measure=_of_participation("epochs_jain"),
        ),
        "epochs_gini": RunMetric(
            label="Gini of epochs",
            better="lower",
            shown=(),
            group="participation",
            measure=_of_participation("epochs_gini"),
        ),
        "epochs_coverage": RunMetric(
            label="clients that ever trained",
            better="higher",
            shown=(),
            group="participation",
            measure=_of_participation("epochs_coverage"),
        ),
        "follower_gap": RoundMetric(
            label="follower gap",
            unit="utility",
            better="lower",
            shown=("csv", "page"),
            group="certificate",
            read=_of_certificate("follower_gap"),
            over_rounds="max",
        ),
        "leader_regret": RoundMetric(
            label="leader regret",
            unit="utility",
            better="lower",
            shown=("csv", "page"),
            group="certificate",
            read=_of_certificate("leader_regret"),
            over_rounds="max",
        ),
        "leader_regret_uncertainty": RoundMetric(
            label="uncertainty of the leader regret",
            unit="utility",
            better="lower",
            shown=(),
            group="certificate",
            read=_of_certificate("leader_regret_uncertainty"),
            over_rounds="max",
        ),
        "individual_rationality_slack": RoundMetric(
            label="smallest utility",
            unit="utility",
            better="higher",
            shown=(),
            group="certificate",
            read=_of_certificate("individual_rationality_slack"),
            over_rounds="min",
        ),
        "individual_rationality_ratio": RunMetric(
            label="moves without a loss",
            better="higher",
            shown=("csv",),
            group="certificate",
            measure=rational_moves,
        ),
    },
)
"""All metrics by name, in the order in which they are listed."""


# Which metrics there are, where each is shown, and what an evaluation comes to.


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

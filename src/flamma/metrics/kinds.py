"""What a metric is: its words, which way is better, and what it is of a round and of a run.

There are six kinds, by what a metric is computed from. A new metric is one function and one entry
of :data:`flamma.metrics.METRICS`, or an entry point of the group ``flamma.metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from flamma.numerics import total
from flamma.records import RoundRecord
from flamma.types import Floats, ScoreKind, Scores

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
        return next((r.virtual_seconds for r in records if self._is_reached(r, targets)), None)

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

"""What a run came to, from its records alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flamma.metrics import METRICS, ComparedMetric, ScoreMetric, of_run, usable
from flamma.metrics.kinds import LAST_ROUNDS, mean_of
from flamma.names import unknown
from flamma.records import Evaluation, RoundRecord
from flamma.types import ACCURACY_SCORE, NamesItsScore, ScoreKind


@dataclass(frozen=True)
class Summary(NamesItsScore):
    """Every metric of a run.

    Attributes
    ----------
    rounds : int
        How many are finished.
    final : mapping of str to float or None
        The metrics of the last evaluated round.
    metrics : mapping of str to float or None
        Every metric of the run by name, aggregated over its rounds as
        :data:`flamma.metrics.METRICS` says; None where the rounds do not tell it.
    failures, abstentions : int
        Over all rounds.
    decay_factor : float or None
        That of the last round.
    epochs_warmup : float
        The work of the warm-up, in epochs.
    clients : int
        How many there are.
    sample : int or None
        How many of them were drawn for the evaluations: metrics of an evaluation are over these
        alone. None if all were evaluated.
    rounds_averaged : int
        How many rounds the means over the last ones are over: those evaluated among the last ten.
    personal : bool
        Whether clients scored models of their own, rather than the global one.
    surveyed : int
        How often clients were asked for a loss before the server selected, over all rounds.
    bytes_surveys : int
        What they were sent for that; it is in ``bytes_down``, too.
    scored_by : str
        What clients are scored by, empty for accuracy.
    less_is_better : bool
        Whether less of that is better, as of a loss; it is not in percent then.
    diverged : str
        In what the run has diverged, and the likely cause; empty if it has not.
    """

    rounds: int
    final: Mapping[str, float | None]
    metrics: Mapping[str, float | None]
    failures: int
    abstentions: int
    decay_factor: float | None
    epochs_warmup: float
    clients: int
    sample: int | None
    rounds_averaged: int = 0
    personal: bool = False
    surveyed: int = 0
    bytes_surveys: int = 0
    scored_by: str = ""
    less_is_better: bool = False
    diverged: str = ""

    def __getitem__(self, name: str) -> float | None:
        if name not in self.metrics:
            raise KeyError(unknown("metric", name, self.metrics))
        return self.metrics[name]

    def __contains__(self, name: object) -> bool:
        return name in self.metrics

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    @property
    def averaged_title(self) -> str:
        """The title of a column of means over the last rounds."""
        every = self.rounds_averaged == min(self.rounds, LAST_ROUNDS)
        return f"mean of last {self.rounds_averaged}{'' if every else ' evaluated'}"

    def keys(self) -> Iterable[str]:
        """Return the names of all metrics, so that ``dict(summary)`` has them."""
        return self.metrics.keys()

    def as_json(self) -> dict[str, Any]:
        """Return the summary as ``flamma show --json`` prints it."""
        table: dict[str, Any] = {"rounds": self.rounds}
        scored = {n for n in self.metrics if isinstance(METRICS[n], ScoreMetric)}
        table |= {name: value for name, value in self.final.items() if name in scored}
        table |= {f"last_{LAST_ROUNDS}_{name}": self.metrics[name] for name in self.final}
        for name, value in self.metrics.items():
            group = METRICS[name].group
            if group:
                table.setdefault(group, {})[name] = value
            elif name not in scored:
                table[name] = value
        return table | {
            "epochs_warmup": self.epochs_warmup,
            "clients": self.clients,
            "sample": self.sample,
            "rounds_averaged": self.rounds_averaged,
            "personal": self.personal,
            "scored_by": self.score_kind.name,
            "less_is_better": self.less_is_better,
            "surveyed": self.surveyed,
            "bytes_surveys": self.bytes_surveys,
            "decay_factor": self.decay_factor,
            "failures": self.failures,
            "abstentions": self.abstentions,
            "diverged": self.diverged,
        }


NO_TARGETS: Mapping[str, float] = {}


def summarise_run(
    records: Sequence[RoundRecord], clients: int, targets: Mapping[str, float] = NO_TARGETS
) -> Summary:
    """Return every metric of a run with so many clients; ``targets`` are those of its clock."""
    evaluated = [record for record in records if record.evaluated]
    warmup = records[0].warmup if records else None
    surveys = [record.survey for record in records if record.survey is not None]
    known = usable()
    scored = [name for name, metric in known.items() if isinstance(metric, ScoreMetric)]
    kind = score_kind_of(records)
    return Summary(
        rounds=len(records),
        final={name: evaluated[-1].metric(name) if evaluated else None for name in scored},
        metrics={
            name: of_run(name, records, clients, targets)
            for name, metric in known.items()
            if not isinstance(metric, ComparedMetric)
        },
        failures=sum(len(record.failed) for record in records),
        abstentions=sum(len(record.abstained) for record in records),
        decay_factor=records[-1].decay_factor if records else None,
        epochs_warmup=0.0 if warmup is None else warmup.epochs,
        clients=clients,
        sample=sample_of(records),
        rounds_averaged=sum(record.evaluated for record in records[-LAST_ROUNDS:]),
        personal=is_personal(records),
        surveyed=sum(survey.asked for survey in surveys),
        bytes_surveys=sum(survey.bytes_down for survey in surveys),
        scored_by=kind.title,
        less_is_better=kind.less_is_better,
    )


def sample_of(records: Sequence[RoundRecord]) -> int | None:
    """Return how many clients were drawn for the last evaluation, None if it was of all."""
    last = _last_evaluation(records)
    return None if last is None else last.sample


def is_personal(records: Sequence[RoundRecord]) -> bool:
    """Return whether clients scored models of their own in the last evaluation."""
    last = _last_evaluation(records)
    return last is not None and last.personal


def score_kind_of(records: Sequence[RoundRecord]) -> ScoreKind:
    """Return what clients are scored by in the last evaluation."""
    last = _last_evaluation(records)
    return ACCURACY_SCORE if last is None else last.score_kind


def _last_evaluation(records: Sequence[RoundRecord]) -> Evaluation | None:
    return next((r.evaluation for r in reversed(records) if r.evaluation is not None), None)


def sample_text(sample: int, clients: int) -> str:
    """Return what metrics over a sample of the clients are over.

    Examples
    --------
    >>> sample_text(10_000, 1_000_000)
    'a sample of 10,000 of 1,000,000 clients'
    """
    return f"a sample of {sample:,} of {clients:,} clients"


def at_budget(records: Sequence[RoundRecord], epochs: float, name: str) -> float | None:
    """Return a metric over the last ten rounds within a budget of local epochs.

    The first round counts in any case, so that there is something to tell.
    """
    warmup = records[0].warmup if records else None
    spent = 0.0 if warmup is None else warmup.epochs
    within: list[RoundRecord] = []
    for record in records:
        spent += record.epochs_total
        if spent > epochs and within:
            break
        within.append(record)
    values = [METRICS[name].of_round(name, record) for record in within[-LAST_ROUNDS:]]
    return mean_of([value for value in values if value is not None])

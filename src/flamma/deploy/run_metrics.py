"""The metrics of runs, from their records."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from flamma.deploy.exposition import MetricFamily
from flamma.deploy.known_runs import KnownRun
from flamma.errors import FlammaError
from flamma.events import SHOWN_RUN_DIGITS
from flamma.experiments.config import make_config, read_config
from flamma.experiments.folder import ABOUT, CONFIG, ROUNDS, SITES, RunFolder
from flamma.records import RoundRecord

_FAILURE_KINDS = {
    "not connected": "not connected",
    "no answer": "no answer",
    "died": "process died",
    "refused": "refused",
    "it raised": "raised",
    "at most": "limit of the site",
}
"""What a reason contains, and the kind that it counts as: a label must not have endless values."""
_OTHER_KIND = "other"


def _failure_kind(reason: str) -> str:
    """Return the kind of a failure.

    Examples
    --------
    >>> _failure_kind("no answer in 40 s"), _failure_kind("something that a site made up")
    ('no answer', 'other')
    """
    return next((kind for text, kind in _FAILURE_KINDS.items() if text in reason), _OTHER_KIND)


@dataclass(frozen=True)
class RunFigures:
    """What is told of one run: its records, what it is, and when the last round ended."""

    run: str
    folder: str
    strategy: str
    planned: int
    finished: bool
    waiting: bool
    records: tuple[RoundRecord, ...]
    changed: float

    @classmethod
    def read(cls, known: KnownRun) -> Self:
        """Return the figures of a run as its directory has them; damaged records are left out."""
        folder = RunFolder(known.path)
        about, strategy, planned = folder.read_json(ABOUT), "", 0
        records: list[RoundRecord] = []
        with contextlib.suppress(FlammaError):
            tables = read_config(known.path / CONFIG, regular=True)
            config = make_config(tables, needs_strategy=False)
            strategy, planned = config.strategy.name, config.rounds
            records = folder.read_rounds()[0]
        try:
            changed = (known.path / ROUNDS).stat().st_mtime
        except OSError:
            changed = 0.0
        return cls(
            run=str(about.get("instance") or known.flower_id)[:SHOWN_RUN_DIGITS],
            folder=known.path.name,
            strategy=strategy,
            planned=planned,
            finished="params_sha256" in about,
            waiting=bool(folder.read_json(SITES).get("waiting_since")),
            records=tuple(records),
            changed=changed,
        )

    @property
    def last(self) -> RoundRecord | None:
        """The record of the last finished round."""
        return self.records[-1] if self.records else None

    def last_metric(self, name: str) -> float | None:
        """Return a metric of the last evaluation."""
        found = (record.metric(name) for record in reversed(self.records) if record.evaluated)
        return next(found, None)

    def failures(self) -> Counter[str]:
        """Return how often clients have failed, by the kind of the reason."""
        reasons = [reason for record in self.records for reason in record.outcome.failed.values()]
        for record in self.records:
            reasons += () if record.warmup is None else record.warmup.failed.values()
        return Counter(map(_failure_kind, reasons))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of all rounds, by phase."""
        train = sum(record.cost.seconds_train for record in self.records)
        evaluate = sum(record.cost.seconds_evaluate for record in self.records)
        rest = sum(record.cost.seconds for record in self.records) - train - evaluate
        warmup = sum(r.warmup.seconds for r in self.records if r.warmup is not None)
        return {"train": train, "evaluate": evaluate, "other": max(0.0, rest), "warm-up": warmup}

    def bytes_of(self, direction: str) -> int:
        """Return the bytes of weights that went ``up`` or ``down``."""
        own = sum(getattr(record.cost, f"bytes_{direction}") for record in self.records)
        warm = [record.warmup for record in self.records if record.warmup is not None]
        return int(own + sum(getattr(warmup, f"bytes_{direction}") for warmup in warm))


def run_families(runs: Sequence[RunFigures]) -> list[MetricFamily]:
    """Return the metrics of runs; ``flamma_run_info`` tells which run a number belongs to."""
    info = MetricFamily("flamma_run_info", "gauge", "A run, its directory and its strategy.")
    for run in runs:
        info.add(1, run=run.run, folder=run.folder, strategy=run.strategy)
    return [info, *_progress(runs), *_amounts(runs)]


def _progress(runs: Sequence[RunFigures]) -> list[MetricFamily]:
    planned = MetricFamily("flamma_run_rounds_planned", "gauge", "Rounds that a run is to have.")
    finished = MetricFamily("flamma_run_finished", "gauge", "Whether a run is finished.")
    waiting = MetricFamily("flamma_run_waiting", "gauge", "Whether a run waits for its sites.")
    changed = MetricFamily(
        "flamma_run_round_timestamp_seconds", "gauge", "When the last round of a run ended."
    )
    gamma = MetricFamily("flamma_run_gamma", "gauge", "The decay factor of the last round.")
    accuracy = MetricFamily(
        "flamma_run_accuracy_percent", "gauge", "Mean accuracy of clients, last evaluation."
    )
    variance = MetricFamily(
        "flamma_run_accuracy_variance", "gauge", "Variance of clients' accuracies, percent squared."
    )
    epsilon = MetricFamily("flamma_run_epsilon", "gauge", "Differential privacy spent, if any.")
    for run in runs:
        planned.add(run.planned or None, run=run.run)
        finished.add(float(run.finished), run=run.run)
        waiting.add(float(run.waiting and not run.finished), run=run.run)
        changed.add(run.changed or None, run=run.run)
        accuracy.add(run.last_metric("accuracy"), run=run.run)
        variance.add(run.last_metric("accuracy_variance"), run=run.run)
        if run.last is not None:
            gamma.add(run.last.offer.decay_factor, run=run.run)
            epsilon.add(None if run.last.privacy is None else run.last.privacy.epsilon, run=run.run)
    return [planned, finished, waiting, changed, gamma, accuracy, variance, epsilon]


def _amounts(runs: Sequence[RunFigures]) -> list[MetricFamily]:
    rounds = MetricFamily("flamma_run_rounds_total", "counter", "Finished rounds.")
    epochs = MetricFamily("flamma_run_epochs_total", "counter", "Local epochs of used updates.")
    abstained = MetricFamily("flamma_run_abstentions_total", "counter", "Clients that abstained.")
    failures = MetricFamily("flamma_run_failures_total", "counter", "Clients' failures, by reason.")
    weights = MetricFamily("flamma_run_bytes_total", "counter", "Bytes of weights, by direction.")
    seconds = MetricFamily("flamma_run_seconds_total", "counter", "Seconds of rounds, by phase.")
    for run in runs:
        rounds.add(len(run.records), run=run.run)
        epochs.add(sum(record.outcome.epochs_total for record in run.records), run=run.run)
        abstained.add(sum(len(record.outcome.abstained) for record in run.records), run=run.run)
        for kind, count in sorted(run.failures().items()):
            failures.add(count, run=run.run, reason=kind)
        for direction in ("up", "down"):
            weights.add(run.bytes_of(direction), run=run.run, direction=direction)
        for phase, amount in run.seconds().items():
            seconds.add(amount, run=run.run, phase=phase)
    return [rounds, epochs, abstained, failures, weights, seconds]

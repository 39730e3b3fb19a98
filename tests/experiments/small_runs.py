"""A run that takes a tenth of a second, and a callback that remembers what it was told."""

from __future__ import annotations

from dataclasses import replace

from flamma.experiments.callbacks import Callback

TABLES = {
    "rounds": 8,
    "per_round": 2,
    "data": {"clients": 4, "train_samples": 120, "validation_samples": 0},
    "model": {"name": "logistic"},
    "strategy": {"name": "flamma-plus", "warmup_iterations": 2},
}


class Diary(Callback):
    """Remembers what it was told; ``stops`` and ``fails`` are rounds in which it raises."""

    def __init__(self, raises=None):
        self.told = []
        self.raises = raises or {}

    def on_start(self, start):
        self.start = start
        self.told.append(("start", len(start.history)))

    def on_round(self, record):
        self.told.append(("round", record.round))
        if record.round in self.raises:
            raise self.raises[record.round]

    def on_end(self, run):
        self.told.append(("end", run.finished))


def without_times(record):
    """A record without its times, and without the run that it belongs to."""
    warmup = record.warmup and replace(record.warmup, seconds=0)
    cost = replace(record.cost, seconds=0, seconds_train=0, seconds_evaluate=0)
    return replace(record, run=None, warmup=warmup, cost=cost)


def accuracies(run):
    return [record.metric("accuracy") for record in run.history]

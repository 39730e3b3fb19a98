"""How pages write a metric: its value with its unit, and which direction is better."""

from __future__ import annotations

from collections.abc import Sequence

from flamma.metrics import Metric, ScoreMetric
from flamma.metrics.kinds import LAST_ROUNDS
from flamma.reports.document import byte_size, number_text

BETTER = {"higher": "Higher is better.", "lower": "Lower is better.", "neither": ""}
"""What to say of each direction."""


def value_text(metric: Metric, value: float, digits: int = 4) -> str:
    """Return a value as people read it; only percentages and bytes are told with their unit."""
    if metric.unit == "bytes":
        return byte_size(value)
    if metric.unit.startswith("%"):
        return f"{value:.1f} {metric.unit}"
    return number_text(value, digits)


def column_text(metric: Metric) -> str:
    """Return the label of a column, with the unit if the values are written without it."""
    return metric.label if metric.unit == "bytes" or metric.unit.startswith("%") else metric.title


def fact(metric: Metric, value: float, rounds: Sequence[float | None] = ()) -> tuple[str, str, str]:
    """Return a metric of a run as a fact: label, value, and how it comes from the rounds.

    What is a mean over ``rounds`` says over how many, and what the last of them was.
    """
    alone = column_text(metric) == metric.label
    averaged = isinstance(metric, ScoreMetric) and bool(rounds)
    how = _mean_note(metric, rounds) if averaged else metric.aggregation()
    note = how if alone else f"{metric.unit}, {how}"
    return metric.label, value_text(metric, value), note


def _mean_note(metric: Metric, rounds: Sequence[float | None]) -> str:
    """Say over how many of the last rounds the mean is, and what the last one had."""
    latest = rounds[-LAST_ROUNDS:]
    known = [value for value in latest if value is not None]
    if len(known) == 1:
        return "of the last evaluated round"
    which = f"last {len(latest)}" if len(rounds) > len(latest) else f"{len(latest)}"
    few = "" if len(known) == len(latest) else f"{len(known)} evaluated ones of the "
    last = value_text(metric, known[-1]).replace(" ", "\N{NO-BREAK SPACE}")
    return f"mean of the {few}{which} rounds; the last has {last}"

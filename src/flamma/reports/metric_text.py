"""How pages write a metric: its value with its unit, and which direction is better."""

from __future__ import annotations

from flamma.metrics import Metric
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


def fact(metric: Metric, value: float) -> tuple[str, str, str]:
    """Return a metric of a run as a fact: label, value, and how it comes from the rounds."""
    alone = column_text(metric) == metric.label
    note = metric.aggregation if alone else f"{metric.unit}, {metric.aggregation}"
    return metric.label, value_text(metric, value), note

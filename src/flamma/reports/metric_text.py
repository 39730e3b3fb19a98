"""How pages write a metric: its value with its unit, and which direction is better."""

from __future__ import annotations

from flamma.metrics import Metric
from flamma.reports.document import byte_size, figures

BESIDE_THE_VALUE = ("%", "%²")
"""Units that are written after the number; others are named in the label."""

BETTER = {"higher": "higher is better", "lower": "lower is better", "neither": ""}


def value_text(metric: Metric, value: float) -> str:
    """Return a value as people read it."""
    if metric.unit == "bytes":
        return byte_size(value)
    if metric.unit in BESIDE_THE_VALUE:
        return f"{value:.1f} {metric.unit}"
    return figures(value)


def label_text(metric: Metric) -> str:
    """Return a metric's label, with the unit if its values are written without it."""
    named = (*BESIDE_THE_VALUE, "bytes")
    return metric.label if metric.unit in named else metric.title


def fact(metric: Metric, value: float) -> tuple[str, str, str]:
    """Return a metric of a run as a fact: label, value, and how it comes from the rounds."""
    return label_text(metric), value_text(metric, value), metric.aggregation


def aid_text(metric: Metric) -> str:
    """Return one sentence on how to read a curve of a metric over the rounds."""
    better = BETTER[metric.better]
    return f"The metric of each round{f': {better}' if better else ''}."

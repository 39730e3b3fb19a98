"""Tasks: what a sample's loss, a client's score and a prediction are.

Another package adds a task by an entry point of the group ``flamma.tasks`` that names an object of
a class derived from :class:`Task`. torch is imported only where tensors are at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from flamma.errors import ConfigError, FlammaError
from flamma.registry import Registry
from flamma.tasks.contract import ClientMetric as ClientMetric
from flamma.tasks.contract import Task as Task
from flamma.tasks.measures import Measures as Measures
from flamma.tasks.own import OwnLoss, OwnMetric, own_metric

TASKS: Registry[Task] = Registry(
    "task",
    "flamma.tasks",
    {
        "classification": "flamma.tasks.classification:CLASSIFICATION",
        "regression": "flamma.tasks.regression:REGRESSION",
        "next-token": "flamma.tasks.next_token:NEXT_TOKEN",
    },
)
"""All tasks by name."""

DEFAULT_TASK = "classification"
"""The task of data that name none."""


def metric_names() -> list[str]:
    """Return the names of all metrics of all tasks that can be loaded."""
    return list(dict.fromkeys(metric.name for metric in _all_metrics()))


def refuse_losses(metric: str, why: str) -> None:
    """Refuse a metric of which less is better; ``why`` says what needs more to be better.

    Raises
    ------
    ConfigError
        If a task has such a metric by this name.
    """
    if any(known.name == metric and known.less_is_better for known in _all_metrics()):
        raise ConfigError(
            f"{why} of which more is better, which {metric} is not: choose another "
            f"evaluation.metric."
        )


def _all_metrics() -> Iterator[ClientMetric]:
    for name in TASKS:
        with suppress(FlammaError):  # what another package broke has none
            yield from TASKS[name].metrics


def measures_for(
    task: str, metric: str = "", loss: OwnLoss | None = None, own: OwnMetric | None = None
) -> Measures:
    """Return what a run measures.

    Parameters
    ----------
    task : str
        The task of its data.
    metric : str
        The metric of the configuration; the task's first if it is empty.
    loss, own : callable, optional
        The user's own loss and metric.

    Raises
    ------
    ConfigError
        If the task has no such metric.
    """
    kind = TASKS[task]
    return Measures(kind, kind.metric(metric) if own is None else own_metric(own), loss)

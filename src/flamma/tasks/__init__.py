"""Tasks: what a sample's loss, a client's score and a prediction are.

Another package adds a task by an entry point of the group ``flamma.tasks`` that names an object of
a class derived from :class:`Task`. torch is imported only where tensors are at hand.
"""

from __future__ import annotations

from contextlib import suppress

from flamma.errors import FlammaError
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
    names: dict[str, None] = {}
    for name in TASKS:
        with suppress(FlammaError):  # what another package broke has none
            names |= dict.fromkeys(metric.name for metric in TASKS[name].metrics)
    return list(names)


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

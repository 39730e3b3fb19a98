"""Tasks: the loss of a sample, the score of a client, and the form of a prediction.

Another package adds a task by an entry point of the group ``flamma.tasks`` that names an object of
a class derived from :class:`Task`. torch is imported only where tensors are at hand.

Examples
--------
>>> from flamma.tasks import TASKS, measures_for
>>> list(TASKS)
['classification', 'regression', 'next-token']
>>> [metric.name for metric in TASKS["regression"].metrics]
['r2', 'loss']
>>> measures = measures_for("classification", "balanced-accuracy")
>>> measures.score(np.array([True, True, True, False]), np.array([0, 0, 0, 1]))
50.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from flamma.errors import ConfigError, FlammaError, Key
from flamma.registry import Registry
from flamma.tasks.base import ClientMetric, SampleMarks, Task, part_means
from flamma.tasks.supervised import ACCURACY, CLASSIFICATION
from flamma.types import ACCURACY_SCORE, Floats, Ints, Params, ScoreKind, Targets

if TYPE_CHECKING:
    from torch import Tensor


__all__ = [
    "DEFAULT_TASK",
    "TASKS",
    "ClientMetric",
    "Measures",
    "OwnLoss",
    "OwnMetric",
    "Task",
    "measures_for",
]

# A user's loss and metric, as Python functions.

_OWN_METRIC = "own"
"""The name of a metric that was given from Python."""

OwnLoss = Callable[["Tensor", "Tensor"], "Tensor"]
"""``(outputs, targets) -> losses``: one loss per sample."""

OwnMetric = Callable[[SampleMarks, Targets], float]
"""``(outputs, targets) -> number``, of the arrays of one client; 1 is the best."""


def refuse_negative(losses: Params) -> None:
    """Refuse losses below 0, of which strategies would take roots and logarithms."""
    if losses.size and losses.min() < 0:
        raise FlammaError(
            f"a loss of your own must not be negative, but one is {losses.min():g}: add a constant "
            f"or use another loss."
        )


def _custom_metric(metric: OwnMetric) -> ClientMetric:
    """Return the metric that a function of a client's outputs and targets computes.

    It takes the model's outputs for all samples of a client and their targets, as arrays.
    """

    def one(outputs: SampleMarks, targets: Targets) -> float:
        value = metric(outputs, targets)
        try:
            return float(value)
        except (TypeError, ValueError):
            raise FlammaError(
                f"a metric of your own must return one number per client, not a "
                f"{type(value).__name__}."
            ) from None

    def score(marks: SampleMarks, targets: Targets, offsets: Ints) -> Floats:
        parts = pairwise(offsets.tolist())
        return np.array([one(marks[a:b], targets[a:b]) if a < b else math.nan for a, b in parts])

    title = getattr(metric, "__name__", "").replace("_", " ").strip()
    return ClientMetric(
        _OWN_METRIC,
        title if title.replace(" ", "").isalnum() else "own metric",
        lambda outputs, targets, losses: outputs.float(),
        score,
        takes_outputs=True,
        is_share=False,
    )


# The measures of a run: the loss of a sample, and the score of a client.


@dataclass(frozen=True, eq=False)
class Measures:
    """The task of a run, the metric that its clients are scored by, and its loss.

    Parameters
    ----------
    task : Task
        The learning task.
    metric : ClientMetric
        The metric of clients, one of the task's or a user's function.
    loss : callable, optional
        A user's loss in place of the task's.
    """

    task: Task = CLASSIFICATION
    metric: ClientMetric = ACCURACY
    loss: OwnLoss | None = None

    @property
    def score_kind(self) -> ScoreKind:
        """The kind of clients' scores."""
        return ACCURACY_SCORE if self.metric is ACCURACY else self.metric.kind

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample: strategies weigh samples and clients by it."""
        if self.loss is None:
            return self.task.losses(outputs, targets)
        import torch

        losses = self.loss(outputs, targets)
        is_tensor = isinstance(losses, torch.Tensor)
        if not is_tensor or losses.shape != (len(targets),):
            found = tuple(losses.shape) if is_tensor else type(losses).__name__
            given = "a mean" if found == () else f"{found}"
            raise FlammaError(
                f"a loss of your own must return one number per sample, a tensor of shape "
                f"({len(targets)},), not {given}: use reduction='none' or the like."
            )
        return losses

    def mean_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        if self.loss is None:
            return self.task.mean_loss(outputs, targets)
        return self.losses(outputs, targets).mean()

    def scores(self, marks: SampleMarks, targets: Targets, offsets: Ints) -> Floats:
        """Return the score of every client, NaN where it has none.

        It is in percent, or as it is if less is better.
        """
        scores = self.metric.score(marks, targets, offsets)
        return scores if self.metric.lower_is_better else 100 * scores

    def score(self, marks: SampleMarks, targets: Targets) -> float:
        """Return the score of all samples together, as if they were one client's."""
        if not len(marks):
            return math.nan
        return float(self.scores(marks, targets, np.array([0, len(marks)]))[0])

    def client_score(
        self, losses: Params, marks: SampleMarks, targets: Targets
    ) -> tuple[float, float]:
        """Return the score and the mean loss of one client alone."""
        all_of_it = np.array([0, len(losses)])
        return self.score(marks, targets), float(part_means(losses, all_of_it)[0])

    def unsupported_reason(self) -> str:
        """Return why lanes cannot train and score by these measures, empty if they can."""
        if self.loss is not None:
            return "they train by cross-entropy, not by a loss of your own."
        if not self.task.trains_in_lanes:
            return f"they train by cross-entropy of labels, not by the loss of {self.task.name}."
        if not self.metric.marks_right and self.metric.from_losses is None:
            return (
                f"they tell which samples are right, which is not enough for {self.metric.title}."
            )
        return ""


PLAIN_MEASURES = Measures()
"""Classification by cross-entropy, scored by accuracy."""


TASKS: Registry[Task] = Registry(
    "task",
    "flamma.tasks",
    {
        "classification": "flamma.tasks.supervised:CLASSIFICATION",
        "regression": "flamma.tasks.supervised:REGRESSION",
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
    """Refuse a metric of which lower is better; ``why`` names what needs the opposite."""
    if any(known.name == metric and known.lower_is_better for known in _all_metrics()):
        raise ConfigError(
            f"{why} of which more is better, which {metric} is not: choose another ",
            Key("evaluation.metric"),
            ".",
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
    return Measures(kind, kind.metric(metric) if own is None else _custom_metric(own), loss)

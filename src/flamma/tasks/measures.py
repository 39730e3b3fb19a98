"""What one run measures: the loss of a sample, and the score of a client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flamma.tasks.classification import ACCURACY, CLASSIFICATION
from flamma.tasks.contract import ClientMetric, SampleMarks, Task
from flamma.tasks.own import OwnLoss, checked_losses
from flamma.tasks.parts import part_means
from flamma.types import ACCURACY_SCORE, Floats, Ints, Params, ScoreKind, Targets

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Measures:
    """The task of a run, the metric that its clients are scored by, and its loss.

    Parameters
    ----------
    task : Task
        What is learnt.
    metric : ClientMetric
        What clients are scored by, one of the task's or the user's own.
    loss : callable, optional
        The user's own loss in place of the task's.
    """

    task: Task = CLASSIFICATION
    metric: ClientMetric = ACCURACY
    loss: OwnLoss | None = None

    @property
    def score_kind(self) -> ScoreKind:
        """What clients are scored by."""
        return ACCURACY_SCORE if self.metric is ACCURACY else self.metric.kind

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample."""
        if self.loss is None:
            return self.task.losses(outputs, targets)
        return checked_losses(self.loss, outputs, targets)

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
        return scores if self.metric.less_is_better else 100 * scores

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

    def why_not_lanes(self) -> str:
        """Return why lanes cannot train and score so, empty if they can."""
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

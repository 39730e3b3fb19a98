"""What models are scored on, and what the marks of all samples come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from flamma.data.federated import FederatedData
from flamma.engines.executor import Executor, one_thread
from flamma.engines.outcomes import mean_or_nan
from flamma.numerics import exp
from flamma.tasks.measures import Measures
from flamma.tasks.parts import part_means
from flamma.types import Inputs, Ints, Params, Scores, Targets

HELD, TEST, VALIDATION = 0, 1, 2
"""The data sets that are scored, by their numbers in the executor."""


@dataclass(frozen=True, eq=False)
class ScoredData:
    """The held-out data of the evaluated clients, the test set and the server's validation set.

    Attributes
    ----------
    sets : tuple of (x, y)
        The data sets, by their numbers.
    offsets : ndarray
        Where the held-out data of each evaluated client begin.
    test : int
        The number of the test set: without one of its own, it is the held-out data.
    measures : Measures
        How a client's score comes from the marks of its samples.
    evaluated : ndarray or None
        The clients that are evaluated, None if all are.
    """

    sets: tuple[tuple[Inputs, Targets], ...]
    offsets: Ints
    test: int
    measures: Measures
    evaluated: Ints | None

    @classmethod
    def of(cls, data: FederatedData, measures: Measures, evaluated: Ints | None) -> Self:
        """Return what of a federation is scored."""
        held_x, held_y, offsets = (
            (data.held_x, data.held_y, data.held_offsets)
            if evaluated is None
            else data.held_out_of(evaluated)
        )
        sets = (
            (held_x, held_y),
            (data.test_x, data.test_y),
            (data.validation_x, data.validation_y),
        )
        test = HELD if data.test_x is data.held_x else TEST
        return cls(sets, offsets, test, measures, evaluated)

    @property
    def for_evaluation(self) -> list[int]:
        """The data sets that an evaluation scores."""
        return sorted({HELD, self.test})

    def scores(self, executor: Executor) -> Scores:
        """Return the scores of the weights that the executor has scored.

        A client without held-out data has NaN. Where the test set is all held-out data and only
        some clients are evaluated, it is theirs.
        """
        losses, marks = executor.scores(HELD)
        test_losses, test_marks = executor.scores(self.test)
        return Scores(
            accuracy=self.measures.scores(marks, self.sets[HELD][1], self.offsets),
            loss=part_means(losses, self.offsets),
            samples=np.diff(self.offsets),
            test_accuracy=self.measures.score(test_marks, self.sets[self.test][1]),
            test_loss=mean_or_nan(test_losses),
            clients=self.evaluated,
            kind=self.measures.score_kind,
            is_share=self.measures.metric.is_share,
        )

    def own_scores(
        self, executor: Executor, common: Scores, model: Callable[[int], Params]
    ) -> Scores:
        """Return the scores with those of each client's own model in place of the common one's.

        Clients are scored one after the other, in this process.
        """
        count = self.offsets.size - 1
        clients = range(count) if self.evaluated is None else self.evaluated
        accuracy, loss = common.accuracy.copy(), common.loss.copy()
        with one_thread():
            for place, client in enumerate(clients):
                own = self._own_score(executor, model(int(client)), place)
                accuracy[place], loss[place] = own
        return replace(common, accuracy=accuracy, loss=loss, personal=True)

    def _own_score(self, executor: Executor, params: Params, place: int) -> tuple[float, float]:
        x, y = self.sets[HELD]
        where = slice(*self.offsets[place : place + 2].tolist())
        losses, marks = executor.trainer.predict(params, x[where], y[where])
        return self.measures.client_score(losses, marks, y[where])

    def validation(self, executor: Executor) -> tuple[float, float]:
        """Return the loss and the score in percent on the validation set, NaN if it is empty.

        Strategies take more for better: where clients are scored by a loss, the score is the
        likelihood of the targets, 100 e^-loss.
        """
        losses, marks = executor.scores(VALIDATION)
        loss = mean_or_nan(losses)
        if self.measures.metric.less_is_better:
            return loss, 100 * float(exp(-loss))
        return loss, self.measures.score(marks, self.sets[VALIDATION][1])

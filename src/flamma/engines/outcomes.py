"""How every engine reports a client's training, and averages scores. Needs numpy only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flamma.data.site_limits import OverLimitError
from flamma.numerics import total
from flamma.training.jobs import TooSlow, Trained
from flamma.types import LocalTask, Params, Report


class Outcome(NamedTuple):
    """What a training came to besides its weights; small, for there may be very many."""

    loss: float
    seconds: float
    failure: str


def outcome_of(trained: Trained, time_limit: float | None) -> Outcome:
    """Return the outcome of a training, with the reason in one line if it failed."""
    failure = ""
    if isinstance(trained.error, TooSlow):
        failure = late(time_limit)
    elif trained.error is not None:
        failure = one_line(trained.error)
    return Outcome(trained.loss, trained.seconds, failure)


def training_report(
    task: LocalTask, samples: int, outcome: Outcome, params: Params | None
) -> Report:
    """Return the report of a training: of no weights and no epochs if it failed or evaluated."""
    loss, seconds, failure = outcome
    if failure or task.evaluates:
        return Report(task.client, None, samples, 0, loss, seconds, failure)
    return Report(task.client, params, samples, task.epochs, loss, seconds)


def late(limit: float | None) -> str:
    """Return the failure of a client that took longer than the time limit."""
    return f"late: over {limit:g} s"


def one_line(error: BaseException) -> str:
    """Return an exception as one line of at most 200 characters."""
    if isinstance(error, OverLimitError):  # a refusal, not a fault
        return str(error)[:200]
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:200] if lines else type(error).__name__


def mean_or_nan(values: NDArray[np.generic]) -> float:
    """Return the mean of all values; the mean of no values is NaN."""
    return total(values) / values.size if values.size else math.nan

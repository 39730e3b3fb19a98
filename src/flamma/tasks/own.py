"""A loss and a metric of the user's own, as Python functions, and what they must return."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.errors import FlammaError
from flamma.tasks.contract import ClientMetric, SampleMarks
from flamma.types import Floats, Ints, Params, Targets

if TYPE_CHECKING:
    from torch import Tensor

OWN_METRIC = "own"
"""The name of a metric that was given from Python."""

OwnLoss = Callable[[Any, Any], Any]
"""``(outputs, targets) -> losses``, tensors all: one loss per sample."""

OwnMetric = Callable[[Any, Any], float]
"""``(outputs, targets) -> number``, of the arrays of one client; 1 is the best there is."""


def checked_losses(loss: OwnLoss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return what a loss of the user's own gives for a batch.

    Raises
    ------
    FlammaError
        If it is not one loss per sample: strategies weigh samples and clients by theirs.
    """
    import torch

    losses = loss(outputs, targets)
    if not isinstance(losses, torch.Tensor) or losses.shape != (len(targets),):
        found = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
        given = "a mean" if found == () else f"{found}"
        raise FlammaError(
            f"a loss of your own must return one number per sample, a tensor of shape "
            f"({len(targets)},), not {given}: use reduction='none' or the like."
        )
    return losses


def refuse_negative(losses: Params) -> None:
    """Refuse losses below 0, of which strategies would take roots and logarithms.

    Raises
    ------
    FlammaError
        If there is one.
    """
    if losses.size and losses.min() < 0:
        raise FlammaError(
            f"a loss of your own must not be negative, but one is {losses.min():g}: add a constant "
            f"or use another loss."
        )


def own_metric(metric: OwnMetric) -> ClientMetric:
    """Return the metric that a function of a client's outputs and targets computes.

    It takes the model's outputs for all samples of a client and their targets, as arrays.
    """

    def score(marks: SampleMarks, targets: Targets, offsets: Ints) -> Floats:
        parts = pairwise(offsets.tolist())
        return np.array(
            [_number(metric, marks[a:b], targets[a:b]) if a < b else math.nan for a, b in parts]
        )

    title = getattr(metric, "__name__", "").replace("_", " ").strip()
    return ClientMetric(
        OWN_METRIC,
        title if title.replace(" ", "").isalnum() else "own metric",
        lambda outputs, targets, losses: outputs.float(),
        score,
        takes_outputs=True,
        is_share=False,
    )


def _number(metric: OwnMetric, outputs: SampleMarks, targets: Targets) -> float:
    value = metric(outputs, targets)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise FlammaError(
            f"a metric of your own must return one number per client, not a {type(value).__name__}."
        ) from None

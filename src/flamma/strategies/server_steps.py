"""What strategies share whose server does more with the clients' updates than take their mean.

u_k = w_k - w is client k's update of the received weights w. What is not trained, such as the
running variance of a batch norm, has no update: it becomes the mean of what clients sent.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import power
from flamma.strategies.base import Answers, ServerReads, data_shares, model_of
from flamma.strategies.fedavg import Averaging
from flamma.strategies.gradients import GradientState
from flamma.types import Floats, Params, Plan, Report

Stepping = TypeVar("Stepping", bound=GradientState)


@dataclass(frozen=True)
class ServerOptimiser(Averaging[Stepping]):
    """What strategies share whose server makes a step of its own from the mean update."""

    server_reads: ClassVar[ServerReads] = "mean"

    @abstractmethod
    def step(self, state: Stepping, update: Floats) -> tuple[Floats, Stepping]:
        """Return the server's step after a mean update, and the state that remembers it."""

    def combine(self, state: Stepping, answers: Answers) -> Stepping:
        """Take the mean of the updates by data size, and the step that follows from it."""
        reports = answers.accepted
        if not reports:
            return state
        mean = self.average(reports, data_shares(reports), answers.reference)
        step, after = self.step(state, change(state.params, mean, state.trainable_size))
        return replace(after, params=stepped(state.params, mean, step))


def stepped(received: Params, mean: Params, step: Floats) -> Params:
    """Return w + step in what is trained, the first weights, and the mean in what is not.

    It is computed as mean + (step - (mean - w)), so that the step to the mean leads to the mean to
    the last bit.
    """
    size = step.size
    params = mean.copy()
    params[:size] = (mean[:size] + (step - change(received, mean, size))).astype(np.float32)
    return params


def change(before: Params, after: Params, trainable_size: int) -> Floats:
    """Return after - before in what is trained, in double precision."""
    return after[:trainable_size].astype(np.float64) - before[:trainable_size]


def scaled_models(
    reports: Sequence[Report], received: Params, factors: Sequence[float], trainable_size: int
) -> list[Floats]:
    """Return w + f_k u_k of every report; a factor of 1 gives its model to the last bit."""
    models = []
    for report, factor in zip(reports, factors, strict=True):
        model = model_of(report).astype(np.float64)
        trained = model[:trainable_size]
        trained += (factor - 1) * (trained - received[:trainable_size])
        models.append(model)
    return models


def gradient_weight(plan: Plan, samples: int, epochs: int, iterations: int | None = None) -> float:
    """Return how many gradients there are in the update of a client with so many samples.

    Without momentum that is the number τ of its mini-batches. With a momentum ρ from zero velocity
    it is (τ - ρ (1 - ρ^τ) / (1 - ρ)) / (1 - ρ), which FedNova calls ‖a‖₁: a gradient counts again
    in every step after its own.

    Examples
    --------
    >>> gradient_weight(Plan(rounds=1, per_round=1, batch_size=32), samples=65, epochs=2)
    6.0
    >>> gradient_weight(Plan(rounds=1, per_round=1, momentum=0.5), samples=1, epochs=2)
    2.5
    """
    batches = epochs * -(-samples // plan.batch_size) if iterations is None else iterations
    steps, momentum = max(1, batches), plan.momentum
    if momentum == 0:
        return float(steps)
    faded = momentum * (1 - float(power(momentum, steps))) / (1 - momentum)
    return (steps - faded) / (1 - momentum)


def require_positive(**options: float) -> None:
    """Refuse options that are not above 0, or not finite.

    Raises
    ------
    StrategyError
        Naming the option.
    """
    for name, value in options.items():
        if not 0 < value < math.inf:
            raise StrategyError(f"{name} must be above 0, not {value:g}.")


def require_fraction(**options: float) -> None:
    """Refuse options that are not at least 0 and below 1.

    Raises
    ------
    StrategyError
        Naming the option.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise StrategyError(f"{name} must be at least 0 and below 1, not {value:g}.")

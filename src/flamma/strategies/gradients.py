"""What strategies share that combine the clients' gradients rather than their models.

What a client has moved by in its local training, with the other sign, stands for its gradient:
g_k = w - w_k. What is not trained, such as a batch norm's running means, has no gradient: it
becomes the mean by data size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from flamma.aggregators import Reference
from flamma.aggregators.updates import ROUNDING_LENGTH
from flamma.errors import StrategyError
from flamma.numerics import dot, norm
from flamma.strategies.base import Answers, State, data_shares, model_of
from flamma.strategies.fedavg import Averaging
from flamma.types import Floats, Params, Population, Report


@dataclass(frozen=True, eq=False)
class GradientState(State):
    """``trainable_size`` is how many of the weights are trained, and so have a gradient."""

    trainable_size: int


G = TypeVar("G", bound=GradientState)


@dataclass(frozen=True, eq=False)
class Moves:
    """How far each client has moved the trained weights, -g_k, in the order of the reports.

    ``received`` are the trained weights that they moved from, and ``reference`` what aggregators
    measure from.
    """

    reports: Sequence[Report]
    received: Floats
    updates: list[Floats]
    reference: Reference | None

    @classmethod
    def of(cls, state: GradientState, reports: Sequence[Report], answers: Answers) -> Moves:
        """Return the moves of these reports."""
        size, reference = state.trainable_size, answers.reference
        received = state.params[:size].astype(np.float64)
        updates = [model_of(report)[:size] - received for report in reports]
        return cls(reports, received, updates, reference and reference.of_trained(size))

    def of_length_1(self) -> list[Floats]:
        """Return the updates at length 1; one that is no more than rounding has no direction."""
        shortest = ROUNDING_LENGTH * norm(self.received)
        lengths = [norm(update) for update in self.updates]
        return [
            update / length if length > shortest else np.zeros(update.size)
            for update, length in zip(self.updates, lengths, strict=True)
        ]


def inner_products(vectors: Sequence[Floats]) -> Floats:
    """Return the matrix of the inner products of all pairs."""
    products = np.zeros((len(vectors), len(vectors)))
    for first, one in enumerate(vectors):
        for second in range(first, len(vectors)):
            products[first, second] = products[second, first] = dot(one, vectors[second])
    return products


@dataclass(frozen=True)
class ByGradients(Averaging[G]):
    """The round of a strategy that combines gradients; variants say where the weights move."""

    def combine(self, state: G, answers: Answers) -> G:
        """Move the trained weights by the gradients, and average the others."""
        reports = self.usable(answers.accepted)
        if not reports:
            return state
        params = self.average(reports, data_shares(reports), answers.reference)
        moved = self.moved(state, Moves.of(state, reports, answers))
        params[: state.trainable_size] = moved.astype(np.float32)
        return replace(state, params=params)

    def usable(self, accepted: Sequence[Report]) -> Sequence[Report]:
        """Return the reports that can be used: here all."""
        return accepted

    @abstractmethod
    def moved(self, state: G, moves: Moves) -> Floats:
        """Return the trained weights after the round."""


@dataclass(frozen=True)
class ByUnitGradients(ByGradients[GradientState]):
    """Gradients are brought to length 1, so that a step is as long as the server says.

    Parameters
    ----------
    server_step : float
        η_s, the length of a step along gradients that all point the same way; a schedule of the
        learning rate multiplies it, too.
    """

    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.server_step < np.inf:
            raise StrategyError(f"server_step must be above 0, not {self.server_step:g}.")

    def init(self, params: Params, population: Population) -> GradientState:
        """Start with the given weights."""
        return GradientState(params, 0, population.samples, population.trainable_size)

    def step_length(self, state: GradientState) -> float:
        """Return η_s of the round after a state."""
        return self.server_step * self.plan.factor(state.round + 1)

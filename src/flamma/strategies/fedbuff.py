"""FedBuff: an asynchronous server with a buffer of updates, stale ones weighed down.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.strategies.base import Answers
from flamma.strategies.common import model_of
from flamma.strategies.flights import Asynchronous, FlightState
from flamma.strategies.server_steps import change, require_positive, stepped
from flamma.types import Params, Report


@dataclass(frozen=True)
class FedBuff(Asynchronous):
    """w ← w + η_s (1/K) Σ u_k / √(1 + s_k), s_k the server's steps since client k began.

    Parameters
    ----------
    server_step : float
        η_s, the server's step size.
    """

    name: ClassVar[str] = "fedbuff"
    label: ClassVar[str] = "FedBuff"
    summary: ClassVar[str] = "steps after every K answers, whoever is still at work"

    server_step: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(server_step=self.server_step)

    def combine(self, state: FlightState, answers: Answers) -> FlightState:
        """Make the step of those that have answered, who are idle from then on."""
        landed = state.landed()
        if not answers.accepted:
            return landed
        weights = [1 / math.sqrt(1 + steps) for steps in self.staleness(state, answers)]
        moved = [
            replace(report, params=_moved(state, report, weight))
            for report, weight in zip(answers.accepted, weights, strict=True)
        ]
        mean = self.average(moved, [1.0] * len(moved), answers.reference)
        step = self.server_step * change(state.params, mean, state.trainable_size)
        return replace(landed, params=stepped(state.params, mean, step))


def _moved(state: FlightState, report: Report, weight: float) -> Params:
    """Return the newest model moved by a client's weighed update, and as it is where not trained.

    It is computed from the client's model, so that an update of the newest one at weight 1 leads
    to that model to the last bit.
    """
    received, trained = state.model_of(report.client), slice(state.trainable_size)
    model = model_of(report).astype(np.float64)
    since = state.params[trained].astype(np.float64) - received[trained]
    model[trained] += since + (weight - 1) * (model[trained] - received[trained])
    moved: Params = model.astype(np.float32)
    return moved

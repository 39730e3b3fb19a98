"""The server's own update: what it makes of the received model by its validation set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from flamma.types import Floats, LocalTask, Params, Plan, Report, Terms

SERVER = -1
"""Stands for a client's number in the task of the server itself."""

TrainServer = Callable[[Params, LocalTask], Params]
"""Trains on the server's own validation set; returns the trainable weights, which are the first."""


def server_task(plan: Plan, terms: Sequence[Terms], accepted: Sequence[Report]) -> LocalTask:
    """Return how the server trains: as long, and with as large a step, as the middle client."""
    terms_of = {own.client: own for own in terms}
    asked = [terms_of[report.client] for report in accepted]
    middle = len(accepted) // 2
    return LocalTask(
        client=SERVER,
        round=asked[middle].round,
        epochs=max(1, sorted(report.epochs for report in accepted)[middle]),
        iterations=asked[middle].iterations,
        learning_rate=plan.step_size(asked[middle].round)
        * sorted(own.step_scale for own in asked)[middle],
        proximal=asked[middle].proximal,
    )


def update_by(train_server: TrainServer, received: Params, task: LocalTask) -> Callable[[], Floats]:
    """Return a function that trains when it is first called, and returns the update."""

    def update() -> Floats:
        trained = train_server(received, task)
        return trained.astype(np.float64) - received[: trained.size]

    return cache(update)

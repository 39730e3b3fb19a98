"""Clients of a little world that keep and correct what their strategy tells them to."""

from __future__ import annotations

import numpy as np

from flamma.engines.client_side import ClientSide
from flamma.types import Download, Floats, LocalTask, Params, Report, TaskVectors


def answer_with_vectors(
    side: ClientSide, task: LocalTask, download: Download, target: Params
) -> Report:
    """Return the report of a client that trains as its task and its vectors say.

    It keeps what the strategy lets it keep.
    """
    common = download.params
    at_hand = side.vectors(task, download.model(task.client), download.extra)
    prepared = side.prepared(task, at_hand, common)
    trained = walked(task, at_hand.received, prepared, target, side.trainable_size)
    own = side.own_training(task, at_hand, common)
    kept = None
    if own is not None:
        kept = walked(own[0], at_hand.received, own[1], target, side.trainable_size)
    loss = float(np.mean((at_hand.received - target) ** 2))
    report = Report(task.client, trained, 10 + task.client, task.epochs, loss)
    return side.settle(task, at_hand, report, kept)


def walked(
    task: LocalTask, received: Params, vectors: TaskVectors, target: Params, trainable_size: int
) -> Params:
    """Return the weights after steps on ‖v - target‖² / 2, one for each epoch."""
    weights = (received if vectors.start is None else vectors.start).astype(np.float64)
    rate = min(task.learning_rate, 0.9)
    learns = slice(trainable_size)
    for _ in range(task.epochs if task.iterations is None else 1):
        gradient = weights - target
        gradient[learns] += task.proximal * (weights - received)[learns]
        if vectors.correction is not None:
            gradient[learns] += vectors.correction
        weights -= rate * gradient
    return weights.astype(np.float32)


def own_losses(side: ClientSide, download: Download, targets: Params) -> Floats:
    """Return each client's loss of the model that it evaluates."""
    models = [side.model_of(client, download) for client in range(len(targets))]
    losses: Floats = np.sum(np.square(np.stack(models) - targets, dtype=np.float64), axis=1)
    return losses

"""Small federations of every task, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from flamma.data.federated import FederatedData, from_arrays

CLIENTS, LENGTH, TOKENS = 4, 5, 7


def numbers() -> FederatedData:
    """Return clients whose targets are a line, each with a constant of its own."""
    rng = np.random.default_rng(0)
    weights = np.array([1.0, -2.0, 0.5])
    parts = []
    for client in range(CLIENTS):
        x = rng.normal(size=(40, 3))
        parts.append((x, (x * weights).sum(axis=1) + 0.2 * client + 0.1 * rng.normal(size=40)))
    return _held_out(parts, "regression")


def sequences() -> FederatedData:
    """Return clients whose next token is one more, modulo a number; one place is padding."""
    rng = np.random.default_rng(1)
    parts = []
    for _ in range(CLIENTS):
        x = (rng.integers(0, TOKENS, size=(40, 1)) + np.arange(LENGTH)) % TOKENS
        y = (x + 1) % TOKENS
        y[0, -1] = -100
        parts.append((x, y))
    return _held_out(parts, "next-token")


def two_classes() -> FederatedData:
    """Return clients with two classes, of which one is rare."""
    rng = np.random.default_rng(2)
    parts = []
    for _ in range(CLIENTS):
        y = (rng.random(40) < 0.3).astype(int)
        y[-2:] = 0, 1
        parts.append((rng.normal(size=(40, 3)) + y[:, None], y))
    return _held_out(parts, "classification")


def embedding_model(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a model that looks up the logits of the next token."""
    return nn.Sequential(nn.Embedding(classes, 8), nn.Linear(8, classes))


def _held_out(parts: list[tuple[Any, Any]], task: str) -> FederatedData:
    train = [(x[:30], y[:30]) for x, y in parts]
    return from_arrays(train, [(x[30:], y[30:]) for x, y in parts], task=task)

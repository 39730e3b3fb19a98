"""A small logistic problem that every implementation gets: data, first weights, mini-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flamma.seeding import stream
from flamma.training import TrainingJob, batches_of
from flamma.types import LocalWork, Terms

FEATURES, CLASSES, BATCH, EPOCHS, STEP, ROUNDS = 10, 4, 8, 2, 0.1, 3
UNEQUAL = (8, 24, 16, 40, 32, 16)
EQUAL = (16,) * 6
EVERYBODY = tuple(range(6))
SOME = ((0, 1, 2), (2, 3, 4), (0, 4, 5))
"""Clients of each round where not everybody takes part; some come back, with a round between."""

Weights = np.ndarray


@dataclass(frozen=True)
class Problem:
    """Clients whose labels follow different rules, and who trains in which round for how long."""

    sizes: tuple[int, ...] = UNEQUAL
    cohorts: tuple[tuple[int, ...], ...] = (EVERYBODY,) * ROUNDS
    epochs: tuple[int, ...] = (EPOCHS,) * len(EVERYBODY)

    @property
    def clients(self) -> int:
        return len(self.sizes)

    def data(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        rng = stream(1, "against-data", client=client)
        x = rng.normal(size=(self.sizes[client], FEATURES)) + 0.3 * rng.normal(size=FEATURES)
        y = (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
        return x.astype(np.float32), y

    def shuffles(self, number: int, client: int) -> np.random.Generator:
        """Return the stream that orders a client's samples in a round."""
        return stream(1, "against-batches", number, client)

    def epochs_of(self, number: int, client: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
        """Return the mini-batches of each epoch, those that our trainer takes."""
        x, y = self.data(client)
        task = LocalWork(Terms(client, number), self.epochs[client], learning_rate=STEP)
        job = TrainingJob(task, x, y, self.shuffles(number, client))
        batches = [
            (torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))
            for rows in batches_of(job, BATCH)
        ]
        each = len(batches) // self.epochs[client]
        return [batches[start : start + each] for start in range(0, len(batches), each)]


class Loader:
    """A client's data loader: every pass is the next epoch of the round, over and over."""

    def __init__(self, problem: Problem, client: int) -> None:
        self.problem, self.client = problem, client
        self.dataset = range(problem.sizes[client])
        self.enter(1)

    def enter(self, number: int) -> Loader:
        """Go on with the mini-batches of this round."""
        self.epochs = self.problem.epochs_of(number, self.client)
        self.passes = 0
        return self

    def __len__(self) -> int:
        return len(self.epochs[0])

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self.passes += 1
        return iter(self.epochs[(self.passes - 1) % len(self.epochs)])


def network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES))


def first_weights() -> Weights:
    size = (FEATURES + 1) * CLASSES
    return (0.1 * stream(1, "against-weights").normal(size=size)).astype(np.float32)


def load(model: nn.Module, weights: Weights) -> None:
    nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), model.parameters())


def read(model: nn.Module) -> Weights:
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()


def trained(problem: Problem, weights: Weights, number: int, client: int) -> tuple[Weights, float]:
    """Return a client's model after plain SGD, and the sum of the losses of its last epoch."""
    model = network()
    load(model, weights)
    optimizer, met = torch.optim.SGD(model.parameters(), lr=STEP), 0.0
    for epoch in problem.epochs_of(number, client):
        met = 0.0
        for x, y in epoch:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            met += loss.item()
    return read(model), met


def loss_of(problem: Problem, weights: Weights, client: int) -> float:
    """Return the loss of a model on all of a client's samples."""
    model = network()
    load(model, weights)
    x, y = map(torch.from_numpy, problem.data(client))
    with torch.no_grad():
        return float(cross_entropy(model(x), y))

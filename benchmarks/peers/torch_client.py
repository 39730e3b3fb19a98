"""One client's training in ordinary PyTorch, for every contender that leaves it to the user."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from workload import Settings, Workload


def lenet5() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def logistic() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


MODELS = {"lenet5": lenet5, "logistic": logistic}


def network(settings: Settings) -> nn.Sequential:
    """Return flamma's model of this name, layer for layer."""
    return MODELS[settings.model]()


def load(model: nn.Module, weights: list[np.ndarray]) -> None:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(value))


def read(model: nn.Module) -> list[np.ndarray]:
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


def mean(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the mean of the clients' weights; all have as many samples."""
    stacked = [np.stack(same) for same in zip(*parts, strict=True)]
    return [same.mean(axis=0, dtype=np.float64).astype(np.float32) for same in stacked]


class Client:
    """Trains any client of the workload; a process keeps one.

    Batches are picked by index from a client's tensors, which costs less than a ``DataLoader``.
    """

    def __init__(self, work: Workload) -> None:
        torch.set_num_threads(1)
        self.work = work
        self.model = network(work.settings)

    def train(self, weights: list[np.ndarray], number: int, client: int) -> list[np.ndarray]:
        """Return a client's weights after its training in round ``number``."""
        settings = self.work.settings
        x, y = map(torch.from_numpy, self.work.client(client))
        load(self.model, weights)
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=settings.learning_rate)
        for order in torch.from_numpy(self.work.orders(number, client)):
            for batch in order.split(settings.batch_size):
                optimizer.zero_grad()
                cross_entropy(self.model(x[batch]), y[batch]).backward()
                optimizer.step()
        return read(self.model)


class Batches:
    """A client's loader: every pass over it is its next epoch, from round ``since`` on."""

    def __init__(self, work: Workload, client: int, since: int = 1) -> None:
        self.tensors = tuple(map(torch.from_numpy, work.client(client)))
        self._size = work.settings.batch_size
        self._epochs = self._all_epochs(work, client, since)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        x, y = self.tensors
        for batch in next(self._epochs).split(self._size):
            yield x[batch], y[batch]

    def __len__(self) -> int:
        return -(-len(self.tensors[1]) // self._size)

    @staticmethod
    def _all_epochs(work: Workload, client: int, since: int) -> Iterator[torch.Tensor]:
        for number, selected in enumerate(work.selected, start=1):
            if number >= since and client in selected:
                yield from torch.from_numpy(work.orders(number, client))

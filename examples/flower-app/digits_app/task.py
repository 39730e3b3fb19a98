"""The model and the data: what any Flower app has, and nothing of FLamma's strategies."""

from functools import cache

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flamma.data import build_federation

torch.set_num_threads(1)  # clients share the cores of a simulation


def make_model() -> nn.Module:
    """Return a small network with a batch norm, whose buffers travel like its weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
    )


@cache
def load(client: int, clients: int) -> tuple[TensorDataset, TensorDataset]:
    """Return a client's own training and held-out digits: two shards of one class each."""
    data = build_federation("digits", "shards", clients, seed=0, shards_per_client=2)
    train = slice(*data.train_offsets[client : client + 2].tolist())
    held = slice(*data.held_offsets[client : client + 2].tolist())
    return (
        TensorDataset(torch.tensor(data.train_x[train]), torch.tensor(data.train_y[train])),
        TensorDataset(torch.tensor(data.held_x[held]), torch.tensor(data.held_y[held])),
    )


def loader(dataset: TensorDataset, seed: int) -> DataLoader:
    """Return shuffled batches, without a last one of a single sample: a batch norm needs two."""
    return DataLoader(
        dataset,
        batch_size=32,
        shuffle=True,
        drop_last=len(dataset) % 32 == 1,
        generator=torch.Generator().manual_seed(seed),
    )


@torch.no_grad()
def score(model: nn.Module, dataset: TensorDataset) -> tuple[float, float]:
    """Return the loss, and the accuracy from 0 to 1."""
    model.eval()
    x, y = dataset.tensors
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    return float(loss), float((logits.argmax(1) == y).float().mean())

"""The workload that all contenders share, as files; and how a contender says what it has done.

A contender is a script with the arguments ``FOLDER OUT ROUNDS``: it trains the workload in FOLDER,
and leaves in OUT the time at which each round ended and the final weights.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Settings:
    """FedAvg on noise of MNIST's shape."""

    model: str = "lenet5"
    clients: int = 100
    samples: int = 600
    per_round: int = 10
    epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 0.05
    rounds: int = 5
    processes: int = 2
    seed: int = 0


class Workload:
    """Everything that is the same for all: settings, data, weights, clients and batches.

    The arrays stay on disk and are mapped, so that processes share them.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.settings = Settings(**json.loads((folder / "settings.json").read_text()))
        self.x = np.load(folder / "x.npy", mmap_mode="r")
        self.y = np.load(folder / "y.npy", mmap_mode="r")
        self.selected = np.load(folder / "selected.npy")
        self._orders = np.load(folder / "orders.npy", mmap_mode="r")
        with np.load(folder / "weights.npz") as weights:
            self.weights = [weights[name] for name in weights.files]

    def client(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a copy of a client's samples and labels."""
        return np.array(self.x[client]), np.array(self.y[client])

    def orders(self, number: int, client: int) -> np.ndarray:
        """Return the order of a client's samples in each epoch of round ``number`` (from 1)."""
        place = int(np.flatnonzero(self.selected[number - 1] == client)[0])
        return np.array(self._orders[number - 1, place], dtype=np.int64)


class Record:
    """When rounds ended, by the clock that all processes of a machine share."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        self._times: list[float] = []

    def round_done(self) -> None:
        self._times.append(time.monotonic())

    def finish(self, weights: list[np.ndarray]) -> None:
        """Write the times and the final weights."""
        np.save(self.out / "weights.npy", np.concatenate([np.ravel(part) for part in weights]))
        (self.out / "times.json").write_text(json.dumps(self._times))


def started() -> tuple[Workload, Record, int]:
    """Return the workload, the record and the number of rounds of the command line."""
    folder, out, rounds = sys.argv[1:4]
    return Workload(folder), Record(out), int(rounds)

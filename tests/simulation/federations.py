"""Small federations of random data, and a model that goes wrong where a sample says so."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
from torch import nn

from flamma.data.federated import FederatedData, from_arrays
from flamma.models import build_model
from flamma.types import LocalWork
from flat_work import work

FEATURES, CLASSES = 4, 3

DIE, RAISE, DAWDLE, HANG = 1000.0, 2000.0, 3000.0, 4000.0
"""What a sample's first feature can ask of :class:`Faulty`."""


def part(rng, count, shape=(FEATURES,)):
    x = rng.standard_normal((count, *shape)).astype(np.float32)
    return x, rng.integers(0, CLASSES, count)


def federation(sizes, held=5, shape=(FEATURES,), test=None, validation=None) -> FederatedData:
    """Return random data of clients with as many training (and held-out) samples as given."""
    rng = np.random.default_rng(7)
    held = [held] * len(sizes) if isinstance(held, int) else held
    data = from_arrays(
        clients=[part(rng, size, shape) for size in sizes],
        held_out=[part(rng, size, shape) for size in held],
        test=None if test is None else part(rng, test, shape),
        validation=None if validation is None else part(rng, validation, shape),
    )
    assert data.classes == CLASSES
    return data


def faulty(markers, **options) -> FederatedData:
    """Return clients of ten samples, some of them with a marker (0 is none)."""
    data = federation([10] * len(markers), **options)
    data.train_x[:, 0] += np.repeat(np.array(markers, dtype=np.float32), 10)
    return data


class Faulty(nn.Linear):
    """Logistic regression that does what the largest first feature asks it to do."""

    def forward(self, x):
        asked = 1000 * round(x[:, 0].max().item() / 1000)
        if asked == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if asked == RAISE:
            raise ValueError("this sample is broken\nand this line is too long to tell")
        if asked == DAWDLE:
            time.sleep(0.1)
        if asked == HANG:
            time.sleep(60)
        return super().forward(x)


def make_faulty() -> nn.Module:
    return build_model(lambda shape, classes: Faulty(shape[0], classes), (FEATURES,), CLASSES, 0)


def make(name, shape=(FEATURES,), **options):
    return lambda: build_model(name, shape, CLASSES, seed=0, **options)


def tasks(clients, **changes) -> list[LocalWork]:
    settings = {"round": 1, "epochs": 1, "learning_rate": 0.1, **changes}
    return [work(client=client, **settings) for client in clients]


def alive(pid: int) -> bool:
    """Return whether a process still runs: it does not if it only waits to be reaped.

    While other threads of a killed process are still ending, its parent cannot reap it yet.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return len(threads) > 1 or state not in "ZX"


def vanish(pids, within=10.0) -> bool:
    """Wait until all processes are gone, and return whether they are."""
    until = time.monotonic() + within
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(alive, pids))

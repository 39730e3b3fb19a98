"""FedAvg in PyTorch with a pool of processes, one thread each; weights go through its queues."""

from __future__ import annotations

import multiprocessing
import sys

import numpy as np
from torch_client import Client, mean
from workload import Workload, started

_CLIENT: list[Client] = []


def begin(folder: str) -> None:
    _CLIENT.append(Client(Workload(folder)))


def train(job: tuple[list[np.ndarray], int, int]) -> list[np.ndarray]:
    return _CLIENT[0].train(*job)


if __name__ == "__main__":
    work, record, rounds = started()
    weights = work.weights
    with multiprocessing.Pool(work.settings.processes, begin, (sys.argv[1],)) as pool:
        for number in range(1, rounds + 1):
            jobs = [(weights, number, one) for one in work.selected[number - 1].tolist()]
            weights = mean(pool.map(train, jobs, chunksize=1))
            record.round_done()
    record.finish(weights)

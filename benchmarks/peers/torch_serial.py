"""FedAvg as a plain loop in PyTorch: one process, one thread."""

from __future__ import annotations

from torch_client import Client, mean
from workload import started

if __name__ == "__main__":
    work, record, rounds = started()
    client, weights = Client(work), work.weights
    for number in range(1, rounds + 1):
        chosen = work.selected[number - 1].tolist()
        weights = mean([client.train(weights, number, one) for one in chosen])
        record.round_done()
    record.finish(weights)

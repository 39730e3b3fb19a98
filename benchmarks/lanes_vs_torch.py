"""Clients in lanes against one after the other with PyTorch, on one core.

Both train the same clients in turn, several times; the best of each counts. The share of the
peak is that of a loop with nothing but fused products and sums in registers, timed in between.
All have one thread and are timed in seconds of the processor, so that waiting for it is not.

    python benchmarks/lanes_vs_torch.py [--model lenet5] [--clients 8] [--batch-size 32]
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch
from torch import nn

from flamma.experiments.result import text_table
from flamma.models import FlatModel, build_model
from flamma.training import TorchTrainer, TrainingJob
from flamma.training.lanes import LanesTrainer, library
from flamma.types import LocalWork, Terms

SHAPE, CLASSES = (1, 28, 28), 10
ROUNDS = 2_000_000


def products_of(module: nn.Sequential) -> int:
    """Products and sums of a sample's way forth and back; the first layer needs no data's."""
    counts = []

    def count(layer, _, output):
        places = output[0].numel() // layer.weight.shape[0]
        counts.append(places * layer.weight.numel())

    layers = [layer for layer in module if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        module(torch.zeros(1, *SHAPE))
    for hook in hooks:
        hook.remove()
    return 3 * sum(counts) - counts[0]


def timed(call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--samples", type=int, default=320, help="of each client")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    module = build_model(options.model, SHAPE, CLASSES, seed=0)
    products = products_of(module)
    many = LanesTrainer(module, SHAPE, options.batch_size, options.momentum)
    one = TorchTrainer(FlatModel(module), options.batch_size, options.momentum)
    params = one.model.read()
    rng = np.random.default_rng(0)
    jobs = [
        TrainingJob(
            LocalWork(Terms(client, 1), epochs=1, learning_rate=0.01),
            rng.standard_normal((options.samples, *SHAPE)).astype(np.float32),
            rng.integers(0, CLASSES, options.samples),
            rng,
        )
        for client in range(options.clients)
    ]
    sink = np.full(2, 0.5, dtype=np.float32)
    kernels = library.library()
    chosen = library.INSTRUCTION_SETS.index(many.instructions)
    calls = {
        "torch": lambda: [one.train(params, j.x, j.y, j.task, j.rng) for j in jobs],
        "lanes": lambda: many.train_many(params, jobs),
        "peak": lambda: kernels.lanes_peak(chosen, ROUNDS, sink.ctypes.data),
    }
    least = dict.fromkeys(calls, math.inf)
    for _ in range(options.repeats):
        for name, call in calls.items():
            sink[:] = 0.5
            least[name] = min(least[name], timed(call))
    done = kernels.lanes_peak(chosen, ROUNDS, sink.ctypes.data)
    peak = done / least["peak"]
    samples = options.samples * options.clients
    rows = [
        [name, f"{samples / least[name]:,.0f}", f"{samples / least[name] * products / peak:.0%}"]
        for name in ("torch", "lanes")
    ]
    print(f"{options.model}, {options.clients} clients, batch {options.batch_size}, one core,")
    print(f"{many.instructions}, {peak / 1e9:.1f} thousand million products and sums a second")
    print(text_table(["", "samples/s", "of peak"], rows))
    print(f"lanes are {least['torch'] / least['lanes']:.2f} times as fast")


if __name__ == "__main__":
    main()

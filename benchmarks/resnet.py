"""One client's epoch of ResNet-18 on CIFAR-10's shape: our torch trainer and a plain loop.

Both in turn in one run, with the same batches and the same step; the best of each counts.

    python benchmarks/resnet.py [--width 1.0] [--norm group] [--samples 64]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from flamma.models import build_model
from flamma.reports.tables import text_table
from flamma.training import TorchTrainer
from flamma.types import LocalTask


def plain(module: torch.nn.Module, x: np.ndarray, y: np.ndarray, batch_size: int) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    samples, labels = torch.from_numpy(x), torch.from_numpy(y)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    for batch in order.split(batch_size):
        optimizer.zero_grad()
        cross_entropy(module(samples[batch]), labels[batch]).backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--norm", default="group", choices=["group", "batch"])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((options.samples, 3, 32, 32), dtype=np.float32)
    y = rng.integers(0, 10, options.samples)

    def model() -> torch.nn.Module:
        return build_model("resnet18", (3, 32, 32), 10, 0, width=options.width, norm=options.norm)

    trainer = TorchTrainer(model, options.batch_size)
    start_from = trainer.model.read()
    task = LocalTask(0, 1, epochs=1, learning_rate=0.01)
    module = model().train()
    best = {"plain loop": float("inf"), "torch trainer": float("inf")}
    for _ in range(options.repeats):
        for name, call in (
            ("plain loop", lambda: plain(module, x, y, options.batch_size)),
            (
                "torch trainer",
                lambda: trainer.train(start_from, x, y, task, np.random.default_rng(0)),
            ),
        ):
            begin = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - begin)
    print(f"ResNet-18, width {options.width:g}, {options.norm} norm, batch {options.batch_size}")
    rows = [[name, f"{options.samples / seconds:.1f}"] for name, seconds in best.items()]
    print(text_table(["", "samples/s"], rows))
    print(f"the trainer is {best['plain loop'] / best['torch trainer']:.2f} times as fast")


if __name__ == "__main__":
    main()

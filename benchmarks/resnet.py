"""One client's epoch of ResNet-18 on CIFAR-10's shape: our torch trainer and a plain loop.

Both in turn in one run, with the same batches and the same step, one thread, timed in seconds of
the processor. The ratio is taken of every pair of neighbours, of which the median and the range
are shown.

    python benchmarks/resnet.py [--widths 0.25 1.0] [--norms group batch] [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

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


def timed(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def measure(width: float, norm: str, samples: int, batch_size: int, repeats: int) -> list[str]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((samples, 3, 32, 32), dtype=np.float32)
    y = rng.integers(0, 10, samples)

    def model() -> torch.nn.Module:
        return build_model("resnet18", (3, 32, 32), 10, 0, width=width, norm=norm)

    trainer, module = TorchTrainer(model, batch_size), model().train()
    params, task = trainer.model.read(), LocalTask(0, 1, epochs=1, learning_rate=0.01)

    def ours() -> None:
        trainer.train(params, x, y, task, np.random.default_rng(0))

    def theirs() -> None:
        plain(module, x, y, batch_size)

    ours(), theirs()  # warm up
    pairs = [
        (timed(theirs), timed(ours)) if turn % 2 else (timed(ours), timed(theirs))[::-1]
        for turn in range(repeats)
    ]
    ratios = sorted(theirs / ours for theirs, ours in pairs)
    loop, trained = (samples / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    middle = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return [f"{width:g}", norm, f"{loop:.1f}", f"{trained:.1f}", middle]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--widths", type=float, nargs="+", default=[0.25, 1.0])
    parser.add_argument("--norms", nargs="+", default=["group", "batch"])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measure(width, norm, options.samples, options.batch_size, options.repeats)
        for width in options.widths
        for norm in options.norms
    ]
    header = ["width", "norm", "plain loop samples/s", "trainer samples/s", "times as fast"]
    print(text_table(header, rows, left=2))


if __name__ == "__main__":
    main()

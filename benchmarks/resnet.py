"""An epoch of ResNet-18 on CIFAR-10's shape: a plain loop, our torch trainer, and lanes.

All in turn in one run, with the same batches and the same step, one thread, timed in seconds of
the processor. Lanes train two clients, as they do side by side with AVX-512. Speeds are medians,
and ratios are taken of the runs of every turn, of which the median and the range are shown.
Lanes have no batch norm.

    python benchmarks/resnet.py [--widths 0.25 1.0] [--norms group batch] [--stem-strides 2 1]
        [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from flamma.experiments.result import text_table
from flamma.models import build_model
from flamma.training import TorchTrainer, TrainingJob
from flamma.training.lanes import LanesTrainer
from flamma.types import LocalWork, Terms

SHAPE = (3, 32, 32)


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


Turn = Callable[[], object]


class Setting(NamedTuple):
    """A network, and how it is trained."""

    width: float
    norm: str
    stem_stride: int
    samples: int
    batch_size: int

    def model(self) -> torch.nn.Sequential:
        options = {"width": self.width, "norm": self.norm, "stem_stride": self.stem_stride}
        return build_model("resnet18", SHAPE, 10, 0, **options)


def turns(setting: Setting) -> dict[str, tuple[int, Turn]]:
    """Return how many clients every way trains in a turn, and the turn."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((setting.samples, *SHAPE), dtype=np.float32)
    y = rng.integers(0, 10, setting.samples)
    trainer, module = TorchTrainer(setting.model, setting.batch_size), setting.model().train()
    params, task = trainer.model.read(), LocalWork(Terms(0, 1), epochs=1, learning_rate=0.01)
    ways: dict[str, tuple[int, Turn]] = {
        "plain": (1, lambda: plain(module, x, y, setting.batch_size)),
        "torch": (1, lambda: trainer.train(params, x, y, task, np.random.default_rng(0))),
    }
    if setting.norm == "group":
        lanes = LanesTrainer(setting.model(), SHAPE, setting.batch_size)

        def side_by_side() -> None:
            rngs = np.random.default_rng(0), np.random.default_rng(0)
            lanes.train_many(params, [TrainingJob(task, x, y, rng) for rng in rngs])

        ways["lanes"] = (2, side_by_side)
    return ways


def measure(setting: Setting, repeats: int) -> list[str]:
    ways = turns(setting)
    for _, turn in ways.values():
        turn()  # warm up
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name in list(ways)[:: 1 if repeat % 2 else -1]:
            clients, turn = ways[name]
            seconds[name].append(timed(turn) / clients)
    row = [f"{setting.width:g}", setting.norm, str(setting.stem_stride)]
    row += [
        f"{setting.samples / statistics.median(seconds[name]):.1f}" if name in ways else "-"
        for name in ("plain", "torch", "lanes")
    ]
    return [*row, ratio(seconds, "plain", "torch"), ratio(seconds, "torch", "lanes")]


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> str:
    if fast not in seconds:
        return "-"
    ratios = sorted(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--widths", type=float, nargs="+", default=[0.25, 1.0])
    parser.add_argument("--norms", nargs="+", default=["group", "batch"])
    parser.add_argument("--stem-strides", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measure(Setting(width, norm, stride, options.samples, options.batch_size), options.repeats)
        for width in options.widths
        for stride in options.stem_strides
        for norm in options.norms
    ]
    header = ["width", "norm", "stem stride", "plain loop samples/s", "torch samples/s"]
    header += ["lanes samples/s", "torch by plain loop", "lanes by torch"]
    print(text_table(header, rows, left=2))


if __name__ == "__main__":
    main()

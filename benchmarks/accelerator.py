"""Stacked clients against one after the other, on whatever device there is.

Both train the same clients several times; the best of each counts. Peak memory is what torch
allocated at most on a GPU, and the resident memory of the whole process on the CPU (Linux). The
CPU has one thread, as in a run. Nobody has run this on a GPU yet: please send in what it prints.

    python benchmarks/accelerator.py [--device cuda] [--models lenet5 resnet18] [--clients 10 100]
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch

from flamma.errors import ConfigError
from flamma.experiments.result import text_table
from flamma.models import FlatModel, build_model
from flamma.training import Trainer, TrainingJob
from flamma.training.config import TrainerSettings, pick_trainer
from flamma.training.devices import pick_device
from flamma.types import LocalWork, Params, Terms

SHAPES = {"lenet5": (1, 28, 28), "resnet18": (3, 32, 32)}
CLASSES = 10


def jobs_of(shape: tuple[int, ...], clients: int, samples: int) -> list[TrainingJob]:
    rng = np.random.default_rng(0)
    return [
        TrainingJob(
            LocalWork(Terms(client, 1), epochs=1, learning_rate=0.01),
            rng.random((samples, *shape), dtype=np.float32),
            rng.integers(0, CLASSES, samples),
            rng,
        )
        for client in range(clients)
    ]


def seconds_of(trainer: Trainer, params: Params, jobs: list[TrainingJob], device: str) -> float:
    synchronize(device)
    begin = time.perf_counter()
    for _, trained in trainer.train_each(params, jobs):
        if trained.error is not None:
            raise trained.error
    synchronize(device)
    return time.perf_counter() - begin


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device == "mps":
        torch.mps.synchronize()


def reset_peak(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes(device: str) -> str:
    if device.startswith("cuda"):
        return f"{torch.cuda.max_memory_allocated(device) / 2**20:,.0f}"
    if device != "cpu" or sys.platform != "linux":
        return "?"
    status = Path("/proc/self/status").read_text()
    return f"{int(status.partition('VmHWM:')[2].split()[0]) / 2**10:,.0f}"


def measure(model: str, clients: int, options: argparse.Namespace) -> list[list[str]]:
    shape, device = SHAPES[model], options.device
    jobs = jobs_of(shape, clients, options.samples)
    wanted = TrainerSettings(shape, options.batch_size, 0.9, options.precision)
    rows, best = [], {}
    for kind in ("torch", "stacked"):
        chosen = {"width": options.width} if model == "resnet18" else {}
        flat = FlatModel(build_model(model, shape, CLASSES, 0, **chosen), device)
        params = flat.read()
        try:
            trainer = pick_trainer(kind, flat, wanted)
        except ConfigError as error:
            print(error)
            continue
        seconds_of(trainer, params, jobs, device)  # warm up
        reset_peak(device)
        times = [seconds_of(trainer, params, jobs, device) for _ in range(options.repeats)]
        peak = peak_megabytes(device)
        best[kind] = min(times)
        speed = f"{clients * options.samples / best[kind]:,.0f}"
        ratio = f"{best.get('torch', math.nan) / best[kind]:.2f}"
        at_once = str(min(trainer.width, clients))
        rows.append([model, str(clients), kind, at_once, speed, peak, ratio])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--width", type=float, default=1.0, help="of ResNet-18")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--samples", type=int, default=320, help="of each client")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.device = pick_device(options.device)
    torch.set_num_threads(1)
    on_gpu = options.device.startswith("cuda")
    name = torch.cuda.get_device_name(options.device) if on_gpu else platform.machine()
    print(f"{options.device} ({name}), torch {torch.__version__}, {options.precision}, ", end="")
    print(f"batch {options.batch_size}, momentum 0.9")
    rows = [
        row
        for model in options.models
        for clients in options.clients
        for row in measure(model, clients, options)
    ]
    header = ["model", "clients", "trainer", "at once", "samples/s", "peak MB", "times as fast"]
    print(text_table(header, rows, left=3))


if __name__ == "__main__":
    main()

"""A hundred thousand clients of LeNet-5: what the memory of FLamma-plus costs beside FedAvg.

Each strategy runs in a process of its own, with five epochs for every client, no warm-up and no
evaluation but the last. The clients are drawn from 1,024 different ones, so that their data take no
memory to speak of; the rows are different. Times are of the last quarter of the rounds, when as
many rows are read as ever will be, from the end of one round to the end of the next, with records
and checkpoints.

    python benchmarks/memory_rows.py [--per-round 10 100] [--samples 60] [--rounds 160]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

DIFFERENT_CLIENTS = 1024
SHAPE, CLASSES = (1, 28, 28), 10


class Repeated:
    """The samples of some clients as those of many: all that a runner asks of an array."""

    dtype = np.dtype(np.float32)

    def __init__(self, own: Any, samples: int) -> None:
        self.own = own
        self.shape = (samples, *own.shape[1:])

    def __getitem__(self, where: slice) -> Any:
        start = where.start % len(self.own)
        return self.own[start : start + where.stop - where.start]


def federation(clients: int, samples: int) -> Any:
    """Return noise with labels for so many clients with so many samples each."""
    from flamma.data.federated import FederatedData

    rng = np.random.default_rng(0)
    own = rng.standard_normal((DIFFERENT_CLIENTS * samples, *SHAPE), dtype=np.float32)
    labels = rng.integers(0, CLASSES, DIFFERENT_CLIENTS * samples)
    nothing = np.zeros((0, *SHAPE), dtype=np.float32), np.zeros(0, dtype=np.int64)
    test = own[:1000], labels[:1000]
    return FederatedData(
        Repeated(own, clients * samples),  # type: ignore[arg-type]
        np.resize(labels, clients * samples),
        np.arange(clients + 1) * samples,
        *nothing,
        np.zeros(clients + 1, dtype=np.int64),
        *test,
        *nothing,
        classes=CLASSES,
    )


def measure(options: argparse.Namespace) -> None:
    """Run one strategy and print its figures as JSON."""
    from flamma.experiments.run import run

    ends: list[float] = []
    strategy: dict[str, Any] = {"name": options.strategy}
    if options.strategy != "fedavg":
        strategy |= {"warmup_iterations": 0, "epoch_bounds": [5, 5]}
    [per_round] = options.per_round
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        done = run(
            {
                "rounds": options.rounds,
                "per_round": per_round,
                "strategy": strategy,
                "costs": {"kind": "constant", "value": 0.01},
                "engine": {"processes": options.processes},
                "evaluation": {"every": options.rounds},
            },
            data=federation(options.clients, options.samples),
            out=Path(folder) / "run",
            on_round=lambda record: ends.append(time.perf_counter()),
        )
        stored = sum(f.stat().st_size for f in done.path.rglob("*") if f.is_file())
    times = [b - a for a, b in pairwise(ends)][options.rounds * 3 // 4 - 1 : -1]
    epochs = sum(record.outcome.epochs_total for record in done.history)
    print(
        json.dumps(
            {
                "seconds": statistics.median(times),
                "training": statistics.median(
                    [r.cost.seconds_train for r in done.history[options.rounds * 3 // 4 : -1]]
                ),
                "epochs": epochs,
                "peak": high_water() / 1e6,
                "stored": stored / 1e9,
            }
        )
    )


def high_water() -> int:
    """Return the most memory that this process or one of its workers ever had resident, in kB."""
    sides = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(side).ru_maxrss for side in sides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--per-round", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--samples", type=int, default=60, help="of each client")
    parser.add_argument("--rounds", type=int, default=160)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", help="where run directories are made; removed at the end")
    parser.add_argument("--strategy", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.strategy:
        measure(options)
        return
    print(f"{options.clients:,} clients of LeNet-5, {options.samples} samples each")
    print(
        f"{'a round':>8}  {'strategy':12} {'s a round':>9}  training  of FedAvg's  peak GB  disk GB"
    )
    for per_round in options.per_round:
        first = 0.0
        for strategy in ("fedavg", "flamma-plus"):
            others = ["--strategy", strategy, "--per-round", str(per_round)]
            command = [sys.executable, __file__, *sys.argv[1:], *others]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found = json.loads(shown.splitlines()[-1])
            first = first or found["seconds"]
            print(
                f"{per_round:8}  {strategy:12} {found['seconds']:9.3f}  {found['training']:8.3f}  "
                f"{found['seconds'] / first:11.2f}  {found['peak']:7.2f}  {found['stored']:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

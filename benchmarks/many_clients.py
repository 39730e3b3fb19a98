"""A hundred thousand clients: peak memory, and what the round loop itself costs.

Synthetic data, logistic regression, 100 clients a round. The loop's own overhead is a round's
time without training and without evaluation: selecting, solving the game, aggregating,
certifying, recording.

    python benchmarks/many_clients.py [--clients 100000] [--strategy flamma]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from flamma.experiments.run import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--per-round", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--strategy", default="flamma")
    parser.add_argument("--warmup", type=int, default=0, help="mini-batches of every client first")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    ends: list[float] = []
    strategy = {"name": options.strategy}
    if options.strategy.startswith("flamma"):
        strategy["warmup_iterations"] = options.warmup
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        done = run(
            {
                "rounds": options.rounds,
                "per_round": options.per_round,
                "data": {
                    "dataset": "synthetic",
                    "split": "iid",
                    "clients": options.clients,
                    "validation_samples": 0,
                },
                "model": {"name": "logistic"},
                "strategy": strategy,
                "engine": {"processes": options.processes},
                "evaluation": {"every": 5},
            },
            out=Path(folder) / "run",
            on_round=lambda record: ends.append(time.perf_counter()),
        )
        total = time.perf_counter() - started
    rounds = done.history[1:]  # the first one carries the warm-up
    # From the end of one round to the end of the next, so that writing the files counts too.
    whole = [b - a for a, b in pairwise(ends)]
    own = [
        w - r.cost.seconds_train - r.cost.seconds_evaluate
        for w, r in zip(whole, rounds, strict=True)
    ]
    train = [r.cost.seconds_train for r in rounds]
    peak = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(f"{options.clients} clients, {options.per_round} a round, {options.strategy}")
    print(f"seconds in all                    {total:.1f}")
    print(f"first round, with its warm-up, s  {ends[0] - started:.1f}")
    print(f"training, median of rounds, ms    {1e3 * statistics.median(train):.1f}")
    print(f"loop's own overhead, median, ms   {1e3 * statistics.median(own):.1f}")
    print(f"loop's own overhead, least, ms    {1e3 * min(own):.1f}")
    print(f"loop's own overhead, largest, ms  {1e3 * max(own):.1f}")
    print(f"peak memory of a process, GB      {peak / 1e6:.2f}")


if __name__ == "__main__":
    main()

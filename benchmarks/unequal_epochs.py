"""What unequal epochs do to fairness, and what dividing updates by them (FedNova) does about it.

Clients whose costs differ do different numbers of epochs, and those that work more pull the model
their way. Embedded digits, two one-class shards a client, ten clients, three a round, 30 rounds,
LeNet-5; log-normal costs around 0.1. Mean over clients of the last round, with the standard
deviation over the seeds, and the paired difference that dividing makes.

    python benchmarks/unequal_epochs.py [--seeds 5] [--table docs/results/unequal-epochs.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean, stdev

import flamma
from flamma.io import write_atomically

STRATEGIES = ("flamma", "flamma-plus", "flamma-honest")
SPREADS = (0.0, 0.5, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    rows = []
    print("strategy       spread  divided  accuracy        variance        variance, paired")
    for strategy in STRATEGIES:
        for spread in SPREADS:
            plain = [measure(strategy, spread, False, seed) for seed in range(options.seeds)]
            divided = [measure(strategy, spread, True, seed) for seed in range(options.seeds)]
            paired = [new[1] - old[1] for new, old in zip(divided, plain, strict=True)]
            for name, runs in (("no", plain), ("yes", divided)):
                told = "" if name == "no" else with_spread(paired)
                cells = "  ".join(f"{with_spread([run[k] for run in runs]):14s}" for k in (0, 1))
                print(f"{strategy:13s}  {spread:6g}  {name:7s}  {cells}  {told}", flush=True)
                rows.append({"strategy": strategy, "spread": spread, "divided": name, "runs": runs})
    if options.table is not None:
        write_atomically(options.table, json.dumps(rows, indent=1).encode())


def measure(strategy: str, spread: float, divided: bool, seed: int) -> tuple[float, float]:
    """Return accuracy and variance of the last round."""
    tables = {
        "rounds": 30,
        "per_round": 3,
        "seed": seed,
        "data": {"clients": 10, "split": "shards", "shards_per_client": 2},
        "model": "lenet5",
        "strategy": {"name": strategy, "normalise_epochs": divided},
        "costs": {"kind": "lognormal", "value": 0.1, "spread": spread},
        "evaluation": {"every": 30},
        "engine": {"processes": 2},
    }
    with tempfile.TemporaryDirectory() as folder:
        last = flamma.run(tables, out=Path(folder) / "run").history[-1]
    accuracy, variance = last.metric("accuracy"), last.metric("accuracy_variance")
    assert accuracy is not None
    assert variance is not None
    return accuracy, variance


def with_spread(values: list[float]) -> str:
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


if __name__ == "__main__":
    main()

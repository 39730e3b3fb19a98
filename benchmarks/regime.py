"""In which setting does FedAvg's row look like the paper's?

The paper gives neither the number of clients, nor how many are selected, nor step size, batch or
epochs. Its FedAvg row on non-IID MNIST is 35% accuracy at a variance of 1,830: clients at about 0
or 100%. This runs FedAvg, and nothing else, over settings with few clients of few classes on a
seed of its own, and prints how near each comes. The setting was frozen by this table before any
other strategy was run in it.

    python benchmarks/regime.py [--out out/regime] [--limit N]

Runs that are finished are kept; --limit ends after so many new ones.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import flamma
from flamma.experiments.result import text_table
from flamma.experiments.run import Run

SEED = 1000
PAPER = {"accuracy": 35.0, "variance": 1830.0}
SPLITS = (("classes", 1), ("shards", 1), ("shards", 2), ("classes", 2))
SIZES = ((10, 1), (10, 2), (10, 3), (20, 2))  # clients, and how many a round
STEPS = (0.01, 0.05)


def settings(split: str, classes: int, clients: int, per_round: int, step: float) -> dict:
    return {
        "strategy": "fedavg",
        "rounds": 100,
        "per_round": per_round,
        "seed": SEED,
        "data.dataset": "mnist",
        "data.split": split,
        "data.clients": clients,
        "data.shards_per_client": classes,
        "data.classes_per_client": classes,
        "data.train_samples": 5000,
        "training.learning_rate": step,
        "evaluation.every": 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/regime"))
    parser.add_argument("--limit", type=int, default=10**6)
    options = parser.parse_args()
    rows = []
    for (split, classes), (clients, per_round), step in product(SPLITS, SIZES, STEPS):
        path = options.out / f"{split}{classes}-{clients}-{per_round}-{step:g}"
        if not (path / "config.toml").exists():
            if not options.limit:
                continue
            options.limit -= 1
            chosen = settings(split, classes, clients, per_round, step)
            flamma.run(out=path, **{k.replace(".", "__"): v for k, v in chosen.items()})
        summary = Run.load(path).summary()
        accuracy = summary["accuracy"]
        variance = summary["accuracy_variance"]
        far = abs(accuracy - PAPER["accuracy"]) / 35 + abs(variance - PAPER["variance"]) / 1830
        setting = [f"{split}, {classes} a client", str(clients), str(per_round), f"{step:g}"]
        rows.append((far, [*setting, f"{accuracy:.1f}", f"{variance:.0f}", f"{far:.2f}"]))
    header = ["split", "clients", "a round", "step", "accuracy", "variance", "distance"]
    print(text_table(header, [row for _, row in sorted(rows)]))


if __name__ == "__main__":
    main()

"""Is there a setting with the paper's rows: FedAvg at 35%, FedProx and q-FFL at 93%, FLamma at 97%?

Ten clients with one class of MNIST each, and one thing changed at a time that the paper's words
leave open: how many take part, how many rounds and epochs, shards of unequal sizes. Three step
sizes for each strategy, on a seed of its own; the best one is shown, by accuracy. The suite `paper`
has the same with all images.

    python benchmarks/paper_rows.py [--out out/paper-rows] [--settings "three of ten"]

Runs that are finished are kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import flamma
from flamma.experiments.result import text_table
from flamma.strategies import label_of

SEED = 1000
STRATEGIES = ("fedavg", "fedprox", "qffl", "flamma")
STEPS = (0.01, 0.05, 0.1)
BASE = {
    "rounds": 100,
    "per_round": 3,
    "seed": SEED,
    "data.dataset": "mnist",
    "data.split": "shards",
    "data.clients": 10,
    "data.shards_per_client": 1,
    "data.train_samples": 5000,
    "costs.value": 0.1,
    "evaluation.every": 2,
}
SETTINGS: dict[str, dict] = {
    "three of ten": {},
    "five of ten": {"per_round": 5},
    "all of ten": {"per_round": 10},
    "300 rounds": {"rounds": 300, "evaluation.every": 5},
    "unequal shards": {"data.uneven": 1.0},
    "unequal shards, all of ten": {"data.uneven": 1.0, "per_round": 10},
    "two shards": {"data.shards_per_client": 2},
    "one epoch": {"training.epochs": 1, "costs.value": 0.5},
}


def scored(setting: str, strategy: str, step: float, out: Path) -> tuple[float, float]:
    """Return accuracy and variance of one run, which is made if it is not there."""
    name = "".join(c if c.isalnum() else "-" for c in setting)
    path = out / f"{name}-{strategy}-{step:g}"
    if (path / "config.toml").exists():
        run = flamma.resume(path)
    else:
        chosen = BASE | SETTINGS[setting] | {"strategy": strategy, "training.learning_rate": step}
        run = flamma.run(out=path, **{k.replace(".", "__"): value for k, value in chosen.items()})
    summary = run.summary()
    return summary["accuracy"], summary["accuracy_variance"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/paper-rows"))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    options = parser.parse_args()
    lines = []
    for setting in options.settings:
        cells = []
        for strategy in STRATEGIES:
            found = [(*scored(setting, strategy, step, options.out), step) for step in STEPS]
            accuracy, variance, step = max(found)
            cells.append(f"{accuracy:.1f} / {variance:.0f} ({step:g})")
        lines.append([setting, *cells])
        print(f"{setting}: {', '.join(cells)}", flush=True)
    print(text_table(["setting", *map(label_of, STRATEGIES)], lines))


if __name__ == "__main__":
    main()

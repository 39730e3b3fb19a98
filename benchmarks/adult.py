"""Print what people with and without a doctorate got in the comparison of adult.toml.

Accuracy in percent of the last round on held-out data, mean and standard deviation over seeds; and
the difference to FedAvg with the same seed, which has the same people held out.

    python benchmarks/adult.py out/adult [--table docs/results/adult.json]
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from statistics import fmean, stdev

from flamma.files import write_atomically

GROUPS = ("doctorate", "no doctorate")
Accuracies = list[tuple[float, ...]]
"""Those of both groups, seed by seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    found = {
        place.name: [last_round(seed) for seed in sorted(place.iterdir())]
        for place in sorted((options.folder / "runs" / "adult" / "groups").iterdir())
    }
    print(f"| strategy | {' | '.join(GROUPS)} | {' | '.join(f'{g}, paired' for g in GROUPS)} |")
    print("|---|---:|---:|---:|---:|")
    for strategy, runs in found.items():
        print(f"| {strategy} | {' | '.join(cells(runs, found['fedavg']))} |")
    if options.table is not None:
        text = json.dumps({"groups": GROUPS, "accuracies": found}, indent=1)
        write_atomically(options.table, f"{text}\n".encode())


def last_round(run: Path) -> tuple[float, ...]:
    """Return the accuracy of each client in the last round of a run."""
    with (run / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    return tuple(float(row["accuracy"]) for row in rows if row["round"] == rows[-1]["round"])


def cells(runs: Accuracies, reference: Accuracies) -> list[str]:
    """Return mean ± standard deviation of both groups, and of their differences."""
    own = list(zip(*runs, strict=True))
    base = list(zip(*reference, strict=True))
    gaps = [[a - b for a, b in zip(o, r, strict=True)] for o, r in zip(own, base, strict=True)]
    accuracies = [f"{fmean(values):.1f} ± {stdev(values):.1f}" for values in own]
    return accuracies + [f"{fmean(values):+.1f} ± {stdev(values):.1f}" for values in gaps]


if __name__ == "__main__":
    main()

"""Print what people with and without a doctorate got in the comparison of adult.toml.

Accuracy in percent and loss of the last round on held-out data, mean and standard deviation over
seeds; and the difference to FedAvg with the same seed, which has the same people held out.

    python benchmarks/adult.py out/adult [--table docs/results/adult.json]
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from statistics import fmean, stdev

from flamma.io import write_atomically

GROUPS = ("doctorate", "no doctorate")
FIGURES = {"accuracy": 1, "loss": 3}
"""Columns of clients.csv, and the decimals that are shown."""

Figures = dict[str, list[tuple[float, ...]]]
"""Of each column the values of both groups, seed by seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    found = {
        place.name: last_rounds(sorted(place.iterdir(), key=seed_of))
        for place in sorted((options.folder / "runs" / "adult" / "groups").iterdir())
    }
    for column, decimals in FIGURES.items():
        paired = " | ".join(f"{group}, paired" for group in GROUPS)
        print(f"\n| {column} | {' | '.join(GROUPS)} | {paired} |\n|---|---:|---:|---:|---:|")
        for strategy, figures in found.items():
            row = cells(figures[column], found["fedavg"][column], decimals)
            print(f"| {strategy} | {' | '.join(row)} |")
    if options.table is not None:
        text = json.dumps({"groups": GROUPS, "seeds": found}, indent=1)
        write_atomically(options.table, f"{text}\n".encode())


def seed_of(run: Path) -> int:
    return int(run.name.removeprefix("seed-"))


def last_rounds(runs: list[Path]) -> Figures:
    """Return what each client had in the last round of each run."""
    found: Figures = {column: [] for column in FIGURES}
    for run in runs:
        with (run / "clients.csv").open() as file:
            rows = list(csv.DictReader(file))
        last = [row for row in rows if row["round"] == rows[-1]["round"]]
        for column, values in found.items():
            values.append(tuple(float(row[column]) for row in last))
    return found


def cells(
    runs: list[tuple[float, ...]], reference: list[tuple[float, ...]], decimals: int
) -> list[str]:
    """Return mean ± standard deviation of both groups, and of their differences."""
    own = list(zip(*runs, strict=True))
    base = list(zip(*reference, strict=True))
    gaps = [[a - b for a, b in zip(o, r, strict=True)] for o, r in zip(own, base, strict=True)]
    shown = [f"{fmean(v):.{decimals}f} ± {stdev(v):.{decimals}f}" for v in own]
    return shown + [f"{fmean(v):+.{decimals}f} ± {stdev(v):.{decimals}f}" for v in gaps]


if __name__ == "__main__":
    main()

"""Chooses what flamma-honest goes by, on seeds that no result uses.

For every contribution measure: accuracy and variance when all clients are honest, and with
inspections switched off the largest gain of any of some deviations, so that what the measure itself
does against them can be seen. Embedded digits, two shards, log-normal costs of spread 0.5.

    python benchmarks/choose_honest.py [--table docs/results/honest-choice.json]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import flamma
from flamma.errors import EmptyRunError
from flamma.experiments.run import Run
from flamma.io import write_atomically

SEEDS = (1000, 1001)
CLIENTS = (1, 6)
MEASURES = ("distance", "cosine-rescaled", "distance-earned", "leave-one-out", "gradient-shapley")
DEVIATIONS: dict[str, dict[str, Any]] = {
    "free-ride": {"name": "free-rider"},
    "noise": {"name": "free-rider", "sends": "noise", "noise": 0.1},
    "repeat": {"name": "free-rider", "sends": "repeat"},
    "one-epoch": {"name": "epoch-faker"},
    "claim-most": {"name": "epoch-faker", "done": "honest", "claimed": "most"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    rows = []
    print("measure           accuracy  variance  " + "  ".join(f"{d:>10s}" for d in DEVIATIONS))
    for measure in MEASURES:
        honest = [run(measure, seed) for seed in SEEDS]
        gains = {
            name: max(gain(measure, k, honest[k][1], lie) for k in range(len(SEEDS)))
            for name, lie in DEVIATIONS.items()
        }
        row = {
            "measure": measure,
            "accuracy": fmean(h.metric("accuracy") for h, _ in honest),
            "variance": fmean(h.metric("accuracy_variance") for h, _ in honest),
            "gains": gains,
        }
        rows.append(row)
        told = "  ".join(f"{100 * gain:+9.0f}%" for gain in gains.values())
        print(f"{measure:16s}  {row['accuracy']:8.1f}  {row['variance']:8.1f}  {told}", flush=True)
    if options.table is not None:
        write_atomically(options.table, json.dumps(rows, indent=1).encode())


def gain(measure: str, place: int, honest: list[float], lie: dict[str, Any]) -> float:
    """Return the largest gain as a share of the honest utility, of clients that have one."""
    found = []
    for client in CLIENTS:
        _, lying = run(measure, SEEDS[place], {"lie": {"clients": [client], **lie}})
        if honest[client]:
            found.append((lying[client] - honest[client]) / abs(honest[client]))
    return max(found, default=math.nan)


def run(
    measure: str, seed: int, behaviours: dict[str, Any] | None = None
) -> tuple[Any, list[float]]:
    """Return the last record, and every client's utility at its true cost over all rounds."""
    tables = {
        "rounds": 30,
        "per_round": 3,
        "seed": seed,
        "data": {"clients": 10, "split": "shards", "shards_per_client": 2},
        "model": "lenet5",
        "strategy": {"name": "flamma-honest", "contribution": measure, "inspection_rate": 0.0},
        "costs": {"kind": "lognormal", "value": 0.1, "spread": 0.5},
        "evaluation": {"every": 30},
        "engine": {"processes": 1},
        "behaviours": behaviours or {},
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            done = flamma.run(tables, out=out)
        except EmptyRunError:  # a lie brought it to a standstill, and what was paid is recorded
            done = Run.load(out)
        lines = (done.path / "population.csv").read_text(encoding="utf-8").splitlines()[1:]
    costs = [float(line.split(",")[3]) for line in lines]
    utilities = [0.0] * len(costs)
    for record in done.history:
        for place, client in enumerate(record.selected):
            utilities[client] += record.payment(place) - costs[client] * record.effort(place)
    return done.history[-1], utilities


if __name__ == "__main__":
    main()

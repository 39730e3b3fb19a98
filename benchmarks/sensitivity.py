"""How much do the results depend on the setting? One thing changed at a time, on the embedded data.

Decay start, how much clients' costs differ, how many of the clients are selected, and how many
classes a client has; FedAvg, FLamma and FLamma-plus, three seeds, each with the step size of the
suite `quick`, in its non-IID split. Runs that are finished are kept.

    python benchmarks/sensitivity.py [--out out/sensitivity] [--table docs/results/sensitivity.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flamma.experiments.comparison import compare
from flamma.experiments.result import text_table
from flamma.experiments.suite import narrowed, read_suite

STRATEGIES = ("fedavg", "flamma", "flamma-plus")
GAMES = ("flamma", "flamma-plus")
FACTORS = {
    "decay start": ("strategy.decay_start", (0.1, 0.3, 0.6, 1.0)),
    "spread of costs": ("costs.spread", (0.0, 0.5, 1.0)),
    "clients a round, of 10": ("per_round", (1, 3, 5)),
    "classes a client": ("data.classes_per_client", (1, 2, 5)),
}
ALSO = {
    "costs.spread": {"costs.kind": "lognormal"},
    "data.classes_per_client": {"data.split": "classes"},
}


def measure(option: str, value: float, out: Path) -> list[dict]:
    """Return what all strategies come to with one setting."""
    suite = narrowed(
        read_suite("quick"),
        splits=["classes" if option == "data.classes_per_client" else "shards"],
        strategies=GAMES if option == "strategy.decay_start" else STRATEGIES,
        settings={option: value} | ALSO.get(option, {}),
    )
    found = compare(suite, out=out / f"{option}-{value:g}")
    return [{"option": option, "value": value, **row_of(row)} for row in found.rows]


def row_of(row) -> dict:
    names = ("accuracy", "accuracy_variance", "worst_10", "epochs_total", "epochs_jain")
    games = ("follower_gap", "individual_rationality_ratio")
    return {
        "strategy": row.strategy,
        **{name: [row.mean[name], row.std[name]] for name in names},
        **{name: row.mean[name] for name in games if name in row.mean},
    }


def told(row: dict) -> str:
    (accuracy, _), (variance, spread) = row["accuracy"], row["accuracy_variance"]
    return f"{accuracy:.1f} / {variance:.0f} ± {spread:.0f}, {row['epochs_total'][0]:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/sensitivity"))
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    everything = []
    for name, (option, values) in FACTORS.items():
        lines = []
        for value in values:
            rows = measure(option, value, options.out)
            everything += rows
            found = {row["strategy"]: row for row in rows}
            lines.append(
                [
                    f"{value:g}",
                    *(told(found[s]) if s in found else "" for s in STRATEGIES),
                ]
            )
        print(f"{name}\n{text_table([option, *STRATEGIES], lines, left=0)}\n", flush=True)
    print("Accuracy, % / variance ± over seeds, %^2, local epochs; last ten rounds.")
    if options.table:
        options.table.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()

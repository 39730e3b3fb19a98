"""Print a finished comparison as the Markdown tables of docs/results.md.

    python benchmarks/study.py out/laptop/table.json

For each dataset and split: accuracy and variance with the spread over seeds, the worst tenth of the
clients, local epochs, how far the variance is on the way from the central ceiling (0%) to FedAvg
(100%), accuracy and variance when as many local epochs were spent as FLamma-plus spends in all, and
the paper's figures where it has them; then what the games came to and how evenly clients took part;
then what the target we set ourselves comes to.
"""

from __future__ import annotations

import argparse
import tomllib
from importlib.resources import files
from pathlib import Path

from flamma.experiments.comparison import Comparison, Row, parse_table
from flamma.experiments.result import at_budget
from flamma.experiments.run import Run
from flamma.metrics import METRICS
from flamma.strategies import RETIRED, label_of

PLUS, CEILING = "flamma-plus", "central"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", type=Path)
    options = parser.parse_args()
    found = parse_table(options.table.read_text())
    paper = tomllib.loads((files("flamma.reports") / "paper.toml").read_text())
    places = dict.fromkeys((row.dataset, row.split) for row in found.rows)
    for dataset, split in places:
        rows = [r for r in found.rows if (r.dataset, r.split) == (dataset, split)]
        print(f"\n### {dataset}, {split}\n")
        equal = at_equal_work(rows, options.table.parent / "runs" / dataset / split)
        print(one_place(rows, equal, paper.get(dataset, {}).get(split, {})))
    print("\n### Games and participation\n")
    print(games(found))
    if any(row.strategy == PLUS for row in found.rows):
        print("\n### The target\n")
        for dataset, split in places:
            print(target([r for r in found.rows if (r.dataset, r.split) == (dataset, split)]))


def at_equal_work(rows: list[Row], folder: Path) -> dict[str, str]:
    """Return accuracy / variance of each at the local epochs of FLamma-plus, if it is there."""
    budget = next((r.mean["epochs_total"] for r in rows if r.strategy == PLUS), None)
    if budget is None or not folder.is_dir():
        return {}
    equal = {}
    for row in rows:
        runs = [Run.load(folder / row.strategy / f"seed-{seed}") for seed in row.seeds]
        means = (
            sum(at_budget(run.history, budget * 1.01, metric) for run in runs) / len(runs)
            for metric in ("accuracy", "accuracy_variance")
        )
        equal[row.strategy] = "{:.1f} / {:.0f}".format(*means)
    return equal


def one_place(rows: list[Row], equal: dict[str, str], paper: dict) -> str:
    of = {row.strategy: row for row in rows}
    header = ["Algorithm", "Accuracy", "Variance", "Worst tenth", "Local epochs"]
    if has_way(of):
        header.append("Way to FedAvg")
    if equal:
        header.append("At equal work")
    if paper:
        header.append("Paper")
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for row in rows:
        line = [
            label_of(row.strategy),
            spread(row, "accuracy"),
            spread(row, "accuracy_variance"),
            f"{row.mean['worst_10']:.1f}",
            f"{row.mean['epochs_total']:.0f}",
        ]
        if "Way to FedAvg" in header:
            line.append(f"{100 * way(row, of):.0f}%")
        if equal:
            line.append("" if row.strategy == CEILING else equal[row.strategy])
        if paper:
            printed = paper.get(row.strategy)
            line.append(
                f"{printed['accuracy'][0]:.1f} / {printed['accuracy_variance'][0]:.0f}"
                if printed
                else ""
            )
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(row: Row, metric: str) -> str:
    digits = 1 if row.mean[metric] < 100 else 0
    return f"{row.mean[metric]:.{digits}f} ± {row.std[metric]:.{digits}f}"


def has_way(of: dict[str, Row]) -> bool:
    """Return whether FedAvg is so far from the ceiling that there is a way between them."""
    if CEILING not in of or "fedavg" not in of:
        return False
    return of["fedavg"].mean["accuracy_variance"] > 2 * of[CEILING].mean["accuracy_variance"]


def way(row: Row, of: dict[str, Row]) -> float:
    """Return where the variance lies between the ceiling's (0) and FedAvg's (1)."""
    low, high = of[CEILING].mean["accuracy_variance"], of["fedavg"].mean["accuracy_variance"]
    return (row.mean["accuracy_variance"] - low) / (high - low)


def games(found: Comparison) -> str:
    header = [
        "Algorithm",
        "Even in selection (Jain)",
        "Even in epochs (Jain)",
        "Largest follower gap",
        "Largest leader regret",
        "Moves with utility of at least 0",
    ]
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for strategy in dict.fromkeys(row.strategy for row in found.rows):
        rows = [row for row in found.rows if row.strategy == strategy]
        if strategy == CEILING:
            continue
        line = [label_of(strategy)]
        for metric in ("selection_jain", "epochs_jain"):
            line.append(f"{sum(r.mean[metric] for r in rows) / len(rows):.3f}")
        played = [row for row in rows if "follower_gap" in row.mean]
        for metric in ("follower_gap", "leader_regret"):
            worst = max((max(r.values[metric]) for r in played), default=None)
            line.append("" if worst is None else f"{worst:.2g}")
        ratio = min((min(r.values["individual_rationality_ratio"]) for r in played), default=None)
        line.append("" if ratio is None else f"{100 * ratio:.0f}%")
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def target(rows: list[Row]) -> str:
    """Return in one line how FLamma-plus stands to the target."""
    of = {row.strategy: row for row in rows}
    plus = of[PLUS]
    others = [r for r in rows if r.strategy not in (PLUS, *RETIRED, CEILING)]
    parts = []
    for metric, sign in (("accuracy", 1), ("accuracy_variance", -1)):
        best = max(others, key=lambda r: sign * r.mean[metric])
        ahead = sign * (plus.mean[metric] - best.mean[metric])
        clear = ahead - plus.std[metric] - best.std[metric]
        stands = "ahead, clear of" if clear > 0 else "ahead, within" if ahead > 0 else "behind"
        if stands == "behind":
            stands += ", beyond" if -ahead > plus.std[metric] + best.std[metric] else ", within"
        pairs = zip(plus.values[metric], best.values[metric], strict=True)
        better = sum(sign * (mine - theirs) > 0 for mine, theirs in pairs)
        parts.append(
            f"{METRICS[metric].label} {plus.mean[metric]:.1f} against {best.mean[metric]:.1f} of "
            f"{label_of(best.strategy)} ({stands} the spread; better on "
            f"{better} of {len(plus.seeds)} seeds)"
        )
    if "fedavg" in of:
        ratio = plus.mean["accuracy_variance"] / of["fedavg"].mean["accuracy_variance"]
        parts.append(f"variance {ratio:.3f} of FedAvg's")
        if has_way(of):
            parts.append(f"{100 * way(plus, of):.0f}% of the way from the ceiling to FedAvg")
        epochs = (row.mean["epochs_total"] for row in (plus, of["fedavg"]))
        parts.append("{:.0f} local epochs to {:.0f}".format(*epochs))
    return f"- {plus.dataset}, {plus.split}: " + "; ".join(parts) + "."


if __name__ == "__main__":
    main()

"""The table of a comparison: the paper's Table I, as data and as text."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flamma.experiments.run import Run
from flamma.experiments.suite import Cell
from flamma.experiments.summary import at_budget
from flamma.files import write_atomically

MEASURES = {
    "accuracy": "last_10_accuracy",
    "variance": "last_10_accuracy_variance",
    "test_accuracy": "last_10_test_accuracy",
    "worst_10": "last_10_worst_10",
    "best_10": "last_10_best_10",
    "equal_work_accuracy": "equal_work_accuracy",
    "equal_work_variance": "equal_work_accuracy_variance",
    "epochs_total": "epochs_total",
    "bytes_up": "bytes_up",
    "seconds": "seconds",
    "selection_jain": "participation.selection_jain",
    "epochs_jain": "participation.epochs_jain",
    "follower_gap": "certificate.follower_gap",
    "leader_regret": "certificate.leader_regret",
    "individual_rationality_ratio": "certificate.individual_rationality_ratio",
}
"""What a row tells, and where a run's summary has it; what only a game has, other rows lack."""

LOWER_IS_BETTER = ("variance", "equal_work_variance", "follower_gap", "leader_regret")
CEILING = "central"
"""What no federated strategy competes with."""

LABELS = {
    "fedavg": "FedAvg",
    "fedavg-decay": "FedAvg + decay",
    "mifa": "FedAvg + memory",
    "fedprox": "FedProx",
    "qffl": "q-FFL",
    "incentive": "Incentivization",
    "flamma": "FLamma",
    "flamma-plus": "FLamma-plus",
    "flamma-adaptive": "FLamma-adaptive",
    "central": "Central (ceiling)",
}


@dataclass(frozen=True)
class Row:
    """One strategy on one dataset and split; every measure as a mean and a spread over seeds."""

    dataset: str
    split: str
    strategy: str
    seeds: int
    mean: dict[str, float]
    std: dict[str, float]
    values: dict[str, list[float]]


@dataclass(frozen=True)
class Comparison:
    """All rows of a comparison, and the runs they come from."""

    name: str
    rows: list[Row]
    folders: list[str]

    def row(self, dataset: str, split: str, strategy: str) -> Row:
        """Return one row."""
        for row in self.rows:
            if (row.dataset, row.split, row.strategy) == (dataset, split, strategy):
                return row
        raise KeyError((dataset, split, strategy))

    def contenders(self, dataset: str, split: str) -> list[Row]:
        """Return the rows that are compared: all but the ceiling, unless it stands alone."""
        rows = [r for r in self.rows if (r.dataset, r.split) == (dataset, split)]
        return [r for r in rows if r.strategy != CEILING] or rows

    def best(self, dataset: str, split: str, measure: str) -> str:
        """Return the strategy with the highest accuracy, or the lowest variance."""
        sign = -1 if measure in LOWER_IS_BETTER else 1
        rows = self.contenders(dataset, split)
        return max(rows, key=lambda r: sign * r.mean[measure]).strategy


def compared(name: str, runs: Sequence[tuple[Cell, Run]]) -> Comparison:
    """Return the comparison of finished runs.

    Measures of equal work are taken when a run has spent as many local epochs as the run of the
    same dataset and split that spent the fewest in all, the ceiling left out.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    budgets: dict[tuple[str, str], float] = {}
    for cell, run in runs:
        where, spent = (cell.dataset, cell.split), run.summary()["epochs_total"]
        if cell.strategy != CEILING:
            budgets[where] = min(spent, budgets.get(where, spent))
    for cell, run in runs:
        within = at_budget(run.history, budgets.get((cell.dataset, cell.split), math.inf))
        summary = run.summary() | {f"equal_work_{name}": value for name, value in within.items()}
        groups.setdefault((cell.dataset, cell.split, cell.strategy), []).append(summary)
    rows = []
    for (dataset, split, strategy), summaries in groups.items():
        values = _values(summaries)
        rows.append(
            Row(
                dataset,
                split,
                strategy,
                len(summaries),
                {m: float(np.mean(v)) for m, v in values.items()},
                {m: float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for m, v in values.items()},
                values,
            )
        )
    return Comparison(name, rows, [str(cell.folder) for cell, _ in runs])


def _values(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    values = {}
    for measure, key in MEASURES.items():
        table, _, name = key.rpartition(".")
        found = [(summary[table] if table else summary)[name] for summary in summaries]
        if not table or None not in found:
            values[measure] = [float(value or 0.0) for value in found]
    return values


def write_tables(comparison: Comparison, folder: Path) -> None:
    """Write table.json, table.csv and table.md."""
    texts = {
        "table.json": json.dumps(asdict(comparison), indent=1, allow_nan=False) + "\n",
        "table.csv": _as_csv(comparison),
        "table.md": as_markdown(comparison),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())


def layout(
    comparison: Comparison, bold: tuple[str, str]
) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return the paper's layout: per dataset a header and one line of cells per strategy.

    Accuracy is the mean over clients in percent, variance is in percent squared; both are means
    over the last ten rounds, ± the standard deviation over seeds. The best mean is bold.
    """
    tables = []
    for dataset in dict.fromkeys(row.dataset for row in comparison.rows):
        rows = [row for row in comparison.rows if row.dataset == dataset]
        splits = list(dict.fromkeys(row.split for row in rows))
        header = ["Algorithm"]
        for split in splits:
            header += [f"Accuracy ({split})", f"Variance ({split})"]
        header.append("Local epochs")
        lines = []
        for strategy in dict.fromkeys(row.strategy for row in rows):
            line = [LABELS.get(strategy, strategy)]
            epochs = 0.0
            for split in splits:
                row = comparison.row(dataset, split, strategy)
                for measure in ("accuracy", "variance"):
                    text = f"{row.mean[measure]:.2f} ± {row.std[measure]:.2f}"
                    if comparison.best(dataset, split, measure) == strategy:
                        text = f"{bold[0]}{text}{bold[1]}"
                    line.append(text)
                epochs += row.mean["epochs_total"] / len(splits)
            lines.append([*line, f"{epochs:.0f}"])
        tables.append((dataset, header, lines))
    return tables


def as_markdown(comparison: Comparison) -> str:
    """Return the tables as Markdown."""
    parts = []
    for dataset, header, lines in layout(comparison, ("**", "**")):
        rule = ["---"] + ["---:"] * (len(header) - 1)
        rows = [header, rule, *lines]
        parts.append(f"### {dataset}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))
    note = (
        "Mean over the last ten rounds, ± standard deviation over seeds. Accuracy: mean over "
        "clients, in percent. Variance: of the clients' accuracies, in percent squared."
    )
    return "\n\n".join([*parts, note]) + "\n"


def _as_csv(comparison: Comparison) -> str:
    buffer = io.StringIO()
    columns = ["dataset", "split", "strategy", "seeds"]
    for measure in MEASURES:
        columns += [f"{measure}_mean", f"{measure}_std"]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in comparison.rows:
        cells: list[object] = [row.dataset, row.split, row.strategy, row.seeds]
        for measure in MEASURES:
            cells += [row.mean.get(measure, ""), row.std.get(measure, "")]
        writer.writerow(cells)
    return buffer.getvalue()

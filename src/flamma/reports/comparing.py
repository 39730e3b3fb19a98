"""A comparison's directory as a report reads it, finished or not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flamma.errors import FlammaError
from flamma.experiments.config import make_config
from flamma.experiments.folder import CONFIG
from flamma.experiments.run import Run
from flamma.experiments.suite import Cell
from flamma.experiments.table import CEILING, MEASURES, Comparison, Row, compared
from flamma.reports.reading import Inside, RunRecord, is_inside, number, read_run

TABLE, RUNS = "table.json", "runs"
NEEDED = ("accuracy", "variance", "worst_10", "best_10", "epochs_total")
Place = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class ComparisonRecord:
    """What could be read of a comparison: its table, its runs by place, and what is missing."""

    path: Path
    comparison: Comparison
    runs: dict[Place, list[RunRecord]]
    problems: list[str]

    @property
    def panels(self) -> list[tuple[str, str]]:
        """The pairs of dataset and split, in the order of the table."""
        return list(dict.fromkeys((row.dataset, row.split) for row in self.comparison.rows))

    @property
    def strategies(self) -> list[str]:
        """The strategies, in the order of the table."""
        return list(dict.fromkeys(row.strategy for row in self.comparison.rows))

    def rows(self, dataset: str, split: str) -> list[Row]:
        """Return the rows of one panel."""
        rows = self.comparison.rows
        return [row for row in rows if (row.dataset, row.split) == (dataset, split)]


def is_comparison(path: Path) -> bool:
    """Return whether a directory holds a comparison rather than a run."""
    return not (path / CONFIG).exists() and ((path / TABLE).exists() or (path / RUNS).is_dir())


def read_comparison(path: Path) -> ComparisonRecord:
    """Read what can be read of a comparison's directory."""
    problems: list[str] = []
    runs: dict[Place, list[RunRecord]] = {}
    for file in sorted((path / RUNS).glob(f"*/*/*/seed-*/{CONFIG}"), key=_by_seed):
        dataset, split, strategy, seed = file.parent.relative_to(path / RUNS).parts
        if not is_inside(file.parent, path):
            problems.append(f"{dataset} {split} {strategy} {seed} lies elsewhere and is not read")
            continue
        run = read_run(file.parent)
        runs.setdefault((dataset, split, strategy), []).append(run)
        problems += [f"{dataset} {split} {strategy} {seed}: {text}" for text in run.problems]
    comparison = _read_table(path, runs, problems)
    lost = [row for row in comparison.rows if (row.dataset, row.split, row.strategy) not in runs]
    if lost:
        problems.append(
            f"the runs of {len(lost)} rows of the table are not there, only its numbers"
        )
    return ComparisonRecord(path, comparison, runs, problems)


def clear_best(comparison: Comparison, dataset: str, split: str, measure: str) -> tuple[str, ...]:
    """Return the strategies that may be called best: one if the spread allows it, else several.

    The best mean is called best alone only if the range of ± one standard deviation over seeds
    around it meets nobody else's; those that it meets are best together. With a single seed there
    is no spread to judge by, and so nobody is.
    """
    rows = comparison.contenders(dataset, split)
    if len(rows) < 2 or min(row.seeds for row in rows) < 2:
        return ()
    best = comparison.row(dataset, split, comparison.best(dataset, split, measure))
    return tuple(
        row.strategy
        for row in rows
        if abs(row.mean[measure] - best.mean[measure]) <= row.std[measure] + best.std[measure]
    )


def pareto(rows: list[Row]) -> list[Row]:
    """Return the rows that no other beats in both accuracy and variance, by rising accuracy.

    The ceiling is left out: it does not compete.
    """
    rows = [row for row in rows if row.strategy != CEILING] or rows

    def beaten(row: Row) -> bool:
        return any(
            other.mean["accuracy"] >= row.mean["accuracy"]
            and other.mean["variance"] <= row.mean["variance"]
            and (other.mean["accuracy"], other.mean["variance"])
            != (row.mean["accuracy"], row.mean["variance"])
            for other in rows
        )

    return sorted((row for row in rows if not beaten(row)), key=lambda row: row.mean["accuracy"])


def _by_seed(file: Path) -> tuple[str, int, str]:
    seed = file.parent.name.removeprefix("seed-")
    return str(file.parent.parent), int(seed) if seed.isdigit() else 10**9, seed


def _read_table(
    path: Path, runs: Mapping[Place, list[RunRecord]], problems: list[str]
) -> Comparison:
    text = Inside(path, problems).text(TABLE)
    try:
        table = json.loads(text)
        rows = [_row(row) for row in table["rows"]]
        return Comparison(str(table["name"]), rows, [str(name) for name in table["folders"]])
    except (ValueError, KeyError, TypeError, AttributeError):
        what = "is damaged" if text else "is not there yet"
        problems.append(f"{TABLE} {what}, so the table is of the runs that are finished")
    cells = (_as_run(place, k, run) for place, all_ in runs.items() for k, run in enumerate(all_))
    return compared(path.name, [cell for cell in cells if cell is not None])


def _row(table: Mapping[str, Any]) -> Row:
    """Return a row as it was written, checked; an older table may lack the newer measures."""
    seeds = int(table["seeds"])
    measures = [m for m in MEASURES if m in NEEDED or m in table["mean"]]
    parts: dict[str, dict[str, float]] = {"mean": {}, "std": {}}
    for part, found in parts.items():
        for measure in measures:
            value = number(table[part][measure])
            if value is None:
                raise ValueError(measure)
            found[measure] = value
    values = {m: [float(v) for v in table["values"][m]] for m in measures}
    if any(len(v) != seeds or not all(map(math.isfinite, v)) for v in values.values()):
        raise ValueError("values")
    dataset, split, strategy = (str(table[key]) for key in ("dataset", "split", "strategy"))
    return Row(dataset, split, strategy, seeds, parts["mean"], parts["std"], values)


def _as_run(place: Place, seed: int, run: RunRecord) -> tuple[Cell, Run] | None:
    """Return a finished run as the table takes it; None if it is not finished or not readable."""
    try:
        config = make_config(run.config)
    except FlammaError:
        return None
    cell = Cell(*place, seed, config)
    return (cell, Run(run.path, config, run.rounds, run.about)) if run.finished else None

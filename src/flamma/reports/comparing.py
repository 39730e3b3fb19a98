"""A comparison's directory as a report reads it, finished or not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from flamma.errors import FlammaError
from flamma.experiments.config import make_config
from flamma.experiments.families import families_compared
from flamma.experiments.folder import CONFIG
from flamma.experiments.published import parse_table
from flamma.experiments.run import Run
from flamma.experiments.suite import Cell
from flamma.experiments.table import Comparison, Row, compared, scored_alike
from flamma.reports.confined import ConfinedRunFolder, is_inside
from flamma.reports.progress import read_planned_suite
from flamma.reports.reading import RunView, read_run
from flamma.strategies import competes
from flamma.types import ScoreKind

TABLE, RUNS = "table.json", "runs"

RowKey = tuple[str, str, str]
"""Dataset, split and strategy: what a row of the table is about."""


@dataclass(frozen=True, eq=False)
class ComparisonView:
    """What could be read of a comparison.

    Attributes
    ----------
    path : Path
        The directory.
    comparison : Comparison
        Its table.
    runs : dict
        The runs of every row, by seed.
    missing : list of str
        What is missing or damaged besides the runs' own problems, one clause each.
    """

    path: Path
    comparison: Comparison
    runs: dict[RowKey, dict[int, RunView]]
    missing: list[str]

    @property
    def panels(self) -> list[tuple[str, str]]:
        """The pairs of dataset and split, in the order of the table."""
        return list(dict.fromkeys((row.dataset, row.split) for row in self.comparison.rows))

    @property
    def strategies(self) -> list[str]:
        """The strategies, in the order of the table, family by family."""
        return list(dict.fromkeys(row.strategy for row in self.by_family(self.comparison.rows)))

    @property
    def score_kind(self) -> ScoreKind:
        """What clients are scored by."""
        return scored_alike(self.comparison.rows)

    @property
    def problems(self) -> list[str]:
        """Everything that is missing or damaged, one clause each."""
        return [
            *(
                f"{' '.join(key)} seed-{seed}: {text}"
                for key, by_seed in self.runs.items()
                for seed, run in by_seed.items()
                for text in (run.diverged, *run.problems)
                if text
            ),
            *self.missing,
        ]

    @cached_property
    def families(self) -> dict[str, list[str]]:
        """The strategies by family, if there are many."""
        behind: dict[str, str] = {}
        for (_, _, strategy), by_seed in self.runs.items():
            named = next(iter(by_seed.values())).table("strategy").get("name")
            behind |= {strategy: named} if isinstance(named, str) else {}
        return families_compared(self.comparison, behind)

    def rows(self, dataset: str, split: str) -> list[Row]:
        """Return the rows of one panel, family by family."""
        rows = self.comparison.rows
        return self.by_family(row for row in rows if (row.dataset, row.split) == (dataset, split))

    def by_family(self, rows: Iterable[Row]) -> list[Row]:
        """Return rows family by family, if there are families; else as they are."""
        order = list(self.families)
        return sorted(rows, key=lambda r: order.index(self.family(r.strategy)) if order else 0)

    def family(self, strategy: str) -> str:
        """Return the family of a strategy, empty if there are none."""
        return next((f for f, members in self.families.items() if strategy in members), "")

    def longest_runs(self, dataset: str, split: str, strategy: str) -> list[RunView]:
        """Return the runs with the most rounds: all seeds of a row, or some if it is unfinished."""
        found = self.runs.get((dataset, split, strategy), {}).values()
        most = max((len(run.rounds) for run in found), default=0)
        return [run for run in found if most and len(run.rounds) == most]


def is_comparison(path: Path) -> bool:
    """Return whether a directory holds a comparison rather than a run."""
    return not (path / CONFIG).exists() and ((path / TABLE).exists() or (path / RUNS).is_dir())


def read_comparison(path: Path) -> ComparisonView:
    """Read what can be read of a comparison's directory."""
    missing: list[str] = []
    runs = read_runs(path, missing)
    table = _read_table(path, missing, planned=read_planned_suite(path) is not None)
    comparison = table or _from_runs(path.name, runs, missing)
    lost = [row for row in comparison.rows if (row.dataset, row.split, row.strategy) not in runs]
    if lost:
        missing.append(f"the runs of {len(lost)} rows of the table are not there, only its numbers")
    return ComparisonView(path, comparison, runs, missing)


def read_runs(path: Path, missing: list[str]) -> dict[RowKey, dict[int, RunView]]:
    """Return the runs of a comparison by row and seed; what is not read is added to ``missing``."""
    found: dict[RowKey, dict[int, RunView]] = {}
    for file in sorted((path / RUNS).glob(f"*/*/*/seed-*/{CONFIG}")):
        dataset, split, strategy, folder = file.parent.relative_to(path / RUNS).parts
        seed = re.fullmatch(r"seed-([0-9]{1,18})", folder)
        if seed is None or not is_inside(file.parent, path):
            why = "is not named by a seed" if seed is None else "lies elsewhere"
            missing.append(f"{dataset} {split} {strategy} {folder} {why} and is not read")
        else:
            found.setdefault((dataset, split, strategy), {})[int(seed[1])] = read_run(file.parent)
    return {key: dict(sorted(by_seed.items())) for key, by_seed in found.items()}


def pareto(rows: list[Row]) -> list[Row]:
    """Return the rows that no other beats in both accuracy and variance, the worst score first.

    A strategy that does not compete, such as the ceiling, is left out.
    """
    rows = [row for row in rows if competes(row.strategy)] or rows
    sign = -1 if scored_alike(rows).less_is_better else 1

    def of(row: Row) -> tuple[float, float]:
        return sign * row.mean["accuracy"], row.mean["accuracy_variance"]

    def beaten(row: Row) -> bool:
        accuracy, variance = of(row)
        return any(
            of(other)[0] >= accuracy and of(other)[1] <= variance and of(other) != of(row)
            for other in rows
        )

    return sorted((row for row in rows if not beaten(row)), key=of)


def _read_table(path: Path, missing: list[str], planned: bool) -> Comparison | None:
    """Return the table as it was written, None if it is not there or damaged.

    Where the page can say how far a planned comparison is, a table that is yet to come is no loss.
    """
    text = ConfinedRunFolder(path, missing).text(TABLE)
    try:
        return parse_table(text)
    except ValueError:
        what = "is damaged" if text else "is not there yet"
        if text or not planned:
            how = "so the table is computed from the runs that are finished"
            missing.append(f"{TABLE} {what}, {how}")
    return None


def _from_runs(
    name: str, runs: Mapping[RowKey, Mapping[int, RunView]], missing: list[str]
) -> Comparison:
    """Return the table of the runs that are finished."""
    cells = [
        cell
        for key, by_seed in runs.items()
        for seed, run in by_seed.items()
        if run.finished and (cell := _as_cell(key, seed, run)) is not None
    ]
    try:
        return compared(name, cells)
    except Exception as error:  # a metric may be another package's function
        missing.append(f"the table could not be computed: {error}")
        return Comparison(name, [], [])


def _as_cell(key: RowKey, seed: int, run: RunView) -> tuple[Cell, Run] | None:
    """Return a run as a table takes it; None if its configuration is not that of its records."""
    try:
        config = make_config(run.config, needs_strategy=False)
    except FlammaError as error:
        run.problems.append(f"{CONFIG} cannot be used ({error}), so it is not in the table")
        return None
    if config.data.clients < run.clients:
        run.problems.append(f"it has more clients than {CONFIG} says, so it is not in the table")
        return None
    return Cell(*key, seed, config), Run(
        run.path, config, run.rounds, run.about, known_scores=run.scores
    )

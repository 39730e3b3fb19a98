"""The table of a comparison: the paper's Table I, as data and as text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from flamma.experiments.best import best_of
from flamma.experiments.manifest import signed
from flamma.experiments.run import Run
from flamma.experiments.suite import Cell
from flamma.experiments.summary import at_budget, sample_text
from flamma.files import write_atomically
from flamma.metrics import METRICS, EqualWorkMetric, shown_in
from flamma.metrics.kinds import LAST_ROUNDS
from flamma.strategies import competes, label_of

Marks = tuple[tuple[str, str], tuple[str, str]]
"""What stands before and after the best value, and before and after values as good as the best."""


@dataclass(frozen=True)
class Row:
    """One strategy on one dataset and split; every metric by name, as mean and spread over seeds.

    ``values`` has the metrics of the runs in the order of ``seeds``. ``sample`` is how many clients
    were drawn for the evaluations, and of how many; None if all were evaluated.
    """

    dataset: str
    split: str
    strategy: str
    seeds: tuple[int, ...]
    mean: dict[str, float]
    std: dict[str, float]
    values: dict[str, list[float]]
    sample: tuple[int, int] | None = None


@dataclass(frozen=True)
class Comparison:
    """All rows of a comparison, the runs they come from, and those that failed, with the reason."""

    name: str
    rows: list[Row]
    folders: list[str]
    failed: dict[str, str] = field(default_factory=dict)

    def row(self, dataset: str, split: str, strategy: str) -> Row:
        """Return one row."""
        for row in self.rows:
            if (row.dataset, row.split, row.strategy) == (dataset, split, strategy):
                return row
        raise KeyError((dataset, split, strategy))

    def contenders(self, dataset: str, split: str) -> list[Row]:
        """Return the rows that are compared: all but the ceiling, unless it stands alone."""
        rows = [r for r in self.rows if (r.dataset, r.split) == (dataset, split)]
        return [r for r in rows if competes(r.strategy)] or rows

    def best(self, dataset: str, split: str, metric: str) -> tuple[str, ...]:
        """Return the leading strategy, and after it those that cannot be told from it.

        Nothing is returned where one cannot tell: see :mod:`flamma.experiments.best`.
        """
        rows = [r for r in self.contenders(dataset, split) if metric in r.values]
        values = {r.strategy: dict(zip(r.seeds, r.values[metric], strict=True)) for r in rows}
        better = METRICS[metric].better
        return () if better == "neither" else best_of(values, 1 if better == "higher" else -1)

    def mark(self, row: Row, metric: str) -> str:
        """Return ``best`` for the only best row, ``tied`` for one of several, else nothing."""
        best = self.best(row.dataset, row.split, metric)
        return "" if row.strategy not in best else "best" if len(best) == 1 else "tied"

    def sample_notes(self, dataset: str | None = None) -> list[str]:
        """Return a sentence for every dataset and split of which not all clients were evaluated."""
        found = {
            (row.dataset, row.split, sample_text(*row.sample)): None
            for row in self.rows
            if row.sample is not None and dataset in (None, row.dataset)
        }
        return [f"Accuracies of {name} ({split}) are over {text}." for name, split, text in found]


def compared(
    name: str, runs: Sequence[tuple[Cell, Run]], failed: Mapping[str, str] | None = None
) -> Comparison:
    """Return the comparison of finished runs.

    Metrics of equal work are taken when a run has spent as many local epochs as the run of the
    same dataset and split that spent the fewest in all, the ceiling left out.
    """
    summaries = [run.summary() for _, run in runs]
    budgets: dict[tuple[str, str], float] = {}
    for (cell, _), summary in zip(runs, summaries, strict=True):
        where, spent = (cell.dataset, cell.split), summary["epochs_total"]
        if competes(cell.strategy) and spent is not None:
            budgets[where] = min(spent, budgets.get(where, spent))
    groups: dict[tuple[str, str, str], dict[int, dict[str, float | None]]] = {}
    samples: dict[tuple[str, str, str], tuple[int, int]] = {}
    for (cell, run), summary in zip(runs, summaries, strict=True):
        budget = budgets.get((cell.dataset, cell.split), math.inf)
        found = {
            metric: at_budget(run.history, budget, kind.of)
            if isinstance(kind := METRICS[metric], EqualWorkMetric)
            else summary[metric]
            for metric in shown_metrics()
        }
        place = (cell.dataset, cell.split, cell.strategy)
        groups.setdefault(place, {})[cell.seed] = found
        if summary.sample is not None:
            samples[place] = (summary.sample, summary.clients)
    return Comparison(
        name,
        [_row(place, by_seed, samples.get(place)) for place, by_seed in groups.items()],
        [str(cell.folder) for cell, _ in runs],
        dict(failed or {}),
    )


def shown_metrics() -> list[str]:
    """Return the metrics of a row: what is shown in its files, in tables or on a page."""
    wanted = [*shown_in("csv"), *shown_in("table"), *shown_in("page")]
    return [name for name in METRICS if name in wanted]


def _row(
    place: tuple[str, str, str],
    by_seed: dict[int, dict[str, float | None]],
    sample: tuple[int, int] | None,
) -> Row:
    """Return a row; a metric that a run does not have, such as that of a game, is left out."""
    values = {}
    for metric in shown_metrics():
        found = [own[metric] for own in by_seed.values()]
        known = [value for value in found if value is not None]
        if len(known) == len(found):
            values[metric] = known
    return Row(
        *place,
        tuple(by_seed),
        {m: float(np.mean(v)) for m, v in values.items()},
        {m: float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for m, v in values.items()},
        values,
        sample,
    )


def write_tables(comparison: Comparison, folder: Path) -> None:
    """Write table.json, table.csv and table.md."""
    texts = {
        "table.json": signed(asdict(comparison)),
        "table.csv": _as_csv(comparison),
        "table.md": as_markdown(comparison),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())


def layout(comparison: Comparison, marks: Marks) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return the paper's layout: per dataset a header and one line of cells per strategy.

    A metric is the mean over seeds ± the standard deviation, with the marks of the best.
    """
    tables = []
    shown = shown_in("table")
    for dataset in dict.fromkeys(row.dataset for row in comparison.rows):
        rows = [row for row in comparison.rows if row.dataset == dataset]
        splits = list(dict.fromkeys(row.split for row in rows))
        header = ["Algorithm"]
        for split in splits:
            header += [f"{capitalised(metric.label)} ({split})" for metric in shown.values()]
        header.append("Local epochs")
        lines = []
        for strategy in dict.fromkeys(row.strategy for row in rows):
            own = [row for row in rows if row.strategy == strategy]
            by_split = {row.split: row for row in own}
            cells = [
                _cell(comparison, by_split.get(split), metric, marks)
                for split in splits
                for metric in shown
            ]
            epochs = sum(row.mean["epochs_total"] for row in own) / len(own)
            lines.append([label_of(strategy), *cells, f"{epochs:.0f}"])
        tables.append((dataset, header, lines))
    return tables


def _cell(comparison: Comparison, row: Row | None, metric: str, marks: Marks) -> str:
    if row is None or metric not in row.mean:
        return "-"
    text = f"{row.mean[metric]:.2f} ± {row.std[metric]:.2f}"
    mark = comparison.mark(row, metric)
    before, after = ("", "") if not mark else marks[0] if mark == "best" else marks[1]
    return f"{before}{text}{after}"


def as_markdown(comparison: Comparison) -> str:
    """Return the tables as Markdown."""
    parts = []
    for dataset, header, lines in layout(comparison, (("**", "**"), ("*", "*"))):
        rule = ["---"] + ["---:"] * (len(header) - 1)
        rows = [header, rule, *lines]
        parts.append(f"### {dataset}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))
    how = "Bold is best; italics cannot be told from it."
    return "\n\n".join([*parts, " ".join([legend(), how, *comparison.sample_notes()])]) + "\n"


def legend() -> str:
    """Return what the numbers of a table are."""
    units = [f"{m.label} in {m.unit}" for m in shown_in("table").values() if m.unit]
    return (
        f"Mean over the last {LAST_ROUNDS} rounds, ± standard deviation over seeds; "
        f"{', '.join(units)}. Best: by differences paired over seeds, 95% confidence."
    )


def _as_csv(comparison: Comparison) -> str:
    buffer = io.StringIO()
    columns = ["dataset", "split", "strategy", "seeds"]
    metrics = list(shown_in("csv"))
    for metric in metrics:
        columns += [f"{metric}_mean", f"{metric}_std"]
    columns.append("clients_sampled")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in comparison.rows:
        cells: list[object] = [row.dataset, row.split, row.strategy, len(row.seeds)]
        for metric in metrics:
            cells += [row.mean.get(metric, ""), row.std.get(metric, "")]
        writer.writerow([*cells, "" if row.sample is None else row.sample[0]])
    return buffer.getvalue()


def capitalised(text: str) -> str:
    """Return a text with its first letter large."""
    return text[:1].upper() + text[1:]

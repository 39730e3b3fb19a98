"""The tables of a comparison's page."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from flamma.experiments.best import CONFIDENCE, explain_marks
from flamma.experiments.table import Comparison, Row, capitalised, told_by, with_spread
from flamma.experiments.table_text import (
    ONE_SEED,
    SPENT,
    averaged_rounds,
    column_titles,
    further_notes,
    metrics_in_lines,
    short_hashes,
    spent_text,
)
from flamma.metrics import METRICS, EqualWorkMetric, Metric
from flamma.metrics.kinds import UNKNOWN_LAST_ROUNDS
from flamma.reports.comparing import ComparisonView
from flamma.reports.document import Table, TableCell
from flamma.reports.metric_text import column_text, value_text
from flamma.strategies import label_of

HOW_BEST = f"differences paired over seeds, {CONFIDENCE:.0%} confidence"
NOT_SIGNIFICANT = f"no significant difference (paired over seeds, {CONFIDENCE:.0%})"
NOT_FINISHED = "not finished"


def paper_table() -> dict[str, Any]:
    """Return the paper's Table I with its source."""
    text = (files("flamma.reports") / "paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def table_metrics(rows: Sequence[Row]) -> dict[str, Metric]:
    """Return the metrics of the main table: those of the page that terminals show too."""
    wanted = told_by(rows, "table")
    return {name: metric for name, metric in _page_metrics(rows).items() if name in wanted}


def _page_metrics(rows: Sequence[Row]) -> dict[str, Metric]:
    """Return the metrics of the page; those at equal work have a table of their own."""
    found = told_by(rows, "page")
    return {n: metric for n, metric in found.items() if not isinstance(metric, EqualWorkMetric)}


def _main_metrics(view: ComparisonView, rows: Sequence[Row]) -> dict[str, Metric]:
    """Return the metrics that the main table has for every split."""
    wanted = metrics_in_lines(rows, bool(view.families))
    return {name: metric for name, metric in _page_metrics(rows).items() if name in wanted}


def main_table(view: ComparisonView, dataset: str) -> Table:
    """Return the paper's layout: one line per strategy, the metrics of every split side by side."""
    comparison = view.comparison
    rows = view.by_family(row for row in comparison.rows if row.dataset == dataset)
    splits = list(dict.fromkeys(row.split for row in rows))
    strategies = list(dict.fromkeys(row.strategy for row in rows))
    metrics = _main_metrics(view, rows)
    printed = paper_table().get(dataset, {})
    header = ["Algorithm"]
    spent = SPENT if view.families else ()
    alone = bool(spent) and len(splits) == 1  # the caption tells the split
    header += column_titles(metrics, splits, alone)
    header += [title for _, title, _ in spent]
    lines: list[list[str | TableCell]] = []
    for strategy in strategies:
        by_split = {row.split: row for row in rows if row.strategy == strategy}
        cells: list[str | TableCell] = [label_of(strategy)]
        for split in splits:
            theirs = printed.get(split, {}).get(strategy, {})
            for name in metrics:
                note = "paper: {:.2f} ± {:.2f}".format(*theirs[name]) if name in theirs else ""
                cells.append(_cell(comparison, by_split.get(split), name, note))
        own = list(by_split.values())
        cells += [TableCell(spent_text(own, name, unit)) for name, _, unit in spent]
        lines.append(cells)
    notes = [
        *_table_notes(rows, printed),
        *further_notes(metrics, rows),
        *comparison.evaluation_notes(dataset),
    ]
    groups = _groups(view, strategies)
    caption = f"{dataset}, {splits[0]}" if alone else dataset
    return Table(f"table-{dataset}", caption, header, lines, notes, groups)


def _groups(view: ComparisonView, strategies: Iterable[str]) -> list[str]:
    """Return the family of every line of a table; nothing if there are none."""
    return [view.family(strategy) for strategy in strategies] if view.families else []


def further_table(view: ComparisonView, dataset: str) -> Table:
    """Return the other metrics of the page: one line per split and strategy."""
    comparison = view.comparison
    rows = view.by_family(row for row in comparison.rows if row.dataset == dataset)
    main = {*_main_metrics(view, comparison.rows)}
    main |= {name for name, _, _ in SPENT} if view.families else set()
    metrics = {
        name: metric
        for name, metric in _page_metrics(comparison.rows).items()
        if name not in main and any(name in row.mean for row in comparison.rows)
    }
    header = ["Algorithm", *(capitalised(column_text(metric)) for metric in metrics.values())]
    lines: list[list[str | TableCell]] = [
        [
            f"{label_of(row.strategy)} ({row.split})",
            *(_cell(comparison, row, name) for name in metrics),
        ]
        for row in rows
    ]
    last = averaged_rounds(rows)
    notes = [f"{capitalised(m.label)}: {m.aggregation(last)}." for m in metrics.values()]
    notes += comparison.evaluation_notes(dataset)
    groups = _groups(view, (row.strategy for row in rows))
    return Table(f"further-{dataset}", dataset, header, lines, [" ".join(notes)], groups)


def _labelled(view: ComparisonView, name: str) -> str:
    return METRICS[name].scored_by(view.score_kind).label


def equal_work_tables(view: ComparisonView) -> list[Table]:
    """Return the metrics at equal work, if the table tells them."""
    rows = view.comparison.rows
    equal = {
        name: metric for name in METRICS if isinstance(metric := METRICS[name], EqualWorkMetric)
    }
    metrics = {n: metric for n, metric in equal.items() if rows and all(n in r.mean for r in rows)}
    if not metrics:
        return []
    header = ["Algorithm"]
    for dataset, split in view.panels:
        header += [
            f"{capitalised(_labelled(view, metric.of))} ({dataset}, {split})"
            for metric in metrics.values()
        ]
    lines: list[list[str | TableCell]] = []
    for strategy in view.strategies:
        cells: list[str | TableCell] = [label_of(strategy)]
        for panel in view.panels:
            own = next((row for row in view.rows(*panel) if row.strategy == strategy), None)
            cells += [_cell(view.comparison, own, name) for name in metrics]
        lines.append(cells)
    note = (
        f"Mean over {UNKNOWN_LAST_ROUNDS} before a run has spent more local epochs than the "
        "run of the same data and split with the fewest spends in all."
    )
    notes = [note, *view.comparison.evaluation_notes()]
    groups = _groups(view, view.strategies)
    return [Table("equal-work", "At equal work", header, lines, notes, groups)]


def hashes_table(view: ComparisonView) -> Table:
    """Return the beginnings of the hashes of the final weights, one for each seed."""
    rows = [row for row in view.by_family(view.comparison.rows) if row.weights_sha256]
    lines: list[list[str | TableCell]] = [
        [row.dataset, row.split, label_of(row.strategy), " ".join(short_hashes(row))]
        for row in rows
    ]
    header = ["Data", "Split", "Algorithm", "Weights by seed"]
    note = (
        "The first digits of the SHA-256 of the final weights; flamma compare --check table.json "
        "repeats the runs and compares them."
    )
    groups = _groups(view, (row.strategy for row in rows))
    return Table("weights", "Final weights", header, lines, [note], groups)


def _cell(comparison: Comparison, row: Row | None, name: str, note: str = "") -> str | TableCell:
    """Return a metric of a row as mean ± standard deviation over seeds, marked if it is best."""
    if row is None:
        return NOT_FINISHED
    if name not in row.mean:
        return "-"
    mean, std, metric = row.mean[name], row.std[name], METRICS[name]
    texts = row.texts(name)
    if "table" not in metric.shown and not metric.unit.startswith("%"):
        texts = value_text(metric, mean), value_text(metric, std, 2)
    return TableCell(with_spread(row, *texts), mean, std, comparison.mark(row, name), note)


def _table_notes(rows: Sequence[Row], printed: dict[str, Any]) -> list[str]:
    several = min(len(row.seeds) for row in rows) > 1
    notes = [explain_marks("Bold", "Underlined") if several else ONE_SEED]
    if printed:
        found = paper_table()
        notes.append(f"Paper: {found['source']}. {found['caution']}")
    return notes

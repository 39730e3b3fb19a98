"""The table of a comparison as text: for terminals, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from flamma.experiments.best import explain_marks
from flamma.experiments.families import families_compared, family_name
from flamma.experiments.manifest import signed
from flamma.experiments.presented import text_table
from flamma.experiments.statistics_text import statistics_note, statistics_of, statistics_table
from flamma.experiments.table import (
    TABLE_VERSION,
    Comparison,
    Row,
    capitalised,
    scored_alike,
    told_by,
    with_spread,
)
from flamma.files import write_atomically
from flamma.metrics import METRICS, BesideLocalMetric, Metric, TimeToMetric, shown_in
from flamma.metrics.kinds import last_rounds
from flamma.strategies import label_of

SHORT_HASH_DIGITS = 12

Marks = tuple[tuple[str, str], tuple[str, str]]
"""What stands before and after the best value, and before and after values as good as the best."""


STARS: Marks = (("", "*"), ("", "*"))
"""The marks of plain text."""

LONGEST_LINE = 100
"""Characters of a line of notes in plain text."""

ONE_SEED = "With a single seed no difference can be tested, so nothing is marked."
"""What stands in place of how the best is found."""

SPENT = (
    ("epochs_total", "Local epochs", 1.0),
    ("bytes_up", "MB up", 1e6),
    ("bytes_down", "MB down", 1e6),
    ("seconds", "Seconds", 1.0),
)
"""What a strategy's runs took: metrics, each with the title of its column and its unit."""


def write_tables(comparison: Comparison, folder: Path) -> None:
    """Write table.json, table.csv and table.md."""
    found = [own.as_json() for own in statistics_of(comparison.rows)]
    across = {"across_settings": found} if found else {}
    texts = {
        "table.json": signed({"version": TABLE_VERSION, **comparison.as_json(), **across}),
        "table.csv": _as_csv(comparison),
        "table.md": as_markdown(comparison) + _hashes(comparison),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())


def layout(comparison: Comparison, marks: Marks) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return the paper's layout: per dataset a header and one line of cells per strategy.

    A metric is the mean over seeds ± the standard deviation, which a single seed has not, with the
    marks of the best. Of many
    strategies more columns are told, and before each family stands a line with its name alone.
    """
    families = families_compared(comparison)
    spent = SPENT if families else SPENT[:1]
    tables = []
    for dataset in dict.fromkeys(row.dataset for row in comparison.rows):
        rows = [row for row in comparison.rows if row.dataset == dataset]
        shown = metrics_in_lines(rows, bool(families))
        splits = list(dict.fromkeys(row.split for row in rows))
        alone = bool(families) and len(splits) == 1
        header = ["Algorithm", *column_titles(shown, splits, alone)]
        header += [title for _, title, _ in spent]
        lines: dict[str, list[str]] = {}
        for strategy in dict.fromkeys(row.strategy for row in rows):
            own = [row for row in rows if row.strategy == strategy]
            by_split = {row.split: row for row in own}
            cells = [
                _cell(comparison, by_split.get(split), metric, marks)
                for split in splits
                for metric in shown
            ]
            took = [spent_text(own, metric, unit) for metric, _, unit in spent]
            lines[strategy] = [label_of(strategy), *cells, *took]
        caption = f"{dataset}, {splits[0]}" if alone else dataset
        tables.append((caption, header, _under_families(lines, families)))
    return tables


def column_titles(metrics: Mapping[str, Metric], splits: Sequence[str], alone: bool) -> list[str]:
    """Return the titles of the metrics of every split, which need not be told of one alone."""
    return [
        capitalised(metric.label) if alone else f"{capitalised(metric.label)} ({split})"
        for split in splits
        for metric in metrics.values()
    ]


def metrics_in_lines(rows: Sequence[Row], many: bool) -> dict[str, Metric]:
    """Return the metrics of a strategy's line for each split; the worst tenth too if many."""
    shown = told_by(rows, "table")
    wanted = {*shown, "worst_10"} if many else {*shown}
    kind = scored_alike(rows)
    return {name: METRICS[name].scored_by(kind) for name in METRICS if name in wanted}


def spent_text(rows: Sequence[Row], metric: str, unit: float) -> str:
    """Return what the runs of a strategy took, mean over its rows, in a unit of so many."""
    known = [row.mean[metric] / unit for row in rows if metric in row.mean]
    if not known:
        return "-"
    mean = sum(known) / len(known)
    if unit == 1 and (mean >= 10 or mean.is_integer()):
        return f"{mean:.0f}"
    return f"{mean:.1f}" if mean >= 1 else f"{mean:.2g}"


def _under_families(
    lines: Mapping[str, list[str]], families: Mapping[str, Sequence[str]]
) -> list[list[str]]:
    """Return the lines of strategies, each family under a line of one cell with its name."""
    if not families:
        return list(lines.values())
    found = []
    for family, members in families.items():
        own = [lines[name] for name in members if name in lines]
        found += [[family_name(family)], *own] if own else []
    return found


def _cell(comparison: Comparison, row: Row | None, metric: str, marks: Marks) -> str:
    if row is None or metric not in row.mean:
        return "-"
    text = with_spread(row, *row.texts(metric))
    mark = comparison.mark(row, metric)
    before, after = ("", "") if not mark else marks[0] if mark == "best" else marks[1]
    return f"{before}{text}{after}"


def as_markdown(comparison: Comparison) -> str:
    """Return the tables as Markdown."""
    tables = layout(comparison, (("**", "**"), ("*", "*")))
    parts = [_markdown_table(*table) for table in tables]
    if found := statistics_of(comparison.rows):
        parts += [_markdown_table(*statistics_table(own)) for own in found]
        parts.append(statistics_note(found))
    marks = mark_notes(comparison, "Bold", "Italics")
    notes = " ".join([legend(comparison.rows), *marks, *comparison.evaluation_notes()])
    return "\n\n".join([*parts, notes]) + "\n"


def as_text(comparison: Comparison, origins: Sequence[str] = ()) -> str:
    """Return the tables as plain text, and under them what their numbers and marks mean.

    ``origins`` are further notes: where the settings of the runs come from.
    """
    parts = []
    for caption, header, lines in layout(comparison, STARS):
        parts.append(f"{caption}\n{text_table(header, _aligned(lines))}")
    found = statistics_of(comparison.rows)
    for caption, header, lines in map(statistics_table, found):
        parts.append(f"{caption}\n{text_table(header, lines)}")
    notes = [
        *([statistics_note(found), ""] if found else []),
        legend(comparison.rows),
        *comparison.evaluation_notes(),
        *origins,
        *mark_notes(comparison, "*", "*"),
    ]
    parts.append("\n".join(fill(note, LONGEST_LINE, break_on_hyphens=False) for note in notes))
    return "\n\n".join(parts)


def _aligned(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return cells with a space where others of their column have a star."""
    starred = {k for line in lines for k, cell in enumerate(line) if cell.endswith("*")}
    return [
        [cell + " " * (k in starred and not cell.endswith("*")) for k, cell in enumerate(line)]
        for line in lines
    ]


def _markdown_table(caption: str, header: list[str], lines: list[list[str]]) -> str:
    """Return a table as Markdown; a line of one cell is the name of a family."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    headed = [
        line if len(line) > 1 else [f"**{line[0]}**", *[""] * len(rule[1:])] for line in lines
    ]
    rows = [header, rule, *headed]
    return f"### {caption}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _hashes(comparison: Comparison) -> str:
    """Return the hashes of the final weights as Markdown, shortened."""
    lines = []
    for row in comparison.rows:
        cells = (row.dataset, row.split, label_of(row.strategy), " ".join(short_hashes(row)))
        lines.append(f"| {' | '.join(cells)} |")
    title = "SHA-256 of the final weights, one for each seed (whole ones are in table.json):"
    header = "| Data | Split | Algorithm | Weights |\n| --- | --- | --- | --- |"
    return "\n".join(["", title, "", header, *lines, ""])


def short_hashes(row: Row) -> list[str]:
    """Return the beginnings of the hashes of a row's final weights, for people to compare."""
    return [digest[:SHORT_HASH_DIGITS] or "-" for digest in row.weights_sha256]


def legend(rows: Sequence[Row]) -> str:
    """Return what the numbers of a table are."""
    told = told_by(rows, "table")
    units = [f"{metric.label} in {metric.unit}" for metric in told.values() if metric.unit]
    beside = [f" {note}" for note in further_notes(told, rows)]
    several = any(len(row.seeds) > 1 for row in rows)
    spread = ", ± standard deviation over seeds" if several else ""
    best = "" if several else f" {ONE_SEED}"
    return f"Mean over {averaged_rounds(rows)}{spread}; {', '.join(units)}.{best}{''.join(beside)}"


def averaged_rounds(rows: Sequence[Row]) -> str:
    """Return over which rounds the means of rows are, and which rows differ from most others."""
    rows_of: dict[str, list[Row]] = {}
    for row in rows:
        rows_of.setdefault(last_rounds(row.rounds_averaged), []).append(row)
    usual, *others = sorted(rows_of, key=lambda text: -len(rows_of[text])) or [last_rounds()]
    if not others:
        return usual
    differing = [f"{_which(rows_of[text], rows)}: {text}" for text in others]
    return f"{usual} ({'; '.join(differing)})"


def _which(some: Sequence[Row], rows: Sequence[Row]) -> str:
    """Return the names of some rows: of whole datasets, or else of strategies."""
    datasets = list(dict.fromkeys(row.dataset for row in some))
    if sum(row.dataset in datasets for row in rows) == len(some):
        return ", ".join(datasets)
    return ", ".join(f"{label_of(row.strategy)} on {row.dataset} ({row.split})" for row in some)


def mark_notes(comparison: Comparison, best: str, tied: str) -> list[str]:
    """Return what the marks of a table mean, nothing where a single seed marks nothing."""
    several = any(len(row.seeds) > 1 for row in comparison.rows)
    return [explain_marks(best, tied)] if several else []


def further_notes(metrics: Mapping[str, Metric], rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each of these metrics that is beside training alone, or a time."""
    return [
        f"{capitalised(metric.label)}: {metric.aggregation(averaged_rounds(rows))}."
        for metric in metrics.values()
        if isinstance(metric, BesideLocalMetric | TimeToMetric)
    ]


def _as_csv(comparison: Comparison) -> str:
    buffer = io.StringIO()
    columns = ["dataset", "split", "strategy", "seeds"]
    metrics = list(shown_in("csv"))
    for metric in metrics:
        columns += [f"{metric}_mean", f"{metric}_std"]
    columns += ["clients_sampled", "own_models"]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*columns, "weights_sha256"])
    for row in comparison.rows:
        cells: list[object] = [row.dataset, row.split, row.strategy, len(row.seeds)]
        for metric in metrics:
            cells += [row.mean.get(metric, ""), row.std.get(metric, "")]
        cells += ["" if row.sample is None else row.sample[0], "yes" if row.personal else ""]
        writer.writerow([*cells, " ".join(row.weights_sha256)])
    return buffer.getvalue()

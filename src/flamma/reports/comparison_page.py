"""The page of a comparison."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from flamma.experiments.best import CONFIDENCE
from flamma.experiments.table import Comparison, Row, capitalised
from flamma.metrics import METRICS, EqualWorkMetric, Metric, shown_in
from flamma.metrics.kinds import LAST_ROUNDS
from flamma.reports import comparison_charts as charts
from flamma.reports import game_charts
from flamma.reports.comparing import ComparisonView, read_comparison
from flamma.reports.document import (
    Code,
    Document,
    Explorer,
    Facts,
    Section,
    Table,
    TableCell,
    notice,
)
from flamma.reports.metric_text import label_text, value_text
from flamma.strategies import label_of

MAX_NOTICES = 12
MAX_FACTS = 8
NOT_FINISHED = "not finished"
HOW_BEST = f"differences paired over seeds, {CONFIDENCE:.0%} confidence"
VERSION_COLUMNS = ("flamma", "python", "numpy", "torch", "trainer")


def comparison_document(path: Path) -> Document:
    """Return the page of a comparison's directory, of what can be read of it."""
    view = read_comparison(path)
    comparison = view.comparison
    runs = [run for by_seed in view.runs.values() for run in by_seed.values()]
    rounds = sorted({run.planned_rounds for run in runs})
    seeds = sorted({len(row.seeds) for row in comparison.rows})
    parts = [
        f"{len(view.strategies)} strategies",
        f"{len(view.panels)} settings" if len(view.panels) != 1 else "1 setting",
        f"{'-'.join(map(str, seeds))} seeds" if seeds else "no finished run",
        *([f"{'-'.join(map(str, rounds))} rounds"] if rounds else []),
    ]
    sections = [section for section in _sections(view) if section.items]
    return Document(
        kind="comparison",
        title=f"Comparison: {comparison.name}",
        subtitle=", ".join(parts),
        notices=_notices(view),  # drawing may have added some
        facts=_facts(view),
        sections=sections,
        footer=f"Made by FLamma from {path.name or path}",
    )


def paper() -> dict[str, Any]:
    """Return the paper's Table I with its source."""
    text = (files("flamma.reports") / "paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _notices(view: ComparisonView) -> list[str]:
    found = [notice(text) for text in view.problems]
    if len(found) > MAX_NOTICES:
        found = [*found[:MAX_NOTICES], f"And {len(found) - MAX_NOTICES} more."]
    return found


def _facts(view: ComparisonView) -> Facts:
    """Return the best strategy of every panel, by each metric of the main table."""
    facts = []
    for dataset, split in view.panels:
        for name, metric in _table_metrics().items():
            best = view.comparison.best(dataset, split, name)
            extreme = "highest" if metric.better == "higher" else "lowest"
            title = f"{extreme} {metric.label}: {dataset}, {split}"
            names = [label_of(strategy) for strategy in best]
            if len(best) == 1:
                row = view.comparison.row(dataset, split, best[0])
                value = f"{row.mean[name]:.1f} ± {row.std[name]:.1f} {metric.unit}".rstrip()
                facts.append((title, names[0], f"{value}; {HOW_BEST}"))
            elif len(best) == 2:
                note = f"cannot be told apart by {HOW_BEST}"
                facts.append((title, " or ".join(names), note))
            elif best:
                note = f"{', '.join(names)} cannot be told apart by {HOW_BEST}"
                facts.append((title, "not decided", note))
    return Facts(facts[:MAX_FACTS])


def _table_metrics() -> dict[str, Metric]:
    """Return the metrics of the main table: those of the page that terminals show too."""
    wanted = shown_in("table")
    return {name: metric for name, metric in _page_metrics().items() if name in wanted}


def _page_metrics() -> dict[str, Metric]:
    """Return the metrics of the page; those at equal work have a table of their own."""
    found = shown_in("page")
    return {n: metric for n, metric in found.items() if not isinstance(metric, EqualWorkMetric)}


def _sections(view: ComparisonView) -> list[Section]:
    sections = []
    if view.comparison.rows:
        datasets = list(dict.fromkeys(dataset for dataset, _ in view.panels))
        tables = [_main_table(view.comparison, dataset) for dataset in datasets]
        further = [_further_table(view, dataset) for dataset in datasets]
        sections.append(
            Section(
                "table",
                "The table",
                "Accuracy is the mean over clients in percent, variance that of the clients' "
                f"accuracies in percent squared; both are means over the last {LAST_ROUNDS} "
                "rounds, ± the standard deviation over seeds.",
                [*tables, *(table for table in further if len(table.header) > 1)],
            )
        )
    if view.runs:
        sections += _chart_sections(view)
    sections.append(_reproduction(view))
    return sections


def _chart_sections(view: ComparisonView) -> list[Section]:
    groups = [
        (
            "rounds",
            "Over the rounds",
            "The paper's Figs. 4 and 5: metrics as training goes on.",
            [charts.over_rounds(view)],
        ),
        (
            "fairness",
            "Accuracy and fairness",
            "Whether fairness costs accuracy, and how the worst clients fare.",
            [charts.plane(view), charts.distribution(view), charts.tails(view)],
        ),
        (
            "work",
            "Work and traffic",
            "Metrics by the local epochs and bytes that were spent.",
            [charts.by_work(view)],
        ),
    ]
    sections = []
    for name, title, lead, found in groups:
        items: list[Any] = [group for group in found if group.charts]
        items += _equal_work(view) if name == "work" else []
        sections.append(Section(name, title, lead, items))
    games = _games(view)
    if games:
        sections.append(
            Section(
                "explorer",
                "Game explorer",
                "The games that were played in these runs: change the rules or one client and see "
                "how the equilibrium moves.",
                [Explorer(games)],
            )
        )
    return sections


def _games(view: ComparisonView) -> list[dict[str, Any]]:
    """Return the games of three rounds of the first run of every panel that has any."""
    found = []
    for dataset, split in view.panels:
        for strategy in view.strategies:
            runs = list(view.runs.get((dataset, split, strategy), {}).values())
            games = game_charts.explorer_games(runs[0]) if runs else []
            if games:
                where = f"{dataset}, {split}, {label_of(strategy)}"
                chosen = dict.fromkeys((0, len(games) // 2, len(games) - 1))
                found += [games[k] | {"label": f"{where}: {games[k]['label']}"} for k in chosen]
                break
    return found


def _main_table(comparison: Comparison, dataset: str) -> Table:
    """Return the paper's layout: one line per strategy, the metrics of every split side by side."""
    rows = [row for row in comparison.rows if row.dataset == dataset]
    splits = list(dict.fromkeys(row.split for row in rows))
    metrics = _table_metrics()
    printed = paper().get(dataset, {})
    header = ["Algorithm"]
    header += [f"{capitalised(m.label)} ({split})" for split in splits for m in metrics.values()]
    lines: list[list[str | TableCell]] = []
    for strategy in dict.fromkeys(row.strategy for row in rows):
        by_split = {row.split: row for row in rows if row.strategy == strategy}
        cells: list[str | TableCell] = [label_of(strategy)]
        for split in splits:
            theirs = printed.get(split, {}).get(strategy, {})
            for name in metrics:
                note = "paper: {:.2f} ± {:.2f}".format(*theirs[name]) if name in theirs else ""
                cells.append(_cell(comparison, by_split.get(split), name, note))
        lines.append(cells)
    return Table(f"table-{dataset}", dataset, header, lines, _table_notes(rows, printed))


def _further_table(view: ComparisonView, dataset: str) -> Table:
    """Return the other metrics of the page: one line per split and strategy."""
    main = _table_metrics()
    metrics = {
        name: metric
        for name, metric in _page_metrics().items()
        if name not in main and any(name in row.mean for row in view.comparison.rows)
    }
    header = ["Algorithm", *(capitalised(label_text(metric)) for metric in metrics.values())]
    lines: list[list[str | TableCell]] = [
        [
            f"{label_of(row.strategy)} ({row.split})",
            *(_cell(view.comparison, row, name) for name in metrics),
        ]
        for row in view.comparison.rows
        if row.dataset == dataset
    ]
    notes = [f"{capitalised(m.label)}: {m.aggregation}." for m in metrics.values()]
    caption = f"{dataset}: further metrics"
    return Table(f"further-{dataset}", caption, header, lines, [" ".join(notes)])


def _equal_work(view: ComparisonView) -> list[Table]:
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
            f"{capitalised(METRICS[metric.of].label)} ({dataset}, {split})"
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
        f"Mean of the last {LAST_ROUNDS} rounds before a run has spent more local epochs than the "
        "run of the same data and split with the fewest spends in all."
    )
    return [Table("equal-work", "At equal work", header, lines, [note])]


def _cell(comparison: Comparison, row: Row | None, name: str, note: str = "") -> str | TableCell:
    """Return a metric of a row as mean ± standard deviation over seeds, marked if it is best."""
    if row is None:
        return NOT_FINISHED
    if name not in row.mean:
        return "-"
    mean, std, metric = row.mean[name], row.std[name], METRICS[name]
    text = f"{mean:.2f} ± {std:.2f}"
    if "table" not in metric.shown and metric.unit not in ("%", "%²"):
        text = f"{value_text(metric, mean)} ± {value_text(metric, std)}"
    return TableCell(text, mean, std, comparison.mark(row, name), note)


def _table_notes(rows: Sequence[Row], printed: dict[str, Any]) -> list[str]:
    if min(len(row.seeds) for row in rows) < 2:
        notes = ["With a single seed one cannot tell which strategy is best, so nothing is marked."]
    else:
        notes = [
            f"Best is decided by {HOW_BEST}: bold is the best, underlined are those that cannot "
            "be told from the best."
        ]
    if printed:
        found = paper()
        notes.append(f"Paper: {found['source']}. {found['caution']}")
    return notes


def _reproduction(view: ComparisonView) -> Section:
    runs = [run for by_seed in view.runs.values() for run in by_seed.values()]
    commands = {
        shlex.join([Path(str(command[0])).name, *map(str, command[1:])])
        for run in runs
        if isinstance(command := run.about.get("command"), list) and command
    }
    items: list[Any] = [Code("The command of these runs", text) for text in sorted(commands)[:3]]
    versions = {tuple(str(run.about.get(key, "?")) for key in VERSION_COLUMNS) for run in runs}
    if versions:
        rows = [list(row) for row in sorted(versions)]
        items.append(Table("versions", "Versions", VERSION_COLUMNS, rows))
    first = {key: next(iter(by_seed.values())) for key, by_seed in view.runs.items()}
    configs = [
        f"# {dataset}, {split}, {label_of(strategy)}\n{run.config_text}"
        for (dataset, split, strategy), run in first.items()
        if run.config_text
    ]
    if configs:
        items.append(Code("The configurations (first seed)", "\n".join(configs), folded=True))
    return Section("again", "Run it again", "Everything that determines these runs.", items)

"""The page of a comparison."""

from __future__ import annotations

import shlex
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from flamma.experiments.table import Comparison
from flamma.reports import comparison_charts as charts
from flamma.reports import game_charts
from flamma.reports.comparing import ComparisonRecord, clear_best, read_comparison
from flamma.reports.comparison_charts import label
from flamma.reports.document import (
    Cell,
    Code,
    Document,
    Explorer,
    Facts,
    Section,
    Table,
    figures,
)

MOST_PROBLEMS = 12


def comparison_document(path: Path) -> Document:
    """Return the page of a comparison's directory, of what can be read of it."""
    record = read_comparison(path)
    comparison = record.comparison
    runs = [run for found in record.runs.values() for run in found]
    rounds = sorted({run.planned_rounds for run in runs})
    seeds = sorted({row.seeds for row in comparison.rows})
    parts = [
        f"{len(record.strategies)} strategies",
        f"{len(record.panels)} settings" if len(record.panels) != 1 else "1 setting",
        f"{'-'.join(map(str, seeds))} seeds" if seeds else "no finished run",
        *([f"{'-'.join(map(str, rounds))} rounds"] if rounds else []),
    ]
    return Document(
        kind="comparison",
        title=f"Comparison: {comparison.name}",
        subtitle=", ".join(parts),
        notices=_notices(record),
        facts=_facts(record),
        sections=[section for section in _sections(record) if section.items],
        footer=f"Made by FLamma from {path.name or path}",
    )


def paper() -> dict[str, Any]:
    """Return the paper's Table I with its source."""
    text = (files("flamma.reports") / "paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _notices(record: ComparisonRecord) -> list[str]:
    found = [f"{text[0].upper()}{text[1:]}." for text in record.problems]
    if len(found) > MOST_PROBLEMS:
        rest = len(found) - MOST_PROBLEMS
        found = [*found[:MOST_PROBLEMS], f"And {rest} more of the kind."]
    return found


def _facts(record: ComparisonRecord) -> Facts:
    facts = []
    for dataset, split in record.panels:
        for measure, words in (("accuracy", "most accurate"), ("variance", "fairest")):
            best = clear_best(record.comparison, dataset, split, measure)
            unit = "%" if measure == "accuracy" else "%²"
            where = f"{dataset}, {split}"
            if len(best) == 1:
                row = record.comparison.row(dataset, split, best[0])
                value = f"{row.mean[measure]:.1f} ± {row.std[measure]:.1f} {unit}"
                facts.append((f"{words}: {where}", label(best[0]), value))
            elif len(best) == 2:
                names = " or ".join(label(name) for name in best)
                facts.append((f"{words}: {where}", names, "the spread allows both"))
            elif best:
                names = ", ".join(label(name) for name in best)
                facts.append((f"{words}: {where}", "not decided", f"the spread allows {names}"))
    return Facts(facts[:8])


def _sections(record: ComparisonRecord) -> list[Section]:
    sections = []
    if record.comparison.rows:
        sections.append(
            Section(
                "table",
                "The table",
                "Accuracy is the mean over clients in percent, variance that of the clients' "
                "accuracies in percent squared; both are means over the last ten rounds, ± the "
                "standard deviation over seeds.",
                [_table(record.comparison, dataset) for dataset in _datasets(record)],
            )
        )
    if record.runs:
        sections += _chart_sections(record)
    sections.append(_again(record))
    return sections


def _chart_sections(record: ComparisonRecord) -> list[Section]:
    sections = [
        Section(
            "rounds",
            "Over the rounds",
            "The paper's Figs. 4 and 5: accuracy and variance as training goes on.",
            [charts.over_rounds(record)],
        ),
        Section(
            "fairness",
            "Accuracy and fairness",
            "Whether fairness was paid for with accuracy, and who is left behind.",
            [charts.plane(record), charts.distribution(record), charts.tails(record)],
        ),
        Section(
            "work",
            "What the work bought",
            "Local epochs and bytes spent, against accuracy and variance.",
            [charts.work(record), *_equal_work(record)],
        ),
    ]
    games = _games(record)
    if games:
        sections.append(
            Section(
                "explorer",
                "Explore the game",
                "The games that were played in these runs: change the rules or one client and see "
                "where the equilibrium goes.",
                [Explorer(games)],
            )
        )
    return sections


def _games(record: ComparisonRecord) -> list[dict[str, Any]]:
    """Return some rounds' games of the first run of every panel that has one."""
    found = []
    for dataset, split in record.panels:
        for strategy in record.strategies:
            runs = record.runs.get((dataset, split, strategy), [])
            games = game_charts.explorer_games(runs[0]) if runs else []
            if games:
                chosen = {0: 0, len(games) // 2: 0, len(games) - 1: 0}
                found += [
                    {
                        **games[k],
                        "label": f"{dataset}, {split}, {label(strategy)}: {games[k]['label']}",
                    }
                    for k in chosen
                ]
                break
    return found


def _datasets(record: ComparisonRecord) -> list[str]:
    return list(dict.fromkeys(dataset for dataset, _ in record.panels))


def _table(comparison: Comparison, dataset: str) -> Table:
    rows = [row for row in comparison.rows if row.dataset == dataset]
    splits = list(dict.fromkeys(row.split for row in rows))
    printed = paper().get(dataset, {})
    header = ["Algorithm"]
    for split in splits:
        header += [f"Accuracy ({split})", f"Variance ({split})"]
    header.append("Local epochs")
    marks = {
        (split, measure): clear_best(comparison, dataset, split, measure)
        for split in splits
        for measure in ("accuracy", "variance")
    }
    lines: list[list[str | Cell]] = []
    for strategy in dict.fromkeys(row.strategy for row in rows):
        cells: list[str | Cell] = [label(strategy)]
        own = [row for row in rows if row.strategy == strategy]
        for split in splits:
            row = next((row for row in own if row.split == split), None)
            theirs = printed.get(split, {}).get(strategy, {})
            for measure in ("accuracy", "variance"):
                if row is None:
                    cells.append("not there yet")
                    continue
                best = marks[split, measure]
                mark = "" if strategy not in best else "best" if len(best) == 1 else "tied"
                mean, std = row.mean[measure], row.std[measure]
                note = "paper: {:.2f} ± {:.2f}".format(*theirs[measure]) if theirs else ""
                cells.append(Cell(f"{mean:.2f} ± {std:.2f}", mean, std, mark, note))
        epochs = sum(row.mean["epochs_total"] for row in own) / len(own)
        cells.append(Cell(figures(epochs), epochs))
        lines.append(cells)
    return Table(f"table-{dataset}", dataset, header, lines, _table_notes(comparison, printed))


def _equal_work(record: ComparisonRecord) -> list[Table]:
    """Return accuracy and variance at equal work, if the table tells them."""
    measures = ("equal_work_accuracy", "equal_work_variance")
    rows = record.comparison.rows
    if not rows or not all(measure in row.mean for row in rows for measure in measures):
        return []
    header = ["Algorithm"]
    for dataset, split in record.panels:
        header += [f"Accuracy ({dataset}, {split})", f"Variance ({dataset}, {split})"]
    lines: list[list[str | Cell]] = []
    for strategy in record.strategies:
        cells: list[str | Cell] = [label(strategy)]
        for panel in record.panels:
            own = [row for row in record.rows(*panel) if row.strategy == strategy]
            for measure in measures:
                mean, std = (own[0].mean[measure], own[0].std[measure]) if own else (0.0, 0.0)
                text = f"{mean:.2f} ± {std:.2f}"
                cells.append(Cell(text, mean, std) if own else "not there yet")
        lines.append(cells)
    note = (
        "Mean of the last ten rounds before a run has spent more local epochs than the thriftiest "
        "run of the same data and split spends in all."
    )
    return [Table("equal-work", "At equal work", header, lines, [note])]


def _table_notes(comparison: Comparison, printed: dict[str, Any]) -> list[str]:
    if min(row.seeds for row in comparison.rows) < 2:
        notes = ["There is a single seed, so no spread to judge by, and nothing is marked as best."]
    else:
        notes = [
            "Bold is the best, marked only where its ± range meets no other; underlined are those "
            "that cannot be told from the best at this spread."
        ]
    if printed:
        found = paper()
        notes.append(f"Paper: {found['source']}. {found['caution']}")
    return notes


def _again(record: ComparisonRecord) -> Section:
    items: list[Any] = []
    commands = {
        shlex.join([Path(str(command[0])).name, *map(str, command[1:])])
        for found in record.runs.values()
        for run in found
        if isinstance(command := run.about.get("command"), list) and command
    }
    for command in sorted(commands)[:3]:
        items.append(Code("What was typed", command))
    configs = [
        f"# {dataset}, {split}, {label(strategy)}\n{runs[0].config_text}"
        for (dataset, split, strategy), runs in record.runs.items()
        if runs[0].config_text
    ]
    versions = {
        tuple(
            str(run.about.get(key, "?"))
            for key in ("flamma", "python", "numpy", "torch", "trainer")
        )
        for found in record.runs.values()
        for run in found
    }
    if versions:
        header = ["flamma", "python", "numpy", "torch", "trainer"]
        items.append(Table("versions", "Versions", header, [list(row) for row in sorted(versions)]))
    if configs:
        items.append(Code("The configurations (seed 0 of each)", "\n".join(configs), folded=True))
    return Section("again", "Run it again", "Everything that determines these runs.", items)

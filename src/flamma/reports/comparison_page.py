"""The page of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flamma.experiments.summary import sample_text
from flamma.experiments.table import capitalised
from flamma.experiments.table_text import averaged_rounds
from flamma.reports import comparison_charts as charts
from flamma.reports import comparison_tables as tables
from flamma.reports import game_charts
from flamma.reports.comparing import ComparisonView, read_comparison
from flamma.reports.document import (
    Code,
    Document,
    Explorer,
    Facts,
    Section,
    Table,
    notice,
)
from flamma.reports.multiples import family_title
from flamma.reports.palette import looks_of
from flamma.reports.plane_chart import plane
from flamma.reports.progress import comparison_progress
from flamma.reports.statistics_charts import statistics_section
from flamma.strategies import label_of

MAX_NOTICES = 12
MAX_FACTS = 8
MAX_NAMES = 6
VERSION_COLUMNS = ("flamma", "python", "numpy", "torch", "trainer")


def comparison_document(path: Path) -> Document:
    """Return the page of a comparison's directory, of what can be read of it."""
    view = read_comparison(path)
    comparison, rows = view.comparison, view.comparison.rows
    runs = [run for by_seed in view.runs.values() for run in by_seed.values()]
    rounds = sorted({run.planned_rounds for run in runs})
    seeds = sorted({len(row.seeds) for row in rows})
    parts = [
        f"{len(view.strategies)} strategies",
        f"{len(view.panels)} settings" if len(view.panels) != 1 else "1 setting",
        "1 seed" if seeds == [1] else f"{'-'.join(map(str, seeds)) or 'no'} seeds",
        *([f"{'-'.join(map(str, rounds))} rounds"] if rounds else []),
        *(["accuracies over samples of the clients"] if any(r.sample for r in rows) else []),
        *(["some of clients' own models"] if any(r.personal for r in rows) else []),
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
        groups={family: family_title(family) for family in view.families},
        looks=looks_of(view.strategies),
        progress=comparison_progress(path, runs),
    )


def _notices(view: ComparisonView) -> list[str]:
    found = [notice(text) for text in view.problems]
    if len(found) > MAX_NOTICES:
        found = [*found[:MAX_NOTICES], f"And {len(found) - MAX_NOTICES} more."]
    return found


def _facts(view: ComparisonView) -> Facts:
    """Return the best strategy of every panel, by each metric of the main table."""
    facts = []
    for dataset, split in view.panels:
        for name, metric in tables.table_metrics(view.comparison.rows).items():
            best = view.comparison.best(dataset, split, name)
            extreme = "highest" if metric.better == "higher" else "lowest"
            title = f"{extreme} {metric.label}: {dataset}, {split}"
            names = [label_of(strategy) for strategy in best]
            if len(best) == 1:
                row = view.comparison.row(dataset, split, best[0])
                value = f"{' ± '.join(row.texts(name, digits=1))} {metric.unit}".rstrip()
                over = "" if row.sample is None else f" over {sample_text(*row.sample)}"
                over += " of clients' own models" * row.personal
                facts.append((title, names[0], f"{value}{over}; {tables.HOW_BEST}"))
            elif len(best) == 2:
                facts.append((title, " or ".join(names), tables.NOT_SIGNIFICANT))
            elif best:
                which = f"{', '.join(names)}: " if len(names) <= MAX_NAMES else ""
                note = f"{which}{tables.NOT_SIGNIFICANT}"
                facts.append((title, f"{len(names)} strategies tie", note))
    return Facts(facts[:MAX_FACTS])


def _sections(view: ComparisonView) -> list[Section]:
    kind = view.score_kind
    percent = "" if kind.less_is_better else " in percent"
    datasets = list(dict.fromkeys(dataset for dataset, _ in view.panels))
    main = [tables.main_table(view, dataset) for dataset in datasets]
    further = [tables.further_table(view, dataset) for dataset in datasets]
    return [
        Section(
            "table",
            "The table",
            f"{capitalised(kind.name)} is the mean over clients{percent}, variance that of the "
            f"clients'{percent and f'{percent} squared'}; both are means over "
            f"{averaged_rounds(view.comparison.rows)}, ± the standard deviation over seeds.",
            main,
        ),
        *statistics_section(view),
        *(_chart_sections(view) if view.runs else []),
        Section(
            "further",
            "Further metrics",
            "The other metrics of the same runs, mean ± standard deviation over seeds.",
            [table for table in further if len(table.header) > 1],
        ),
        *(_explorer(view) if view.runs else []),
        _reproduction(view),
    ]


def _chart_sections(view: ComparisonView) -> list[Section]:
    groups = [
        (
            "rounds",
            "Over the rounds",
            "The paper's Figs. 4 and 5: metrics as training goes on.",
            charts.over_rounds(view),
        ),
        (
            "fairness",
            f"{capitalised(view.score_kind.name)} and fairness",
            f"Whether fairness costs {view.score_kind.name}, and how the worst clients fare.",
            [plane(view), *charts.distribution(view), charts.tails(view)],
        ),
        (
            "work",
            "Work and traffic",
            "Metrics by the local epochs and bytes that were spent.",
            charts.by_work(view),
        ),
    ]
    sections = []
    notes = view.comparison.evaluation_notes()
    for name, title, about, found in groups:
        lead = " ".join([about, *notes])
        items: list[Any] = [group for group in found if group.charts]
        items += tables.equal_work_tables(view) if name == "work" else []
        sections.append(Section(name, title, lead, items))
    return sections


def _explorer(view: ComparisonView) -> list[Section]:
    games = _games(view)
    lead = (
        "The games that were played in these runs: change the rules or one client and see how the "
        "equilibrium moves."
    )
    return [Section("explorer", "Game explorer", lead, [Explorer(games)])] if games else []


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


def _reproduction(view: ComparisonView) -> Section:
    runs = [run for by_seed in view.runs.values() for run in by_seed.values()]
    commands = sorted({run.command for run in runs if run.command})
    items: list[Any] = [Code("The command of these runs", text) for text in commands[:3]]
    versions = {tuple(str(run.about.get(key, "?")) for key in VERSION_COLUMNS) for run in runs}
    if versions:
        rows = [list(row) for row in sorted(versions)]
        items.append(Table("versions", "Versions", VERSION_COLUMNS, rows))
    hashes = tables.hashes_table(view)
    items += [hashes] if hashes.rows else []
    first = {key: next(iter(by_seed.values())) for key, by_seed in view.runs.items()}
    configs = [
        f"# {dataset}, {split}, {label_of(strategy)}\n{run.config_text}"
        for (dataset, split, strategy), run in first.items()
        if run.config_text
    ]
    if configs:
        items.append(Code("The configurations (first seed)", "\n".join(configs), folded=True))
    return Section("again", "Run it again", "Everything that determines these runs.", items)

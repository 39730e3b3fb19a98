"""The tables of docs/results.md and docs/how-to/choose-a-strategy.md on the grid, as Markdown.

    flamma compare --suite grid-development --strategies fedavg,flamma-plus --out out/grid
    python benchmarks/grid_tables.py out/grid/table.json [more tables] [--strategy flamma-plus] \\
        [--diagrams FOLDER]

Every setting with the accuracy and variance of all strategies, those that lead in bold or italics;
one strategy against each of the others, won-tied-lost by differences paired over seeds; and its
mean differences from FedAvg by who takes part and by how clients differ. The critical-difference
diagrams of what the tables have together go into a folder.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np

from flamma.experiments.comparison import (
    Comparison,
    Row,
    read_published,
    statistics_note,
    statistics_of,
    statistics_table,
)
from flamma.experiments.config import Config, DataConfig
from flamma.experiments.statistics import bootstrap_interval, paired_difference
from flamma.experiments.suite import read_suite
from flamma.reports.comparison import save_diagrams
from flamma.strategies import label_of
from join_tables import joined

METRICS = (("accuracy", 1), ("accuracy_variance", -1))
SKEWS = (
    "IID",
    "Dirichlet 1.0 and 0.3",
    "Dirichlet 0.1, two shards",
    "one class a client",
    "natural groups",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--strategy", default="flamma-plus", help="which one to tell of")
    parser.add_argument("--diagrams", type=Path, help="draw mean ranks into this folder")
    options = parser.parse_args()
    tables = [read_published(path) for path in options.tables]
    table = joined(tables)
    print("## Every setting\n")
    print(settings_table(table))
    for own in statistics_of(table.rows):
        caption, header, lines = statistics_table(own)
        print(f"\n### {caption}\n\n{markdown(header, lines)}")
    print(f"\n{statistics_note(statistics_of(table.rows))}")
    print(f"\n## {label_of(options.strategy)} against each: won-tied-lost\n")
    print(against_table(table, options.strategy))
    print(f"\n## {label_of(options.strategy)} against FedAvg, by setting\n")
    print(regime_table(table, options.strategy, configs_of(tables)))
    if options.diagrams:
        options.diagrams.mkdir(parents=True, exist_ok=True)
        save_diagrams(options.diagrams, table)


def places_of(table: Comparison) -> list[tuple[str, str]]:
    return sorted({(row.dataset, row.split) for row in table.rows})


def names_of(table: Comparison) -> list[str]:
    return list(dict.fromkeys(row.strategy for row in table.rows))


def settings_table(table: Comparison) -> str:
    names, lines = names_of(table), []
    for place in places_of(table):
        known = {row.strategy for row in table.contenders(*place)}
        cells = [cell(table, table.row(*place, name)) if name in known else "-" for name in names]
        lines.append([place[0], *cells])
    return markdown(["Setting", *map(label_of, names)], lines)


def cell(table: Comparison, row: Row) -> str:
    told = []
    for (metric, _), digits in zip(METRICS, (1, 0), strict=True):
        mark = {"best": "**", "tied": "*", "": ""}[table.mark(row, metric)]
        told.append(f"{mark}{row.mean[metric]:.{digits}f}{mark}")
    return " / ".join(told)


def against_table(table: Comparison, strategy: str) -> str:
    lines = []
    for other in names_of(table):
        if other != strategy:
            cells = [won_tied_lost(table, strategy, other, *metric) for metric in METRICS]
            lines.append([label_of(other), *cells])
    return markdown(["Against", "Accuracy", "Variance"], lines)


def won_tied_lost(table: Comparison, strategy: str, other: str, metric: str, sign: int) -> str:
    """Return in how many settings a strategy is clearly ahead, and where it is clearly behind."""
    won, tied, lost = 0, 0, []
    for place in places_of(table):
        own, theirs = (table.row(*place, name).values[metric] for name in (strategy, other))
        difference = paired_difference(own, theirs)
        if not difference.clear:
            tied += 1
        elif sign * difference.mean > 0:
            won += 1
        else:
            lost.append(place[0])
    where = f" ({', '.join(lost)})" if lost else ""
    return f"{won}-{tied}-{len(lost)}{where}"


def configs_of(tables: list[Comparison]) -> dict[str, Config]:
    """Return a run's configuration for every setting."""
    suites = [read_suite(tomllib.loads(table.suite)) for table in tables]
    return {cell.dataset: cell.config for suite in suites for cell in suite.cells()}


def skew_of(data: DataConfig) -> str:
    """Return which of ``SKEWS`` the data of a setting have."""
    held = {"shards": "shards_per_client", "classes": "classes_per_client"}.get(data.split.name)
    if held:
        return SKEWS[3] if data.split.options[held] == 1 else SKEWS[2]
    if data.split.name == "dirichlet":
        return SKEWS[2] if data.split.options["alpha"] < 0.2 else SKEWS[1]
    return {"iid": SKEWS[0], "groups": SKEWS[4]}[data.split.name]


def regime_table(table: Comparison, strategy: str, configs: dict[str, Config]) -> str:
    everybody = {name for name, own in configs.items() if own.per_round >= own.data.clients}
    regimes: dict[str, Callable[[str], bool]] = {
        "all settings": lambda name: True,
        "all clients take part": lambda name: name in everybody,
        "a part of them takes part": lambda name: name not in everybody,
        **{
            skew: lambda name, skew=skew: skew_of(configs[name].data) == skew  # type: ignore[misc]
            for skew in SKEWS
        },
    }
    lines = []
    for label, chosen in regimes.items():
        places = [place for place in places_of(table) if chosen(place[0])]
        if places:
            cells = [difference_text(table, strategy, places, metric) for metric, _ in METRICS]
            epochs = fmean(work_share(table, strategy, place) for place in places)
            lines.append([label, str(len(places)), *cells, f"{epochs:.0%}"])
    return markdown(["Where", "Settings", "Accuracy", "Variance", "Local epochs"], lines)


def difference_text(
    table: Comparison, strategy: str, places: list[tuple[str, str]], metric: str
) -> str:
    """Return the mean difference from FedAvg with its bootstrap interval."""
    own, base = (
        [np.array(table.row(*place, name).values[metric]) for place in places]
        for name in (strategy, "fedavg")
    )
    differences = [first - second for first, second in zip(own, base, strict=True)]
    low, high = bootstrap_interval(differences)
    mean = fmean(float(each.mean()) for each in differences)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def work_share(table: Comparison, strategy: str, place: tuple[str, str]) -> float:
    """Return how many local epochs there were, as a part of FedAvg's."""
    own, base = (table.row(*place, name).mean["epochs_total"] for name in (strategy, "fedavg"))
    return own / base


def markdown(header: list[str], lines: list[list[str]]) -> str:
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *lines))


if __name__ == "__main__":
    main()

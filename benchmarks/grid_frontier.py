"""Draw accuracy against variance of all strategies in every setting of the grid.

    python benchmarks/grid_frontier.py docs/results/grid-held-back.json \\
        docs/results/grid-development.json --out docs/results/grid-frontier.png

A line joins the strategies that no other beats in both (the Pareto front). It prints on how many
fronts each of them is, and in how many settings it is there alone.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from flamma.experiments.comparison import Comparison, read_published
from flamma.reports.pictures import new_figure, save
from flamma.reports.reading import pareto
from flamma.reports.style import looks_of
from flamma.strategies import label_of
from grid_tables import markdown, names_of, places_of
from join_tables import joined

COLUMNS = 5
MARKS = "osD^vP*X"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("grid-frontier.png"))
    options = parser.parse_args()
    table = joined([read_published(path) for path in options.tables])
    fronts = {
        place: [row.strategy for row in pareto(table.contenders(*place))]
        for place in places_of(table)
    }
    draw(table, options.out)
    on = Counter(name for front in fronts.values() for name in front)
    alone = Counter(front[0] for front in fronts.values() if len(front) == 1)
    lines = [[label_of(n), str(on[n]), str(alone[n])] for n, _ in on.most_common()]
    print(markdown(["Algorithm", f"On the front, of {len(fronts)}", "Alone"], lines))


def draw(table: Comparison, path: Path) -> None:
    """Draw one panel for each setting, with a common legend."""
    places, names = places_of(table), names_of(table)
    looks = looks_of(names)
    rows = -(-len(places) // COLUMNS)
    figure = new_figure(2.6 * COLUMNS, 2.3 * rows + 0.5)
    panels = figure.subplots(rows, COLUMNS).flat
    for panel, place in zip(panels, places, strict=False):
        known = {row.strategy: row.mean for row in table.contenders(*place)}
        front = [row.mean for row in pareto(table.contenders(*place))]
        panel.plot(*_coordinates(front), color="#BBBBBB", linewidth=1, zorder=1)
        for number, name in enumerate(names):
            if name in known:
                panel.plot(
                    *_coordinates([known[name]]),
                    MARKS[number % len(MARKS)],
                    color=looks[name].light,
                    label=label_of(name),
                    markersize=6,
                )
        panel.set_title(place[0], fontsize=7.5, loc="left")
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(0.15)
    for panel in list(figure.axes)[len(places) :]:
        panel.remove()
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=6)
    figure.supxlabel("accuracy, %", fontsize=9)
    figure.supylabel("variance over clients, %²", fontsize=9)
    save(figure, path)


def _coordinates(means: list) -> tuple[list[float], list[float]]:
    return [m["accuracy"] for m in means], [m["accuracy_variance"] for m in means]


if __name__ == "__main__":
    main()

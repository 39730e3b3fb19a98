"""What a comparison of many settings comes to: mean ranks, tests, and the frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.experiments.statistics import AcrossSettings, DataPlace, relative_to
from flamma.experiments.statistics_text import statistics_note, statistics_of, statistics_table
from flamma.experiments.table import Comparison
from flamma.metrics import METRICS
from flamma.numerics import total
from flamma.reports.comparing import ComparisonView
from flamma.reports.comparison_charts import LINE_HEIGHT
from flamma.reports.document import Chart, Charts, Section, Table, View, axes, line, short_numbers
from flamma.reports.drawing import new_figure, save
from flamma.strategies import label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_WITH_SETTINGS = 8
"""Of more strategies than this, single settings are not drawn."""
GAINED, RATIO = "accuracy gained, points", "variance ratio, log2"

RANKS_AID = (
    "Mean rank over settings, left is better. Bars are half the critical difference to each side: "
    "strategies whose bars do not overlap can be told apart (Nemenyi, 95% confidence)."
)
FRONTIER_AID = (
    "Mean over settings against the reference at 0, 0: right is more accurate, down is fairer; a "
    "ratio of -1 is half the variance. Small points are single settings."
)


def statistics_section(view: ComparisonView) -> list[Section]:
    """Return the section of ranks and tests over settings, if there are enough of them."""
    rows = view.comparison.rows
    found = statistics_of(rows)
    if not found:
        return []
    charts = [ranks_chart(own) for own in found]
    relative = relative_to(rows)
    charts += [frontier_chart(relative)] if relative else []
    tables = []
    for own in found:
        caption, header, lines = statistics_table(own)
        tables.append(Table(f"settings-{own.metric}", caption, header, lines))
    return [
        Section("settings", "Over all settings", statistics_note(found), [Charts(charts), *tables])
    ]


def ranks_chart(found: AcrossSettings) -> Chart:
    """Return the mean ranks, each with half the critical difference to both sides."""
    half = short_numbers([found.critical_difference / 2])
    traces: list[dict[str, Any]] = []
    for strategy, rank in found.ranks.items():
        label = label_of(strategy)
        point = line(label, [rank], [0.0], strategy, mode="markers", unlisted=True)
        traces.append(point | {"y": [label], "error_x": {"array": half}})
    layout = axes("mean rank", "", y_type="category", y_autorange="reversed")
    title = f"Mean rank by {METRICS[found.metric].label}"
    height = max(340, LINE_HEIGHT * len(traces))
    return Chart(f"ranks-{found.metric}", title, RANKS_AID, [View(traces, layout)], height=height)


def frontier_chart(relative: Mapping[str, Mapping[DataPlace, tuple[float, float]]]) -> Chart:
    """Return accuracy against variance relative to the reference, over all settings."""
    traces: list[dict[str, Any]] = []
    for strategy, places in relative.items():
        label = label_of(strategy)
        x, y = zip(*places.values(), strict=True)
        if len(relative) <= MOST_WITH_SETTINGS:
            points = line(f"{label}, single settings", x, y, strategy, mode="markers")
            traces.append(points | {"of": label, "small": True})
        gained, ratio = ([total(list(own)) / len(own)] for own in (x, y))
        traces.append(line(label, gained, ratio, strategy, mode="markers"))
    layout = axes(GAINED, RATIO)
    return Chart(
        "frontier", "Accuracy and fairness", FRONTIER_AID, [View(traces, layout)], height=460
    )


def draw_critical_difference(found: AcrossSettings) -> Figure:
    """Draw the critical-difference diagram of J. Demšar (2006).

    Strategies hang on an axis of mean ranks, the better half to the left; bars join those that
    cannot be told apart.
    """
    names = list(found.ranks)
    rows = (len(names) + 1) // 2
    cliques = found.cliques()
    figure = new_figure(7.2, 1.2 + 0.12 * len(cliques) + 0.24 * rows)
    drawn = figure.subplots()
    top = 0.5 * len(cliques) + 0.5
    _rank_axis(drawn, found, top + rows)
    for place, clique in enumerate(cliques):
        ends = [found.ranks[clique[0]] - 0.05, found.ranks[clique[-1]] + 0.05]
        drawn.plot(ends, [0.5 * (place + 1)] * 2, color="black", linewidth=3)
    low, high = 1.0, float(len(names))
    for place, name in enumerate(names):
        left = place < rows
        depth = top + (place if left else len(names) - 1 - place) + 0.5
        end, side = (low, "right") if left else (high, "left")
        rank = found.ranks[name]
        drawn.plot([rank, rank, end], [0, depth, depth], color="#555555", linewidth=0.8)
        text = f" {label_of(name)} ({rank:.1f}) "
        drawn.text(end, depth, text, ha=side, va="center", fontsize="small")
    return figure


def save_diagrams(folder: Path, comparison: Comparison) -> list[Path]:
    """Draw a diagram for each metric that is ranked, beside the tables; return the files."""
    pictures = []
    for found in statistics_of(comparison.rows):
        path = folder / f"critical-difference-{found.metric}.png"
        save(draw_critical_difference(found), path)
        pictures.append(path)
    return pictures


def _rank_axis(drawn: Axes, found: AcrossSettings, depth: float) -> None:
    """Draw the axis of ranks at the top, with the critical difference above it."""
    count = len(found.ranks)
    beside = 0.35 * (count - 1)
    drawn.set_xlim(1 - beside, count + beside)
    drawn.set_ylim(depth + 0.5, -2.2)
    drawn.axis("off")
    drawn.plot([1, count], [0, 0], color="black", linewidth=1)
    for rank in _ticks(count):
        drawn.plot([rank, rank], [-0.25, 0], color="black", linewidth=1)
        drawn.text(rank, -0.35, str(rank), ha="center", va="bottom", fontsize="small")
    width = min(found.critical_difference, float(count - 1))
    drawn.plot([1, 1 + width], [-1.5, -1.5], color="black", linewidth=2)
    label = f"{METRICS[found.metric].label}: critical difference {found.critical_difference:.2f}"
    drawn.text(1, -1.65, label, ha="left", va="bottom", fontsize="small")


def _ticks(count: int) -> Sequence[int]:
    """Return whole ranks to mark, at most about ten of them."""
    step = max(1, round(count / 10))
    return sorted({1, *range(step, count + 1, step), count})

"""Metrics over the rounds, with a band over seeds: the paper's Figs. 4 and 5."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.experiments.families import family_name
from flamma.experiments.table import Comparison
from flamma.metrics import Metric, shown_in
from flamma.reports.comparing import ComparisonView, read_runs
from flamma.reports.drawing import label_axes, line_style, new_figure, save
from flamma.reports.multiples import Multiple, multiples
from flamma.reports.palette import looks_of
from flamma.reports.reading import RunView
from flamma.strategies import label_of
from flamma.types import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Curve:
    """A metric of one strategy over the rounds: one row of values per seed."""

    strategy: str
    runs: list[RunView]
    rounds: list[int]
    values: Floats

    @property
    def mean(self) -> Floats:
        """The mean over the seeds."""
        mean: Floats = self.values.mean(axis=0)
        return mean

    @property
    def low(self) -> Floats:
        """The lowest seed of each round."""
        low: Floats = self.values.min(axis=0)
        return low

    @property
    def high(self) -> Floats:
        """The highest seed of each round."""
        high: Floats = self.values.max(axis=0)
        return high


def curves(view: ComparisonView, dataset: str, split: str, metric: str) -> list[Curve]:
    """Return the curve of every strategy that has the metric, on one dataset and split.

    A curve has the rounds for which all its seeds have a value; a seed without any is left out.
    """
    found = []
    for strategy in view.strategies:
        longest = view.longest_runs(dataset, split, strategy)
        told = [(run, _by_round(run, metric)) for run in longest]
        told = [(run, values) for run, values in told if values]
        common = [n for n in told[0][1] if all(n in values for _, values in told)] if told else []
        if common:
            table = np.array([[values[n] for n in common] for _, values in told])
            found.append(Curve(strategy, [run for run, _ in told], common, table))
    return found


def _by_round(run: RunView, metric: str) -> dict[int, float]:
    """Return the rounds that have a value of a metric; of a damaged run some may be lost."""
    values = zip(run.numbers, run.of_rounds(metric), strict=True)
    return {number: value for number, value in values if value is not None}


def draw_comparison(view: ComparisonView, dataset: str) -> Figure:
    """Draw one column per split and one row per metric; of many strategies one row per family."""
    splits = [split for name, split in view.panels if name == dataset]
    found = {
        metric: [curves(view, dataset, split, name) for split in splits]
        for name, metric in shown_in("curves", view.score_kind).items()
    }
    found = {metric: panels for metric, panels in found.items() if any(panels)}
    if view.families:
        return _draw_families(view, dataset, splits, found)
    figure = new_figure(4.6 * len(splits) + 1.6, 3.3 * max(1, len(found)))
    grid = figure.subplots(max(1, len(found)), len(splits), squeeze=False, sharex=True)
    for row, (metric, panels) in enumerate(found.items()):
        for column, panel in enumerate(panels):
            axes = grid[row][column]
            _draw_panel(axes, view, panel)
            _start_at_zero(axes, panel)
            below = "round" if row == len(found) - 1 else ""
            title = f"{dataset}, {splits[column]}" if row == 0 else ""
            label_axes(axes, below, metric.title if column == 0 else "", title)
    figure.legend(*_legend_of(grid.flat), loc="outside right center", frameon=False)
    return figure


def _draw_families(
    view: ComparisonView,
    dataset: str,
    splits: Sequence[str],
    found: Mapping[Metric, Sequence[list[Curve]]],
) -> Figure:
    """Draw one row per family and one column per metric and split, references in each."""
    columns = [
        (metric, split, panel)
        for metric, panels in found.items()
        for split, panel in zip(splits, panels, strict=True)
    ]
    rows = multiples(view)
    figure = new_figure(4.2 * len(columns) + 2.2, 2.3 * len(rows))
    shape = (len(rows), max(1, len(columns)))
    grid = figure.subplots(*shape, squeeze=False, sharex=True, sharey="col")
    for row, own in enumerate(rows):
        for column, (metric, split, panel) in enumerate(columns):
            axes = grid[row][column]
            shown = [c for c in panel if c.strategy in (*own.references, *own.members)]
            _draw_panel(axes, view, shown, own)
            title = f"{family_name(own.family)}: {metric.label}, {dataset}, {split}"
            label_axes(axes, "round" if row == len(rows) - 1 else "", metric.title, title)
        beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "fontsize": "small"}
        grid[row][-1].legend(*_legend_of(grid[row]), frameon=False, **beside)
    for column, (_, _, panel) in enumerate(columns):
        _start_at_zero(grid[0][column], panel)  # and all below, when they have been drawn
    return figure


def _legend_of(drawn: Iterable[Axes]) -> tuple[list[Any], list[str]]:
    """Return every line of some axes once, and its label."""
    found = {
        label: handle
        for axes in drawn
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    return list(found.values()), list(found)


def _draw_panel(
    axes: Axes, view: ComparisonView, panel: list[Curve], own: Multiple | None = None
) -> None:
    """Draw curves with a band over seeds; of a family the lines only, its references thin."""
    looks = looks_of(view.strategies)
    for curve in panel:
        look, label, width = looks[curve.strategy], label_of(curve.strategy), 1.5
        if own is None:
            axes.fill_between(curve.rounds, curve.low, curve.high, color=look.light, alpha=0.12)
        elif curve.strategy in own.references:
            width = 0.9
        axes.plot(curve.rounds, curve.mean, label=label, **line_style(look, width))


def _start_at_zero(axes: Axes, panel: list[Curve]) -> None:
    if all(curve.low.min() >= 0 for curve in panel):
        axes.set_ylim(bottom=0)


def save_curves(folder: Path, comparison: Comparison) -> list[Path]:
    """Draw the curves of every dataset beside the tables; return the files."""
    view = ComparisonView(folder, comparison, read_runs(folder, []), [])
    pictures = []
    for dataset in dict.fromkeys(row.dataset for row in comparison.rows):
        path = folder / f"curves-{dataset}.png"
        save(draw_comparison(view, dataset), path)
        pictures.append(path)
    return pictures

"""Metrics over the rounds, with a band over seeds: the paper's Figs. 4 and 5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flamma.experiments.table import Comparison
from flamma.metrics import shown_in
from flamma.reports.comparing import ComparisonView, read_runs
from flamma.reports.drawing import label_axes, new_figure, save, style_of
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
        told = [(run, run.of_rounds(metric)) for run in longest]
        told = [(run, values) for run, values in told if any(v is not None for v in values)]
        table = np.array([values for _, values in told], dtype=np.float64)  # None becomes NaN
        common = np.flatnonzero(~np.isnan(table).any(axis=0)).tolist() if told else []
        if common:
            numbers = [told[0][0].numbers[k] for k in common]
            found.append(Curve(strategy, [run for run, _ in told], numbers, table[:, common]))
    return found


def draw_comparison(view: ComparisonView, dataset: str) -> Figure:
    """Draw one column per split and one row per metric."""
    splits = [split for name, split in view.panels if name == dataset]
    found = {
        metric: [curves(view, dataset, split, name) for split in splits]
        for name, metric in shown_in("curves").items()
    }
    found = {metric: panels for metric, panels in found.items() if any(panels)}
    figure = new_figure(4.6 * len(splits) + 1.6, 3.3 * max(1, len(found)))
    grid = figure.subplots(max(1, len(found)), len(splits), squeeze=False, sharex=True)
    for row, (metric, panels) in enumerate(found.items()):
        for column, panel in enumerate(panels):
            axes = grid[row][column]
            _draw_panel(axes, view, panel)
            below = "round" if row == len(found) - 1 else ""
            title = f"{dataset}, {splits[column]}" if row == 0 else ""
            label_axes(axes, below, metric.title if column == 0 else "", title)
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside right center", frameon=False)
    return figure


def _draw_panel(axes: Axes, view: ComparisonView, panel: list[Curve]) -> None:
    for curve in panel:
        colour, dash = style_of(view.strategies.index(curve.strategy))
        label = label_of(curve.strategy)
        axes.plot(curve.rounds, curve.mean, color=colour, linestyle=dash, label=label)
        axes.fill_between(curve.rounds, curve.low, curve.high, color=colour, alpha=0.12)
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

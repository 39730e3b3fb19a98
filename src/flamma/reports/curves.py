"""Accuracy and variance over the rounds, with a band over seeds: the paper's Figs. 4 and 5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flamma.experiments.run import Run
from flamma.experiments.table import LABELS, Comparison
from flamma.reports.drawing import new_figure, save, style_of, tidy
from flamma.types import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (("accuracy", "accuracy, %"), ("accuracy_variance", "variance, %²"))


@dataclass(frozen=True, eq=False)
class Curve:
    """One strategy's measure over the judged rounds: the mean over seeds, and its extremes."""

    strategy: str
    rounds: Floats
    mean: Floats
    low: Floats
    high: Floats


def curves(folder: Path, comparison: Comparison, dataset: str, split: str, key: str) -> list[Curve]:
    """Return the curves of all strategies on one dataset and split."""
    found = []
    for row in comparison.rows:
        if (row.dataset, row.split) != (dataset, split):
            continue
        base = folder / "runs" / dataset / split / row.strategy
        histories = [Run.load(base / f"seed-{seed}").history for seed in range(row.seeds)]
        judged = [[r for r in history if r.get(key) is not None] for history in histories]
        values = np.array([[record[key] for record in history] for history in judged])
        rounds = np.array([record["round"] for record in judged[0]], dtype=np.float64)
        found.append(
            Curve(row.strategy, rounds, values.mean(axis=0), values.min(axis=0), values.max(axis=0))
        )
    return found


def draw_comparison(folder: Path, comparison: Comparison, dataset: str) -> Figure:
    """Draw one column per split: accuracy above, variance below."""
    splits = list(dict.fromkeys(r.split for r in comparison.rows if r.dataset == dataset))
    figure = new_figure(4.6 * len(splits) + 1.6, 6.6)
    grid = figure.subplots(2, len(splits), squeeze=False, sharex=True)
    for column, split in enumerate(splits):
        for line, (key, label) in enumerate(PANELS):
            axes = grid[line][column]
            for k, curve in enumerate(curves(folder, comparison, dataset, split, key)):
                colour, dash = style_of(k)
                name = LABELS.get(curve.strategy, curve.strategy)
                axes.plot(curve.rounds, curve.mean, color=colour, linestyle=dash, label=name)
                axes.fill_between(curve.rounds, curve.low, curve.high, color=colour, alpha=0.12)
            title = f"{dataset}, {split}" if line == 0 else ""
            tidy(axes, "round" if line else "", label if column == 0 else "", title)
            axes.set_ylim(bottom=0)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    return figure


def save_curves(folder: Path, comparison: Comparison) -> list[Path]:
    """Draw the curves of every dataset beside the tables; return the files."""
    pictures = []
    for dataset in dict.fromkeys(row.dataset for row in comparison.rows):
        path = folder / f"curves-{dataset}.png"
        save(draw_comparison(folder, comparison, dataset), path)
        pictures.append(path)
    return pictures

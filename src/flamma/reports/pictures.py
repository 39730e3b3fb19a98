"""The picture of a result, as a figure: what its report shows first."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.errors import RunError
from flamma.experiments.auditing.findings import Audit, AuditedCase
from flamma.experiments.auditing.shares import percent
from flamma.experiments.run_object import Run
from flamma.experiments.search import Tuned
from flamma.experiments.suite import Cell
from flamma.experiments.table import Comparison, compared
from flamma.reports.audit_charts import FULL_COLOUR
from flamma.reports.comparing import ComparisonView, read_comparison
from flamma.reports.curves import draw_comparison
from flamma.reports.drawing import label_axes, new_figure
from flamma.reports.palette import SERIES
from flamma.reports.reading import read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@singledispatch
def draw_result(result: Any) -> Figure:
    """Return the picture of a run, a comparison, an audit or a search.

    Raises
    ------
    FlammaError
        If there is nothing to draw, or matplotlib is not installed.
    """
    raise RunError(f"a {type(result).__name__} has no picture.")


@draw_result.register(Run)
def _draw_run(run: Run) -> Figure:
    """Draw the metrics of a run over its rounds, as those of a comparison of one strategy."""
    data, strategy = run.config.data, run.config.strategy.name
    cell = Cell(data.title, data.split.name, strategy, run.config.seed, run.config)
    key = (cell.dataset, cell.split, cell.strategy)
    view = ComparisonView(
        run.path, compared(strategy, [(cell, run)]), {key: {cell.seed: read_run(run.path)}}, []
    )
    return draw_comparison(view, cell.dataset)


@draw_result.register(Comparison)
def _draw_comparison(comparison: Comparison) -> Figure:
    """Draw the curves of the first dataset; of another one, narrow the comparison."""
    if comparison.path is None:
        raise RunError("the runs of this comparison are not there, so it has no curves.")
    return draw_comparison(read_comparison(comparison.path), comparison.rows[0].dataset)


@draw_result.register(Audit)
def _draw_audit(audit: Audit) -> Figure:
    """Draw what every audited client gains by every deviation, one panel for each case."""
    cases = audit.cases
    rows = max(len(case.deviations) for case in cases)
    figure = new_figure(2.4 + 2.6 * len(cases), 1.4 + 0.3 * rows)
    grid = figure.subplots(1, len(cases), squeeze=False)
    for axes, case in zip(grid[0], cases, strict=True):
        _draw_gains(axes, case)
    return figure


@draw_result.register(Tuned)
def _draw_search(tuned: Tuned) -> Figure:
    """Draw the score of every trial, and the best so far."""
    scored = [t for t in tuned.trials if t["score"] is not None]
    numbers, scores = [t["number"] for t in scored], [t["score"] for t in scored]
    figure = new_figure(5.6, 3.3)
    axes = figure.subplots()
    axes.plot(numbers, scores, "o", color=SERIES[0].light, label="trial")
    axes.step(
        numbers, np.maximum.accumulate(scores), where="post", color=SERIES[1].light, label="best"
    )
    axes.legend(frameon=False)
    label_axes(axes, "trial", "score", "")
    return figure


def _draw_gains(axes: Axes, case: AuditedCase) -> None:
    """Draw the heat map of a case: relative gains, mean over seeds, as the report's page has it."""
    subjects, deviations = case.subjects, case.deviations
    gains = np.array([[_gain(case, s, d) for s in subjects] for d in deviations])
    axes.imshow(gains, cmap="RdBu_r", vmin=-FULL_COLOUR, vmax=FULL_COLOUR, aspect="auto")
    axes.set_xticks(range(len(subjects)), subjects)
    axes.set_yticks(range(len(deviations)), deviations)
    for (row, column), gain in np.ndenumerate(gains):
        text = "-" if np.isnan(gain) else percent(gain)
        ink = "white" if abs(gain) > FULL_COLOUR / 2 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize="small", color=ink)
    label_axes(axes, "", "", f"{case.strategy}: gain of utility, {case.dataset} ({case.split})")
    axes.grid(visible=False)


def _gain(case: AuditedCase, subject: str, deviation: str) -> float:
    known = [f.relative_gain for f in case.of(subject, deviation) if f.relative_gain is not None]
    return sum(known) / len(known) if known else float("nan")

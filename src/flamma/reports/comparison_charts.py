"""The charts of a comparison: one panel per dataset and split, one colour per strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flamma.experiments.table import Row, capitalised
from flamma.metrics import METRICS, RoundMetric, shown_in
from flamma.metrics.kinds import LAST_ROUNDS
from flamma.reports.comparing import ComparisonView, pareto
from flamma.reports.curves import Curve, curves
from flamma.reports.document import (
    Chart,
    Charts,
    View,
    axes,
    band,
    even_sample,
    line,
    short_numbers,
)
from flamma.reports.metric_text import BETTER
from flamma.strategies import label_of
from flamma.types import Floats

SPENT = {"epochs_total": ("local epochs", 1.0), "bytes_up": ("sent by clients, MB", 1e-6)}
"""Metrics of what training took, with the axis and the scale that they are drawn with."""

MAX_BOX_POINTS = 2_000
"""Clients' accuracies that a box is drawn from."""

GREY = 7
"""The series that is drawn in grey."""


def over_rounds(view: ComparisonView) -> Charts:
    """Return every metric that is shown as a curve, over the rounds: the paper's Figs. 4 and 5."""
    charts = []
    for dataset, split in view.panels:
        for name, metric in shown_in("curves").items():
            traces: list[dict[str, Any]] = []
            for curve in curves(view, dataset, split, name):
                label, series = label_of(curve.strategy), view.strategies.index(curve.strategy)
                if len(curve.values) > 1:
                    edges = (curve.rounds, curve.low, curve.high)
                    traces += band("lowest seed/highest seed", *edges, series, label)
                traces.append(line(label, curve.rounds, curve.mean, series))
            if traces:
                charts.append(
                    Chart(
                        f"curve-{dataset}-{split}-{name}",
                        f"{capitalised(metric.label)}: {dataset}, {split}",
                        f"{BETTER[metric.better]} Lines are means over seeds; bands reach from "
                        "the lowest to the highest seed.".lstrip(),
                        [View(traces, axes("round", metric.title, y_rangemode="tozero"))],
                    )
                )
    return Charts(charts)


def plane(view: ComparisonView) -> Charts:
    """Return accuracy against variance, with the strategies that no other beats in both."""
    return _panels(view, "plane", "Accuracy and fairness", _plane_traces, PLANE_AID, _plane_axes)


PLANE_AID = (
    "Right is more accurate, down is fairer. Crosses are ± one standard deviation over seeds, "
    "small points single seeds. The dotted line joins the strategies that no other beats in both "
    "(the Pareto front)."
)


def _plane_axes() -> dict[str, Any]:
    x, y = METRICS["accuracy"].title, METRICS["accuracy_variance"].title
    return axes(x, y, y_rangemode="tozero")


def _plane_traces(view: ComparisonView, rows: list[Row]) -> list[dict[str, Any]]:
    x, y = "accuracy", "accuracy_variance"
    rows = [row for row in rows if x in row.mean and y in row.mean]
    if not rows:
        return []
    front = pareto(rows)
    traces: list[dict[str, Any]] = [
        line(
            "Pareto front",
            [row.mean[x] for row in front],
            [row.mean[y] for row in front],
            GREY,
            mode="lines+markers",
            quiet=True,
        )
    ]
    for row in rows:
        series, label = view.strategies.index(row.strategy), label_of(row.strategy)
        if len(row.seeds) > 1:
            name = f"{label}, single seeds"
            points = line(name, row.values[x], row.values[y], series, mode="markers")
            traces.append(points | {"of": label, "small": True})
        traces.append(
            line(
                label,
                [row.mean[x]],
                [row.mean[y]],
                series,
                mode="markers",
                error_x={"array": short_numbers([row.std[x]])},
                error_y={"array": short_numbers([row.std[y]])},
            )
        )
    return traces


def distribution(view: ComparisonView) -> Charts:
    """Return how the clients' accuracies are distributed in the last evaluated round."""
    aid = (
        "One point per client and seed, in the last evaluated round; a short box that sits high "
        "is both accurate and fair."
    )
    runs = [run for by_seed in view.runs.values() for run in by_seed.values()]
    if sum(run.scores.clients.size for run in runs) > MAX_BOX_POINTS:
        aid += f" Of more than {MAX_BOX_POINTS:,} points so many are drawn, evenly chosen by rank."

    def draw(view: ComparisonView, rows: list[Row]) -> list[dict[str, Any]]:
        traces = []
        for row in rows:
            runs = view.longest_runs(row.dataset, row.split, row.strategy)
            last = [run.scores.rounds[max(run.scores.rounds)] for run in runs if run.scores.rounds]
            values = np.concatenate(last) if last else np.zeros(0)
            values = np.sort(values[~np.isnan(values)])
            traces.append(
                {
                    "type": "box",
                    "name": label_of(row.strategy),
                    "y": short_numbers(values[even_sample(values.size, MAX_BOX_POINTS)].tolist()),
                    "series": view.strategies.index(row.strategy),
                }
            )
        return [trace for trace in traces if trace["y"]]

    def layout() -> dict[str, Any]:
        return axes("", "accuracy of a client, %", y_range=[-3, 103])

    return _panels(view, "distribution", "Clients' accuracies", draw, aid, layout)


def tails(view: ComparisonView) -> Charts:
    """Return the worst and the best tenth of the clients, and the mean between them."""
    aid = (
        "The worst tenth of the clients, the mean and the best tenth: mean over the last "
        f"{LAST_ROUNDS} rounds, ± one standard deviation over seeds. Close together is fair."
    )
    shown = (("worst 10%", "worst_10"), ("mean", "accuracy"), ("best 10%", "best_10"))

    def draw(view: ComparisonView, rows: list[Row]) -> list[dict[str, Any]]:
        rows = [row for row in rows if all(key in row.mean for _, key in shown)]
        names = [label_of(row.strategy) for row in rows]
        spans = {
            "type": "scatter",
            "mode": "lines",
            "name": "span",
            "x": [
                v
                for row in rows
                for v in (*short_numbers([row.mean["worst_10"], row.mean["best_10"]]), None)
            ],
            "y": [v for name in names for v in (name, name, None)],
            "series": GREY,
            "quiet": True,
        }
        points = [
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": short_numbers(row.mean[key] for row in rows),
                "y": names,
                "error_x": {"array": short_numbers(row.std[key] for row in rows)},
                "series": (5, 4, 0)[k],
            }
            for k, (name, key) in enumerate(shown)
        ]
        return [spans, *points] if rows else []

    def layout() -> dict[str, Any]:
        return axes("accuracy, %", "", y_type="category", y_autorange="reversed", x_range=[-3, 103])

    return _panels(view, "tails", "Worst and best tenth", draw, aid, layout)


def by_work(view: ComparisonView) -> Charts:
    """Return every metric that is shown as a curve, over the work spent so far."""
    charts = []
    for dataset, split in view.panels:
        views = []
        for name, metric in shown_in("curves").items():
            found = curves(view, dataset, split, name)
            for spent, (x_title, scale) in SPENT.items():
                traces = [
                    line(
                        label_of(curve.strategy),
                        scale * _spent(curve, spent),
                        curve.mean,
                        view.strategies.index(curve.strategy),
                    )
                    for curve in found
                ]
                layout = axes(x_title, metric.title, y_rangemode="tozero")
                by = "epochs" if spent == "epochs_total" else "bytes"
                if traces:
                    views.append(View(traces, layout, f"{metric.label} by {by}"))
        if views:
            charts.append(
                Chart(
                    f"work-{dataset}-{split}",
                    f"By work spent: {dataset}, {split}",
                    "Each line follows a strategy through its rounds, mean over seeds, by the work "
                    "spent so far with the warm-up.",
                    views,
                )
            )
    return Charts(charts)


def _spent(curve: Curve, name: str) -> Floats:
    """Return how much was spent up to each round of a curve, mean over its seeds."""
    metric = METRICS[name]
    totals = []
    for run in curve.runs:
        before = 0.0
        if isinstance(metric, RoundMetric) and metric.warmup is not None:
            before = metric.warmup(run.rounds[0])
        sums = before + np.cumsum([value or 0.0 for value in run.of_rounds(name)])
        totals.append([sums[number - 1] for number in curve.rounds])
    mean: Floats = np.mean(totals, axis=0)
    return mean


def _panels(
    view: ComparisonView,
    name: str,
    title: str,
    draw: Callable[[ComparisonView, list[Row]], list[dict[str, Any]]],
    aid: str,
    layout: Callable[[], dict[str, Any]],
) -> Charts:
    """Return one chart per panel that has something to draw."""
    traces = {panel: draw(view, view.rows(*panel)) for panel in view.panels}
    return Charts(
        [
            Chart(
                f"{name}-{dataset}-{split}",
                f"{title}: {dataset}, {split}",
                aid,
                [View(found, layout())],
            )
            for (dataset, split), found in traces.items()
            if found
        ]
    )

"""The charts of a comparison: one panel a dataset and split, one colour a strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flamma.experiments.table import LABELS, Row
from flamma.reports.comparing import ComparisonRecord, pareto
from flamma.reports.document import Chart, Charts, View, axes, band, line, tidy
from flamma.reports.reading import RunRecord
from flamma.types import Floats

CURVES = (
    ("accuracy", "accuracy, %", "The mean over clients; the band reaches over the seeds."),
    (
        "accuracy_variance",
        "variance, %²",
        "The variance of the clients' accuracies, lower is fairer; the band reaches over the "
        "seeds.",
    ),
)
SPENT: tuple[tuple[str, str, float], ...] = (
    ("epochs_total", "local epochs", 1.0),
    ("bytes_up", "sent by clients, MB", 1e-6),
)


def label(strategy: str) -> str:
    """Return a strategy's name as people write it."""
    return LABELS.get(strategy, strategy)


def longest(record: ComparisonRecord, dataset: str, split: str, strategy: str) -> list[RunRecord]:
    """Return the runs that have come furthest: all seeds, or in an unfinished comparison some."""
    found = record.runs.get((dataset, split, strategy), [])
    most = max((len(run.rounds) for run in found), default=0)
    return [run for run in found if most and len(run.rounds) == most]


def over_rounds(record: ComparisonRecord) -> Charts:
    """Return accuracy and variance over the rounds: the paper's Figs. 4 and 5."""
    charts = []
    for dataset, split in record.panels:
        for key, unit, aid in CURVES:
            traces: list[dict[str, Any]] = []
            for series, strategy in enumerate(record.strategies):
                found = longest(record, dataset, split, strategy)
                x, values = _aligned(found, key)
                if not values.size:
                    continue
                name = label(strategy)
                lowest, highest = values.min(axis=0), values.max(axis=0)
                if len(values) > 1:
                    traces += band("lowest seed/highest seed", x, lowest, highest, series, name)
                traces.append(line(name, x, values.mean(axis=0), series))
            measure = "Accuracy" if key == "accuracy" else "Variance"
            charts.append(
                Chart(
                    f"curve-{dataset}-{split}-{key}",
                    f"{measure}: {dataset}, {split}",
                    aid,
                    [View(traces, axes("round", unit, y_rangemode="tozero"))],
                )
            )
    return Charts(charts)


def _aligned(runs: list[RunRecord], key: str) -> tuple[list[float], Floats]:
    """Return the rounds that all these runs have judged, and one row of values per run."""
    tables = [
        {r["round"]: r[key] for r in run.rounds if isinstance(r.get(key), int | float)}
        for run in runs
    ]
    tables = [table for table in tables if table]
    if not tables:
        return [], np.zeros((0, 0))
    common = sorted(set.intersection(*(set(table) for table in tables)))
    return [float(k) for k in common], np.array([[table[k] for k in common] for table in tables])


def plane(record: ComparisonRecord) -> Charts:
    """Return accuracy against variance, with the strategies that nobody beats in both."""
    return _panels(record, "plane", "Accuracy and fairness", _plane_traces, PLANE_AID, _plane_axes)


PLANE_AID = (
    "Right is more accurate, down is fairer; crosses are ± one standard deviation over seeds, "
    "small points single seeds. The dotted line joins those that nobody beats in both (the Pareto "
    "front)."
)


def _plane_axes() -> dict[str, Any]:
    return axes("accuracy, %", "variance, %²", y_rangemode="tozero")


def _plane_traces(record: ComparisonRecord, rows: list[Row]) -> list[dict[str, Any]]:
    front = pareto(rows)
    traces: list[dict[str, Any]] = [
        line(
            "Pareto front",
            [row.mean["accuracy"] for row in front],
            [row.mean["variance"] for row in front],
            7,
            mode="lines+markers",
            quiet=True,
        )
    ]
    for row in rows:
        series, name = record.strategies.index(row.strategy), label(row.strategy)
        if row.seeds > 1:
            traces.append(
                line(
                    f"{name}, single seeds",
                    row.values["accuracy"],
                    row.values["variance"],
                    series,
                    mode="markers",
                    of=name,
                    small=True,
                )
            )
        traces.append(
            line(
                name,
                [row.mean["accuracy"]],
                [row.mean["variance"]],
                series,
                mode="markers",
                error_x={"array": tidy([row.std["accuracy"]])},
                error_y={"array": tidy([row.std["variance"]])},
            )
        )
    return traces


def distribution(record: ComparisonRecord) -> Charts:
    """Return how the clients' accuracies are distributed in the last judged round."""
    aid = (
        "One point a client and seed, in the last judged round; a short box that sits high is both "
        "accurate and fair."
    )

    def draw(record: ComparisonRecord, rows: list[Row]) -> list[dict[str, Any]]:
        traces = []
        for row in rows:
            runs = longest(record, row.dataset, row.split, row.strategy)
            last = [run.scores[max(run.scores)] for run in runs if run.scores]
            values = np.concatenate(last) if last else np.zeros(0)
            traces.append(
                {
                    "type": "box",
                    "name": label(row.strategy),
                    "y": tidy(values[~np.isnan(values)].tolist()),
                    "series": record.strategies.index(row.strategy),
                }
            )
        return [trace for trace in traces if trace["y"]]

    def layout() -> dict[str, Any]:
        return axes("", "accuracy of a client, %", y_range=[-3, 103])

    return _panels(record, "distribution", "Clients' accuracies", draw, aid, layout)


def tails(record: ComparisonRecord) -> Charts:
    """Return the worst and the best tenth of the clients, and the mean between them."""
    aid = (
        "The worst tenth of the clients, the mean and the best tenth, mean of the last ten rounds, "
        "± one standard deviation over seeds: close together is fair."
    )
    shown = (("worst 10%", "worst_10"), ("mean", "accuracy"), ("best 10%", "best_10"))

    def draw(record: ComparisonRecord, rows: list[Row]) -> list[dict[str, Any]]:
        names = [label(row.strategy) for row in rows]
        spans = {
            "type": "scatter",
            "mode": "lines",
            "name": "span",
            "x": [
                v
                for row in rows
                for v in (*tidy([row.mean["worst_10"], row.mean["best_10"]]), None)
            ],
            "y": [v for name in names for v in (name, name, None)],
            "series": 7,
            "quiet": True,
        }
        points = [
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": tidy(row.mean[key] for row in rows),
                "y": names,
                "error_x": {"array": tidy(row.std[key] for row in rows)},
                "series": (5, 4, 0)[k],
            }
            for k, (name, key) in enumerate(shown)
        ]
        return [spans, *points]

    def layout() -> dict[str, Any]:
        return axes("accuracy, %", "", y_type="category", y_autorange="reversed", x_range=[-3, 103])

    return _panels(record, "tails", "Worst and best tenth", draw, aid, layout)


def work(record: ComparisonRecord) -> Charts:
    """Return what the work spent has bought, in accuracy and in variance."""
    charts = []
    for dataset, split in record.panels:
        views = []
        for key, unit, _ in CURVES:
            for spent, spent_unit, scale in SPENT:
                traces = []
                for series, strategy in enumerate(record.strategies):
                    found = longest(record, dataset, split, strategy)
                    x, y = _bought(found, key, spent)
                    if x.size:
                        traces.append(line(label(strategy), scale * x, y, series))
                measure = "accuracy" if key == "accuracy" else "variance"
                name = f"{measure} by {'epochs' if scale == 1 else 'bytes'}"
                views.append(View(traces, axes(spent_unit, unit, y_rangemode="tozero"), name))
        charts.append(
            Chart(
                f"work-{dataset}-{split}",
                f"What the work bought: {dataset}, {split}",
                "Each line follows a strategy through its rounds, mean over seeds, by the work "
                "spent so far, the warm-up included: higher at the same work is better bought.",
                views,
            )
        )
    return Charts(charts)


def _bought(runs: list[RunRecord], key: str, spent: str) -> tuple[Floats, Floats]:
    x, values = _aligned(runs, key)
    if not values.size:
        return np.zeros(0), np.zeros(0)
    totals = []
    for run in runs:
        warmup = run.rounds[0].get("warmup", {})
        before = warmup.get("epochs" if spent == "epochs_total" else spent, 0)
        sums = before + np.cumsum([record[spent] for record in run.rounds])
        totals.append([sums[int(k) - 1] for k in x])
    return np.mean(totals, axis=0), values.mean(axis=0)


def _panels(
    record: ComparisonRecord,
    name: str,
    title: str,
    draw: Callable[[ComparisonRecord, list[Row]], list[dict[str, Any]]],
    aid: str,
    layout: Callable[[], dict[str, Any]],
) -> Charts:
    return Charts(
        [
            Chart(
                f"{name}-{dataset}-{split}",
                f"{title}: {dataset}, {split}",
                aid,
                [View(draw(record, record.rows(dataset, split)), layout())],
            )
            for dataset, split in record.panels
        ]
    )

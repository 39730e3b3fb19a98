"""The charts of a comparison: one panel per dataset and split, one colour per strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flamma.experiments.table import Row, capitalised
from flamma.experiments.table_text import averaged_rounds
from flamma.metrics import METRICS, RoundMetric, shown_in
from flamma.reports.comparing import ComparisonView
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
from flamma.reports.multiples import Multiple, multiples
from flamma.strategies import label_of
from flamma.types import Floats, ScoreKind

WORK_AXES = {
    "epochs_total": ("local epochs", 1.0, "epochs"),
    "bytes_up": ("sent by clients, MB", 1e-6, "bytes"),
    "virtual_seconds": ("virtual time, s", 1.0, "virtual time"),
}
"""Metrics of what training took: the axis and the scale that they are drawn with, and in a word."""

MAX_BOX_POINTS = 2_000
"""Clients' accuracies that a box is drawn from."""

GREY = 7
"""The series that is drawn in grey."""

SMALL_HEIGHT = 260
"""Of one of the small multiples, in pixels."""

LINE_HEIGHT = 22
"""Of a strategy's line in a chart of all of them, in pixels."""

TAILS = (("worst 10%", "worst_10"), ("mean", "accuracy"), ("best 10%", "best_10"))
"""What is shown of the clients' accuracies, each with its metric."""


REFERENCES_AID = "Thin ones are the same in every family's picture, to compare with."


def over_rounds(view: ComparisonView) -> list[Charts]:
    """Return every metric that is shown as a curve, over the rounds: the paper's Figs. 4 and 5."""
    found = []
    for dataset, split in view.panels:
        for name, metric in shown_in("curves", view.score_kind).items():
            drawn = curves(view, dataset, split, name)
            layout = axes("round", metric.title, y_rangemode="tozero", **_same_range(view, drawn))
            title = f"{capitalised(metric.label)}: {dataset}, {split}"
            aid = f"{BETTER[metric.better]} {_curves_aid(view)}".lstrip()
            charts = [
                Chart(
                    own.suffixed(f"curve-{dataset}-{split}-{name}"),
                    own.titled(title),
                    "" if own.family else aid,
                    [View(traces, layout)],
                    height=SMALL_HEIGHT if own.family else 340,
                    group=own.family,
                )
                for own in multiples(view)
                if (traces := _curve_traces(view, drawn, own))
            ]
            found.append(_multiple_charts(view, charts, f"{title}. {aid}"))
    return _joined(view, found)


def _curve_traces(
    view: ComparisonView, drawn: Sequence[Curve], own: Multiple
) -> list[dict[str, Any]]:
    """Return the lines of a family over thin ones of the references, or all lines with bands."""
    if not any(curve.strategy in own.members for curve in drawn):
        return []
    thin, traces = [], []
    for curve in drawn:
        label, series = label_of(curve.strategy), curve.strategy
        if curve.strategy in own.references:
            thin.append(line(label, curve.rounds, curve.mean, series, thin=True))
        elif curve.strategy in own.members:
            if len(curve.values) > 1 and not own.family:
                edges = (curve.rounds, curve.low, curve.high)
                traces += band("lowest seed/highest seed", *edges, series, label)
            traces.append(line(label, curve.rounds, curve.mean, series))
    return [*thin, *traces]


def _curves_aid(view: ComparisonView) -> str:
    if view.families:
        return f"Lines are means over seeds. {REFERENCES_AID}"
    return "Lines are means over seeds; bands reach from the lowest to the highest seed."


def _multiple_charts(view: ComparisonView, charts: Sequence[Chart], lead: str) -> Charts:
    return Charts(charts, small=True, lead=lead) if view.families else Charts(charts)


def _same_range(view: ComparisonView, drawn: Sequence[Curve]) -> dict[str, Any]:
    """Return the range of the values' axis, the same in every family's picture."""
    if not view.families or not drawn:
        return {}
    low = min(0.0, *(float(curve.mean.min()) for curve in drawn))
    high = max(float(curve.mean.max()) for curve in drawn)
    return {"y_range": [low, high + 0.05 * (high - low)]}


def _joined(view: ComparisonView, found: Sequence[Charts]) -> list[Charts]:
    """Return charts group by group, or all in one where they share a legend."""
    if view.families:
        return [charts for charts in found if charts.charts]
    return [Charts([chart for charts in found for chart in charts.charts])]


def distribution(view: ComparisonView) -> list[Charts]:
    """Return how the clients' accuracies are distributed in the last evaluated round."""
    aid = (
        "One point per client and seed, in the last evaluated round; a short box that sits "
        f"{'low' if view.score_kind.less_is_better else 'high'} is both accurate and fair."
    )
    runs = [run for by_seed in view.runs.values() for run in by_seed.values()]
    if sum(run.scores.clients.size for run in runs) > MAX_BOX_POINTS:
        aid += f" Of more than {MAX_BOX_POINTS:,} points so many are drawn, evenly chosen by rank."
    found = []
    kind = view.score_kind
    ends = {} if kind.title else {"y_range": [-3, 103]}  # another metric may go below 0
    across = ScoreKind(f"{kind.name} of a client", kind.less_is_better).axis
    for dataset, split in view.panels:
        boxes = {row.strategy: box for row in view.rows(dataset, split) if (box := _box(view, row))}
        charts = [
            Chart(
                own.suffixed(f"distribution-{dataset}-{split}"),
                own.titled(f"{_of_clients(view)}: {dataset}, {split}"),
                "" if own.family else aid,
                [View(shown, axes("", across, **ends))],
                group=own.family,
            )
            for own in multiples(view)
            if (shown := [boxes[n] for n in (*own.references, *own.members) if n in boxes])
        ]
        lead = f"{_of_clients(view)}: {dataset}, {split}. {aid}" if view.families else ""
        found.append(Charts(charts, lead=lead))
    return _joined(view, found)


def _of_clients(view: ComparisonView) -> str:
    return f"Clients' {view.score_kind.title or 'accuracies'}"


def _box(view: ComparisonView, row: Row) -> dict[str, Any] | None:
    """Return the box of a strategy's clients in their last evaluated round."""
    runs = view.longest_runs(row.dataset, row.split, row.strategy)
    last = [run.scores.rounds[max(run.scores.rounds)] for run in runs if run.scores.rounds]
    values = np.concatenate(last) if last else np.zeros(0)
    values = np.sort(values[~np.isnan(values)])
    if not values.size:
        return None
    return {
        "type": "box",
        "name": label_of(row.strategy),
        "y": short_numbers(values[even_sample(values.size, MAX_BOX_POINTS)].tolist()),
        "series": row.strategy,
        "unlisted": bool(view.families),  # the axis names it
    }


def tails(view: ComparisonView) -> Charts:
    """Return the worst and the best tenth of the clients, and the mean between them."""
    aid = (
        "The worst tenth of the clients, the mean and the best tenth: mean over "
        f"{averaged_rounds(view.comparison.rows)}, ± one standard deviation over seeds. Close "
        "together is fair."
    )
    ends = {} if view.score_kind.title else {"x_range": [-3, 103]}
    layout = axes(view.score_kind.axis, "", y_type="category", y_autorange="reversed", **ends)
    charts = []
    for dataset, split in view.panels:
        rows = view.rows(dataset, split)
        rows = [row for row in rows if all(key in row.mean for _, key in TAILS)]
        traces = [
            trace
            for own in multiples(view)
            for trace in _tails_of([r for r in rows if r.strategy in own.members], own.family)
        ]
        title = f"Worst and best tenth: {dataset}, {split}"
        height = max(340, LINE_HEIGHT * len(rows))
        chart = Chart(f"tails-{dataset}-{split}", title, aid, [View(traces, layout)], height=height)
        charts += [chart] if traces else []
    return Charts(charts)


def _tails_of(rows: Sequence[Row], family: str) -> list[dict[str, Any]]:
    """Return the points of a family's rows, and the lines between them."""
    if not rows:
        return []
    names = [label_of(row.strategy) for row in rows]
    ends = [[*short_numbers([row.mean["worst_10"], row.mean["best_10"]]), None] for row in rows]
    shared = {"type": "scatter", "group": family}
    spans = shared | {
        "mode": "lines",
        "name": "span",
        "x": [value for pair in ends for value in pair],
        "y": [value for name in names for value in (name, name, None)],
        "series": GREY,
        "quiet": True,
    }
    points = [
        shared
        | {
            "mode": "markers",
            "name": name,
            "x": short_numbers(row.mean[key] for row in rows),
            "y": names,
            "error_x": {"array": short_numbers(row.std[key] for row in rows)},
            "series": (5, 4, 0)[k],
        }
        for k, (name, key) in enumerate(TAILS)
    ]
    return [spans, *points]


def by_work(view: ComparisonView) -> list[Charts]:
    """Return every metric that is shown as a curve, over the work spent so far."""
    aid = (
        "Each line follows a strategy through its rounds, mean over seeds, by the work spent so "
        "far with the warm-up."
    )
    found = []
    for dataset, split in view.panels:
        drawn = {
            name: curves(view, dataset, split, name) for name in shown_in("curves", view.score_kind)
        }
        charts = [
            Chart(
                own.suffixed(f"work-{dataset}-{split}"),
                own.titled(f"By work spent: {dataset}, {split}"),
                "" if own.family else aid,
                views,
                height=SMALL_HEIGHT if own.family else 340,
                group=own.family,
            )
            for own in multiples(view)
            if (views := _work_views(view, drawn, own))
        ]
        lead = f"By work spent: {dataset}, {split}. {aid} {REFERENCES_AID}"
        found.append(_multiple_charts(view, charts, lead))
    return _joined(view, found)


def _work_views(
    view: ComparisonView, drawn: Mapping[str, Sequence[Curve]], own: Multiple
) -> list[View]:
    views = []
    for name, metric in shown_in("curves", view.score_kind).items():
        shown = [c for c in drawn[name] if c.strategy in (*own.references, *own.members)]
        if not any(curve.strategy in own.members for curve in shown):
            continue
        for spent, (x_title, scale, by) in WORK_AXES.items():
            if spent == "virtual_seconds" and any(
                run.times is None for c in shown for run in c.runs
            ):
                continue
            traces = [
                line(
                    label_of(curve.strategy),
                    scale * _spent(curve, spent),
                    curve.mean,
                    curve.strategy,
                    **({"thin": True} if curve.strategy in own.references else {}),
                )
                for curve in shown
            ]
            ranges = _same_range(view, drawn[name])
            layout = axes(x_title, metric.title, y_rangemode="tozero", **ranges)
            views.append(View(traces, layout, f"{metric.label} by {by}"))
    return views


def _spent(curve: Curve, name: str) -> Floats:
    """Return how much was spent up to each round of a curve, mean over its seeds."""
    metric = METRICS[name]
    totals = []
    for run in curve.runs:
        # Of a damaged run the record of a round may be lost: it has fewer sums than rounds.
        places = np.searchsorted(run.numbers, curve.rounds).tolist()
        if name == "virtual_seconds" and run.times is not None:  # a sum already
            totals.append([run.times[place] for place in places])
            continue
        before = 0.0
        if isinstance(metric, RoundMetric) and metric.warmup is not None:
            before = metric.warmup(run.rounds[0])
        sums = before + np.cumsum([value or 0.0 for value in run.of_rounds(name)])
        totals.append(sums[places])
    mean: Floats = np.mean(totals, axis=0)
    return mean

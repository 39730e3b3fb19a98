"""The charts of a comparison: one panel per dataset and split, one colour per strategy."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.experiments.comparison import (
    ONE_SEED,
    SPENT,
    Comparison,
    Row,
    averaged_rounds,
    capitalised,
    column_titles,
    further_notes,
    metrics_in_lines,
    short_hashes,
    spent_text,
    statistics_note,
    statistics_of,
    statistics_table,
    told_by,
    with_spread,
)
from flamma.experiments.result import sample_text
from flamma.experiments.statistics import (
    CONFIDENCE,
    AcrossSettings,
    DataPlace,
    explain_marks,
    relative_to,
)
from flamma.experiments.suite import family_name
from flamma.metrics import (
    METRICS,
    EqualWorkMetric,
    Metric,
    RoundMetric,
    last_rounds,
    shown_in,
)
from flamma.numerics import total
from flamma.reports import run_charts
from flamma.reports.document import (
    BETTER,
    MAX_FACTS,
    MAX_POINTS,
    Chart,
    Charts,
    Code,
    Document,
    Explorer,
    Facts,
    Item,
    Plotly,
    Section,
    Table,
    TableCell,
    View,
    axes,
    band,
    column_text,
    even_sample,
    line,
    notice,
    short_numbers,
    value_text,
)
from flamma.reports.pictures import (
    Curve,
    Multiple,
    curves,
    family_title,
    multiples,
    new_figure,
    save,
)
from flamma.reports.reading import ComparisonView, comparison_progress, pareto, read_comparison
from flamma.reports.style import looks_of
from flamma.strategies import label_of
from flamma.types import Floats, ScoreKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WORK_AXES = {
    "epochs_total": ("local epochs", 1.0, "epochs"),
    "bytes_up": ("sent by clients, MB", 1e-6, "bytes"),
    "virtual_seconds": ("virtual time, s", 1.0, "virtual time"),
}
"""Metrics of what training took: the axis and the scale that they are drawn with, and in a word."""

_GREY = 7
"""The series that is drawn in grey."""

_SMALL_HEIGHT = 260
"""Of one of the small multiples, in pixels."""

_LINE_HEIGHT = 22
"""Of a strategy's line in a chart of all of them, in pixels."""

_TAILS = (("worst 10%", "worst_10"), ("mean", "accuracy"), ("best 10%", "best_10"))
"""What is shown of the clients' accuracies, each with its metric."""


_REFERENCES_AID = "Thin ones are the same in every family's picture, to compare with."


def _over_rounds(view: ComparisonView) -> list[Charts]:
    """Return every metric that is shown as a curve, over the rounds: the paper's Figs. 4 and 5."""
    found = []
    lines = "Lines are means over seeds; bands reach from the lowest to the highest seed."
    if view.families:
        lines = f"Lines are means over seeds. {_REFERENCES_AID}"
    for dataset, split in view.panels:
        for name, metric in shown_in("curves", view.score_kind).items():
            drawn = curves(view, dataset, split, name)
            layout = axes("round", metric.title, y_rangemode="tozero", **_same_range(view, drawn))
            title = f"{capitalised(metric.label)}: {dataset}, {split}"
            aid = f"{BETTER[metric.better]} {lines}".lstrip()
            charts = [
                Chart(
                    own.suffixed(f"curve-{dataset}-{split}-{name}"),
                    own.titled(title),
                    "" if own.family else aid,
                    [View(traces, layout)],
                    height=_SMALL_HEIGHT if own.family else 340,
                    group=own.family,
                )
                for own in multiples(view)
                if (traces := _curve_traces(view, drawn, own))
            ]
            found.append(_multiple_charts(view, charts, f"{title}. {aid}"))
    return _joined(view, found)


def _curve_traces(view: ComparisonView, drawn: Sequence[Curve], own: Multiple) -> list[Plotly]:
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


def _multiple_charts(view: ComparisonView, charts: Sequence[Chart], lead: str) -> Charts:
    return Charts(charts, small=True, lead=lead) if view.families else Charts(charts)


def _same_range(view: ComparisonView, drawn: Sequence[Curve]) -> Plotly:
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


def _distribution(view: ComparisonView) -> list[Charts]:
    """Return how the clients' accuracies are distributed in the last evaluated round."""
    aid = (
        "One point per client and seed, in the last evaluated round; a short box that sits "
        f"{'low' if view.score_kind.lower_is_better else 'high'} is both accurate and fair."
    )
    runs = [run for by_seed in view.runs.values() for run in by_seed.values()]
    if sum(run.scores.clients.size for run in runs) > MAX_POINTS:
        aid += f" Of more than {MAX_POINTS:,} points so many are drawn, evenly chosen by rank."
    found = []
    kind = view.score_kind
    ends = {} if kind.title else {"y_range": [-3, 103]}  # another metric may go below 0
    across = ScoreKind(f"{kind.name} of a client", kind.lower_is_better).axis
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


def _box(view: ComparisonView, row: Row) -> Plotly | None:
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
        "y": short_numbers(values[even_sample(values.size, MAX_POINTS)].tolist()),
        "series": row.strategy,
        "unlisted": bool(view.families),  # the axis names it
    }


def _tails(view: ComparisonView) -> Charts:
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
        rows = [row for row in rows if all(key in row.mean for _, key in _TAILS)]
        traces = [
            trace
            for own in multiples(view)
            for trace in _tails_of([r for r in rows if r.strategy in own.members], own.family)
        ]
        title = f"Worst and best tenth: {dataset}, {split}"
        height = max(340, _LINE_HEIGHT * len(rows))
        chart = Chart(f"tails-{dataset}-{split}", title, aid, [View(traces, layout)], height=height)
        charts += [chart] if traces else []
    return Charts(charts)


def _tails_of(rows: Sequence[Row], family: str) -> list[Plotly]:
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
        "series": _GREY,
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
        for k, (name, key) in enumerate(_TAILS)
    ]
    return [spans, *points]


def _by_work(view: ComparisonView) -> list[Charts]:
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
                height=_SMALL_HEIGHT if own.family else 340,
                group=own.family,
            )
            for own in multiples(view)
            if (views := _work_views(view, drawn, own))
        ]
        lead = f"By work spent: {dataset}, {split}. {aid} {_REFERENCES_AID}"
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
        for spent, (x_title, scale, by) in _WORK_AXES.items():
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


# The tables of a comparison's page.

_HOW_BEST = f"differences paired over seeds, {CONFIDENCE:.0%} confidence"
_NOT_SIGNIFICANT = f"no significant difference (paired over seeds, {CONFIDENCE:.0%})"
_NOT_FINISHED = "not finished"


def _paper_table() -> dict[str, Any]:
    """Return the paper's Table I with its source."""
    text = (files("flamma.reports") / "paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _page_metrics(rows: Sequence[Row]) -> dict[str, Metric]:
    """Return the metrics of the page; those at equal work have a table of their own."""
    found = told_by(rows, "page")
    return {n: metric for n, metric in found.items() if not isinstance(metric, EqualWorkMetric)}


def _main_metrics(view: ComparisonView, rows: Sequence[Row]) -> dict[str, Metric]:
    """Return the metrics that the main table has for every split."""
    wanted = metrics_in_lines(rows, bool(view.families))
    return {name: metric for name, metric in _page_metrics(rows).items() if name in wanted}


def _main_table(view: ComparisonView, dataset: str) -> Table:
    """Return the paper's layout: one line per strategy, the metrics of every split side by side."""
    comparison = view.comparison
    rows = view.by_family(row for row in comparison.rows if row.dataset == dataset)
    splits = list(dict.fromkeys(row.split for row in rows))
    strategies = list(dict.fromkeys(row.strategy for row in rows))
    metrics = _main_metrics(view, rows)
    printed = _paper_table().get(dataset, {})
    header = ["Algorithm"]
    spent = SPENT if view.families else ()
    alone = bool(spent) and len(splits) == 1  # the caption tells the split
    header += column_titles(metrics, splits, alone)
    header += [title for _, title, _ in spent]
    lines: list[list[str | TableCell]] = []
    for strategy in strategies:
        by_split = {row.split: row for row in rows if row.strategy == strategy}
        cells: list[str | TableCell] = [label_of(strategy)]
        for split in splits:
            theirs = printed.get(split, {}).get(strategy, {})
            for name in metrics:
                note = "paper: {:.2f} ± {:.2f}".format(*theirs[name]) if name in theirs else ""
                cells.append(_cell(comparison, by_split.get(split), name, note))
        own = list(by_split.values())
        cells += [TableCell(spent_text(own, name, unit)) for name, _, unit in spent]
        lines.append(cells)
    notes = [
        *_table_notes(rows, printed),
        *further_notes(metrics, rows),
        *comparison.evaluation_notes(dataset),
    ]
    groups = _groups(view, strategies)
    caption = f"{dataset}, {splits[0]}" if alone else dataset
    return Table(f"table-{dataset}", caption, header, lines, notes, groups)


def _groups(view: ComparisonView, strategies: Iterable[str]) -> list[str]:
    """Return the family of every line of a table; nothing if there are none."""
    return [view.family(strategy) for strategy in strategies] if view.families else []


def _further_table(view: ComparisonView, dataset: str) -> Table:
    """Return the other metrics of the page: one line per split and strategy."""
    comparison = view.comparison
    rows = view.by_family(row for row in comparison.rows if row.dataset == dataset)
    main = {*_main_metrics(view, comparison.rows)}
    main |= {name for name, _, _ in SPENT} if view.families else set()
    metrics = {
        name: metric
        for name, metric in _page_metrics(comparison.rows).items()
        if name not in main and any(name in row.mean for row in comparison.rows)
    }
    header = ["Algorithm", *(capitalised(column_text(metric)) for metric in metrics.values())]
    lines: list[list[str | TableCell]] = [
        [
            f"{label_of(row.strategy)} ({row.split})",
            *(_cell(comparison, row, name) for name in metrics),
        ]
        for row in rows
    ]
    last = averaged_rounds(rows)
    notes = [f"{capitalised(m.label)}: {m.aggregation(last)}." for m in metrics.values()]
    notes += comparison.evaluation_notes(dataset)
    groups = _groups(view, (row.strategy for row in rows))
    return Table(f"further-{dataset}", dataset, header, lines, [" ".join(notes)], groups)


def _equal_work_tables(view: ComparisonView) -> list[Table]:
    """Return the metrics at equal work, if the table tells them."""
    rows = view.comparison.rows
    equal = {
        name: metric for name in METRICS if isinstance(metric := METRICS[name], EqualWorkMetric)
    }
    metrics = {n: metric for n, metric in equal.items() if rows and all(n in r.mean for r in rows)}
    if not metrics:
        return []
    header = ["Algorithm"]
    for dataset, split in view.panels:
        of = (METRICS[metric.of].scored_by(view.score_kind) for metric in metrics.values())
        header += [f"{capitalised(metric.label)} ({dataset}, {split})" for metric in of]
    lines: list[list[str | TableCell]] = []
    for strategy in view.strategies:
        cells: list[str | TableCell] = [label_of(strategy)]
        for panel in view.panels:
            own = next((row for row in view.rows(*panel) if row.strategy == strategy), None)
            cells += [_cell(view.comparison, own, name) for name in metrics]
        lines.append(cells)
    note = (
        f"Mean over {last_rounds()} before a run has spent more local epochs than the "
        "run of the same data and split with the fewest spends in all."
    )
    notes = [note, *view.comparison.evaluation_notes()]
    groups = _groups(view, view.strategies)
    return [Table("equal-work", "At equal work", header, lines, notes, groups)]


def _hashes_table(view: ComparisonView) -> Table:
    """Return the beginnings of the hashes of the final weights, one for each seed."""
    rows = [row for row in view.by_family(view.comparison.rows) if row.weights_sha256]
    lines: list[list[str | TableCell]] = [
        [row.dataset, row.split, label_of(row.strategy), " ".join(short_hashes(row))]
        for row in rows
    ]
    header = ["Data", "Split", "Algorithm", "Weights by seed"]
    note = (
        "The first digits of the SHA-256 of the final weights; flamma compare --check table.json "
        "repeats the runs and compares them."
    )
    groups = _groups(view, (row.strategy for row in rows))
    return Table("weights", "Final weights", header, lines, [note], groups)


def _cell(comparison: Comparison, row: Row | None, name: str, note: str = "") -> str | TableCell:
    """Return a metric of a row as mean ± standard deviation over seeds, marked if it is best."""
    if row is None:
        return _NOT_FINISHED
    if name not in row.mean:
        return "-"
    mean, std, metric = row.mean[name], row.std[name], METRICS[name]
    texts = row.texts(name)
    if "table" not in metric.shown and not metric.unit.startswith("%"):
        texts = value_text(metric, mean), value_text(metric, std, 2)
    return TableCell(with_spread(row, *texts), mean, std, comparison.mark(row, name), note)


def _table_notes(rows: Sequence[Row], printed: Mapping[str, object]) -> list[str]:
    several = min(len(row.seeds) for row in rows) > 1
    notes = [explain_marks("Bold", "Underlined") if several else ONE_SEED]
    if printed:
        found = _paper_table()
        notes.append(f"Paper: {found['source']}. {found['caution']}")
    return notes


# Accuracy against variance: who is beaten in both, and who is not.

_X, _Y = "accuracy", "accuracy_variance"

_AID = (
    "Right is more accurate, down is fairer. Crosses are ± one standard deviation over seeds, "
    "small points single seeds. The dotted line joins the strategies that no other beats in both "
    "(the Pareto front)."
)
_MANY_AID = (
    "Right is more accurate, down is fairer. The dotted line joins the strategies that no other "
    "beats in both (the Pareto front). Choose a family to see its names, and crosses of ± one "
    "standard deviation over seeds; shapes are families."
)
_FRONT = "front"
"""The label of the view that names the Pareto front only."""

_LABEL_WIDTH, _LABEL_HEIGHT = 0.22, 0.06
"""About the size of a name on a phone, as shares of the picture."""

_MARGIN = 0.05
"""How far the picture reaches beyond the first and the last point, as a share of it."""

_SIDES = {
    "top center": (0.0, _LABEL_HEIGHT),
    "bottom center": (0.0, -_LABEL_HEIGHT),
    "middle right": (0.6 * _LABEL_WIDTH, 0.0),
    "middle left": (-0.6 * _LABEL_WIDTH, 0.0),
}
"""Where a name may stand, and how far its middle is from its point."""

_Point = tuple[float, float]


def _plane(view: ComparisonView) -> Charts:
    """Return accuracy against variance, with the strategies that no other beats in both.

    Of many strategies the first view names those on the front, and one for each family that
    family's too.
    """
    charts = []
    for dataset, split in view.panels:
        rows = [row for row in view.rows(dataset, split) if _X in row.mean and _Y in row.mean]
        across, up = (METRICS[name].scored_by(view.score_kind) for name in (_X, _Y))
        layout = axes(across.title, up.title, y_rangemode="tozero")
        if view.families:
            present = {view.family(row.strategy) for row in rows}
            chosen = [_FRONT, *(family for family in view.families if family in present)]
            views = [View(_many(view, rows, f), layout, family_name(f)) for f in chosen]
        else:
            views = [View(_few(rows), layout)]
        if rows:
            title = f"{capitalised(across.label)} and fairness: {dataset}, {split}"
            aid, height = (_MANY_AID, 460) if view.families else (_AID, 340)
            if across.better == "lower":
                aid = aid.replace("Right is", "Left is")
            charts.append(Chart(f"plane-{dataset}-{split}", title, aid, views, height=height))
    return Charts(charts)


def _front(rows: list[Row]) -> Plotly:
    front = pareto(rows)
    x, y = [row.mean[_X] for row in front], [row.mean[_Y] for row in front]
    return line("Pareto front", x, y, 7, mode="lines+markers", quiet=True)


def _few(rows: list[Row]) -> list[Plotly]:
    """Return all strategies with crosses and their single seeds."""
    traces = [_front(rows)] if rows else []
    for row in rows:
        if len(row.seeds) > 1:
            label, x, y = label_of(row.strategy), row.values[_X], row.values[_Y]
            points = line(f"{label}, single seeds", x, y, row.strategy, mode="markers")
            traces.append(points | {"of": label, "small": True})
        traces.append(_point(row) | _cross(row))
    return traces


def _many(view: ComparisonView, rows: list[Row], family: str) -> list[Plotly]:
    """Return all strategies as points; those of a family, or else of the front, with names."""
    front = [row.strategy for row in pareto(rows)]
    chosen = view.families.get(family, [])
    named = [row for row in rows if row.strategy in (*front, *chosen)]
    places = _label_places(rows, named)
    shapes = list(view.families)
    traces = [_front(rows)]
    for row in rows:
        own = view.family(row.strategy)
        trace = _point(row) | {"group": own, "shape": shapes.index(own)}
        trace["unlisted"] = True  # names are in the picture, and a legend of all would be long
        if row.strategy in places:
            text = {"text": [trace["name"]], "textposition": places[row.strategy]}
            trace |= {"mode": "markers+text", **text}
        trace |= _cross(row) if row.strategy in chosen else {"faint": family != _FRONT}
        traces.append(trace)
    return traces


def _point(row: Row) -> Plotly:
    x, y = [row.mean[_X]], [row.mean[_Y]]
    return line(label_of(row.strategy), x, y, row.strategy, mode="markers")


def _cross(row: Row) -> Plotly:
    spread = {"error_x": row.std[_X], "error_y": row.std[_Y]}
    return {side: {"array": short_numbers([size])} for side, size in spread.items()}


def _label_places(rows: Sequence[Row], named: Sequence[Row]) -> dict[str, str]:
    """Return where the name of each row stands, so that names cover few points and no other name.

    Each name in turn takes the place beside its point that is least crowded.
    """
    values = ([row.mean[metric] for row in rows] for metric in (_X, _Y))
    spans = [max(own) - min(own) or 1.0 for own in values]
    points = {row.strategy: (row.mean[_X] / spans[0], row.mean[_Y] / spans[1]) for row in rows}
    edges = min(x for x, _ in points.values()), max(x for x, _ in points.values())
    names: list[_Point] = []
    found = {}
    for row in named:
        x, y = points[row.strategy]
        crowds = {
            side: 4 * _near((x + right, y + up), names, 1.0)
            + _near((x + right, y + up), points.values(), 0.6)
            + 4 * _leaves(x + right, y + up, edges)
            for side, (right, up) in _SIDES.items()
        }
        side = min(crowds, key=crowds.__getitem__)
        found[row.strategy] = side
        names.append((x + _SIDES[side][0], y + _SIDES[side][1]))
    return found


def _leaves(x: float, y: float, edges: _Point) -> bool:
    """Return whether a name with its middle there would leave the picture, which starts at 0."""
    half, low = _LABEL_WIDTH / 2 - _MARGIN, _LABEL_HEIGHT / 2
    return x - half < edges[0] or x + half > edges[1] or y < low


def _near(place: _Point, others: Iterable[_Point], size: float) -> int:
    """Return how many others are within the size of a name."""
    x, y = place
    width, height = size * _LABEL_WIDTH, size * _LABEL_HEIGHT
    return sum(abs(x - a) < width and abs(y - b) < height for a, b in others)


# What a comparison of many settings comes to: mean ranks, tests, and the frontier.

_MOST_WITH_SETTINGS = 8
"""Of more strategies than this, single settings are not drawn."""
_GAINED, _RATIO = "accuracy gained, points", "variance ratio, log2"

_RANKS_AID = (
    "Mean rank over settings, left is better. Bars are half the critical difference to each side: "
    "strategies whose bars do not overlap can be told apart (Nemenyi, 95% confidence)."
)
_FRONTIER_AID = (
    "Mean over settings against the reference at 0, 0: right is more accurate, down is fairer; a "
    "ratio of -1 is half the variance. Small points are single settings."
)


def _statistics_section(view: ComparisonView) -> list[Section]:
    """Return the section of ranks and tests over settings, if there are enough of them."""
    rows = view.comparison.rows
    found = statistics_of(rows)
    if not found:
        return []
    charts = [_ranks_chart(own) for own in found]
    relative = relative_to(rows)
    charts += [_frontier_chart(relative)] if relative else []
    tables = []
    for own in found:
        caption, header, lines = statistics_table(own)
        tables.append(Table(f"settings-{own.metric}", caption, header, lines))
    return [
        Section("settings", "Over all settings", statistics_note(found), [Charts(charts), *tables])
    ]


def _ranks_chart(found: AcrossSettings) -> Chart:
    """Return the mean ranks, each with half the critical difference to both sides."""
    half = short_numbers([found.critical_difference / 2])
    traces: list[Plotly] = []
    for strategy, rank in found.ranks.items():
        label = label_of(strategy)
        point = line(label, [rank], [0.0], strategy, mode="markers", unlisted=True)
        traces.append(point | {"y": [label], "error_x": {"array": half}})
    layout = axes("mean rank", "", y_type="category", y_autorange="reversed")
    title = f"Mean rank by {METRICS[found.metric].label}"
    height = max(340, _LINE_HEIGHT * len(traces))
    return Chart(f"ranks-{found.metric}", title, _RANKS_AID, [View(traces, layout)], height=height)


def _frontier_chart(relative: Mapping[str, Mapping[DataPlace, tuple[float, float]]]) -> Chart:
    """Return accuracy against variance relative to the reference, over all settings."""
    traces: list[Plotly] = []
    for strategy, places in relative.items():
        label = label_of(strategy)
        x, y = zip(*places.values(), strict=True)
        if len(relative) <= _MOST_WITH_SETTINGS:
            points = line(f"{label}, single settings", x, y, strategy, mode="markers")
            traces.append(points | {"of": label, "small": True})
        gained, ratio = ([total(list(own)) / len(own)] for own in (x, y))
        traces.append(line(label, gained, ratio, strategy, mode="markers"))
    layout = axes(_GAINED, _RATIO)
    return Chart(
        "frontier", "Accuracy and fairness", _FRONTIER_AID, [View(traces, layout)], height=460
    )


def _draw_critical_difference(found: AcrossSettings) -> Figure:
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
        save(_draw_critical_difference(found), path)
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
    step = max(1, round(count / 10))  # about ten whole ranks are marked
    for rank in sorted({1, *range(step, count + 1, step), count}):
        drawn.plot([rank, rank], [-0.25, 0], color="black", linewidth=1)
        drawn.text(rank, -0.35, str(rank), ha="center", va="bottom", fontsize="small")
    width = min(found.critical_difference, float(count - 1))
    drawn.plot([1, 1 + width], [-1.5, -1.5], color="black", linewidth=2)
    label = f"{METRICS[found.metric].label}: critical difference {found.critical_difference:.2f}"
    drawn.text(1, -1.65, label, ha="left", va="bottom", fontsize="small")


# The page of a comparison.

_MAX_NOTICES = 12
_MAX_NAMES = 6
_VERSION_COLUMNS = ("flamma", "python", "numpy", "torch", "trainer")


def comparison_document(path: Path) -> Document:
    """Return the page of a comparison's directory, of what can be read of it."""
    view = read_comparison(path)
    comparison, rows = view.comparison, view.comparison.rows
    runs = [run for by_seed in view.runs.values() for run in by_seed.values()]
    rounds = sorted({run.planned_rounds for run in runs})
    seeds = sorted({len(row.seeds) for row in rows})
    parts = [
        f"{len(view.strategies)} strategies",
        f"{len(view.panels)} settings" if len(view.panels) != 1 else "1 setting",
        "1 seed" if seeds == [1] else f"{'-'.join(map(str, seeds)) or 'no'} seeds",
        *([f"{'-'.join(map(str, rounds))} rounds"] if rounds else []),
        *(["accuracies over samples of the clients"] if any(r.sample for r in rows) else []),
        *(["some of clients' own models"] if any(r.personal for r in rows) else []),
    ]
    sections = [section for section in _sections(view) if section.items]
    notices = [notice(text) for text in view.problems]  # drawing may have added some
    if len(notices) > _MAX_NOTICES:
        notices = [*notices[:_MAX_NOTICES], f"And {len(notices) - _MAX_NOTICES} more."]
    return Document(
        kind="comparison",
        title=f"Comparison: {comparison.name}",
        subtitle=", ".join(parts),
        notices=notices,
        facts=_facts(view),
        sections=sections,
        footer=f"Made by FLamma from {path.name or path}",
        groups={family: family_title(family) for family in view.families},
        looks=looks_of(view.strategies),
        progress=comparison_progress(path, runs),
    )


def _facts(view: ComparisonView) -> Facts:
    """Return the best strategy of every panel, by each metric of the main table."""
    facts = []
    rows = view.comparison.rows
    in_terminals = told_by(rows, "table")
    metrics = {n: metric for n, metric in _page_metrics(rows).items() if n in in_terminals}
    for dataset, split in view.panels:
        for name, metric in metrics.items():
            best = view.comparison.best(dataset, split, name)
            extreme = "highest" if metric.better == "higher" else "lowest"
            title = f"{extreme} {metric.label}: {dataset}, {split}"
            names = [label_of(strategy) for strategy in best]
            if len(best) == 1:
                row = view.comparison.row(dataset, split, best[0])
                value = f"{' ± '.join(row.texts(name, digits=1))} {metric.unit}".rstrip()
                over = "" if row.sample is None else f" over {sample_text(*row.sample)}"
                over += " of clients' own models" * row.personal
                facts.append((title, names[0], f"{value}{over}; {_HOW_BEST}"))
            elif len(best) == 2:
                facts.append((title, " or ".join(names), _NOT_SIGNIFICANT))
            elif best:
                which = f"{', '.join(names)}: " if len(names) <= _MAX_NAMES else ""
                note = f"{which}{_NOT_SIGNIFICANT}"
                facts.append((title, f"{len(names)} strategies tie", note))
    return Facts(facts[:MAX_FACTS])


def _sections(view: ComparisonView) -> list[Section]:
    kind = view.score_kind
    percent = "" if kind.lower_is_better else " in percent"
    datasets = list(dict.fromkeys(dataset for dataset, _ in view.panels))
    main = [_main_table(view, dataset) for dataset in datasets]
    further = [_further_table(view, dataset) for dataset in datasets]
    return [
        Section(
            "table",
            "The table",
            f"{capitalised(kind.name)} is the mean over clients{percent}, variance that of the "
            f"clients'{percent and f'{percent} squared'}; both are means over "
            f"{averaged_rounds(view.comparison.rows)}, ± the standard deviation over seeds.",
            main,
        ),
        *_statistics_section(view),
        *(_chart_sections(view) if view.runs else []),
        Section(
            "further",
            "Further metrics",
            "The other metrics of the same runs, mean ± standard deviation over seeds.",
            [table for table in further if len(table.header) > 1],
        ),
        *(_explorer(view) if view.runs else []),
        _reproduction(view),
    ]


def _chart_sections(view: ComparisonView) -> list[Section]:
    groups = [
        (
            "rounds",
            "Over the rounds",
            "The paper's Figs. 4 and 5: metrics as training goes on.",
            _over_rounds(view),
        ),
        (
            "fairness",
            f"{capitalised(view.score_kind.name)} and fairness",
            f"Whether fairness costs {view.score_kind.name}, and how the worst clients fare.",
            [_plane(view), *_distribution(view), _tails(view)],
        ),
        (
            "work",
            "Work and traffic",
            "Metrics by the local epochs and bytes that were spent.",
            _by_work(view),
        ),
    ]
    sections = []
    notes = view.comparison.evaluation_notes()
    for name, title, about, found in groups:
        lead = " ".join([about, *notes])
        items: list[Item] = [group for group in found if group.charts]
        items += _equal_work_tables(view) if name == "work" else []
        sections.append(Section(name, title, lead, items))
    return sections


def _explorer(view: ComparisonView) -> list[Section]:
    games = _games(view)
    lead = (
        "The games that were played in these runs: change the rules or one client and see how the "
        "equilibrium moves."
    )
    return [Section("explorer", "Game explorer", lead, [Explorer(games)])] if games else []


def _games(view: ComparisonView) -> list[Plotly]:
    """Return the games of three rounds of the first run of every panel that has any."""
    found = []
    for dataset, split in view.panels:
        for strategy in view.strategies:
            runs = list(view.runs.get((dataset, split, strategy), {}).values())
            games = run_charts.explorer_games(runs[0]) if runs else []
            if games:
                where = f"{dataset}, {split}, {label_of(strategy)}"
                chosen = dict.fromkeys((0, len(games) // 2, len(games) - 1))
                found += [games[k] | {"label": f"{where}: {games[k]['label']}"} for k in chosen]
                break
    return found


def _reproduction(view: ComparisonView) -> Section:
    runs = [run for by_seed in view.runs.values() for run in by_seed.values()]
    commands = sorted({run.command for run in runs if run.command})
    items: list[Item] = [Code("The command of these runs", text) for text in commands[:3]]
    versions = {tuple(str(run.about.get(key, "?")) for key in _VERSION_COLUMNS) for run in runs}
    if versions:
        rows = [list(row) for row in sorted(versions)]
        items.append(Table("versions", "Versions", _VERSION_COLUMNS, rows))
    hashes = _hashes_table(view)
    items += [hashes] if hashes.rows else []
    first = {key: next(iter(by_seed.values())) for key, by_seed in view.runs.items()}
    configs = [
        f"# {dataset}, {split}, {label_of(strategy)}\n{run.config_text}"
        for (dataset, split, strategy), run in first.items()
        if run.config_text
    ]
    if configs:
        items.append(Code("The configurations (first seed)", "\n".join(configs), folded=True))
    return Section("again", "Run it again", "Everything that determines these runs.", items)

"""Accuracy against variance: who is beaten in both, and who is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flamma.experiments.families import family_name
from flamma.experiments.table import Row, capitalised
from flamma.metrics import METRICS
from flamma.reports.comparing import ComparisonView, pareto
from flamma.reports.document import Chart, Charts, View, axes, line, short_numbers
from flamma.strategies import label_of

X, Y = "accuracy", "accuracy_variance"

AID = (
    "Right is more accurate, down is fairer. Crosses are ± one standard deviation over seeds, "
    "small points single seeds. The dotted line joins the strategies that no other beats in both "
    "(the Pareto front)."
)
MANY_AID = (
    "Right is more accurate, down is fairer. The dotted line joins the strategies that no other "
    "beats in both (the Pareto front). Choose a family to see its names, and crosses of ± one "
    "standard deviation over seeds; shapes are families."
)
FRONT = "front"
"""The label of the view that names the Pareto front only."""

LABEL_WIDTH, LABEL_HEIGHT = 0.22, 0.06
"""About the size of a name on a phone, as shares of the picture."""

MARGIN = 0.05
"""How far the picture reaches beyond the first and the last point, as a share of it."""

SIDES = {
    "top center": (0.0, LABEL_HEIGHT),
    "bottom center": (0.0, -LABEL_HEIGHT),
    "middle right": (0.6 * LABEL_WIDTH, 0.0),
    "middle left": (-0.6 * LABEL_WIDTH, 0.0),
}
"""Where a name may stand, and how far its middle is from its point."""

Point = tuple[float, float]


def plane(view: ComparisonView) -> Charts:
    """Return accuracy against variance, with the strategies that no other beats in both.

    Of many strategies the first view names those on the front, and one for each family that
    family's too.
    """
    charts = []
    for dataset, split in view.panels:
        rows = [row for row in view.rows(dataset, split) if X in row.mean and Y in row.mean]
        across, up = (METRICS[name].scored_by(view.score_kind) for name in (X, Y))
        layout = axes(across.title, up.title, y_rangemode="tozero")
        if view.families:
            chosen = [FRONT, *(f for f, names in view.families.items() if _of(rows, names))]
            views = [View(_many(view, rows, f), layout, family_name(f)) for f in chosen]
        else:
            views = [View(_few(rows), layout)]
        if rows:
            title = f"{capitalised(across.label)} and fairness: {dataset}, {split}"
            aid, height = (MANY_AID, 460) if view.families else (AID, 340)
            if across.better == "lower":
                aid = aid.replace("Right is", "Left is")
            charts.append(Chart(f"plane-{dataset}-{split}", title, aid, views, height=height))
    return Charts(charts)


def _of(rows: Iterable[Row], names: Sequence[str]) -> list[Row]:
    return [row for row in rows if row.strategy in names]


def _front(rows: list[Row]) -> dict[str, Any]:
    front = pareto(rows)
    x, y = [row.mean[X] for row in front], [row.mean[Y] for row in front]
    return line("Pareto front", x, y, 7, mode="lines+markers", quiet=True)


def _few(rows: list[Row]) -> list[dict[str, Any]]:
    """Return all strategies with crosses and their single seeds."""
    traces = [_front(rows)] if rows else []
    for row in rows:
        if len(row.seeds) > 1:
            traces.append(_seeds(row))
        traces.append(_point(row) | _cross(row))
    return traces


def _many(view: ComparisonView, rows: list[Row], family: str) -> list[dict[str, Any]]:
    """Return all strategies as points; those of a family, or else of the front, with names."""
    front = [row.strategy for row in pareto(rows)]
    chosen = view.families.get(family, [])
    named = [row for row in rows if row.strategy in (*front, *chosen)]
    places = label_places(rows, named)
    shapes = list(view.families)
    traces = [_front(rows)]
    for row in rows:
        own = view.family(row.strategy)
        trace = _point(row) | {"group": own, "shape": shapes.index(own)}
        trace["unlisted"] = True  # names are in the picture, and a legend of all would be long
        if row.strategy in places:
            text = {"text": [trace["name"]], "textposition": places[row.strategy]}
            trace |= {"mode": "markers+text", **text}
        trace |= _cross(row) if row.strategy in chosen else {"faint": family != FRONT}
        traces.append(trace)
    return traces


def _point(row: Row) -> dict[str, Any]:
    x, y = [row.mean[X]], [row.mean[Y]]
    return line(label_of(row.strategy), x, y, row.strategy, mode="markers")


def _seeds(row: Row) -> dict[str, Any]:
    label, x, y = label_of(row.strategy), row.values[X], row.values[Y]
    points = line(f"{label}, single seeds", x, y, row.strategy, mode="markers")
    return points | {"of": label, "small": True}


def _cross(row: Row) -> dict[str, Any]:
    spread = {"error_x": row.std[X], "error_y": row.std[Y]}
    return {side: {"array": short_numbers([size])} for side, size in spread.items()}


def label_places(rows: Sequence[Row], named: Sequence[Row]) -> dict[str, str]:
    """Return where the name of each row stands, so that names cover few points and no other name.

    Each name in turn takes the place beside its point that is least crowded.
    """
    spans = [_span([row.mean[metric] for row in rows]) for metric in (X, Y)]
    points = {row.strategy: (row.mean[X] / spans[0], row.mean[Y] / spans[1]) for row in rows}
    edges = min(x for x, _ in points.values()), max(x for x, _ in points.values())
    names: list[Point] = []
    found = {}
    for row in named:
        x, y = points[row.strategy]
        crowds = {
            side: 4 * _near((x + right, y + up), names, 1.0)
            + _near((x + right, y + up), points.values(), 0.6)
            + 4 * _leaves(x + right, y + up, edges)
            for side, (right, up) in SIDES.items()
        }
        side = min(crowds, key=crowds.__getitem__)
        found[row.strategy] = side
        names.append((x + SIDES[side][0], y + SIDES[side][1]))
    return found


def _leaves(x: float, y: float, edges: Point) -> bool:
    """Return whether a name with its middle there would leave the picture, which starts at 0."""
    half, low = LABEL_WIDTH / 2 - MARGIN, LABEL_HEIGHT / 2
    return x - half < edges[0] or x + half > edges[1] or y < low


def _span(values: Sequence[float]) -> float:
    return max(values) - min(values) or 1.0


def _near(place: Point, others: Iterable[Point], size: float) -> int:
    """Return how many others are within the size of a name."""
    x, y = place
    width, height = size * LABEL_WIDTH, size * LABEL_HEIGHT
    return sum(abs(x - a) < width and abs(y - b) < height for a, b in others)

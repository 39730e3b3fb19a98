"""The charts of one run: model quality, local work and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flamma.experiments.table import capitalised
from flamma.metrics import shown_in
from flamma.reports import crowd_charts
from flamma.reports.crowd_charts import QUANTILES_AID, is_crowd, quantile_traces, took_part
from flamma.reports.document import (
    Chart,
    Charts,
    View,
    axes,
    band,
    even_sample,
    heatmap,
    line,
    short_numbers,
)
from flamma.reports.metric_text import BETTER
from flamma.reports.reading import RunView

SHOWN_CLIENTS = 200
SHOWN_ROUNDS = 1000
CURVE_AIDS = {
    "accuracy_variance": "The variance of the clients' accuracies in each round: at 0 the model "
    "is equally good for every client.",
}
"""How to read the curves that have more to say than which direction is better."""


def shown(run: RunView) -> tuple[list[int], list[int]]:
    """Return which clients and which rounds (from 0) a heat map shows: all, or an even sample."""
    return even_sample(run.clients, SHOWN_CLIENTS), even_sample(len(run.rounds), SHOWN_ROUNDS)


def of_selected(
    run: RunView,
    told: Sequence[Sequence[float | None] | None],
    unit: str,
    label: str = "",
    **more: object,
) -> View:
    """Return what selected clients did over the rounds: a heat map, or quantiles of very many.

    ``told`` has, for every round, one value per selected client, or None. ``more`` are options of
    the heat map.
    """
    values = [np.array([] if v is None else v, dtype=np.float64) for v in told]  # None is NaN
    if is_crowd(run):
        return View(quantile_traces(run.numbers, values), axes("round", unit), label)
    rows, columns = shown(run)
    grid = np.full((run.clients, len(columns)), np.nan)
    for place, column in enumerate(columns):
        if values[column].size:
            grid[list(run.rounds[column].selected), place] = values[column]
    trace = heatmap(
        [run.rounds[k].round for k in columns],
        [run.client_label(client) for client in rows],
        grid[rows].tolist(),
        unit,
        **more,
    )
    layout = axes("round", "client", y_type="category", y_autorange="reversed")
    return View([trace], layout, label)


def shown_note(run: RunView) -> str:
    """Say that a chart shows quantiles, or only some clients or rounds, if so."""
    if is_crowd(run):
        return f" {QUANTILES_AID} There are {run.clients:,} clients, too many for a row each."
    rows, columns = shown(run)
    return _evenly_chosen(run, len(rows), len(columns), len(run.rounds))


def _evenly_chosen(run: RunView, clients: int, rounds: int, of_rounds: int) -> str:
    parts = []
    if clients < run.clients:
        parts.append(f"{clients} of {run.clients} clients")
    if rounds < of_rounds:
        parts.append(f"{rounds} of {of_rounds} rounds")
    return f" Shown are {' and '.join(parts)}, evenly chosen." if parts else ""


def quality(run: RunView) -> Charts:
    """Return accuracy, with the best and the worst tenth, and every other curve over the rounds."""
    evaluated = [k for k, record in enumerate(run.rounds) if record.evaluated]
    x = [run.rounds[k].round for k in evaluated]

    def of(name: str) -> list[float | None]:
        values = run.of_rounds(name)
        return [values[k] for k in evaluated]

    scored = run.score_kind
    accuracy = [
        *band("worst 10%/best 10%", x, of("worst_10"), of("best_10"), 0, "clients' mean"),
        line("clients' mean", x, of("accuracy"), 0),
        line("common test set", x, of("test_accuracy"), 1),
    ]
    charts = [
        Chart(
            "accuracy",
            capitalised(scored.name),
            "The mean over clients, with the band from the worst to the best tenth of them: a "
            "narrow band is fair.",
            by_round_or_time(run, accuracy, axes("round", scored.axis)),
        )
    ]
    return Charts([*charts, *_further_curves(run)])


def _further_curves(run: RunView) -> list[Chart]:
    """Return a chart for every other metric that is shown as a curve and has a value."""
    charts = []
    for name, metric in shown_in("curves", run.score_kind).items():
        values = run.of_rounds(name)
        told = [
            (record.round, v) for record, v in zip(run.rounds, values, strict=True) if v is not None
        ]
        if name == "accuracy" or not told:
            continue
        trace = line(metric.label, [number for number, _ in told], [v for _, v in told])
        layout = axes("round", metric.title, y_rangemode="tozero")
        aid = CURVE_AIDS.get(name) or f"In each round. {BETTER[metric.better]}".rstrip()
        aid = aid.replace("accuracies", run.score_kind.title or "accuracies")
        views = by_round_or_time(run, [trace], layout)
        charts.append(Chart(name, capitalised(metric.label), aid, views))
    return charts


def by_round_or_time(
    run: RunView, traces: Sequence[dict[str, Any]], layout: dict[str, Any]
) -> list[View]:
    """Return curves over the rounds and, where the run has a virtual clock, over its time."""
    if run.times is None:
        return [View(traces, layout)]
    when = dict(zip(run.numbers, run.times, strict=True))
    timed = [t | {"x": short_numbers(when[number] for number in t["x"])} for t in traces]
    by_time = layout | {"xaxis": {"title": "virtual time, s"}}
    return [View(traces, layout, "by round"), View(timed, by_time, "by virtual time")]


def client_accuracy(run: RunView) -> Charts:
    """Return each client's accuracy over the rounds, and where each ended."""
    table = run.scores
    if is_crowd(run):
        return crowd_charts.crowd_accuracy(run)
    rounds = list(table.rounds)
    columns = [rounds[k] for k in even_sample(len(rounds), SHOWN_ROUNDS)]
    places = even_sample(table.clients.size, SHOWN_CLIENTS)
    values = np.array([table.rounds[number][places] for number in columns]).T
    names = [run.client_label(client) for client in table.clients[places].tolist()]
    scored, less = run.score_kind.name, run.score_kind.less_is_better
    finite = values[np.isfinite(values)]
    lowest = float(np.min(finite, initial=0.0))  # a metric may go below 0
    highest = float(np.max(finite, initial=0.0)) if less else 100
    axis = run.score_kind.axis
    trace = heatmap(columns, names, values.tolist(), axis, zmin=lowest, zmax=highest)
    last = values[:, -1]
    order = np.argsort(-last if less else last, kind="stable")
    bars = {
        "type": "bar",
        "name": scored,
        "x": [names[k] for k in order],
        "y": short_numbers(last[order].tolist()),
        "series": 0,
    }
    reversed_ = axes("round", "client", y_type="category", y_autorange="reversed")
    return Charts(
        [
            Chart(
                "client-accuracy",
                f"{capitalised(scored)} of every client",
                f"One row per client: {'bright' if less else 'dark'} rows are clients for which "
                "the model is bad." + _evenly_chosen(run, len(places), len(columns), len(rounds)),
                [View([trace], reversed_)],
            ),
            Chart(
                "client-final",
                f"Final {scored} of every client",
                f"Clients by their {scored} in the last evaluated round, from worst to best; bars "
                "of equal height would be perfectly fair.",
                [View([bars], axes("client", axis, x_type="category"))],
            ),
        ]
    )


def local_epochs(run: RunView) -> Charts:
    """Return the heat map of local epochs and, if there were any, failures and abstentions."""
    told, crowd = [record.local_epochs for record in run.rounds], is_crowd(run)
    aid = (
        "Local epochs of the clients that were selected in a round; 0 if one abstained or failed."
        if crowd
        else "One cell per selected client and round: empty if the client was not selected, 0 if "
        "it abstained or failed."
    )
    charts = [
        Chart(
            "epochs",
            "Local epochs of the selected clients" if crowd else "Local epochs of every client",
            aid + shown_note(run),
            [of_selected(run, told, "epochs", zmin=0)],
        )
    ]
    together = -(-len(run.rounds) // SHOWN_ROUNDS)  # rounds that share a bar
    counts = {
        "failed": [len(record.failed) for record in run.rounds],
        "abstained": [len(record.abstained) for record in run.rounds],
    }
    bars: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": name,
            "x": run.numbers[::together],
            "y": [
                sum(counts[name][first : first + together]) or None
                for first in range(0, len(run.rounds), together)
            ],
            "series": series,
        }
        for series, name in ((5, "failed"), (2, "abstained"))
    ]
    if any(any(trace["y"]) for trace in bars):
        layout = axes("round", "clients", y_rangemode="tozero")
        if max(map(sum, zip(*counts.values(), strict=True))) * together < 10:
            layout["yaxis"]["dtick"] = 1  # no ticks between whole clients
        charts.append(
            Chart(
                "failures",
                "Failures and abstentions",
                "How many of the selected clients gave no usable update, or chose not to train, in "
                + ("each round." if together == 1 else f"every {together} rounds."),
                [View(bars, {**layout, "barmode": "stack"})],
            )
        )
    return Charts(charts)


def selections(run: RunView) -> Charts:
    """Return how often each client was selected and what came of it."""
    counts = took_part(run)
    if is_crowd(run):
        return crowd_charts.crowd_selections(run, counts)
    rows = even_sample(run.clients, SHOWN_CLIENTS)
    names = [run.client_label(client) for client in rows]

    def bars(name: str, series: int) -> dict[str, object]:
        values = short_numbers(counts[name][rows].tolist())
        return {"type": "bar", "name": name, "x": names, "y": values, "series": series}

    selected = sum(counts[name] for name in ("trained", "abstained", "failed"))
    even = float(np.mean(selected)) if run.clients else 0.0
    views = [
        View(
            [
                bars("trained", 0),
                bars("failed", 5),
                bars("abstained", 2),
                line("even share", names, [even] * len(names), 4),
            ],
            {**axes("client", "rounds", x_type="category"), "barmode": "stack"},
            "selections",
        ),
        View([bars("epochs", 0)], axes("client", "local epochs", x_type="category"), "epochs"),
    ]
    chart = Chart(
        "participation",
        "Selections of every client",
        "Bars of equal height are an even share of the work, which the dashed line shows."
        + shown_note(run),
        views,
    )
    return Charts([chart])


def local_data(run: RunView) -> Charts:
    """Return each client's samples by class, or in all where the classes are not known."""
    if is_crowd(run):
        return crowd_charts.crowd_data(run)
    population = run.population
    rows = [k for k in even_sample(run.clients, SHOWN_CLIENTS) if k < population.samples.size]
    names = [run.client_label(client) for client in rows]
    if not population.class_counts.shape[1]:
        bars = {"type": "bar", "name": "samples", "x": names, "series": 0}
        bars["y"] = population.samples[rows].tolist()
        layout = axes("client", "training samples", x_type="category")
        aid = "Training samples of each client; the server does not know their classes."
        title = "Training samples of every client"
        return Charts([Chart("local-data", title, aid, [View([bars], layout)])])
    counts = population.class_counts[rows].astype(float)
    total = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    classes = [str(k) for k in range(counts.shape[1])]
    layout = axes("class", "client", y_type="category", y_autorange="reversed", x_type="category")
    views = [
        View(
            [heatmap(classes, names, (counts / total).tolist(), "share", zmin=0, zmax=1)],
            layout,
            "shares",
        ),
        View([heatmap(classes, names, counts.tolist(), "samples", zmin=0)], layout, "samples"),
    ]
    chart = Chart(
        "local-data",
        "Classes of every client",
        "Rows with one or two bright cells are clients that have only those classes; even rows "
        "are an IID split." + shown_note(run),
        views,
    )
    return Charts([chart])

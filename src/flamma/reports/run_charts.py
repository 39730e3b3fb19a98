"""The charts of one run: how good, how fair, who takes part."""

from __future__ import annotations

from typing import Any

import numpy as np

from flamma.reports.document import Chart, Charts, View, axes, band, heatmap, line, tidy
from flamma.reports.reading import RunRecord, even_sample
from flamma.types import Floats

SHOWN_CLIENTS = 200
SHOWN_ROUNDS = 1000
MEASURES = ("accuracy", "worst_10", "best_10", "accuracy_variance", "test_accuracy")


def shown(run: RunRecord) -> tuple[list[int], list[int]]:
    """Return which clients and which rounds (from 0) a heat map shows: all, or an even sample."""
    return list(even_sample(run.clients, SHOWN_CLIENTS)), list(
        even_sample(len(run.rounds), SHOWN_ROUNDS)
    )


def grid(run: RunRecord, key: str) -> Floats:
    """Return one row per client and one column per round of a record's list, NaN elsewhere."""
    values = np.full((run.clients, len(run.rounds)), np.nan)
    for column, record in enumerate(run.rounds):
        found = record.get(key)
        if found is not None:
            told = [np.nan if value is None else value for value in found]
            values[record["selected"], column] = told
    return values


def client_heatmap(
    run: RunRecord, values: Floats, unit: str, label: str = "", **more: object
) -> View:
    """Return a heat map of clients over rounds."""
    rows, columns = shown(run)
    trace = heatmap(
        [run.rounds[k]["round"] for k in columns],
        [run.label(client) for client in rows],
        values[np.ix_(rows, columns)].tolist() if columns else [],
        unit,
        **more,
    )
    layout = axes("round", "client", y_type="category", y_autorange="reversed")
    return View([trace], layout, label)


def sample_note(run: RunRecord) -> str:
    """Say that a heat map shows only some clients or rounds, if so."""
    rows, columns = shown(run)
    parts = []
    if len(rows) < run.clients:
        parts.append(f"{len(rows)} of {run.clients} clients")
    if len(columns) < len(run.rounds):
        parts.append(f"{len(columns)} of {len(run.rounds)} rounds")
    return f" Shown are {' and '.join(parts)}, evenly chosen." if parts else ""


def quality(run: RunRecord) -> Charts:
    """Return accuracy, with the best and the worst tenth, and variance over the rounds."""
    judged = [record for record in run.rounds if record.get("accuracy") is not None]
    x = [record["round"] for record in judged]
    columns = {key: [record.get(key) for record in judged] for key in MEASURES}
    accuracy = [
        *band("worst 10%/best 10%", x, columns["worst_10"], columns["best_10"], 0, "clients' mean"),
        line("clients' mean", x, columns["accuracy"], 0),
        line("common test set", x, columns["test_accuracy"], 1),
    ]
    variance = [line("variance", x, columns["accuracy_variance"], 0)]
    return Charts(
        [
            Chart(
                "accuracy",
                "Accuracy over the rounds",
                "The line is the mean over clients on their own held-out data; the band reaches "
                "from the worst to the best tenth of them: the narrower, the fairer.",
                [View(accuracy, axes("round", "accuracy, %"))],
            ),
            Chart(
                "variance",
                "Variance across clients",
                "The variance of the clients' accuracies in each round: 0 would serve all alike.",
                [View(variance, axes("round", "variance, %²", y_rangemode="tozero"))],
            ),
        ]
    )


def client_accuracy(run: RunRecord) -> Charts:
    """Return each client's accuracy over the rounds, and where each ended."""
    rounds = sorted(run.scores)
    columns = [rounds[k] for k in even_sample(len(rounds), SHOWN_ROUNDS)]
    rows = even_sample(run.clients, SHOWN_CLIENTS)
    values = np.full((run.clients, len(columns)), np.nan)
    for k, number in enumerate(columns):
        values[: run.scores[number].size, k] = run.scores[number]
    names = [run.label(client) for client in rows]
    trace = heatmap(columns, names, values[list(rows)].tolist(), "accuracy, %", zmin=0, zmax=100)
    last = values[list(rows), -1]
    order = np.argsort(last, kind="stable")
    bars = {
        "type": "bar",
        "name": "accuracy",
        "x": [names[k] for k in order],
        "y": tidy(last[order].tolist()),
        "series": 0,
    }
    reversed_ = axes("round", "client", y_type="category", y_autorange="reversed")
    return Charts(
        [
            Chart(
                "client-accuracy",
                "Accuracy of every client",
                "One row a client: dark rows are clients that the model serves badly."
                + sample_note(run),
                [View([trace], reversed_)],
            ),
            Chart(
                "client-final",
                "Where each client ended",
                "Clients by their accuracy in the last judged round, from worst to best; a level "
                "top edge would be perfectly fair.",
                [View([bars], axes("client", "accuracy, %", x_type="category"))],
            ),
        ]
    )


def epochs(run: RunRecord) -> Charts:
    """Return the heat map of local epochs and, if there were any, failures and abstentions."""
    charts = [
        Chart(
            "epochs",
            "Local epochs of every client",
            "One cell a selected client and round; empty cells are clients that were not "
            "selected, 0 is one that abstained." + sample_note(run),
            [client_heatmap(run, grid(run, "local_epochs"), "epochs", zmin=0)],
        )
    ]
    together = -(-len(run.rounds) // SHOWN_ROUNDS)  # rounds that share a bar
    bars: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": name,
            "x": run.numbers[::together],
            "y": [
                sum(len(record[name]) for record in run.rounds[first : first + together]) or None
                for first in range(0, len(run.rounds), together)
            ],
            "series": series,
        }
        for series, name in ((5, "failed"), (2, "abstained"))
    ]
    if any(any(trace["y"]) for trace in bars):
        layout = axes("round", "clients", y_rangemode="tozero")
        charts.append(
            Chart(
                "mishaps",
                "Failures and abstentions",
                "How many of the selected clients gave nothing usable, or chose to do nothing, in "
                + ("each round." if together == 1 else f"every {together} rounds."),
                [View(bars, {**layout, "barmode": "stack"})],
            )
        )
    return Charts(charts)


def participation(run: RunRecord) -> Charts:
    """Return how often each client was selected and what came of it."""
    counts = {name: np.zeros(run.clients) for name in ("trained", "abstained", "failed", "epochs")}
    for record in run.rounds:
        for client, done in zip(record["selected"], record["local_epochs"], strict=True):
            if str(client) in record["failed"]:
                counts["failed"][client] += 1
            elif client in record["abstained"]:
                counts["abstained"][client] += 1
            else:
                counts["trained"][client] += 1
                counts["epochs"][client] += done
    rows = list(even_sample(run.clients, SHOWN_CLIENTS))
    names = [run.label(client) for client in rows]

    def bars(name: str, series: int) -> dict[str, object]:
        values = tidy(counts[name][rows].tolist())
        return {"type": "bar", "name": name, "x": names, "y": values, "series": series}

    selections = sum(counts[name] for name in ("trained", "abstained", "failed"))
    even = float(np.mean(selections)) if run.clients else 0.0
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
        "Who was selected how often",
        "Bars of equal height are an even share of the work; the dashed line is that even share."
        + sample_note(run),
        views,
    )
    return Charts([chart])


def holdings(run: RunRecord) -> Charts:
    """Return who holds how much of which class, or how much at all where classes are not known."""
    people = run.people
    rows = [row for row in even_sample(run.clients, SHOWN_CLIENTS) if row < people.samples.size]
    names = [run.label(client) for client in rows]
    if not people.holdings.shape[1]:
        bars = {"type": "bar", "name": "samples", "x": names, "series": 0}
        bars["y"] = people.samples[rows].tolist()
        layout = axes("client", "training samples", x_type="category")
        aid = "Training samples of each client; the server does not know of which classes."
        return Charts([Chart("holdings", "Who holds how much", aid, [View([bars], layout)])])
    counts = people.holdings[rows].astype(float)
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
        "holdings",
        "Who holds which classes",
        "Rows with one or two bright cells are clients that see only those classes; even rows are "
        "an IID split." + sample_note(run),
        views,
    )
    return Charts([chart])

"""Charts of very many clients: quantiles and histograms over them instead of a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flamma.experiments.table import capitalised
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
from flamma.reports.reading import RunView
from flamma.types import Floats, Ints

CROWD = 2_000
"""With more clients than this, a page shows quantiles over them."""

BAND_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
QUANTILES_AID = (
    "The line is the median, the inner band has eight clients in ten, the outer one all."
)

RANKS = 201
"""Points of the curve of all clients from worst to best."""

MAX_BARS = 60
"""Bars of a histogram."""

EXAMPLE_CLIENTS = 200
"""Clients whose classes are shown."""


def is_crowd(run: RunView) -> bool:
    """Return whether a run has too many clients for a row each."""
    return run.clients > CROWD


def quantile_traces(numbers: Sequence[int], values: Sequence[Floats]) -> list[dict[str, Any]]:
    """Return the median of every round's values and the bands around it; NaN does not count."""
    known = [own[~np.isnan(own)] for own in values]
    x = [number for number, own in zip(numbers, known, strict=True) if own.size]
    found = np.array([np.quantile(own, BAND_QUANTILES) for own in known if own.size])
    low, tenth, median, ninth, high = found.reshape(-1, len(BAND_QUANTILES)).T
    return [
        *band("smallest/largest", x, low, high, 0, "median"),
        *band("lowest 10%/highest 10%", x, tenth, ninth, 0, "median"),
        line("median", x, median, 0),
    ]


def took_part(run: RunView) -> dict[str, Floats]:
    """Return how often each client trained, abstained and failed, and the epochs it did."""
    counts = {name: np.zeros(run.clients) for name in ("trained", "abstained", "failed", "epochs")}
    for record in run.rounds:
        selected = np.array(record.selected, dtype=np.int64)
        failed = np.isin(selected, list(record.failed))
        abstained = np.isin(selected, record.abstained) & ~failed
        trained = ~(failed | abstained)
        for name, which in (("trained", trained), ("abstained", abstained), ("failed", failed)):
            counts[name][selected[which]] += 1
        counts["epochs"][selected[trained]] += np.array(record.local_epochs)[trained]
    return counts


def crowd_accuracy(run: RunView) -> Charts:
    """Return the quantiles of the clients' accuracies over the rounds, and how they ended."""
    rounds, scored = run.scores.rounds, run.score_kind.name
    of = f"the {run.scores.clients.size:,} clients whose scores the run keeps, of {run.clients:,}"
    last = np.sort(next(reversed(rounds.values()), np.zeros(0)))
    last = last[~np.isnan(last)]
    shares = np.linspace(0, 100, RANKS)
    ranked = np.quantile(last, shares / 100) if last.size else np.full(RANKS, np.nan)
    ranked = ranked[::-1] if run.score_kind.less_is_better else ranked
    return Charts(
        [
            Chart(
                "client-accuracy",
                f"{capitalised(scored)} of the clients",
                f"Over {of}. {QUANTILES_AID}",
                [
                    View(
                        quantile_traces(list(rounds), list(rounds.values())),
                        axes("round", run.score_kind.axis),
                    )
                ],
            ),
            Chart(
                "client-final",
                f"Final {scored} of the clients",
                f"Over {of}, from worst to best in the last evaluated round; a level line would "
                "be perfectly fair.",
                [
                    View(
                        [line(scored, shares, ranked, 0)],
                        axes("share of the clients, %", run.score_kind.axis),
                    )
                ],
            ),
        ]
    )


def crowd_selections(run: RunView, counts: Mapping[str, Floats]) -> Charts:
    """Return how many clients were selected how often, and how many epochs they did."""
    times = counts["trained"] + counts["abstained"] + counts["failed"]
    views = [
        View(*_histogram(times, "times selected"), "selections"),
        View(*_histogram(counts["epochs"], "local epochs"), "epochs"),
    ]
    aid = (
        f"How many of all {run.clients:,} clients were selected how often, on a logarithmic scale; "
        f"an even share is {float(np.mean(times)):.3g} times each."
    )
    return Charts([Chart("participation", "Selections of the clients", aid, views)])


def crowd_data(run: RunView) -> Charts:
    """Return how many clients have how many samples, and the classes of a few."""
    population = run.population
    views = [View(*_histogram(population.samples, "training samples"), "samples")]
    aid = f"How many of all {run.clients:,} clients have how many samples, on a logarithmic scale."
    if population.class_counts.shape[1]:
        rows = even_sample(population.samples.size, EXAMPLE_CLIENTS)
        counts = population.class_counts[rows].astype(float)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        classes = [str(k) for k in range(counts.shape[1])]
        names = [run.client_label(client) for client in rows]
        layout = axes(
            "class", "client", y_type="category", y_autorange="reversed", x_type="category"
        )
        trace = heatmap(classes, names, shares.tolist(), "share", zmin=0, zmax=1)
        views.append(View([trace], layout, "classes"))
        aid += f" The classes are those of {len(rows)} clients, evenly chosen."
    return Charts([Chart("local-data", "Training samples of the clients", aid, views)])


def _histogram(values: Floats | Ints, title: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return how many clients have each whole number, or one of a few ranges of them."""
    whole = values.astype(np.int64)
    low, high = int(whole.min(initial=0)), int(whole.max(initial=0))
    width = -(-(high - low + 1) // MAX_BARS)
    counts = np.bincount((whole - low) // width)
    starts = low + width * np.arange(counts.size)
    names = [str(a) if width == 1 else f"{a} to {a + width - 1}" for a in starts.tolist()]
    bars = {
        "type": "bar",
        "name": "clients",
        "x": names,
        "y": short_numbers(count or None for count in counts.tolist()),
        "series": 0,
    }
    tallest = float(np.log10(max(1, counts.max(initial=0))))
    decades = {"y_type": "log", "y_dtick": 1, "y_range": [-0.5, tallest + 0.3]}
    return [bars], axes(title, "clients", x_type="category", **decades)

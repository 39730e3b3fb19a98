"""The charts of one run: model quality, local work and data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flamma.errors import GameError
from flamma.experiments.comparison import capitalised
from flamma.game import Game, closed_form_decay_factor
from flamma.metrics import UTILITY_ROUNDING, ir_ratio, shown_in
from flamma.records import RoundRecord
from flamma.reports.document import (
    BETTER,
    SHOWN_CLIENTS,
    Chart,
    Charts,
    Plotly,
    View,
    axes,
    band,
    even_sample,
    heatmap,
    line,
    short_numbers,
)
from flamma.reports.reading import RunView, finite
from flamma.types import Floats, Ints

# Charts of very many clients: quantiles and histograms over them instead of a row for each.

_CROWD = 2_000
"""With more clients than this, a page shows quantiles over them."""

_BAND_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
_QUANTILES_AID = (
    "The line is the median, the inner band has eight clients in ten, the outer one all."
)

RANKS = 201
"""Points of the curve of all clients from worst to best."""

_MAX_BARS = 60
"""Bars of a histogram."""


def is_crowd(run: RunView) -> bool:
    """Return whether a run has too many clients for a row each."""
    return run.clients > _CROWD


def _quantile_traces(numbers: Sequence[int], values: Sequence[Floats]) -> list[Plotly]:
    """Return the median of every round's values and the bands around it; NaN does not count."""
    known = [own[~np.isnan(own)] for own in values]
    x = [number for number, own in zip(numbers, known, strict=True) if own.size]
    found = np.array([np.quantile(own, _BAND_QUANTILES) for own in known if own.size])
    low, tenth, median, ninth, high = found.reshape(-1, len(_BAND_QUANTILES)).T
    return [
        *band("smallest/largest", x, low, high, 0, "median"),
        *band("lowest 10%/highest 10%", x, tenth, ninth, 0, "median"),
        line("median", x, median, 0),
    ]


def _took_part(run: RunView) -> dict[str, Floats]:
    """Return how often each client trained, abstained and failed, and the epochs it did."""
    counts = {name: np.zeros(run.clients) for name in ("trained", "abstained", "failed", "epochs")}
    for record in run.rounds:
        selected = np.array(record.selected, dtype=np.int64)
        failed = np.isin(selected, list(record.outcome.failed))
        abstained = np.isin(selected, record.outcome.abstained) & ~failed
        trained = ~(failed | abstained)
        for name, which in (("trained", trained), ("abstained", abstained), ("failed", failed)):
            counts[name][selected[which]] += 1
        counts["epochs"][selected[trained]] += np.array(record.outcome.local_epochs)[trained]
    return counts


def _crowd_accuracy(run: RunView) -> Charts:
    """Return the quantiles of the clients' accuracies over the rounds, and how they ended."""
    rounds, scored = run.scores.rounds, run.score_kind.name
    of = f"the {run.scores.clients.size:,} clients whose scores the run keeps, of {run.clients:,}"
    last = np.sort(next(reversed(rounds.values()), np.zeros(0)))
    last = last[~np.isnan(last)]
    shares = np.linspace(0, 100, RANKS)
    ranked = np.quantile(last, shares / 100) if last.size else np.full(RANKS, np.nan)
    ranked = ranked[::-1] if run.score_kind.lower_is_better else ranked
    return Charts(
        [
            Chart(
                "client-accuracy",
                f"{capitalised(scored)} of the clients",
                f"Over {of}. {_QUANTILES_AID}",
                [
                    View(
                        _quantile_traces(list(rounds), list(rounds.values())),
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


def _crowd_selections(run: RunView, counts: Mapping[str, Floats]) -> Charts:
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


def _crowd_data(run: RunView) -> Charts:
    """Return how many clients have how many samples, and the classes of a few."""
    population = run.population
    views = [View(*_histogram(population.samples, "training samples"), "samples")]
    aid = f"How many of all {run.clients:,} clients have how many samples, on a logarithmic scale."
    if population.class_counts.shape[1]:
        rows = even_sample(population.samples.size, SHOWN_CLIENTS)
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


def _histogram(values: Floats | Ints, title: str) -> tuple[list[Plotly], Plotly]:
    """Return how many clients have each whole number, or one of a few ranges of them."""
    whole = values.astype(np.int64)
    low, high = int(whole.min(initial=0)), int(whole.max(initial=0))
    width = -(-(high - low + 1) // _MAX_BARS)
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


_SHOWN_ROUNDS = 1000
_CURVE_AIDS = {
    "accuracy_variance": "The variance of the clients' accuracies in each round: at 0 the model "
    "is equally good for every client.",
}
"""How to read the curves that have more to say than which direction is better."""


def _shown_places(run: RunView) -> tuple[list[int], list[int]]:
    """Return which clients and which rounds (from 0) a heat map shows: all, or an even sample."""
    return even_sample(run.clients, SHOWN_CLIENTS), even_sample(len(run.rounds), _SHOWN_ROUNDS)


def _of_selected(
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
        return View(_quantile_traces(run.numbers, values), axes("round", unit), label)
    rows, columns = _shown_places(run)
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


def _shown_note(run: RunView) -> str:
    """Say that a chart shows quantiles, or only some clients or rounds, if so."""
    if is_crowd(run):
        return f" {_QUANTILES_AID} There are {run.clients:,} clients, too many for a row each."
    rows, columns = _shown_places(run)
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
            _by_round_or_time(run, accuracy, axes("round", scored.axis)),
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
        aid = _CURVE_AIDS.get(name) or f"In each round. {BETTER[metric.better]}".rstrip()
        aid = aid.replace("accuracies", run.score_kind.title or "accuracies")
        views = _by_round_or_time(run, [trace], layout)
        charts.append(Chart(name, capitalised(metric.label), aid, views))
    return charts


def _by_round_or_time(run: RunView, traces: Sequence[Plotly], layout: Plotly) -> list[View]:
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
        return _crowd_accuracy(run)
    rounds = list(table.rounds)
    columns = [rounds[k] for k in even_sample(len(rounds), _SHOWN_ROUNDS)]
    places = even_sample(table.clients.size, SHOWN_CLIENTS)
    values = np.array([table.rounds[number][places] for number in columns]).T
    names = [run.client_label(client) for client in table.clients[places].tolist()]
    scored, less = run.score_kind.name, run.score_kind.lower_is_better
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
    told, crowd = [record.outcome.local_epochs for record in run.rounds], is_crowd(run)
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
            aid + _shown_note(run),
            [_of_selected(run, told, "epochs", zmin=0)],
        )
    ]
    together = -(-len(run.rounds) // _SHOWN_ROUNDS)  # rounds that share a bar
    counts = {
        "failed": [len(record.outcome.failed) for record in run.rounds],
        "abstained": [len(record.outcome.abstained) for record in run.rounds],
    }
    bars: list[Plotly] = [
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
    counts = _took_part(run)
    if is_crowd(run):
        return _crowd_selections(run, counts)
    rows = even_sample(run.clients, SHOWN_CLIENTS)
    names = [run.client_label(client) for client in rows]

    def bars(name: str, series: int) -> Plotly:
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
        + _shown_note(run),
        views,
    )
    return Charts([chart])


def local_data(run: RunView) -> Charts:
    """Return each client's samples by class, or in all where the classes are not known."""
    if is_crowd(run):
        return _crowd_data(run)
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
        "are an IID split." + _shown_note(run),
        views,
    )
    return Charts([chart])


# The charts of the game of a run, and the games that the explorer starts from.
#
# Everything is as the run recorded it.

EXPLORER_LEAD = (
    "Change the rules or one client and see how the equilibrium moves; the page solves the game "
    "itself, by the same mathematics."
)

_MAX_GAMES = 60
"""Games that the explorer offers."""

_MAX_PLAYERS = 2_000
"""Clients of a game that the page can solve at every move of a slider."""

_MAX_PLAYERS_IN_ALL = 20_000
"""Clients of all games together that a page embeds."""


def has_game(run: RunView) -> bool:
    """Return whether any round was played as a game."""
    return any(record.game is not None for record in run.rounds)


def _games(run: RunView) -> list[Plotly]:
    """Return the games of the rounds, as the server took them, in the form of the explorer."""
    found = []
    for record in run.rounds:
        game = _game(run, record)
        if game is not None:
            names = [f"client {run.client_label(c)}" for c in record.selected]
            found.append(explored(game, names, record.offer.decay_factor))
    return found


def explored(game: Game, names: Sequence[str], played: float) -> Plotly:
    """Return a game in the form of the explorer, with the decay factor that was played."""
    low, high = game.epoch_bounds
    return {
        "label": f"round {game.round}",
        "clients": list(names),
        "contributions": game.contributions.tolist(),
        "costs": game.costs.tolist(),
        "round": game.round,
        "price": game.price,
        "epochBounds": [low, high if math.isfinite(high) else None],
        "wholeEpochs": game.whole_epochs,
        "decayBounds": list(game.decay_bounds),
        "played": played,
    }


def _game(run: RunView, record: RoundRecord) -> Game | None:
    """Return the game of a round; None if there was none, or if its record cannot be one."""
    told, omega = record.game, record.offer.contributions
    if told is None or omega is None or not record.selected:
        return None
    low, high = told.epoch_bounds
    bounds = (low, math.inf if math.isnan(high) else high)  # JSON has no infinity
    try:
        return Game(
            omega,
            told.costs,
            record.round,
            told.price,
            bounds,
            told.whole_epochs,
            told.decay_bounds,
        )
    except GameError as error:
        problem = f"the game of round {record.round} is damaged: {error}".rstrip(".")
        if problem not in run.problems:
            run.problems.append(problem)
        return None


def explorer_games(run: RunView) -> list[Plotly]:
    """Return the games that the explorer offers: all, or an even sample of many.

    None are offered if they have too many clients to be solved anew at every move of a slider.
    """
    found = _games(run)
    players = max((len(game["clients"]) for game in found), default=0)
    if players > _MAX_PLAYERS:
        return []
    most = min(_MAX_GAMES, _MAX_PLAYERS_IN_ALL // max(1, players))
    return [found[k] for k in even_sample(len(found), most)]


def decay(run: RunView) -> Charts:
    """Return γ over the rounds, with the optimum without bounds and the lower bound."""
    played = _games(run)
    x = [game["round"] for game in played]
    free = [
        closed_form_decay_factor(game["contributions"], game["costs"], game["round"], game["price"])
        for game in played
    ]
    traces = [line("played γ", run.numbers, [r.offer.decay_factor for r in run.rounds], 0)]
    aid = "γ stays at 1 until influence becomes expensive, then falls."
    if played:
        floors = [game["decayBounds"][0] for game in played]
        traces.append(line("unconstrained optimum", x, free, 5))
        traces.append(line("lower bound", x, floors, 7))
        aid += (
            " The unconstrained optimum is that of continuous epochs without bounds, "
            "min(1, A / (2λt − B)), with the costs that the server went by."
        )
    prices = [None if record.game is None else record.game.price for record in run.rounds]
    return Charts(
        [
            Chart(
                "decay",
                "Decay factor γ",
                aid,
                [View(traces, axes("round", "γ", y_range=[-0.03, 1.05]))],
            ),
            Chart(
                "price",
                "Price of influence λ",
                "What a unit of squared influence costs the server per round number, as derived "
                "from the start of the decay, or given.",
                [
                    View(
                        [line("price λ", run.numbers, prices, 0)],
                        axes("round", "λ", y_rangemode="tozero"),
                    )
                ],
            ),
        ]
    )


def contributions(run: RunView) -> Charts:
    """Return the contributions of the selected clients, as measured and as selection used them."""
    views = []
    effective = [None if r.game is None else r.game.effective for r in run.rounds]
    measures = {r.game.measure for r in run.rounds if r.game is not None and r.game.measure}
    measure = f" (measure: {', '.join(sorted(measures))})" if measures else ""
    aid = f"Measured contributions{measure} are what the game is played with."
    if any(values is not None for values in effective):
        views.append(_of_selected(run, effective, "effective ω", "effective"))
        aid += (
            " Effective ones are what selection goes by: they shrink with every selection until "
            "the next refresh."
        )
    measured = [record.offer.contributions for record in run.rounds]
    views.append(_of_selected(run, measured, "ω", "measured"))
    if not is_crowd(run):
        aid += " Colours span what occurred, from the smallest to the largest."
    title = "Contributions of the selected clients"
    return Charts([Chart("contributions", title, aid + _shown_note(run), views)])


def utilities(run: RunView) -> Charts:
    """Return the clients' utilities, the smallest of each round, and the share without a loss."""
    told = [record.outcome.client_utilities for record in run.rounds]
    rational = []
    for values in told:
        known = [value for value in values or () if value is not None]
        share = finite(ir_ratio(known))
        rational.append(None if share is None else 100 * share)
    slack = [line("smallest utility", run.numbers, _rounded(run, "individual_rationality_slack"))]
    shares = [line("clients without a loss", run.numbers, rational)]
    return Charts(
        [
            Chart(
                "utilities",
                "Client utilities",
                (
                    "Utility of the selected clients: below 0 one works at a loss."
                    if is_crowd(run)
                    else "Utility of every selected client: blue gains, yellow breaks even, red "
                    "works at a loss."
                )
                + _shown_note(run),
                [_of_selected(run, told, "utility", scale="signed", zmid=0)],
            ),
            Chart(
                "rationality",
                "Individual rationality",
                "The smallest utility of a client that took part: at 0 or above no client would "
                "have done better by staying out.",
                [
                    View(slack, axes("round", "utility", y_rangemode="tozero"), "smallest utility"),
                    View(
                        shares,
                        axes("round", "share of the selected, %", y_range=[-3, 105]),
                        "share without a loss",
                    ),
                ],
            ),
        ]
    )


def certificate(run: RunView) -> Charts:
    """Return how far each round was from equilibrium."""
    x = run.numbers
    gap, regret = _rounded(run, "follower_gap"), _rounded(run, "leader_regret")
    unsure = _rounded(run, "leader_regret_uncertainty")
    upper = [None if r is None else r + (u or 0) for r, u in zip(regret, unsure, strict=True)]
    traces = [
        *band("regret at least/regret at most", x, regret, upper, 5, "leader regret"),
        line("follower gap", x, gap, 0),
        line("leader regret", x, regret, 5),
    ]
    all_zero = max((abs(v) for v in (*gap, *regret) if v is not None), default=0.0) == 0
    y_axis = {"y_range": [-0.05, 1.0]} if all_zero else {"y_rangemode": "tozero"}
    utilities = [None if r.game is None else r.game.server_utility for r in run.rounds]
    server = [line("server utility", x, utilities, 0)]
    return Charts(
        [
            Chart(
                "certificate",
                "Distance from equilibrium",
                "The most that a client, and the server, could have gained by another move: both "
                "are 0 at an equilibrium. The server's move is one decay factor for all; where "
                "clients are offered their own, its regret is what that costs it. Values below "
                f"{UTILITY_ROUNDING:g} are rounding and drawn as 0.",
                [View(traces, axes("round", "utility", **y_axis))],
            ),
            Chart(
                "server-utility",
                "Server utility",
                "The server's utility in each round; it falls as influence becomes more expensive.",
                [View(server, axes("round", "utility"))],
            ),
        ]
    )


def _rounded(run: RunView, name: str) -> list[float | None]:
    """Return a metric of every round, with rounding errors set to 0."""
    return [
        0.0 if value is not None and abs(value) < UTILITY_ROUNDING else value
        for value in run.of_rounds(name)
    ]

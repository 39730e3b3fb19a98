"""The charts of the game of a run, and the games the explorer starts from."""

from __future__ import annotations

from typing import Any

import numpy as np

from flamma.game import closed_form_decay_factor
from flamma.metrics import INDIFFERENT
from flamma.reports.document import Chart, Charts, View, axes, band, line
from flamma.reports.reading import RunRecord, even_sample, number
from flamma.reports.run_charts import client_heatmap, grid, sample_note
from flamma.types import Floats

ROUNDING = 1e-12
"""A gap or a utility below this is only rounding, and is drawn as 0."""

MOST_GAMES, MOST_PLAYERS, MOST_IN_ALL = 60, 2_000, 20_000


def has_game(run: RunRecord) -> bool:
    """Return whether any round was played as a game."""
    return any(record["contributions"] is not None for record in run.rounds)


def games(run: RunRecord) -> list[dict[str, Any]]:
    """Return the games of the rounds as the explorer takes them.

    A game is left out if the cost or the contribution of anybody in it is not known.
    """
    found = []
    low, high = epoch_bounds(run)
    known = run.people.costs
    for record in run.rounds:
        omega, price = record["contributions"], number(record.get("price"))
        if omega is None or price is None:
            continue
        selected = record["selected"]
        costs = [float(known[client]) for client in selected if client < known.size]
        whole = len(costs) == len(selected) and np.all(np.isfinite(costs))
        if not selected or not whole or not all(w is not None and 0 <= w <= 1 for w in omega):
            continue
        found.append(
            {
                "label": f"round {record['round']}",
                "clients": [f"client {run.label(client)}" for client in selected],
                "contributions": omega,
                "costs": costs,
                "round": record["round"],
                "price": price,
                "epochBounds": [low, high],
                "wholeEpochs": run.table("strategy").get("server_epochs") != "continuous",
                "decayBounds": [_floor(run, low, omega, costs), 1],
                "played": record["decay_factor"],
            }
        )
    return found


def explorer_games(run: RunRecord) -> list[dict[str, Any]]:
    """Return the games the explorer offers: all, or an even sample of many.

    The page solves a game anew at every move of a slider, so one of thousands is not offered.
    """
    found = games(run)
    players = max((len(game["clients"]) for game in found), default=0)
    if players > MOST_PLAYERS:
        return []
    most = min(MOST_GAMES, MOST_IN_ALL // max(1, players))
    return [found[k] for k in even_sample(len(found), most)]


def epoch_bounds(run: RunRecord) -> tuple[float, float]:
    """Return the epoch bounds of the run's game, the paper-like default if they are unknown."""
    bounds = run.table("strategy").get("epoch_bounds")
    if isinstance(bounds, list) and len(bounds) == 2:
        low, high = number(bounds[0]), number(bounds[1])
        if low is not None and high is not None and 0 <= low <= high and high > 0:
            return low, high
    return 1.0, 10.0


def _floor(run: RunRecord, low: float, omega: list[float], costs: list[float]) -> float:
    """Return γ_min: given, or the least γ at which all who would work at γ = 1 still do."""
    given = number(run.table("strategy").get("decay_floor"))
    if given is not None:
        return min(max(given, 0.0), 1.0)
    if run.table("strategy").get("decay_floor") != "participation":
        return 0.0
    entry = [low * c / value for c, value in zip(costs, omega, strict=True) if value > 0]
    return max((value for value in entry if value <= 1), default=0.0)


def decay(run: RunRecord) -> Charts:
    """Return γ over the rounds, with the optimum without bounds and the floor."""
    played = games(run)
    x = [game["round"] for game in played]
    free = [
        closed_form_decay_factor(game["contributions"], game["costs"], game["round"], game["price"])
        for game in played
    ]
    traces = [line("played γ", run.numbers, run.series("decay_factor"), 0)]
    if played:
        floors = [game["decayBounds"][0] for game in played]
        traces.append(line("unconstrained optimum", x, free, 5))
        traces.append(line("lower bound", x, floors, 7))
    prices = [line("price λ", run.numbers, run.series("price"), 0)]
    return Charts(
        [
            Chart(
                "decay",
                "The server's move: decay factor γ",
                "γ stays at 1 until influence becomes dear, then falls; the second line is the "
                "optimum with continuous epochs and no bounds, min(1, A / (2λt − B)), drawn where "
                "the clients' costs are known.",
                [View(traces, axes("round", "γ", y_range=[-0.03, 1.05]))],
            ),
            Chart(
                "price",
                "The price of influence λ",
                "What a unit of squared influence costs the server per round number, as derived "
                "from the start of the decay, or given.",
                [View(prices, axes("round", "λ", y_rangemode="tozero"))],
            ),
        ]
    )


def effective(run: RunRecord) -> Floats:
    """Return the contributions that selection went by, worked out from the records.

    Since the last refresh a client's contribution was multiplied with the rotation factor, or γ,
    at each of its selections; abstaining set it to 0.
    """
    strategy = run.table("strategy")
    every = strategy.get("refresh_every")
    every = every if isinstance(every, int) and every > 0 else 10
    fixed = number(strategy.get("rotation"))
    values = np.full((run.clients, len(run.rounds)), np.nan)
    decayed = np.ones(run.clients)
    for column, record in enumerate(run.rounds):
        selected = record["selected"]
        if record["contributions"] is not None:
            omega = [np.nan if value is None else value for value in record["contributions"]]
            values[selected, column] = np.array(omega) * decayed[selected]
            decayed[selected] *= record["decay_factor"] if fixed is None else fixed
            decayed[record["abstained"]] = 0.0
        if record["round"] % every == 0:
            decayed[:] = 1.0
    return values


def contributions(run: RunRecord) -> Charts:
    """Return raw and effective contributions of the selected clients."""
    views = [
        client_heatmap(run, effective(run), "effective ω", "effective", zmin=0, zmax=1),
        client_heatmap(run, grid(run, "contributions"), "ω", "raw"),
    ]
    chart = Chart(
        "contributions",
        "Contributions of the selected clients",
        "Raw is the measured closeness to the global model that the game is played with; effective "
        "is what selection goes by: it shrinks with every selection until the next refresh."
        + sample_note(run),
        views,
    )
    return Charts([chart])


def utilities(run: RunRecord) -> Charts:
    """Return what taking part is worth to the clients, and whether anybody loses by it."""
    values = grid(run, "client_utilities")
    rational = []
    for record in run.rounds:
        known = [u for u in record["client_utilities"] or [] if u is not None]
        good = sum(u >= -INDIFFERENT for u in known)
        rational.append(100 * good / len(known) if known else None)
    slack = [line("smallest utility", run.numbers, _settled(run, "individual_rationality_slack"))]
    share = [line("clients that lose nothing", run.numbers, rational)]
    return Charts(
        [
            Chart(
                "utilities",
                "What taking part is worth to each client",
                "Utility of every selected client: blue gains, yellow breaks even, red works at a "
                "loss." + sample_note(run),
                [client_heatmap(run, values, "utility", scale="diverging", zmid=0)],
            ),
            Chart(
                "rationality",
                "Individual rationality",
                "The smallest utility of a client that took part: at 0 or above nobody would have "
                "done better by staying out.",
                [
                    View(slack, axes("round", "utility", y_rangemode="tozero"), "smallest utility"),
                    View(
                        share,
                        axes("round", "share of the selected, %", y_range=[-3, 105]),
                        "share without loss",
                    ),
                ],
            ),
        ]
    )


def certificate(run: RunRecord) -> Charts:
    """Return how far each round was from equilibrium."""
    x = run.numbers
    gap, regret = _settled(run, "follower_gap"), _settled(run, "leader_regret")
    unsure = _settled(run, "leader_regret_uncertainty")
    upper = [None if r is None else r + (u or 0) for r, u in zip(regret, unsure, strict=True)]
    traces = [
        *band("regret at least/regret at most", x, regret, upper, 5, "leader regret"),
        line("follower gap", x, gap, 0),
        line("leader regret", x, regret, 5),
    ]
    rests = max((abs(v) for v in (*gap, *regret) if v is not None), default=0.0) == 0
    room = {"y_range": [-0.05, 1.0]} if rests else {"y_rangemode": "tozero"}
    server = [line("server utility", x, run.series("server_utility"), 0)]
    return Charts(
        [
            Chart(
                "certificate",
                "Distance from equilibrium",
                "What the best-placed client, and the server, could still have gained by another "
                "move: at 0 the game is at rest. What is below 1e-12 is rounding and drawn as 0.",
                [View(traces, axes("round", "utility", **room))],
            ),
            Chart(
                "server-utility",
                "What it is worth to the server",
                "The server's utility in each round; it falls as influence becomes dearer.",
                [View(server, axes("round", "utility"))],
            ),
        ]
    )


def _settled(run: RunRecord, key: str) -> list[float | None]:
    """Return one number of every round, with what is only rounding as 0."""
    return [
        0.0 if value is not None and abs(value) < ROUNDING else value for value in run.series(key)
    ]

"""The charts of the game of a run, and the games that the explorer starts from.

Everything is as the run recorded it. Records of version 1 have no bounds, costs and effective
contributions; what would need them is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flamma.errors import GameError
from flamma.game import Game, closed_form_decay_factor
from flamma.metrics import UTILITY_ROUNDING, ir_ratio
from flamma.records import RoundRecord
from flamma.reports.crowd_charts import is_crowd
from flamma.reports.document import Chart, Charts, View, axes, band, even_sample, line
from flamma.reports.reading import RunView, finite
from flamma.reports.run_charts import of_selected, shown_note

EXPLORER_LEAD = (
    "Change the rules or one client and see how the equilibrium moves; the page solves the game "
    "itself, by the same mathematics."
)

MAX_GAMES = 60
"""Games that the explorer offers."""

MAX_PLAYERS = 2_000
"""Clients of a game that the page can solve at every move of a slider."""

MAX_PLAYERS_IN_ALL = 20_000
"""Clients of all games together that a page embeds."""


def has_game(run: RunView) -> bool:
    """Return whether any round was played as a game."""
    return any(record.game is not None for record in run.rounds)


def games(run: RunView) -> list[dict[str, Any]]:
    """Return the games of the rounds, as the server took them, in the form of the explorer."""
    found = []
    for record in run.rounds:
        game = _game(run, record)
        if game is not None:
            names = [f"client {run.client_label(c)}" for c in record.selected]
            found.append(explored(game, names, record.decay_factor))
    return found


def explored(game: Game, names: Sequence[str], played: float) -> dict[str, Any]:
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
    told, omega = record.game, record.contributions
    if told is None or omega is None or not record.selected or told.costs is None:
        return None
    if told.epoch_bounds is None or told.decay_bounds is None or told.whole_epochs is None:
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


def explorer_games(run: RunView) -> list[dict[str, Any]]:
    """Return the games that the explorer offers: all, or an even sample of many.

    None are offered if they have too many clients to be solved anew at every move of a slider.
    """
    found = games(run)
    players = max((len(game["clients"]) for game in found), default=0)
    if players > MAX_PLAYERS:
        return []
    most = min(MAX_GAMES, MAX_PLAYERS_IN_ALL // max(1, players))
    return [found[k] for k in even_sample(len(found), most)]


def decay(run: RunView) -> Charts:
    """Return γ over the rounds, with the optimum without bounds and the lower bound."""
    played = games(run)
    x = [game["round"] for game in played]
    free = [
        closed_form_decay_factor(game["contributions"], game["costs"], game["round"], game["price"])
        for game in played
    ]
    traces = [line("played γ", run.numbers, [r.decay_factor for r in run.rounds], 0)]
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
        views.append(of_selected(run, effective, "effective ω", "effective"))
        aid += (
            " Effective ones are what selection goes by: they shrink with every selection until "
            "the next refresh."
        )
    measured = [record.contributions for record in run.rounds]
    views.append(of_selected(run, measured, "ω", "measured"))
    if not is_crowd(run):
        aid += " Colours span what occurred, from the smallest to the largest."
    title = "Contributions of the selected clients"
    return Charts([Chart("contributions", title, aid + shown_note(run), views)])


def utilities(run: RunView) -> Charts:
    """Return the clients' utilities, the smallest of each round, and the share without a loss."""
    told = [record.client_utilities for record in run.rounds]
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
                + shown_note(run),
                [of_selected(run, told, "utility", scale="signed", zmid=0)],
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
    server = [line("server utility", x, [record.server_utility for record in run.rounds], 0)]
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

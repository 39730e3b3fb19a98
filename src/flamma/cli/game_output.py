"""What ``flamma game`` prints: tables for people, JSON for scripts."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import asdict
from typing import Any

from flamma.experiments.result import text_table
from flamma.game import Certificate, Equilibrium, Game, Statics
from flamma.io import JsonTable

_CLIENT_COLUMNS_SHOWN = 8


def _game_record(names: list[str], game: Game) -> JsonTable:
    return {
        "names": names,
        "contributions": game.contributions.tolist(),
        "costs": game.costs.tolist(),
        "price": game.price,
        "epoch_bounds": [b if math.isfinite(b) else None for b in game.epoch_bounds],
        "whole_epochs": game.whole_epochs,
        "decay_bounds": list(game.decay_bounds),
    }


def solve_record(
    names: list[str], game: Game, equilibrium: Equilibrium, certificate: Certificate
) -> JsonTable:
    """Return a solved game as a record."""
    return {
        "decay_factor": equilibrium.decay_factor,
        "local_epochs": equilibrium.local_epochs.tolist(),
        "abstains": equilibrium.abstains.tolist(),
        "client_utilities": equilibrium.client_utilities.tolist(),
        "server_utility": equilibrium.server_utility,
        "certificate": asdict(certificate),
        "game": {**_game_record(names, game), "round": game.round},
    }


def statics_record(names: list[str], game: Game, found: Statics, **more: Any) -> JsonTable:
    """Return the games over the values of a parameter as a record; rounds are whole numbers."""
    is_path = found.parameter == "round"
    values = found.values.astype(int) if is_path else found.values
    rows = zip(
        values.tolist(),
        found.decay_factors.tolist(),
        found.local_epochs.tolist(),
        found.abstains.tolist(),
        found.client_utilities.tolist(),
        found.server_utilities.tolist(),
        strict=True,
    )
    keys = (
        found.parameter,
        "decay_factor",
        "local_epochs",
        "abstains",
        "client_utilities",
        "server_utility",
    )
    solved = [dict(zip(keys, row, strict=True)) for row in rows]
    about = {**_game_record(names, game), **({} if is_path else {"round": game.round})}
    return {"rounds" if is_path else "values": solved, **more, "game": about}


def print_csv(names: list[str], found: Statics) -> None:
    """Print the games over the values of a parameter as CSV, a line for each value and client."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    shared = (found.parameter, "decay_factor", "server_utility")
    writer.writerow([*shared, "client", "local_epochs", "abstains", "client_utility"])
    for k, value in enumerate(found.values.tolist()):
        number = int(value) if found.parameter == "round" else value
        leader = (number, float(found.decay_factors[k]), float(found.server_utilities[k]))
        abstains = found.abstains[k].astype(int)
        columns = (found.local_epochs[k], abstains, found.client_utilities[k])
        for name, *own in zip(names, *(column.tolist() for column in columns), strict=True):
            writer.writerow([*leader, name, *own])


def print_solution(
    names: list[str], game: Game, equilibrium: Equilibrium, certificate: Certificate
) -> None:
    """Print a solved game as a table with its certificate."""
    print(
        f"Round {game.round}, price {game.price:.6g}: decay factor {equilibrium.decay_factor:.6g}, "
        f"server utility {equilibrium.server_utility:.6g}\n"
    )
    shown = range(min(game.clients, 40))
    print(
        text_table(
            ["client", "contribution", "cost", "local epochs", "utility", ""],
            [
                [
                    names[i],
                    f"{game.contributions[i]:.4g}",
                    f"{game.costs[i]:.4g}",
                    f"{equilibrium.local_epochs[i]:.4g}",
                    f"{equilibrium.client_utilities[i]:.4g}",
                    "abstains" if equilibrium.abstains[i] else "",
                ]
                for i in shown
            ],
        )
    )
    if game.clients > len(shown):
        print(f"... and {game.clients - len(shown)} more (--json prints all)")
    rounding = 1e-12 * max(1.0, game.influence_price, game.clients)
    gaps = (certificate.follower_gap, certificate.leader_regret)
    follower_gap, leader_regret = (0.0 if abs(gap) < rounding else gap for gap in gaps)
    print(
        "\nCertificate (independent of the solver, in units of utility)\n"
        f"  follower gap                  {follower_gap:.3g}\n"
        f"  leader regret                 {leader_regret:.3g}"
        f"  (uncertainty {certificate.leader_regret_uncertainty:.2g})\n"
        f"  individual rationality slack  {certificate.individual_rationality_slack:.3g}\n"
        f"  abstaining share              {certificate.abstaining_share:.3g}"
    )


def print_path(names: list[str], game: Game, path: Statics) -> None:
    """Print a path of games as a table."""
    print(f"Price {game.price:.6g}; the columns on the right are local epochs.\n")
    print(statics_table(names, path, "round"))
    if path.abstains[-1].all():
        first = int(path.values[path.abstains.all(axis=1)][0])
        print(
            f"\nFrom round {first} on no client takes part: the server would pay more for "
            f"influence than it gains.\n"
            f"Keep the game going with --decay-bounds 0.1:1 or --epochs 0:10."
        )


def statics_table(names: list[str], found: Statics, title: str) -> str:
    """Return the games over the values of a parameter as a table; ``title`` is that of values."""
    few = len(names) <= _CLIENT_COLUMNS_SHOWN
    columns = names if few else ["fewest", "mean", "most"]
    header = [title, "decay factor", "server utility", "least client utility"]
    rows = []
    for k, number in enumerate(found.values):
        epochs = found.local_epochs[k]
        cells = epochs if few else (epochs.min(), epochs.mean(), epochs.max())
        rows.append(
            [
                f"{number:.0f}" if found.parameter == "round" else f"{number:.4g}",
                f"{found.decay_factors[k]:.4f}",
                f"{found.server_utilities[k]:.4g}",
                f"{found.client_utilities[k].min():.4g}",
                *(
                    "out" if few and found.abstains[k, i] else f"{cell:.4g}"
                    for i, cell in enumerate(cells)
                ),
            ]
        )
    return text_table([*header, *columns], rows, left=0)

"""``flamma game sweep``: how the equilibrium of one round moves with one number of the game."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from flamma.cli.game_arguments import check_plot, read_game, save_plot
from flamma.cli.parser import Parser, bounds, numbers
from flamma.errors import FlammaError
from flamma.names import quoted, unknown

if TYPE_CHECKING:
    from flamma.game import Game

MOST_VALUES = 100_000
"""The most values of a sweep: all of them are solved, kept and printed."""

WIDTH = 10.0
"""By default a number is swept from a tenth to ten times of what it is."""


def add_sweep_arguments(parser: Parser) -> None:
    """Add what only the sweep asks for."""
    parser.add_argument("--round", type=int, default=1, help="the round t (default 1)")
    parser.add_argument("--rounds", type=int, help="all rounds; needed with --decay-start")
    swept = parser.add_argument_group("what is swept")
    swept.add_argument(
        "--over",
        choices=("price", "cost", "contribution"),
        default="price",
        help="the price (default); the cost of one client, or of all by a factor; or the "
        "contribution of one client",
    )
    swept.add_argument("--client", metavar="NAME", help="whose: a client's name or number")
    values = swept.add_mutually_exclusive_group()
    values.add_argument("--values", type=numbers, metavar="A,B,..", help="these values")
    values.add_argument(
        "--range",
        type=bounds,
        metavar="LOWER:UPPER",
        help="values between these, each by the same factor more than the one before, "
        "contributions by the same amount (default a tenth to ten times of what it is; 0:1)",
    )
    swept.add_argument("--steps", type=int, default=21, help="how many of a range (default 21)")


def run_sweep(options: argparse.Namespace) -> None:
    """Run ``flamma game sweep``."""
    check_plot(options)
    if options.over == "price" and options.decay_start is not None:
        raise FlammaError("--decay-start gives the price, which is swept: leave it out.")
    names, game = read_game(options, options.round)
    client = None if options.client is None else client_number(options.client, names)
    parameter = _parameter(options.over, client)
    from flamma.cli.game_output import print_csv, print_json, statics_record, statics_table
    from flamma.cli.live import loudness, progress
    from flamma.game import comparative_statics

    values = progress(_values(options, game, client), "solving games", loudness(options))
    found = comparative_statics(game, parameter, values, client)
    title = parameter.replace("_", " ") + (f" of {names[client]}" if client is not None else "")
    if options.json:
        print_json(statics_record(names, game, found, over=parameter, client=client))
    elif options.csv:
        print_csv(names, found)
    else:
        print(f"Round {game.round}; the columns on the right are local epochs.\n")
        print(statics_table(names, found, title))
    if options.plot:
        from flamma.reports.game_figures import draw_sweep

        save_plot(draw_sweep(found, names, title), options)


def client_number(text: str, names: list[str]) -> int:
    """Return which client a name or a number is of; a name wins.

    Examples
    --------
    >>> client_number("clinic", ["hospital", "clinic"]), client_number("0", ["hospital", "clinic"])
    (1, 0)
    """
    if names.count(text) == 1:
        return names.index(text)
    if names.count(text) > 1:
        raise FlammaError(f"several clients are called {quoted(text)}: give a number.")
    if text.isdecimal() and len(text) < len(str(MOST_VALUES)) and int(text) < len(names):
        return int(text)
    raise FlammaError(unknown("client", text, names[:20]))


def _parameter(over: str, client: int | None) -> str:
    if over == "price" and client is not None:
        raise FlammaError("the price is the same for all clients: leave out --client.")
    if over == "contribution" and client is None:
        raise FlammaError("say whose contribution is swept: --client NAME.")
    return "cost_scale" if over == "cost" and client is None else over


def _values(options: argparse.Namespace, game: Game, client: int | None) -> list[float]:
    """Return the values that the options ask for."""
    import numpy as np

    if options.values is not None:
        return list(options.values)
    if not 1 <= options.steps <= MOST_VALUES:
        raise FlammaError(
            f"--steps must be from 1 to {MOST_VALUES:,}, not {quoted(options.steps)}."
        )
    if options.over == "contribution":
        low, high = options.range or (0.0, 1.0)
        return [float(value) for value in np.linspace(low, high, options.steps)]
    own = game.price if options.over == "price" else 1.0
    own = own if client is None else float(game.costs[client])
    low, high = options.range or (own / WIDTH, own * WIDTH)
    if not (0 < low < np.inf and 0 < high < np.inf):
        raise FlammaError("a range begins and ends above 0: give --range, or --values for 0.")
    return [float(value) for value in np.geomspace(low, high, options.steps)]

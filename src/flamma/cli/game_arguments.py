"""The arguments that describe a game, and reading the game from them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.cli.parser import Parser, bounds, numbers
from flamma.errors import FlammaError

if TYPE_CHECKING:
    from flamma.game import Game


def add_game_arguments(parser: Parser, csv: bool = False) -> None:
    """Add the arguments that describe a game, and what is printed of it."""
    who = parser.add_argument_group("who plays")
    who.add_argument("--contributions", type=numbers, metavar="A,B,..", help="one per client")
    who.add_argument("--costs", type=numbers, metavar="A,B,..", help="one per client")
    who.add_argument(
        "--clients",
        type=Path,
        metavar="FILE.csv",
        help="columns contribution, cost and, if you like, name, instead of the two lists",
    )
    rules = parser.add_argument_group("the rules")
    price = rules.add_mutually_exclusive_group()
    price.add_argument("--price", type=float, help="the price λ (default 1, the paper's)")
    price.add_argument(
        "--decay-start",
        type=float,
        metavar="SHARE",
        help="derive the price so that the decay factor leaves its upper bound after this share "
        "of the rounds",
    )
    rules.add_argument(
        "--epochs",
        type=bounds,
        default=(1.0, 10.0),
        metavar="LOWER:UPPER",
        help="local epochs of a client that takes part (default 1:10; 0:inf for no bounds)",
    )
    rules.add_argument("--continuous", action="store_true", help="epochs need not be whole")
    rules.add_argument(
        "--decay-bounds",
        type=bounds,
        default=(0.0, 1.0),
        metavar="LOWER:UPPER",
        help="range of the decay factor (default 0:1)",
    )
    output = parser.add_argument_group("output")
    printed = output.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="print JSON instead of a table")
    if csv:
        printed.add_argument("--csv", action="store_true", help="print CSV instead of a table")


def add_plot(parser: Parser) -> None:
    """Add ``--plot`` to a command."""
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, as .png or .svg")


def read_game(options: argparse.Namespace, round_: int) -> tuple[list[str], Game]:
    """Return the clients' names and the game that the options describe."""
    from flamma.game import Game, price_for

    names, contributions, costs = _read_clients(options)
    rules = {
        "epoch_bounds": options.epochs,
        "whole_epochs": not options.continuous,
        "decay_bounds": options.decay_bounds,
    }
    price = 1.0 if options.price is None else options.price
    if options.decay_start is not None:
        if options.rounds is None:
            raise FlammaError("--decay-start is a share of the rounds: give --rounds too.")
        game = Game(contributions, costs, round_, **rules)
        price = price_for(options.decay_start, options.rounds, game)
    return names, Game(contributions, costs, round_, price, **rules)


def _read_clients(options: argparse.Namespace) -> tuple[list[str], list[float], list[float]]:
    lists = (options.contributions, options.costs)
    if options.clients is not None:
        if any(values is not None for values in lists):
            raise FlammaError("give --clients or --contributions and --costs, not both.")
        from flamma.clients.table import read_clients

        return read_clients(options.clients)
    if any(values is None for values in lists):
        raise FlammaError("say who plays: --contributions and --costs, or --clients FILE.csv.")
    names = [f"client {i}" for i in range(len(options.contributions))]
    return names, options.contributions, options.costs


def check_plot(options: argparse.Namespace) -> None:
    """Refuse a picture that cannot be written, before the work is done."""
    if options.plot:
        from flamma.reports.drawing import check_picture_name

        check_picture_name(options.plot)


def save_plot(figure: Any, options: argparse.Namespace) -> None:
    """Write a picture, and say where it is unless the output is for a script."""
    from flamma.reports.drawing import save

    save(figure, options.plot)
    if not (options.json or getattr(options, "csv", False)):
        print(f"\nPicture: {options.plot}")

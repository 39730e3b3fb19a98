"""``flamma game``: solve the game of one round, follow it over many, or audit it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.cli.game_audit import add_audit_arguments, audit_record, pricing_rule, print_audit
from flamma.cli.parser import Parser, bounds, numbers
from flamma.errors import FlammaError
from flamma.names import quoted

if TYPE_CHECKING:
    from flamma.game import Game

EXAMPLES = """\
examples:
  flamma game solve --contributions 0.9,0.8,0.7 --costs 0.05,0.1,0.2 --round 20
  flamma game solve --clients clients.csv --round 20 --decay-start 0.5 --rounds 100 --json
  flamma game path --contributions 0.9,0.8 --costs 0.05,0.1 --rounds 100 --plot path.png
  flamma game audit --contributions 0.9,0.8,0.7 --costs 0.05,0.1,0.2 --round 20

A client's contribution lies between 0 and 1; its cost is what one epoch costs it, and grows with
the square of the epochs. The price is the weight of the server's own cost of influence.
"""

MOST_PATH_ROUNDS = 100_000
"""The most rounds of a path: all of them are solved, kept and printed."""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma game`` to the command line."""
    game = commands.add_parser(
        "game",
        help="the Stackelberg game itself: equilibria and certificates",
        description="Equilibria of the game between a server and its clients.",
        epilog=EXAMPLES,
    )
    actions = game.add_subparsers(title="commands", metavar="COMMAND", required=True)
    solve = actions.add_parser(
        "solve",
        help="the equilibrium of one round, with its certificate",
        epilog=EXAMPLES,
        description="Solve the game of one round exactly and certify the result independently.",
    )
    solve.add_argument("--round", type=int, default=1, help="the round t (default 1)")
    solve.add_argument("--rounds", type=int, help="all rounds; needed with --decay-start")
    solve.set_defaults(run=run_solve)
    path = actions.add_parser(
        "path",
        help="decay factor, epochs and utilities round by round",
        epilog=EXAMPLES,
        description="Solve the game of every round, contributions and costs staying the same.",
    )
    path.add_argument("--rounds", type=int, default=100, help="how many rounds (default 100)")
    path.set_defaults(run=run_path)
    audit = actions.add_parser(
        "audit",
        help="what each client could gain by misreporting its cost",
        epilog=EXAMPLES,
        description="Find every client's best report of its cost, exactly, the others being "
        "honest, and what it gains by it at its true cost.",
    )
    add_audit_arguments(audit)
    audit.set_defaults(run=run_game_audit)
    for parser in (solve, path, audit):
        _add_game_arguments(parser, picture=parser is not audit)


def _add_game_arguments(parser: Parser, picture: bool) -> None:
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
    output.add_argument("--json", action="store_true", help="print JSON instead of a table")
    if picture:
        output.add_argument("--plot", type=Path, metavar="FILE", help="draw it, as .png or .svg")


def run_solve(options: argparse.Namespace) -> None:
    """Run ``flamma game solve``."""
    _check_plot(options)
    names, game = _read_game(options, options.round)
    from flamma.cli.game_output import print_json, print_solution, solve_record
    from flamma.game import certify, solve

    equilibrium = solve(game)
    certificate = certify(game, equilibrium.decay_factor, equilibrium.local_epochs)
    if options.json:
        print_json(solve_record(names, game, equilibrium, certificate))
    else:
        print_solution(names, game, equilibrium, certificate)
    if options.plot:
        from flamma.reports.game_figures import draw_equilibrium

        _save(draw_equilibrium(game, equilibrium, names), options)


def run_path(options: argparse.Namespace) -> None:
    """Run ``flamma game path``."""
    _check_plot(options)
    if not 1 <= options.rounds <= MOST_PATH_ROUNDS:
        raise FlammaError(
            f"--rounds must be from 1 to {MOST_PATH_ROUNDS:,}, not {quoted(options.rounds)}."
        )
    names, game = _read_game(options, 1)
    from flamma.cli.game_output import path_record, print_json, print_path
    from flamma.cli.live import progress
    from flamma.game import comparative_statics

    rounds = progress(range(1, options.rounds + 1), "solving rounds")
    path = comparative_statics(game, "round", rounds)
    if options.json:
        print_json(path_record(names, game, path))
    else:
        print_path(names, game, path)
    if options.plot:
        from flamma.reports.game_figures import draw_path

        _save(draw_path(game, path, names), options)


def run_game_audit(options: argparse.Namespace) -> None:
    """Run ``flamma game audit``."""
    names, game = _read_game(options, options.round)
    from flamma.cli.game_output import print_json
    from flamma.cli.live import progress
    from flamma.game import best_misreport

    rule = pricing_rule(options)
    clients = progress(range(game.clients), "auditing clients")
    lies = [best_misreport(game, client, rule) for client in clients]
    if options.json:
        print_json(audit_record(names, lies))
    else:
        print_audit(names, lies)


def _read_game(options: argparse.Namespace, round_: int) -> tuple[list[str], Game]:
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


def _check_plot(options: argparse.Namespace) -> None:
    if options.plot:
        from flamma.reports.drawing import check_picture_name

        check_picture_name(options.plot)


def _save(figure: Any, options: argparse.Namespace) -> None:
    from flamma.reports.drawing import save

    save(figure, options.plot)
    if not options.json:
        print(f"\nPicture: {options.plot}")

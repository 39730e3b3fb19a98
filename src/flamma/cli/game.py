"""``flamma game``: solve the game of one round, follow it over many, or audit it."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.cli.console import print_json, progress, verbosity
from flamma.cli.parser import Parser, bounds, numbers
from flamma.errors import FlammaError
from flamma.io import JsonTable, quoted, unknown

if TYPE_CHECKING:
    from flamma.game import Game, Misreport, PricingRule


# The arguments that describe a game, and reading the game from them.


def _add_game_arguments(parser: Parser, csv: bool = False) -> None:
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


def _read_game(options: argparse.Namespace, round_: int) -> tuple[list[str], Game]:
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
        from flamma.clients.costs import read_clients

        return read_clients(options.clients)
    if any(values is None for values in lists):
        raise FlammaError("say who plays: --contributions and --costs, or --clients FILE.csv.")
    names = [f"client {i}" for i in range(len(options.contributions))]
    return names, options.contributions, options.costs


def _check_plot(options: argparse.Namespace) -> None:
    """Refuse a picture that cannot be written, before the work is done."""
    if options.plot:
        from flamma.reports.pictures import check_picture_name

        check_picture_name(options.plot)


def _save_plot(figure: Any, options: argparse.Namespace) -> None:
    """Write a picture, and say where it is unless the output is for a script."""
    from flamma.reports.pictures import save

    save(figure, options.plot)
    if not (options.json or getattr(options, "csv", False)):
        print(f"\nPicture: {options.plot}")


# ``flamma game audit``: what each client of a game could gain by misreporting its cost.

_ROWS_SHOWN = 40


def _add_audit_arguments(parser: Parser) -> None:
    """Add what only the audit asks for."""
    parser.add_argument("--round", type=int, default=1, help="the round t (default 1)")
    parser.add_argument("--rounds", type=int, help="all rounds; needed with --decay-start")
    pricing = parser.add_argument_group("how reports move the offers")
    pricing.add_argument(
        "--pricing",
        choices=("common", "others"),
        default="common",
        help="one decay factor for all clients (default), or for each the one of the others' game",
    )
    pricing.add_argument(
        "--floor",
        type=_floor,
        metavar="SHARE",
        help="the smallest decay factor: a number, or 'participation' for the smallest at which "
        "all clients work that would at 1 (default: that of --decay-bounds)",
    )


def _floor(text: str) -> float | str:
    if text == "participation":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number nor 'participation'"
        ) from None


def _pricing_rule(options: argparse.Namespace) -> PricingRule | None:
    """Return the rule that the options describe; none if no report moves price or floor."""
    from flamma.game import PricingRule

    derived = options.decay_start is not None
    if options.pricing == "common" and options.floor is None and not derived:
        return None
    low, high = options.decay_bounds
    if high != 1:
        raise FlammaError(
            "with --pricing others, --floor or --decay-start the decay factor goes "
            "up to 1: give --decay-bounds LOWER:1."
        )
    price = 1.0 if options.price is None and not derived else options.price
    return PricingRule(
        rule=options.pricing,
        decay_floor=low if options.floor is None else options.floor,
        price=price,
        decay_start=options.decay_start if derived else 1.0,
        rounds=options.rounds or 1,
        epoch_bounds=options.epochs,
        whole_epochs=not options.continuous,
    )


def _audit_record(names: list[str], lies: list[Misreport]) -> JsonTable:
    """Return the audit of a game as a record; an infinite relative gain is null."""
    rows = [
        {
            "name": names[lie.client],
            **asdict(lie),
            "gain": lie.gain,
            "relative_gain": lie.relative_gain if math.isfinite(lie.relative_gain) else None,
        }
        for lie in lies
    ]
    return {"largest_gain": max(lie.gain for lie in lies), "clients": rows}


def _print_audit(names: list[str], lies: list[Misreport]) -> None:
    """Print every client's best lie, and the largest one in a sentence."""
    from flamma.experiments.result import text_table

    header = [
        *("client", "true cost", "decay factor", "utility"),
        *("best report", "then decay factor", "then utility", "gain"),
    ]
    rows = []
    for lie in lies[:_ROWS_SHOWN]:
        gain = f"+{lie.gain:.3g}"
        if math.isfinite(lie.relative_gain):
            gain = f"+{100 * lie.relative_gain:.3g}%"
        honest = (lie.honest_cost, lie.honest_decay_factor, lie.honest_utility)
        told = [f"{value:.4g}" for value in (lie.cost, lie.decay_factor, lie.utility)]
        best = [*told, gain] if lie.gain else ["the truth", "", "", "0"]
        rows.append([names[lie.client], *(f"{value:.4g}" for value in honest), *best])
    print(text_table(header, rows))
    if len(lies) > _ROWS_SHOWN:
        print(f"... and {len(lies) - _ROWS_SHOWN} more (--json prints all)")
    print(f"\n{_sentence(names, lies)}")


def _sentence(names: list[str], lies: list[Misreport]) -> str:
    """Return the largest gain in words, by how many times the honest utility it is."""
    liars = [lie for lie in lies if lie.gain]
    if not liars:
        return "No client gains by misreporting its cost."
    lie = max(liars, key=lambda each: (each.relative_gain, each.gain))
    name = names[lie.client]
    what = f"by saying {lie.cost:.3g} instead of {lie.honest_cost:.3g}"
    if lie.honest_utility == 0:
        text = f"{name} gets {lie.utility:.3g} instead of nothing {what}."
    elif lie.relative_gain >= 1:
        text = f"{name} gets {lie.utility / lie.honest_utility:.2g} times as much {what}."
    else:
        text = f"{name} gains {100 * lie.relative_gain:.2g}% {what}."
    return text[0].upper() + text[1:]


# ``flamma game sweep``: how the equilibrium of one round moves with one number of the game.

_MAX_GAMES = 100_000
"""The most games of a path or a sweep: all of them are solved, kept and printed."""

_WIDTH = 10.0
"""By default a number is swept from a tenth to ten times of what it is."""


def _add_sweep_arguments(parser: Parser) -> None:
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


def _run_sweep(options: argparse.Namespace) -> None:
    """Run ``flamma game sweep``."""
    _check_plot(options)
    if options.over == "price" and options.decay_start is not None:
        raise FlammaError("--decay-start gives the price, which is swept: leave it out.")
    names, game = _read_game(options, options.round)
    client = None if options.client is None else _client_number(options.client, names)
    if options.over == "price" and client is not None:
        raise FlammaError("the price is the same for all clients: leave out --client.")
    if options.over == "contribution" and client is None:
        raise FlammaError("say whose contribution is swept: --client NAME.")
    parameter = "cost_scale" if options.over == "cost" and client is None else options.over
    from flamma.cli.game_output import print_csv, statics_record, statics_table
    from flamma.game import comparative_statics

    values = progress(_values(options, game, client), "solving games", verbosity(options))
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
        from flamma.reports.pictures import draw_sweep

        _save_plot(draw_sweep(found, names, title), options)


def _client_number(text: str, names: list[str]) -> int:
    """Return which client a name or a number is of; a name wins.

    Examples
    --------
    >>> names = ["hospital", "clinic"]
    >>> _client_number("clinic", names), _client_number("0", names)
    (1, 0)
    """
    if names.count(text) == 1:
        return names.index(text)
    if names.count(text) > 1:
        raise FlammaError(f"several clients are called {quoted(text)}: give a number.")
    if text.isdecimal() and len(text) < len(str(_MAX_GAMES)) and int(text) < len(names):
        return int(text)
    raise FlammaError(unknown("client", text, names[:20]))


def _values(options: argparse.Namespace, game: Game, client: int | None) -> list[float]:
    """Return the values that the options ask for."""
    import numpy as np

    if options.values is not None:
        return list(options.values)
    if not 1 <= options.steps <= _MAX_GAMES:
        raise FlammaError(f"--steps must be from 1 to {_MAX_GAMES:,}, not {quoted(options.steps)}.")
    if options.over == "contribution":
        low, high = options.range or (0.0, 1.0)
        return [float(value) for value in np.linspace(low, high, options.steps)]
    own = game.price if options.over == "price" else 1.0
    own = own if client is None else float(game.costs[client])
    low, high = options.range or (own / _WIDTH, own * _WIDTH)
    if not (0 < low < np.inf and 0 < high < np.inf):
        raise FlammaError("a range begins and ends above 0: give --range, or --values for 0.")
    return [float(value) for value in np.geomspace(low, high, options.steps)]


# ``flamma game explore``: the game explorer of the reports, of a game without a run.

_EXPLORER_FILE = "explorer.html"


def _add_explore_arguments(parser: Parser) -> None:
    """Add what only the explorer asks for."""
    parser.add_argument("--round", type=int, default=1, help="the round t to begin at (default 1)")
    parser.add_argument("--rounds", type=int, help="all rounds; needed with --decay-start")
    parser.add_argument(
        "--out", type=Path, default=Path(_EXPLORER_FILE), metavar="FILE",
        help=f"the page (default {_EXPLORER_FILE})",
    )  # fmt: skip
    parser.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        help="show it in the browser (default where the output is a terminal)",
    )


def _run_explore(options: argparse.Namespace) -> None:
    """Run ``flamma game explore``."""
    names, game = _read_game(options, options.round)
    from flamma.reports.document import write_page
    from flamma.reports.game import game_document

    written = write_page(game_document(names, game), options.out)
    if options.json:
        print_json({"page": str(written)}, indent=None)
    else:
        print(f"Explorer: {written}")
    if sys.stdout.isatty() and not options.json if options.open is None else options.open:
        from flamma.cli.report import open_in_browser

        open_in_browser(written.resolve().as_uri())


_EXAMPLES = """\
examples:
  flamma game solve --contributions 0.9,0.8,0.7 --costs 0.05,0.1,0.2 --round 20
  flamma game solve --clients clients.csv --round 20 --decay-start 0.5 --rounds 100 --json
  flamma game path --contributions 0.9,0.8 --costs 0.05,0.1 --rounds 100 --plot path.png
  flamma game audit --contributions 0.9,0.8,0.7 --costs 0.05,0.1,0.2 --round 20
  flamma game sweep --clients clients.csv --round 20 --over price --range 0.1:10
  flamma game sweep --clients clients.csv --round 20 --over cost --client clinic --csv
  flamma game explore --clients clients.csv --round 20

A client's contribution lies between 0 and 1; its cost is what one epoch costs it, and grows with
the square of the epochs. The price is the weight of the server's own cost of influence.
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma game`` to the command line."""
    game = commands.add_parser(
        "game",
        help="the Stackelberg game itself: equilibria and certificates",
        description="Equilibria of the game between a server and its clients.",
        epilog=_EXAMPLES,
    )
    actions = game.add_subparsers(title="commands", metavar="COMMAND", required=True)
    solve = actions.add_parser(
        "solve",
        help="the equilibrium of one round, with its certificate",
        epilog=_EXAMPLES,
        description="Solve the game of one round exactly and certify the result independently.",
    )
    solve.add_argument("--round", type=int, default=1, help="the round t (default 1)")
    solve.add_argument("--rounds", type=int, help="all rounds; needed with --decay-start")
    solve.set_defaults(run=_run_solve)
    path = actions.add_parser(
        "path",
        help="decay factor, epochs and utilities round by round",
        epilog=_EXAMPLES,
        description="Solve the game of every round, contributions and costs staying the same.",
    )
    path.add_argument("--rounds", type=int, default=100, help="how many rounds (default 100)")
    path.set_defaults(run=_run_path)
    audit = actions.add_parser(
        "audit",
        help="what each client could gain by misreporting its cost",
        epilog=_EXAMPLES,
        description="Find every client's best report of its cost, exactly, the others being "
        "honest, and what it gains by it at its true cost.",
    )
    _add_audit_arguments(audit)
    audit.set_defaults(run=_run_game_audit)
    sweep = actions.add_parser(
        "sweep",
        help="how the equilibrium moves with the price, a cost or a contribution",
        epilog=_EXAMPLES,
        description="Solve the game of one round once for each value of the price, of the costs "
        "or of one client's cost or contribution.",
    )
    _add_sweep_arguments(sweep)
    sweep.set_defaults(run=_run_sweep)
    explore = actions.add_parser(
        "explore",
        help="the explorer of a game as a page, with sliders for all of it",
        epilog=_EXAMPLES,
        description="Write a page that solves the game anew as sliders move, and show it.",
    )
    _add_explore_arguments(explore)
    explore.set_defaults(run=_run_explore)
    for parser in (solve, path, audit, sweep, explore):
        _add_game_arguments(parser, csv=parser in (path, sweep))
    for parser in (solve, path, sweep):
        parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, as .png or .svg")


def _run_solve(options: argparse.Namespace) -> None:
    """Run ``flamma game solve``."""
    _check_plot(options)
    names, game = _read_game(options, options.round)
    from flamma.cli.game_output import print_solution, solve_record
    from flamma.game import certify, solve

    equilibrium = solve(game)
    certificate = certify(game, equilibrium.decay_factor, equilibrium.local_epochs)
    if options.json:
        print_json(solve_record(names, game, equilibrium, certificate))
    else:
        print_solution(names, game, equilibrium, certificate)
    if options.plot:
        from flamma.reports.pictures import draw_equilibrium

        _save_plot(draw_equilibrium(game, equilibrium, names), options)


def _run_path(options: argparse.Namespace) -> None:
    """Run ``flamma game path``."""
    _check_plot(options)
    if not 1 <= options.rounds <= _MAX_GAMES:
        raise FlammaError(
            f"--rounds must be from 1 to {_MAX_GAMES:,}, not {quoted(options.rounds)}."
        )
    names, game = _read_game(options, 1)
    from flamma.cli.game_output import print_csv, print_path, statics_record
    from flamma.game import comparative_statics

    rounds = progress(range(1, options.rounds + 1), "solving rounds", verbosity(options))
    path = comparative_statics(game, "round", rounds)
    if options.json:
        print_json(statics_record(names, game, path))
    elif options.csv:
        print_csv(names, path)
    else:
        print_path(names, game, path)
    if options.plot:
        from flamma.reports.pictures import draw_path

        _save_plot(draw_path(game, path, names), options)


def _run_game_audit(options: argparse.Namespace) -> None:
    """Run ``flamma game audit``."""
    names, game = _read_game(options, options.round)
    from flamma.game import best_misreport

    rule = _pricing_rule(options)
    clients = progress(range(game.clients), "auditing clients", verbosity(options))
    lies = [best_misreport(game, client, rule) for client in clients]
    if options.json:
        print_json(_audit_record(names, lies))
    else:
        _print_audit(names, lies)

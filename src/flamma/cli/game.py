"""``flamma game``: solve the game of one round, follow it over many, or audit it."""

from __future__ import annotations

import argparse

from flamma.cli.game_arguments import (
    add_game_arguments,
    add_plot,
    check_plot,
    read_game,
    save_plot,
)
from flamma.cli.game_audit import add_audit_arguments, audit_record, pricing_rule, print_audit
from flamma.cli.game_explore import add_explore_arguments, run_explore
from flamma.cli.game_sweep import add_sweep_arguments, run_sweep
from flamma.cli.parser import Parser
from flamma.errors import FlammaError
from flamma.names import quoted

EXAMPLES = """\
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
    sweep = actions.add_parser(
        "sweep",
        help="how the equilibrium moves with the price, a cost or a contribution",
        epilog=EXAMPLES,
        description="Solve the game of one round once for each value of the price, of the costs "
        "or of one client's cost or contribution.",
    )
    add_sweep_arguments(sweep)
    sweep.set_defaults(run=run_sweep)
    explore = actions.add_parser(
        "explore",
        help="the explorer of a game as a page, with sliders for all of it",
        epilog=EXAMPLES,
        description="Write a page that solves the game anew as sliders move, and show it.",
    )
    add_explore_arguments(explore)
    explore.set_defaults(run=run_explore)
    for parser in (solve, path, audit, sweep, explore):
        add_game_arguments(parser, csv=parser in (path, sweep))
    for parser in (solve, path, sweep):
        add_plot(parser)


def run_solve(options: argparse.Namespace) -> None:
    """Run ``flamma game solve``."""
    check_plot(options)
    names, game = read_game(options, options.round)
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

        save_plot(draw_equilibrium(game, equilibrium, names), options)


def run_path(options: argparse.Namespace) -> None:
    """Run ``flamma game path``."""
    check_plot(options)
    if not 1 <= options.rounds <= MOST_PATH_ROUNDS:
        raise FlammaError(
            f"--rounds must be from 1 to {MOST_PATH_ROUNDS:,}, not {quoted(options.rounds)}."
        )
    names, game = read_game(options, 1)
    from flamma.cli.game_output import print_csv, print_json, print_path, statics_record
    from flamma.cli.live import loudness, progress
    from flamma.game import comparative_statics

    rounds = progress(range(1, options.rounds + 1), "solving rounds", loudness(options))
    path = comparative_statics(game, "round", rounds)
    if options.json:
        print_json(statics_record(names, game, path))
    elif options.csv:
        print_csv(names, path)
    else:
        print_path(names, game, path)
    if options.plot:
        from flamma.reports.game_figures import draw_path

        save_plot(draw_path(game, path, names), options)


def run_game_audit(options: argparse.Namespace) -> None:
    """Run ``flamma game audit``."""
    names, game = read_game(options, options.round)
    from flamma.cli.game_output import print_json
    from flamma.cli.live import loudness, progress
    from flamma.game import best_misreport

    rule = pricing_rule(options)
    clients = progress(range(game.clients), "auditing clients", loudness(options))
    lies = [best_misreport(game, client, rule) for client in clients]
    if options.json:
        print_json(audit_record(names, lies))
    else:
        print_audit(names, lies)

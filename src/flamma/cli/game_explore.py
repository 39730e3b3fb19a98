"""``flamma game explore``: the game explorer of the reports, of a game without a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from flamma.cli.game_arguments import read_game
from flamma.cli.parser import Parser

EXPLORER_FILE = "explorer.html"


def add_explore_arguments(parser: Parser) -> None:
    """Add what only the explorer asks for."""
    parser.add_argument("--round", type=int, default=1, help="the round t to begin at (default 1)")
    parser.add_argument("--rounds", type=int, help="all rounds; needed with --decay-start")
    parser.add_argument(
        "--out", type=Path, default=Path(EXPLORER_FILE), metavar="FILE",
        help=f"the page (default {EXPLORER_FILE})",
    )  # fmt: skip
    parser.add_argument(
        "--open",
        action=argparse.BooleanOptionalAction,
        help="show it in the browser (default where the output is a terminal)",
    )


def run_explore(options: argparse.Namespace) -> None:
    """Run ``flamma game explore``."""
    import json

    names, game = read_game(options, options.round)
    from flamma.reports.game_page import game_document
    from flamma.reports.html_page import write_page

    written = write_page(game_document(names, game), options.out)
    if options.json:
        print(json.dumps({"page": str(written)}))
    else:
        print(f"Explorer: {written}")
    if sys.stdout.isatty() and not options.json if options.open is None else options.open:
        from flamma.cli.report import open_in_browser

        open_in_browser(written.resolve().as_uri())

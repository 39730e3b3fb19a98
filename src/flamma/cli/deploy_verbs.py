"""What the commands of ``flamma deploy`` have in common: a folder, and mostly ``--json``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from flamma.cli.parser import Parser


def add_verb(
    verbs: argparse._SubParsersAction[Parser],
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    summary: str,
    description: str,
    *,
    folder: str,
    metavar: str = "DIR",
    json: str = "print JSON instead of text",
    epilog: str | None = None,
) -> Parser:
    """Add a command that takes a folder.

    Parameters
    ----------
    verbs : argparse action
        The commands of ``flamma deploy``.
    name : str
        What it is called.
    run : callable
        What carries it out; it may return an exit status.
    summary, description, epilog : str
        What its help says: in the list of commands, and above and below its own options.
    folder, metavar : str
        What the help says of the folder, and what it is called there.
    json : str
        What the help says of ``--json``; empty if there is no such option.
    """
    parser = verbs.add_parser(name, help=summary, description=description, epilog=epilog)
    parser.add_argument("dir", type=Path, metavar=metavar, help=folder)
    if json:
        parser.add_argument("--json", action="store_true", help=json)
    parser.set_defaults(run=run)
    return parser

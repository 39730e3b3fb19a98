"""The parser every command is registered with, and the types of their arguments."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

import flamma
from flamma.names import printable

MOST_ARGUMENT_MESSAGE = 400
"""The most characters of what is said about an argument."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def __init__(self, **options: object) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)  # type: ignore[arg-type]
        # Lets a list that begins with a minus, such as -0.1,0.5, be a value (and be refused by
        # what checks values) instead of an unknown option.
        self._negative_number_matcher = re.compile(r"^-[\d.].*$")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one sentence and exit with 2."""
        said = printable(message.rstrip("."), MOST_ARGUMENT_MESSAGE)
        self.exit(2, f"{self.prog}: {said}; see {self.prog} --help.\n")


def command_line() -> Parser:
    """Return the whole command line, without importing what the commands need."""
    from flamma.cli import (
        audit,
        compare,
        contributions,
        data,
        deploy,
        export,
        game,
        ledger,
        listing,
        predict,
        report,
        run,
        tune,
    )

    parser = Parser(
        prog="flamma",
        description="Fair, incentive-compatible federated learning as a Stackelberg game.",
        epilog="Each command explains itself: flamma run --help, flamma game solve --help.",
    )
    parser.add_argument("--version", action="version", version=f"flamma {flamma.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    compare.register(commands)
    run.register(commands)
    audit.register(commands)
    tune.register(commands)
    contributions.register(commands)
    report.register(commands)
    export.register(commands)
    predict.register(commands)
    ledger.register(commands)
    deploy.register(commands)
    data.register(commands)
    listing.register(commands)
    game.register(commands)
    return parser


def listed(text: str | None) -> list[str] | None:
    """Return the names in ``A,B,..``; None where nothing was given."""
    return None if text is None else [name.strip() for name in text.split(",")]


def numbers(text: str) -> list[float]:
    """Parse ``0.9,0.8,0.7``."""
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r} is not a number; write a list such as 0.9,0.8,0.7"
            ) from None
    return values


def bounds(text: str) -> tuple[float, float]:
    """Parse ``1:10``, or ``5`` for both."""
    low, colon, high = text.partition(":")
    try:
        return float(low), float(high if colon else low)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range; write it as LOWER:UPPER, such as 1:10"
        ) from None

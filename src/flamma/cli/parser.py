"""The parser every command is registered with, and the types of their arguments."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import flamma
from flamma.names import nearest, printable, quoted, unknown

MOST_ARGUMENT_MESSAGE = 400
"""The most characters of what is said about an argument."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions as they are, and lines that do not break names at their hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def __init__(self, **options: object) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)  # type: ignore[arg-type]
        # Lets a list that begins with a minus, such as -0.1,0.5, be a value (and be refused by
        # what checks values) instead of an unknown option.
        self._negative_number_matcher = re.compile(r"^-[\d.].*$")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one sentence and exit with 2."""
        said = printable(message.rstrip("."), MOST_ARGUMENT_MESSAGE)
        joined = f"{said} See" if said.endswith("?") else f"{said}; see"
        self.exit(2, f"{self.prog}: {joined} {self.prog} --help.\n")

    def format_help(self) -> str:
        """Return the help, with the names that arguments can take."""
        from flamma.cli.choices import list_names

        list_names(self)
        return super().format_help()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments; one that this command does not know ends it here.

        argparse would say so in the name of the whole program, after all else that is wrong.
        """
        given = list(sys.argv[1:] if args is None else args)
        for word in self._own_options(given):
            self._refuse(word)
        found, strange = super().parse_known_args(given, namespace)
        if strange:
            self._refuse(strange[0])
        return found, strange

    def _own_options(self, given: Sequence[str]) -> Iterator[str]:
        """Yield the unknown long options among the words, up to ``--`` or the name of a command."""
        has_commands = self._subparsers is not None
        for word in given:
            if word == "--" or (has_commands and not word.startswith("-")):
                return
            name = word.partition("=")[0]
            if word.startswith("--") and " " not in word and name not in self._names:
                yield word

    @property
    def _names(self) -> dict[str, argparse.Action]:
        return self._option_string_actions

    def _refuse(self, word: str) -> NoReturn:
        if not word.startswith("-"):
            self.error(f"there is an argument too many: {quoted(word)}")
        name = word.partition("=")[0]
        guess = nearest_option(name, [own for own in self._names if own.startswith("--")])
        self.error(f"there is no option {name}" + (f": did you mean {guess}?" if guess else ""))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not one of the choices, with the nearest one of them."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what = "command" if isinstance(action, argparse._SubParsersAction) else "value"
        sentence = unknown(what, str(value), known).rstrip(".")
        raise argparse.ArgumentError(action if action.option_strings else None, sentence)


def nearest_option(name: str, known: Sequence[str]) -> str:
    """Return the option that was probably meant: alike, begun, or by its initials.

    Examples
    --------
    >>> options = ["--learning-rate", "--rounds", "--per-round", "--processes"]
    >>> [nearest_option(name, options) for name in ("--round", "--learn", "--lr", "--colour")]
    ['--rounds', '--learning-rate', '--learning-rate', '']
    """
    typed = name.strip("-").casefold()
    begun = [own for own in known if typed and own[2:].startswith(typed)]
    initials = [own for own in known if "".join(part[:1] for part in own[2:].split("-")) == typed]
    return nearest(name, known) or next(iter([*begun, *initials]), "")


def command_line() -> Parser:
    """Return the whole command line, without importing what the commands need."""
    from flamma.cli import (
        audit,
        compare,
        completion,
        contributions,
        data,
        deploy,
        doctor,
        export,
        game,
        ledger,
        listing,
        predict,
        report,
        run,
        show,
        tune,
    )

    parser = Parser(
        prog="flamma",
        description="Fair, incentive-compatible federated learning as a Stackelberg game.",
        epilog="Each command explains itself: flamma run --help, flamma game solve --help.",
    )
    parser.add_argument("--version", action=VersionAction)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    compare.register(commands)
    run.register(commands)
    show.register(commands)
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
    doctor.register(commands)
    completion.register(commands)
    _add_loudness(parser)
    return parser


class VersionAction(argparse.Action):
    """Prints the version, and how this copy of it was installed and others can be."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        text = "show the version, where it is installed and how to install it, and exit"
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=text)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print it and exit."""
        from flamma.cli.installation import how_to_install, installed_as

        print(f"flamma {flamma.__version__}\n{installed_as()}\n{how_to_install()}")
        parser.exit()


def _add_loudness(parser: argparse.ArgumentParser) -> None:
    """Add ``-q`` and ``-v`` to a command and to all commands below it."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in below:
        for inner in action.choices.values():
            _add_loudness(inner)
    loudness = parser.add_mutually_exclusive_group()
    # Without a default, so that what was said before the command's name stays.
    loudness.add_argument(
        *("-q", "--quiet"),
        action="store_true",
        default=argparse.SUPPRESS,
        help="no progress and no hints: results, warnings and errors only",
    )
    loudness.add_argument(
        *("-v", "--verbose"),
        action="store_true",
        default=argparse.SUPPRESS,
        help="keep every line of progress, and show where in the code an error is from",
    )


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

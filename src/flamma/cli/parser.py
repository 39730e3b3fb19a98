"""The parser every command is registered with, and the types of their arguments."""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import flamma
from flamma.errors import FlammaError
from flamma.experiments.settings import SETTINGS, flag_of
from flamma.io import JsonTable, nearest, printable, quoted, unknown

_MAX_ARGUMENT_MESSAGE = 400
"""The most characters of what is said about an argument."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions as they are, and lines that do not break names at their hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def __init__(self, **options: object) -> None:
        options.setdefault("formatter_class", _HelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)  # type: ignore[arg-type]
        # Lets a list that begins with a minus, such as -0.1,0.5, be a value (and be refused by
        # what checks values) instead of an unknown option.
        self._negative_number_matcher = re.compile(r"^-[\d.].*$")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one sentence and exit with 2."""
        said = printable(message.rstrip("."), _MAX_ARGUMENT_MESSAGE)
        joined = f"{said} See" if said.endswith("?") else f"{said}; see"
        self.exit(2, f"{self.prog}: {joined} {self.prog} --help.\n")

    def format_help(self) -> str:
        """Return the help, with the names that arguments can take."""
        for action in self._actions:
            if action.choices is None and action.help and (names := names_for(action)):
                told = f": {', '.join(names)}".replace("%", "%%")
                if not action.help.endswith(told):
                    action.help += told
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
        guess = _nearest_option(name, [own for own in self._names if own.startswith("--")])
        self.error(f"there is no option {name}" + (f": did you mean {guess}?" if guess else ""))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not one of the choices, with the nearest one of them."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what = "command" if isinstance(action, argparse._SubParsersAction) else "value"
        sentence = unknown(what, str(value), known).rstrip(".")
        if what == "command" and value == "contributions":
            sentence = "'contributions' was retired: run examples/shapley_laboratory/laboratory.py"
        raise argparse.ArgumentError(action if action.option_strings else None, sentence)


def _nearest_option(name: str, known: Sequence[str]) -> str:
    """Return the option that was probably meant: alike, begun, or by its initials.

    Examples
    --------
    >>> options = ["--learning-rate", "--rounds", "--per-round", "--processes"]
    >>> [_nearest_option(name, options) for name in ("--round", "--learn", "--lr", "--colour")]
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
        data,
        deploy,
        game,
        info,
        ledger,
        model,
        report,
        run,
    )

    parser = Parser(
        prog="flamma",
        description="Fair, incentive-compatible federated learning as a Stackelberg game.",
        epilog="Each command explains itself: flamma run --help, flamma game solve --help.",
    )
    parser.add_argument("--version", action=_VersionAction)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    compare.register(commands)
    run.register(commands)
    run.register_show(commands)
    audit.register(commands)
    compare.register_tune(commands)
    report.register(commands)
    model.register_export(commands)
    model.register_predict(commands)
    ledger.register(commands)
    deploy.register(commands)
    data.register(commands)
    info.register_list(commands)
    game.register(commands)
    info.register_doctor(commands)
    completion.register(commands)
    _add_verbosity(parser)
    return parser


class _VersionAction(argparse.Action):
    """Prints the version, and how this copy of it was installed and others can be."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        text = "show the version, where it is installed and how to install it, and exit"
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=text)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print it and exit."""
        from flamma.cli.info import how_to_install, installed_as

        print(f"flamma {flamma.__version__}\n{installed_as()}\n{how_to_install()}")
        parser.exit()


def _add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Add ``-q`` and ``-v`` to a command and to all commands below it."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in below:
        for inner in action.choices.values():
            _add_verbosity(inner)
    verbosity = parser.add_mutually_exclusive_group()
    # Without a default, so that what was said before the command's name stays.
    verbosity.add_argument(
        *("-q", "--quiet"),
        action="store_true",
        default=argparse.SUPPRESS,
        help="no progress and no hints: results, warnings and errors only",
    )
    verbosity.add_argument(
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


# Which names an argument can take, for help and for the completion of shells.
#
# The names are those of registries, other packages' included; they are looked up only when they
# are to be shown.

_NAMED_BY = {
    "--strategy": "strategies",
    "--strategies": "strategies",
    "--dataset": "datasets",
    "--datasets": "datasets",
    "--split": "splits",
    "--splits": "splits",
    "--model": "models",
    "--engine": "engines",
    "--trainer": "trainers",
    "--device": "devices",
    "--measure": "contribution measures",
    "--suite": "suites",
    "suite": "suites",
    "name": "datasets",
    "names": "datasets",
}
"""What the values of an option, or of a positional argument by its name, are names of."""

LISTS = ("--strategies", "--datasets", "--splits")
"""The options whose value is several names with commas between them."""

_DEVICE_NAMES = ("auto", "cpu", "cuda", "mps")
"""Devices by name; there may be several of a kind, such as ``cuda:1``."""


def names_for(action: argparse.Action) -> list[str]:
    """Return the values that an argument can take, none if they cannot be listed."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    keys = action.option_strings or [action.dest]
    kind = next((_NAMED_BY[key] for key in keys if key in _NAMED_BY), "")
    return list(_names(kind)) if kind else []


def _names(kind: str) -> Sequence[str]:
    if kind == "devices":
        return _DEVICE_NAMES
    if kind == "suites":
        from flamma.experiments.suite import suite_names

        return suite_names()

    names = _registered_names(kind)
    return ("auto", *names) if kind == "trainers" else names


# The names in registries, without importing what registers them.
#
# Importing all registries takes longer than a shell or a reader of ``--help`` should wait. Every
# registry is one call in the source with a literal dictionary, so its names can be read from
# there; those of other packages are entry points.

_SOURCES = {
    "strategies": "strategies/__init__.py",
    "datasets": "data/datasets.py",
    "splits": "data/splits.py",
    "models": "models/__init__.py",
    "engines": "experiments/engine.py",
    "trainers": "training/config.py",
    "contribution measures": "contributions/__init__.py",
}
"""The file of each registry, by what its entries are called."""


@cache
def _registered_names(kind: str) -> tuple[str, ...]:
    """Return the names of a registry in the order in which it lists them.

    Examples
    --------
    >>> _registered_names("engines")[:2]
    ('local', 'flower')
    """
    from importlib.metadata import entry_points

    try:
        group, ours = _declared(Path(flamma.__file__).parent / _SOURCES[kind])
    except (OSError, ValueError, SyntaxError):  # a package without its source, or a computed name
        from flamma.experiments.parts import PARTS

        [part] = [part for part in PARTS if part.name == kind]
        return tuple(part.registry)
    theirs = sorted(point.name for point in entry_points(group=group))
    return tuple(dict.fromkeys([*ours, *theirs]))


def _declared(file: Path) -> tuple[str, list[str]]:
    """Return the group of entry points and the names of the registry that a file declares."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.AnnAssign(value=ast.Call(ast.Name("Registry"), [_, group, ast.Dict(keys)])):
                names = [ast.literal_eval(key) for key in keys if key is not None]
                if len(names) == len(keys):
                    return str(ast.literal_eval(group)), names
    raise ValueError(f"{file} declares no registry by a dictionary of names.")


# The flags that describe an experiment, common to several commands, and what they set.

OWN_DATA_FLAGS = ("data", "target", "group")


def add_settings(parser: Parser, leave_out: Iterable[str] = ()) -> None:
    """Add the flags of the common settings but for some, and --set for all."""
    common = parser.add_argument_group("the experiment")
    add_flags(common, [name for name in SETTINGS if name not in leave_out])
    common.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="any option of the configuration, such as strategy.decay_start=0.4; repeatable",
    )


def add_flags(parser: argparse._ActionsContainer, names: Iterable[str]) -> None:
    """Add the flags of some common settings."""
    for name in names:
        setting = SETTINGS[name]
        if setting.kind is not None:
            metavar = setting.kind.__name__.upper()
            parser.add_argument(
                flag_of(setting.key), type=setting.kind, help=setting.help, metavar=metavar
            )


def settings(options: argparse.Namespace) -> JsonTable:
    """Return what flags and --set ask for, as dotted settings."""
    from flamma.registry import parse_value

    chosen = {}
    for name, setting in SETTINGS.items():
        value = getattr(options, name, None)
        if setting.kind is not None and value is not None:
            # A file is found from another folder too, when a run is resumed.
            chosen[setting.key] = str(value.absolute()) if isinstance(value, Path) else value
    if {"data.file", "data.dataset"} <= chosen.keys():
        raise FlammaError("--data and --dataset name two sets of data: leave one out.")
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise FlammaError(f"--set takes TABLE.KEY=VALUE, not {text!r}.")
        chosen[name.strip()] = parse_value(value.strip())
    return chosen

"""What can be typed where: the command line as plain data for the scripts of shells."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from flamma.cli.choices import LISTS, names_for
from flamma.cli.data_show import LateParser

FOLDER_METAVARS = ("DIR", "FOLDER", "RUN")
"""How arguments are called whose value is a folder."""


class Wants(StrEnum):
    """What an argument takes."""

    NOTHING = "nothing"
    ANYTHING = "anything"
    NAME = "name"
    NAMES = "names"
    FILE = "file"
    FOLDER = "folder"


@dataclass(frozen=True)
class Slot:
    """What stands in one place of the command line: what is wanted there, and the known names."""

    wants: Wants
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompletedOption:
    """An option of a command."""

    flags: tuple[str, ...]
    slot: Slot
    about: str


@dataclass(frozen=True)
class CompletedCommand:
    """A command by its words, such as ``game solve``; the whole program is the one of none."""

    words: str
    below: tuple[tuple[str, str], ...]
    options: tuple[CompletedOption, ...]
    positional: Slot


def completed_commands(parser: argparse.ArgumentParser, words: str = "") -> list[CompletedCommand]:
    """Return a parser's command and all commands below it."""
    if isinstance(parser, LateParser):
        parser.add_late()
    below: dict[str, str] = {}
    found: list[CompletedCommand] = []
    positional = Slot(Wants.NOTHING)
    options = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = {each.dest: _about(each) for each in action._choices_actions}
            for name, inner in action.choices.items():
                found += completed_commands(inner, f"{words} {name}".strip())
        elif action.option_strings:
            flags = tuple(action.option_strings)
            options.append(CompletedOption(flags, _slot(action), _about(action)))
        elif positional.wants is Wants.NOTHING:
            positional = _slot(action)
    own = CompletedCommand(words, tuple(below.items()), tuple(options), positional)
    return [own, *found]


def options_by_slot(
    commands: list[CompletedCommand],
) -> Iterator[tuple[Slot, list[tuple[str, str]]]]:
    """Yield what options take a value of the same kind: pairs of a command's words and a flag."""
    groups: dict[Slot, list[tuple[str, str]]] = {}
    for command in commands:
        for option in command.options:
            if option.slot.wants is not Wants.NOTHING:
                pairs = [(command.words, flag) for flag in option.flags]
                groups.setdefault(option.slot, []).extend(pairs)
    yield from groups.items()


def _slot(action: argparse.Action) -> Slot:
    if action.option_strings and action.nargs == 0:
        return Slot(Wants.NOTHING)
    if names := names_for(action):
        is_list = any(flag in LISTS for flag in action.option_strings)
        return Slot(Wants.NAMES if is_list else Wants.NAME, tuple(names))
    if action.metavar in FOLDER_METAVARS or action.dest.endswith("dir"):
        return Slot(Wants.FOLDER)
    if action.type is Path or not action.option_strings:
        return Slot(Wants.FILE)
    return Slot(Wants.ANYTHING)


def _about(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")

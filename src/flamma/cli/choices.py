"""Which names an argument can take, for help and for the completion of shells.

The names are those of registries, other packages' included; they are looked up only when they are
to be shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

NAMED_BY = {
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

DEVICE_NAMES = ("auto", "cpu", "cuda", "mps")
"""Devices by name; there may be several of a kind, such as ``cuda:1``."""


def kind_of(action: argparse.Action) -> str:
    """Return what the values of an argument are names of, empty if they are not names."""
    keys = action.option_strings or [action.dest]
    return next((NAMED_BY[key] for key in keys if key in NAMED_BY), "")


def names_for(action: argparse.Action) -> list[str]:
    """Return the values that an argument can take, none if they cannot be listed."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    kind = kind_of(action)
    return list(_names(kind)) if kind else []


def _names(kind: str) -> Sequence[str]:
    if kind == "devices":
        return DEVICE_NAMES
    if kind == "suites":
        from flamma.experiments.suite_files import suite_names

        return suite_names()
    from flamma.cli.registered import registered_names

    names = registered_names(kind)
    return ("auto", *names) if kind == "trainers" else names


def list_names(parser: argparse.ArgumentParser) -> None:
    """Add to the help of every argument the names that it can take; a second time adds nothing."""
    for action in parser._actions:
        if action.choices is None and action.help and (names := names_for(action)):
            told = f": {', '.join(names)}".replace("%", "%%")
            if not action.help.endswith(told):
                action.help += told

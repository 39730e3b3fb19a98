"""Random arguments for every command, in an empty folder: harmless, and always one sentence."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import tempfile
from pathlib import Path
from unittest.mock import patch

from flamma.cli.parser import command_line
from fuzzing.oracle import NUMBERS, TEXTS, command, repeat

NOT_CALLED = {"watch", "deploy watch", "deploy start", "deploy up", "deploy init"}
"""These wait, start processes or make keys: only their parsing is tried."""

STUBBED = (
    "flamma.experiments.run.run_config",
    "flamma.experiments.comparison.compare_suite",
    "flamma.experiments.audit.audit_source",
    "flamma.experiments.tune.tune_config",
)
"""The work itself; everything before it is done, the configuration and its checks included."""

PLAYERS = (
    ["--clients", "clients.csv"],
    ["--contributions", "0.5,0.9", "--costs", "0.1,0.05"],
    ["--contributions", "0.5", "--costs", "0.1", "--rounds", "20", "--decay-start", "0.3"],
)
NEEDLESS = {"-h", "--help", "--version", "--watch", "--open", "--plot", "--out", "--data-dir"}


def fuzz(seed: int, seconds: float) -> int:
    """Try command lines for some time and return how many."""
    commands = dict(_commands("", command_line()))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(patch.dict(os.environ, FLAMMA_DATA=f"{folder}/data"))
        for work in STUBBED:
            stack.enter_context(patch(work, side_effect=SystemExit(0)))
        Path("config.toml").write_text("rounds = 1\n")
        Path("clients.csv").write_text("name,contribution,cost\na,0.5,0.1\nb,0.9,0.05\n")
        Path("empty").mkdir()
        return repeat(seed, seconds, lambda rng: _attempt(rng, commands))


def _commands(words: str, parser: argparse.ArgumentParser) -> list[tuple[str, list[str]]]:
    """Return every command with the flags it has."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found += _commands(f"{words} {name}".strip(), inner)
    if not found:
        flags = [f for f in parser._option_string_actions if f not in NEEDLESS]
        found.append((words, flags))
    return found


def _attempt(rng: random.Random, commands: dict[str, list[str]]) -> None:
    name = rng.choice(sorted(commands))
    values = [*NUMBERS, *TEXTS, "config.toml", "clients.csv", "empty", "0.9,0.8", "1:10", "digits"]
    values += ["strategy.name=fedavg", f"rounds={rng.choice(NUMBERS)}", f"{rng.choice(TEXTS)}=1"]
    values = [value for value in values if "\0" not in value]
    arguments = name.split()
    if name.startswith("game") and rng.random() < 0.8:
        arguments += rng.choice(PLAYERS)
    for _ in range(rng.randint(0, 4)):
        if commands[name] and rng.random() < 0.7:
            arguments.append(rng.choice(commands[name]))
        if rng.random() < 0.8:
            arguments.append(rng.choice(values))
    if name in NOT_CALLED:
        arguments.append("--no-such-flag")  # parsed to the end, and then refused
    if name == "data fetch":
        arguments += ["--from", "empty"]
    command(arguments, one_line=name != "data fetch")

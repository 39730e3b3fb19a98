"""The flags that describe an experiment, common to several commands, and what they set."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flamma.cli.parser import Parser
from flamma.errors import FlammaError

FLAGS: dict[str, tuple[str, type, str]] = {
    "--strategy": ("strategy.name", str, "the federated algorithm (default flamma)"),
    "--dataset": ("data.dataset", str, "the data (default digits, which needs no download)"),
    "--data": ("data.file", str, "your own CSV or parquet file, or folder of pictures"),
    "--target": ("data.target", str, "the column of your own file that is predicted"),
    "--group": ("data.group", str, "the column of your own file that names the client of a row"),
    "--split": ("data.split", str, "how data are dealt to clients (default shards)"),
    "--clients": ("data.clients", int, "how many clients there are (default 10)"),
    "--per-round": ("per_round", int, "how many are selected in a round (default 3)"),
    "--rounds": ("rounds", int, "how many rounds (default 30)"),
    "--seed": ("seed", int, "the seed of everything random (default 0)"),
    "--model": ("model.name", str, "the model (default lenet5, or what fits the dataset)"),
    "--start": ("model.start", Path, "a file of weights to begin with (drawn by the seed)"),
    "--epochs": ("training.epochs", int, "local epochs of strategies that fix them (default 5)"),
    "--batch-size": ("training.batch_size", int, "samples in a mini-batch (default 32)"),
    "--learning-rate": ("training.learning_rate", float, "step size (default 0.05)"),
    "--train-samples": ("data.train_samples", int, "train on so many samples in all (default all)"),
    "--processes": ("engine.processes", int, "worker processes; the results are the same (1)"),
    "--engine": ("engine.name", str, "where clients run (default local)"),
    "--trainer": ("training.trainer", str, "how a client trains (default auto)"),
    "--device": ("training.device", str, "where torch trains (default auto; cuda:1 is a second)"),
    "--dropout": ("faults.dropout", float, "probability that a client is away in a round (0)"),
    "--stragglers": ("faults.stragglers", float, "probability that a selected one is late (0)"),
    "--failures": ("faults.failures", float, "probability that a selected one fails (0)"),
}

OWN_DATA_FLAGS = ("--data", "--target", "--group")


def add_settings(parser: Parser, leave_out: tuple[str, ...] = ()) -> None:
    """Add the flags of the common options, and --set for all."""
    common = parser.add_argument_group("the experiment")
    add_flags(common, [flag for flag in FLAGS if flag not in leave_out])
    common.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="any option of the configuration, such as strategy.decay_start=0.4; repeatable",
    )


def add_flags(parser: argparse._ActionsContainer, flags: Iterable[str]) -> None:
    """Add some of the flags of the common options."""
    for flag in flags:
        _, kind, text = FLAGS[flag]
        parser.add_argument(flag, type=kind, help=text, metavar=kind.__name__.upper())


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return what flags and --set ask for, as dotted settings."""
    from flamma.options import parse_value

    chosen = {}
    for flag, (name, _, _) in FLAGS.items():
        value = getattr(options, flag[2:].replace("-", "_"), None)
        if value is not None:  # a file is found from another folder too, when a run is resumed
            chosen[name] = str(value.absolute()) if isinstance(value, Path) else value
    if {"data.file", "data.dataset"} <= chosen.keys():
        raise FlammaError("--data and --dataset name two sets of data: leave one out.")
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise FlammaError(f"--set takes TABLE.KEY=VALUE, not {text!r}.")
        chosen[name.strip()] = parse_value(value.strip())
    return chosen

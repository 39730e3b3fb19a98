"""``flamma data show``: splits a dataset as a run would, and shows the samples of each client."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.cli.flags import OWN_DATA_FLAGS, add_flags, settings
from flamma.cli.parser import Parser
from flamma.errors import FlammaError

if TYPE_CHECKING:
    from flamma.data.federated import FederatedData
    from flamma.experiments.config import Config

MOST_TABLE_CLIENTS = 40
MOST_TABLE_CLASSES = 20
MOST_INDENTED_CLIENTS = 10_000
"""The JSON of more clients has no line for each number."""

SPLIT_OPTION = "split option "
"""What the names of parsed split options begin with."""


class LateParser(Parser):
    """A parser that can add arguments when it parses, so that building it imports nothing."""

    complete: Callable[[Parser], None] | None = None

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments, those that :attr:`complete` adds included."""
        self.add_late()
        return super().parse_known_args(args, namespace)

    def add_late(self) -> None:
        """Add the arguments that :attr:`complete` adds, once."""
        if self.complete is not None:
            self.complete(self)
            self.complete = None


def add_show_arguments(parser: LateParser) -> None:
    """Add the arguments of ``flamma data show``."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="the dataset")
    add_flags(parser, OWN_DATA_FLAGS)
    parser.add_argument(
        "--split", metavar="NAME", help="how samples are dealt to clients (default as in a run)"
    )
    parser.add_argument(
        "--clients", type=int, metavar="N", help="how many clients (default as in a run)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the seed (default as in a run)")
    parser.add_argument(
        "--train-samples", type=int, metavar="N", help="use about so many samples to train on"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key of the table data of a configuration, such as alpha=0.3; repeatable",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, as .png or .svg")
    parser.complete = _add_split_options


def _add_split_options(parser: Parser) -> None:
    """Add a flag for every option of every registered split."""
    from flamma.data.splits import SPLITS
    from flamma.options import options_of, parse_value

    splits: dict[str, list[str]] = {}
    helps: dict[str, str] = {}
    for split in SPLITS:
        try:
            options = options_of(SPLITS[split])
        except FlammaError:  # a broken package must not hide the others
            continue
        for option in options.values():
            splits.setdefault(option.name, []).append(split)
            text = option.help[:1].lower() + option.help[1:].rstrip(".")
            helps.setdefault(option.name, f"{text} (default {option.default})")
    group = parser.add_argument_group("options of the splits")
    for name, owners in splits.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in parser._option_string_actions:  # one of ours; --set takes the split's
            continue
        group.add_argument(
            flag,
            dest=f"{SPLIT_OPTION}{name}",
            type=parse_value,
            metavar="X",
            help=f"of {', '.join(owners)}: {helps[name]}".replace("%", "%%"),
        )


def run_data_show(options: argparse.Namespace) -> None:
    """Run ``flamma data show``: build the data as a run with these settings would."""
    if options.plot:
        from flamma.reports.drawing import check_picture_name

        check_picture_name(options.plot)
    from flamma.experiments.setup import build_data

    config, data = _config(options)
    if data is None:
        data = build_data(config, options.data_dir)
    names = _class_names(config, data)
    if options.json:
        indent = 2 if data.clients <= MOST_INDENTED_CLIENTS else None
        print(json.dumps(_record(config, data, names), indent=indent, allow_nan=False))
    else:
        _print_table(config, data, names)
    if options.plot:
        _draw(options, config, data, names)


def _class_names(config: Config, data: FederatedData) -> tuple[str, ...]:
    from flamma.data.datasets import DATASETS

    if config.data.file is not None:
        return tuple(map(str, data.labels))
    return DATASETS[config.data.dataset].for_task(config.data.task).class_names


def _config(options: argparse.Namespace) -> tuple[Config, FederatedData | None]:
    """Return the configuration of a run with the data that are asked for, and one's own data."""
    from flamma.experiments.own import configured

    flags = {
        f"data.{name.removeprefix(SPLIT_OPTION)}": value
        for name, value in vars(options).items()
        if name.startswith(SPLIT_OPTION) and value is not None
    }
    others = {
        name if "." in name or name == "seed" else f"data.{name}": value
        for name, value in settings(options).items()
    }
    if (options.name is None) == (options.data is None):
        raise FlammaError("name a dataset, or your own file by --data.")
    named = {} if options.name is None else {"dataset": options.name}
    config, own = configured({"per_round": 1, "data": named}, flags | others)
    return config, own.federation(config)


def _record(config: Config, data: FederatedData, names: tuple[str, ...]) -> dict[str, Any]:
    import numpy as np

    return {
        "dataset": config.data.title,
        "split": config.data.split.name,
        "options": dict(config.data.split.options),
        "seed": config.seed,
        "classes": list(names),
        "clients": list(data.client_names),
        "train_samples": data.samples.tolist(),
        "held_out_samples": np.diff(data.held_offsets).tolist(),
        "validation_samples": len(data.validation_y),
        "test_samples": len(data.test_y),
        "class_counts": data.class_counts().tolist(),
    }


def _print_table(config: Config, data: FederatedData, names: tuple[str, ...]) -> None:
    import numpy as np

    from flamma.experiments.presented import text_table

    held, counts = np.diff(data.held_offsets), data.class_counts()
    print(
        f"{config.data.title} over {data.clients} clients by {config.data.split.name}, seed "
        f"{config.seed}: {len(data.train_y)} training samples, {len(data.held_y)} held out, "
        f"{len(data.validation_y)} in the server's validation set, {len(data.test_y)} in the test "
        f"set\n"
    )
    classes = counts.shape[1]  # none where samples have no class
    columns = min(classes, MOST_TABLE_CLASSES)
    rows = [
        [
            data.client_names[client] if data.client_names else str(client),
            str(data.samples[client]),
            str(held[client]),
            *(str(count) if count else "." for count in counts[client, :columns]),
        ]
        for client in range(min(data.clients, MOST_TABLE_CLIENTS))
    ]
    print(text_table(["client", "train", "held out", *names[:columns]], rows, left=0))
    if data.clients > len(rows) or classes > columns:
        print(
            f"... {len(rows)} of {data.clients} clients and {columns} of {classes} classes "
            f"shown (--json prints all)"
        )


def _draw(
    options: argparse.Namespace, config: Config, data: FederatedData, names: tuple[str, ...]
) -> None:
    from flamma.reports.data_figures import draw_holdings, holdings
    from flamma.reports.drawing import save

    title = f"{config.data.title} by {config.data.split.name}"
    save(draw_holdings(holdings(data, names, title)), options.plot)
    if not options.json:
        print(f"\nPicture: {options.plot}")

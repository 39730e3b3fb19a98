"""``flamma data``: what datasets there are, getting them, and looking at a split."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.cli.parser import Parser
from flamma.errors import FlammaError

if TYPE_CHECKING:
    from flamma.data.federated import FederatedData

EXAMPLES = """\
examples:
  flamma data list
  flamma data fetch mnist
  flamma data fetch cifar10 --from ~/downloads
  flamma data show digits --split shards --clients 10
  flamma data show mnist --split dirichlet --alpha 0.3 --clients 100 --plot who.png

Datasets are kept in the user's cache folder, or in FLAMMA_DATA, or in --data-dir.
"""
MOST_ROWS = 40
MOST_COLUMNS = 20


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma data`` to the command line."""
    data = commands.add_parser(
        "data",
        help="datasets: list, fetch, and see how they are split",
        description="Datasets, where they come from, and how they are split over clients.",
        epilog=EXAMPLES,
    )
    actions = data.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = actions.add_parser(
        "list",
        help="what datasets there are, and which are on this machine",
        description="List the datasets, their size, and whether they are on this machine.",
        epilog=EXAMPLES,
    )
    listing.set_defaults(run=run_list)
    fetch = actions.add_parser(
        "fetch",
        help="bring a dataset to this machine",
        description="Bring a dataset to this machine; every file is checked by its checksum.",
        epilog=EXAMPLES,
    )
    fetch.add_argument("name", metavar="NAME", help="the dataset")
    fetch.add_argument(
        "--from",
        dest="from_folder",
        type=Path,
        metavar="DIR",
        help="look only here, offline: the files themselves, .gz, or the packages with them",
    )
    fetch.set_defaults(run=run_fetch)
    show = actions.add_parser(
        "show",
        help="split a dataset over clients and see who holds what",
        description="Split a dataset over clients and print how much of each class each has.",
        epilog=EXAMPLES,
    )
    _add_split_arguments(show)
    show.set_defaults(run=run_show)
    for parser in (listing, fetch, show):
        parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder of all datasets")
    for parser in (listing, show):
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_split_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the dataset")
    parser.add_argument(
        "--split",
        default="shards",
        metavar="NAME",
        help="iid, shards, classes, dirichlet, or one of another package (default shards)",
    )
    parser.add_argument("--clients", type=int, default=10, metavar="N", help="default 10")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")
    parser.add_argument(
        "--shards-per-client", type=int, default=2, metavar="N", help="of shards (default 2)"
    )
    parser.add_argument(
        "--classes-per-client", type=int, default=2, metavar="N", help="of classes (default 2)"
    )
    parser.add_argument(
        "--alpha",
        type=float,
        default=0.5,
        metavar="X",
        help="of dirichlet: small is uneven (default 0.5)",
    )
    parser.add_argument(
        "--uneven",
        type=float,
        default=0.0,
        metavar="X",
        help="of iid, shards and classes: spread of the sizes, 0 for equal (default), 1 for much",
    )
    parser.add_argument(
        "--train-samples", type=int, metavar="N", help="use about so many to train on"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, as .png or .svg")


def run_list(options: argparse.Namespace) -> None:
    """Run ``flamma data list``."""
    from flamma.data.datasets import DATASETS, where
    from flamma.data.store import data_folder

    folder = data_folder(options.data_dir)
    entries = {}
    for name in DATASETS:
        try:
            entries[name] = DATASETS[name]
        except FlammaError as error:  # what another package broke hides nothing else
            print(f"flamma: {error}", file=sys.stderr)
    if options.json:
        _print_json(
            {
                "folder": str(folder),
                "datasets": [
                    {
                        "name": name,
                        "about": entry.about,
                        "shape": list(entry.shape),
                        "classes": list(entry.class_names),
                        "train": None if entry.generated else entry.train,
                        "test": entry.test,
                        "where": where(name, options.data_dir),
                        "sources": [source.title for source in entry.sources],
                    }
                    for name, entry in entries.items()
                ],
            }
        )
        return
    from flamma.reports.tables import text_table

    rows = [
        [
            name,
            "any" if entry.generated else f"{entry.train:,}",
            f"{entry.test:,}",
            "x".join(map(str, entry.shape)),
            str(entry.classes),
            where(name, options.data_dir),
        ]
        for name, entry in entries.items()
    ]
    print(text_table(["dataset", "train", "test", "shape", "classes", "where"], rows))
    print(f"\nFetched datasets are kept in {folder}")


def run_fetch(options: argparse.Namespace) -> None:
    """Run ``flamma data fetch``."""
    from flamma.data.datasets import fetch_dataset
    from flamma.data.store import data_folder

    deliveries = fetch_dataset(
        options.name,
        options.data_dir,
        options.from_folder,
        say=lambda text: print(f"{text} ...", file=sys.stderr, flush=True),
    )
    for delivery in deliveries:
        print(
            f"{options.name}: {len(delivery.files)} files, {delivery.size / 1e6:.1f} MB from "
            f"{delivery.source} in {delivery.seconds:.1f} s, checksums right"
        )
    place = data_folder(options.data_dir) / options.name
    print(f"{options.name} is{'' if deliveries else ' already'} in {place}")


def run_show(options: argparse.Namespace) -> None:
    """Run ``flamma data show``."""
    if options.plot:
        from flamma.reports.drawing import check_picture_name

        check_picture_name(options.plot)
    from flamma.data.build import build_federation
    from flamma.data.datasets import DATASETS

    data = build_federation(
        options.name,
        options.split,
        options.clients,
        options.seed,
        shards_per_client=options.shards_per_client,
        classes_per_client=options.classes_per_client,
        alpha=options.alpha,
        uneven=options.uneven,
        train_samples=options.train_samples,
        data_dir=options.data_dir,
    )
    names = DATASETS[options.name].class_names
    if options.json:
        _print_json(_show_record(options, data, names))
    else:
        _print_table(options, data, names)
    if options.plot:
        _draw(options, data, names)


def _show_record(
    options: argparse.Namespace, data: FederatedData, names: tuple[str, ...]
) -> dict[str, Any]:
    import numpy as np

    return {
        "dataset": options.name,
        "split": options.split,
        "seed": options.seed,
        "classes": list(names),
        "train_samples": data.samples.tolist(),
        "held_out_samples": np.diff(data.held_offsets).tolist(),
        "test_samples": int(data.test_y.size),
        "class_counts": data.class_counts().tolist(),
    }


def _print_table(options: argparse.Namespace, data: FederatedData, names: tuple[str, ...]) -> None:
    import numpy as np

    from flamma.reports.tables import text_table

    held, counts = np.diff(data.held_offsets), data.class_counts()
    print(
        f"{options.name} over {data.clients} clients by {options.split}, seed {options.seed}: "
        f"{data.train_y.size} training samples, {data.held_y.size} held out, "
        f"{data.test_y.size} in the test set\n"
    )
    columns = min(data.classes, MOST_COLUMNS)
    rows = [
        [
            str(client),
            str(data.samples[client]),
            str(held[client]),
            *(str(count) if count else "." for count in counts[client, :columns]),
        ]
        for client in range(min(data.clients, MOST_ROWS))
    ]
    print(text_table(["client", "train", "held out", *names[:columns]], rows, left=0))
    if data.clients > len(rows) or data.classes > columns:
        print(
            f"... {len(rows)} of {data.clients} clients and {columns} of {data.classes} classes "
            f"shown (--json prints all)"
        )


def _draw(options: argparse.Namespace, data: FederatedData, names: tuple[str, ...]) -> None:
    from flamma.reports.data_figures import draw_holdings, holdings
    from flamma.reports.drawing import save

    title = f"{options.name} by {options.split}"
    save(draw_holdings(holdings(data, names, title)), options.plot)
    if not options.json:
        print(f"\nPicture: {options.plot}")


def _print_json(record: dict[str, Any]) -> None:
    import json

    print(json.dumps(record, indent=2, allow_nan=False))

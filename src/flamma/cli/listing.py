"""``flamma list``: what there is to choose from."""

from __future__ import annotations

import argparse

from flamma.cli.parser import Parser


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma list`` to the command line."""
    parser = commands.add_parser(
        "list",
        help="strategies, datasets, models and splits",
        description="What a run can be made of, with one line each.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run_list)


def run_list(options: argparse.Namespace) -> None:
    """Run ``flamma list``."""
    from flamma.data.datasets import DATASETS
    from flamma.data.splits import SPLITS
    from flamma.experiments.suite import suite_names
    from flamma.models import MODELS
    from flamma.strategies import STRATEGIES

    found = {
        "strategies": {name: STRATEGIES[name].summary for name in STRATEGIES},
        "datasets": {name: DATASETS[name].about for name in DATASETS},
        "models": {name: _first_line(MODELS[name]) for name in MODELS},
        "splits": {name: _first_line(SPLITS[name]) for name in SPLITS},
        "suites": dict.fromkeys(suite_names(), "for flamma compare"),
    }
    if options.json:
        import json

        print(json.dumps(found, indent=2))
        return
    width = max(len(name) for lines in found.values() for name in lines)
    blocks = [
        "\n".join([kind, *(f"  {name.ljust(width)}  {line}" for name, line in lines.items())])
        for kind, lines in found.items()
    ]
    print("\n\n".join(blocks))


def _first_line(described: object) -> str:
    return (described.__doc__ or "").strip().partition("\n")[0]

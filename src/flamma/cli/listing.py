"""``flamma list``: what there is to choose from."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flamma.cli.parser import Parser
from flamma.errors import FlammaError

if TYPE_CHECKING:
    from flamma.registry import Registry


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
        "strategies": _lines(STRATEGIES, lambda strategy: strategy.summary),
        "datasets": _lines(DATASETS, lambda dataset: dataset.about),
        "models": _lines(MODELS, _first_line),
        "splits": _lines(SPLITS, _first_line),
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


def _lines(registry: Registry[Any], describe: Callable[[Any], str]) -> dict[str, str]:
    """Return a line for every entry; what another package broke hides nothing else."""
    lines = {}
    for name in registry:
        try:
            lines[name] = describe(registry[name])
        except FlammaError as error:
            lines[name] = str(error)
    return lines


def _first_line(described: object) -> str:
    line = (described.__doc__ or "").strip().partition("\n")[0]
    return line.removeprefix("Return ").replace("``", "").rstrip(".")

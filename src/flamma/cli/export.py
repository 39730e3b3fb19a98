"""``flamma export``: the trained model of a run as a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flamma.cli.parser import Parser

EXAMPLES = """\
examples:
  flamma export runs/first --out model.safetensors    weights by name, for torch and others
  flamma export runs/first --out model.npz            the same for numpy
  flamma export runs/first --out model.onnx           the model and its scaling (needs extra onnx)
  flamma export runs/ditto --client 3 --out own.npz   the model of one client's own
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma export`` to the command line."""
    parser = commands.add_parser(
        "export",
        help="the trained model as a file",
        description="Write the weights of a run by name, or its model as ONNX.",
        epilog=EXAMPLES,
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="the run directory")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="where to: FILE.safetensors, FILE.npz or FILE.onnx",
    )
    parser.add_argument("--client", type=int, metavar="N", help="the own model of this client")
    parser.add_argument("--round", type=int, metavar="N", help="after this round (the last one)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a line")
    parser.set_defaults(run=run_export)


def run_export(options: argparse.Namespace) -> None:
    """Run ``flamma export``."""
    from flamma.experiments.run import Run

    place = Run.load(options.dir).save(options.out, client=options.client, round=options.round)
    size = place.stat().st_size
    if options.json:
        print(json.dumps({"path": str(place), "bytes": size}))
    else:
        from flamma.reports.document import byte_size

        print(f"{place} ({byte_size(size)})")

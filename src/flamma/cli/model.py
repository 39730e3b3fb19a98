"""``flamma export``: the trained model of a run as a file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from flamma.cli.console import print_json
from flamma.cli.parser import Parser

_EXPORT_EXAMPLES = """\
examples:
  flamma export runs/first --out model.safetensors    weights by name, for torch and others
  flamma export runs/first --out model.npz            the same for numpy
  flamma export runs/first --out model.onnx           the model and its scaling (needs extra onnx)
  flamma export runs/ditto --client 3 --out own.npz   the model of one client's own
"""


def register_export(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma export`` to the command line."""
    parser = commands.add_parser(
        "export",
        help="the trained model as a file",
        description="Write the weights of a run by name, or its model as ONNX.",
        epilog=_EXPORT_EXAMPLES,
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
    parser.set_defaults(run=_run_export)


def _run_export(options: argparse.Namespace) -> None:
    """Run ``flamma export``."""
    from flamma.experiments.run import Run

    place = Run.load(options.dir).save(options.out, client=options.client, round=options.round)
    size = place.stat().st_size
    if options.json:
        print_json({"path": str(place), "bytes": size}, indent=None)
    else:
        from flamma.reports.document import byte_size

        print(f"{place} ({byte_size(size)})")


# ``flamma predict``: what the trained model of a run says of a table.

_PREDICT_EXAMPLES = """\
examples:
  flamma predict runs/hospitals new-patients.csv                     a prediction a line
  flamma predict runs/hospitals new-patients.csv --out answers.csv
  flamma predict runs/ditto new-patients.csv --client 3              by one client's own model

The file has the columns that the model was trained on, by the same names; others are left aside.
"""


def register_predict(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma predict`` to the command line."""
    parser = commands.add_parser(
        "predict",
        help="what the trained model says of a table",
        description="Predict each row of a CSV or parquet file with the model of a run.",
        epilog=_PREDICT_EXAMPLES,
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="the run directory")
    parser.add_argument("file", type=Path, metavar="FILE", help="a CSV or parquet file")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a CSV file (standard output)")
    parser.add_argument("--client", type=int, metavar="N", help="by the own model of this client")
    parser.add_argument("--json", action="store_true", help="a JSON list instead of CSV")
    parser.set_defaults(run=_run_predict)


def _run_predict(options: argparse.Namespace) -> None:
    """Run ``flamma predict``."""
    import csv
    import io

    from flamma.experiments.run import Run
    from flamma.io import write_atomically

    told = Run.load(options.dir).predict(options.file, client=options.client).tolist()
    if options.json:
        text = json.dumps(told, ensure_ascii=False) + "\n"
    else:
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([["prediction"], *([one] for one in told)])
        text = lines.getvalue()
    if options.out is None:
        sys.stdout.write(text)
    else:
        write_atomically(options.out, text.encode())

"""Our strategies beside other packages' on the same data, weights and mini-batches.

Logistic regression, six clients of 8 to 40 samples, two epochs in batches of 8, three rounds. The
figure is the largest difference between any two weights after any round. Where it is more than
rounding, the reason is printed with whose it is, and the figure without that reason, which must be
rounding. Exit code 1 if something differs without a reason.

Packages are compared that can be imported; benchmarks/requirements.txt has them.

    python benchmarks/against_others.py [--only flgo fluke] [--table against-others.json]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "against"), str(HERE / "peers")]

if TYPE_CHECKING:
    from pairs import Pair, Side

ROUNDING = 1e-6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", help="packages: flower, fedlab, flgo, fluke, pfl")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    importlib.import_module("vision")  # first, for some packages import torchvision
    pairs = importlib.import_module("pairs")
    chosen = [pair for pair in pairs.PAIRS if not options.only or pair.package in options.only]
    rows = []
    for pair in chosen:
        rows.append(compared(pair, pairs.PACKAGES[pair.package]))
        print(shown(rows[-1]), flush=True)
    if options.table is not None:
        from flamma.io import write_atomically

        text = json.dumps(rows, indent=1, ensure_ascii=False)
        write_atomically(options.table, f"{text}\n".encode())
    return int(any(row["unexplained"] for row in rows))


def compared(pair: Pair, distribution: str) -> dict[str, Any]:
    """Return the row of a pair; ``problem`` says why there is no figure, if there is none."""
    row: dict[str, Any] = {"package": distribution, "version": "", "rule": pair.rule}
    row |= {"difference": None, "reason": pair.reason, "without_reason": None, "problem": ""}
    row["unexplained"] = False
    try:
        row["version"] = version(distribution)
        module = importlib.import_module(f"{pair.package}_rules")
        row["difference"] = difference(pair.given, module)
        if pair.without is not None:
            row["without_reason"] = difference(pair.without, module)
    except PackageNotFoundError:
        row["problem"] = "not installed"
    except Exception as error:  # whatever a package does wrong is what is to be told
        row["problem"] = f"{type(error).__name__}: {error}"
    else:
        last = row["difference"] if row["without_reason"] is None else row["without_reason"]
        row["unexplained"] = not last < ROUNDING
    return row


def difference(side: Side, module: Any) -> float:
    """Return the largest difference between any two weights after any round."""
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = getattr(module, side.theirs)(side.problem)
    ours = side.ours.play(side.problem)
    return max(float(abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


def shown(row: dict[str, Any]) -> str:
    first = f"{row['package']:8s}  {row['rule']:28s}"
    if row["problem"]:
        return f"{first}  {row['problem']}"
    if not row["reason"]:
        return f"{first}  {row['difference']:.1e}{'  UNEXPLAINED' * row['unexplained']}"
    return (
        f"{first}  {row['difference']:.1e}  without the reason {row['without_reason']:.1e}"
        f"{'  UNEXPLAINED' * row['unexplained']}\n          {row['reason']}"
    )


if __name__ == "__main__":
    sys.exit(main())

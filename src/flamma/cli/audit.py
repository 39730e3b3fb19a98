"""``flamma audit``: what a client gains by not playing along."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.cli.console import ManyRunsDisplay, resume_hint, same_command, verbosity
from flamma.cli.parser import Parser, add_settings, listed, settings
from flamma.cli.report import report_at_end
from flamma.errors import RunError
from flamma.experiments.progress_bar import Verbosity
from flamma.io import read_text

if TYPE_CHECKING:
    from flamma.experiments.findings import Audit

_EXAMPLES = """\
examples:
  flamma audit                                   digits, FLamma, 17 deviations of 3 clients
  flamma audit                                   again: goes on, or prints what was found
  flamma audit --strategy flamma-plus --seeds 1
  flamma audit runs/first                        a finished run is the honest one
  flamma audit config.toml --clients all --deviations cost-best,free-ride
  flamma audit --deviations attacks,free-rider:sends=noise:noise=0.01
  flamma audit quick --seeds 1 --out out/audit   every strategy and split of a suite

For every seed there is one run in which all clients are honest, and one for each client and
deviation in which that client alone deviates, with the same random numbers. A gain is in utility,
pay less true cost over all rounds; epsilon is the largest as a share of the honest utility.
`--deviations` takes names (cost-x0.1, cost-x0.5, cost-x2, cost-x10, cost-best, imitate-x0.5,
imitate-x2, free-ride, free-ride-noise, free-ride-repeat, one-epoch, claim-most, half-data,
samples-x10, loss-x10, sybil, drop), the groups default, attacks and all, and any behaviour of
`flamma list` with its options.
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma audit`` to the command line."""
    parser = commands.add_parser(
        "audit",
        help="what clients gain by lying, free-riding and other deviations",
        description="Repeat a run with one client that deviates, and tell what it gains by that.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "source",
        nargs="?",
        metavar="CONFIG|RUN|SUITE",
        help="a TOML file, the directory of a finished run, or a suite (default digits, flamma)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="directory (default out/audit-NAME, or RUN/audit)"
    )
    parser.add_argument(
        "--strategies", metavar="A,B,..", help="of a suite: only these, or families of them"
    )
    parser.add_argument("--deviations", metavar="A,B,..", help="what is tried (default 17 of them)")
    parser.add_argument(
        "--clients",
        dest="subjects",  # not the number of clients, which this option is elsewhere
        metavar="A,B,..",
        help="numbers, all, or cheapest, median, dearest (the default), by true cost",
    )
    parser.add_argument(
        "--seeds", type=int, help="how many, from the configuration's on (default 3, of a run 1)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--data-dir", type=Path, help="where datasets are kept")
    parser.add_argument(
        "--processes", type=int, help="runs at the same time (default as many as there are cores)"
    )
    add_settings(parser, leave_out=("seed", "processes", "clients"))
    parser.set_defaults(run=_run_audit)


def _run_audit(options: argparse.Namespace) -> None:
    """Run ``flamma audit``."""
    from flamma.experiments.audit import audit_source, read_source
    from flamma.experiments.findings import AUDIT_FILE, FINDINGS_FILE

    source = read_source(
        options.source, settings(options), options.seeds, listed(options.strategies)
    )
    out = options.out or source.out
    with resume_hint(same_command(options)), ManyRunsDisplay(verbosity(options)) as display:
        found = audit_source(
            source,
            out,
            listed(options.deviations),
            listed(options.subjects),
            options.processes,
            display,
            options.data_dir,
        )
    if not options.json:
        _print(found)
        if verbosity(options) > Verbosity.QUIET:
            print(f"Tables: {out / AUDIT_FILE}, {out / FINDINGS_FILE}")
    report_at_end(out, options)
    if options.json:
        print(read_text(out / AUDIT_FILE, regular=True), end="")
    if found.failed:
        named = "; ".join(f"{run}: {why}" for run, why in list(found.failed.items())[:3])
        raise RunError(
            f"{len(found.failed)} runs failed and are left out ({named}): the same command tries "
            f"them again."
        )


def show_audit(folder: Path, as_json: bool) -> None:
    """Print the gains in an audit's directory, as ``flamma audit`` did at its end."""
    from flamma.experiments.findings import AUDIT_FILE, read_audit

    found = read_audit(folder)
    if as_json:
        print(read_text(folder / AUDIT_FILE, regular=True), end="")
    else:
        _print(found)
    for run, why in found.failed.items():
        print(f"flamma: {run} failed and is left out: {why}", file=sys.stderr)


def _print(found: Audit) -> None:
    from flamma.experiments.findings import audit_header, audit_line
    from flamma.experiments.result import text_table

    for case in found.cases:
        print(case.title)
        lines = [audit_line(case, name) for name in case.deviations]
        print(text_table(audit_header(case), lines))
        if not case.is_paid:
            print("There is no game and so no pay: the utility is minus the cost of the work.")
        print(f"{case.sentence}\n")

"""``flamma compare``: many strategies on the same splits and seeds, as one table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.cli.live import LiveLine
from flamma.cli.parser import Parser
from flamma.cli.report import add_watch, report_at_end, watched
from flamma.cli.run import add_settings, settings

if TYPE_CHECKING:
    from flamma.experiments.compare import Progress
    from flamma.experiments.table import Comparison

EXAMPLES = """\
examples:
  flamma compare --out out/quick                      the default suite, about a minute
  flamma compare --out out/quick                      again: goes on, or prints the table
  flamma compare --suite laptop --datasets mnist --splits shards --out out/mnist
  flamma compare my-suite.toml --out out/mine --seeds 5
  flamma compare --out out/two --strategies fedavg,flamma --dataset mnist --rounds 60

A suite is a TOML file with seeds, datasets, splits, strategies, a table `run` with what all runs
share (as in a run's configuration) and a table `overrides` with what one strategy, dataset or
split has for itself; it may extend another one. `flamma compare --show-suite` prints the default.
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma compare`` to the command line."""
    parser = commands.add_parser(
        "compare",
        help="compare strategies on the same splits and seeds (the main job)",
        description="Run all strategies x datasets x splits x seeds, and print the paper's table.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "suite", nargs="?", metavar="SUITE", help="a suite's name or TOML file (default quick)"
    )
    parser.add_argument("--suite", dest="suite_option", metavar="SUITE", help="the same")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory (default out/SUITE)")
    parser.add_argument("--seeds", type=int, help="how many seeds, from 0 (default the suite's)")
    parser.add_argument("--strategies", metavar="A,B,..", help="only these strategies")
    parser.add_argument("--datasets", metavar="A,B,..", help="only these datasets")
    parser.add_argument("--splits", metavar="A,B,..", help="only these splits")
    parser.add_argument("--json", action="store_true", help="print table.json instead of a table")
    parser.add_argument("--data-dir", type=Path, help="where datasets are kept")
    parser.add_argument("--show-suite", action="store_true", help="print the suite and stop")
    parser.add_argument(
        "--processes", type=int, help="runs at the same time (default as many as there are cores)"
    )
    add_watch(parser)
    add_settings(parser, leave_out=("--seed", "--processes"))
    parser.set_defaults(run=run_compare)


def run_compare(options: argparse.Namespace) -> None:
    """Run ``flamma compare``."""
    from flamma.experiments.compare import compare
    from flamma.experiments.suite import narrowed, read_suite, suite_text

    source = options.suite or options.suite_option or "quick"
    if options.show_suite:
        print(suite_text(source))
        return
    chosen = settings(options)
    lists = {
        "strategies": options.strategies or chosen.pop("strategy.name", None),
        "splits": options.splits or chosen.pop("data.split", None),
        "datasets": options.datasets or chosen.pop("data.dataset", None),
    }
    names = {kind: text.split(",") if text else None for kind, text in lists.items()}
    suite = narrowed(read_suite(source), options.seeds, chosen, **names)
    out = options.out or Path("out") / suite.name
    with watched(out, options.watch), _Display() as display:
        comparison = compare(
            suite,
            out=out,
            processes=options.processes,
            on_progress=display,
            data_dir=options.data_dir,
        )
    _print(comparison, out, options.json)
    report_at_end(out, options.json)
    if comparison.failed:
        from flamma.errors import RunError

        named = "; ".join(f"{run}: {why}" for run, why in list(comparison.failed.items())[:3])
        raise RunError(
            f"{len(comparison.failed)} runs failed and are not in the table ({named}): the same "
            f"command tries them again."
        )


def _print(comparison: Comparison, out: Path, as_json: bool) -> None:
    from flamma.errors import MissingExtraError
    from flamma.experiments.table import layout, legend
    from flamma.reports.curves import save_curves
    from flamma.reports.tables import text_table

    try:
        pictures = [str(path) for path in save_curves(out, comparison)]
    except MissingExtraError as error:
        pictures = []
        print(f"flamma: no pictures: {error}", file=sys.stderr)
    if as_json:
        print((out / "table.json").read_text(encoding="utf-8"), end="")
        return
    for dataset, header, lines in layout(comparison, (("*", ""), ("~", ""))):
        print(f"{dataset}\n{text_table(header, lines)}\n")
    notes = "".join(f"{note}\n" for note in comparison.sample_notes())
    print(f"{legend()}\n{notes}* is the best; ~ cannot be told from it.\n")
    tables = ", ".join(str(out / f"table.{kind}") for kind in ("json", "csv", "md"))
    print(f"Tables: {tables}")
    if pictures:
        print(f"Pictures: {', '.join(pictures)}")


class _Display(LiveLine):
    """One line on how far the comparison is."""

    def __init__(self) -> None:
        super().__init__(pause=10.0)

    def __call__(self, progress: Progress) -> None:
        left = self.left(progress.rounds_done, progress.rounds - progress.rounds_done)
        self.show(
            f"{progress.runs_done} of {progress.runs} runs, "
            f"{100 * progress.rounds_done / progress.rounds:.0f}% of the rounds{left}  "
            f"({progress.latest})",
            force=progress.runs_done == progress.runs,
        )

"""``flamma compare``: many strategies on the same splits and seeds, as one table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.cli.console import ManyRunsDisplay, print_json, resume_hint, same_command, verbosity
from flamma.cli.parser import Parser, add_settings, listed, settings
from flamma.cli.report import add_watch, report_at_end, watched
from flamma.cli.run import TABLE_FILE
from flamma.errors import FlammaError, MissingExtraError, RunError
from flamma.experiments.progress_bar import LiveLine, Verbosity
from flamma.io import JsonTable, read_text

if TYPE_CHECKING:
    from flamma.experiments.comparison import Comparison, Repetition
    from flamma.experiments.suite import Suite


_EXAMPLES = """\
examples:
  flamma compare --out out/quick                      the default suite, about a minute
  flamma compare --out out/quick                      again: goes on, or prints the table
  flamma compare --suite laptop --datasets mnist --splits shards --out out/mnist
  flamma compare --suite family --datasets digits     all strategies, grouped by family
  flamma compare my-suite.toml --out out/mine --seeds 5
  flamma compare grid --settings digits-10of10-one-class --strategies fedavg,flamma
  flamma compare --check published/table.json         repeat a table; exit code 1 if it differs
  flamma compare --out out/two --strategies fedavg,flamma --dataset mnist --rounds 60
  flamma compare --out out/fair --strategies fedavg,fairness       a family of `flamma list`

A suite is a TOML file with seeds, datasets, splits, strategies, a table `run` with what all runs
share (as in a run's configuration) and a table `overrides` with what one strategy, dataset or
split has for itself; it may extend another one. In place of datasets and splits it may have a
table `settings.NAME` for each of its settings, with whatever differs in that. Options on the
command line win over all of it.
`flamma compare --show-suite` prints the suite, what would run, and where each setting comes from.
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma compare`` to the command line."""
    parser = commands.add_parser(
        "compare",
        help="compare strategies on the same splits and seeds (the main job)",
        description="Run all strategies x datasets x splits x seeds, and print the paper's table.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "suite", nargs="?", metavar="SUITE", help="a suite's name or TOML file (default quick)"
    )
    parser.add_argument("--suite", dest="suite_option", metavar="SUITE", help="the same")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory (default out/SUITE)")
    parser.add_argument("--seeds", type=int, help="how many seeds (default the suite's)")
    parser.add_argument(
        "--first-seed", type=int, metavar="SEED", help="the first one (the suite's, 0)"
    )
    parser.add_argument(
        "--strategies", metavar="A,B,..", help="only these strategies, or families of them"
    )
    parser.add_argument("--datasets", metavar="A,B,..", help="only these datasets")
    parser.add_argument("--splits", metavar="A,B,..", help="only these splits")
    parser.add_argument(
        "--settings", metavar="A,B,..", help="only these settings, of a suite that has settings"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--data-dir", type=Path, help="where datasets are kept")
    parser.add_argument("--show-suite", action="store_true", help="print what would run and stop")
    parser.add_argument(
        "--processes", type=int, help="runs at the same time (default as many as there are cores)"
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="TABLE.json",
        help="repeat a published table and tell whether every run has the same bits",
    )
    add_watch(parser)
    add_settings(parser, leave_out=("seed", "processes"))
    parser.set_defaults(run=_run_compare)


def _run_compare(options: argparse.Namespace) -> int:
    """Run ``flamma compare``; the exit code is 1 if it was checked and is not the same."""
    from flamma.experiments.comparison import check_overlap, compare_suite, repetition, suite_of
    from flamma.experiments.suite import asked_suite, read_suite, suite_text

    named = options.suite or options.suite_option
    published = None if options.check is None else _published(options.check, named)
    chosen = settings(options)
    kinds = ("strategies", "splits", "datasets")
    lists = {kind: listed(getattr(options, kind)) for kind in kinds}
    one = {"strategy.name", "data.split", "data.dataset"}  # each the only one of a list
    changes = sorted(chosen.keys() - {"engine.processes"} - one)
    if published is not None and changes:
        raise FlammaError(
            f"--check repeats a table as it was made: leave out {', '.join(changes)}."
        )
    source = suite_of(published) if published and not named else named
    source = _with_settings(source, options)
    suite, own = asked_suite(source, options.seeds, chosen, lists, first_seed=options.first_seed)
    if options.show_suite:
        as_written = suite == read_suite(named)
        _show(suite, suite_text(named or "quick") if as_written else "", options.json)
        return 0
    if published is not None:
        check_overlap(published, suite)
    out = options.out or Path("out") / suite.name
    with (
        resume_hint(same_command(options)),
        watched(out, options),
        ManyRunsDisplay(verbosity(options)) as display,
    ):
        comparison = compare_suite(suite, out, own, options.processes, display, options.data_dir)
    _finish(comparison, suite, out, options)
    found = None if published is None else repetition(published, comparison)
    if found is not None:
        _print_repetition(found, options)
    elif options.json:
        print(read_text(out / TABLE_FILE, regular=True), end="")
    if comparison.failed:
        named = "; ".join(f"{run}: {why}" for run, why in list(comparison.failed.items())[:3])
        raise RunError(
            f"{len(comparison.failed)} runs failed and are not in the table ({named}): the same "
            f"command tries them again."
        )
    return 0 if found is None or found.same else 1


def _with_settings(source: Suite | str | None, options: argparse.Namespace) -> Suite | str | None:
    """Return what to compare, with the settings only that are asked for."""
    if options.settings is None:
        return source
    from flamma.experiments.suite import Suite, narrowed, read_suite

    suite = source if isinstance(source, Suite) else read_suite(source)
    if not suite.settings:
        raise FlammaError(f"the suite {suite.name} has no settings: use --datasets and --splits.")
    return narrowed(suite, datasets=listed(options.settings))


def _published(path: Path, named: str | None) -> Comparison:
    """Return the table to check against."""
    from flamma.experiments.comparison import read_published

    published = read_published(path)
    if named and published.suite:
        raise FlammaError(f"--check takes the suite from {path}: leave out {named}.")
    return published


def _print_repetition(found: Repetition, options: argparse.Namespace) -> None:
    if options.json:
        print_json(found.as_json(), indent=1)
        return
    from flamma.experiments.result import text_table
    from flamma.metrics import ComparedMetric, TimeToMetric, shown_in
    from flamma.strategies import label_of

    shown = shown_in("table").items()
    metrics = {name: m for name, m in shown if not isinstance(m, ComparedMetric | TimeToMetric)}
    header = ["Data", "Split", "Algorithm", "Seed", "Weights", *(m.label for m in metrics.values())]
    lines = []
    for run in found.runs:
        moved = [run.differences.get(name, 0.0) for name in metrics]
        cells = [run.dataset, run.split, label_of(run.strategy), str(run.seed), run.verdict]
        lines.append([*cells, *(f"{value:+.2f}" if value else "=" for value in moved)])
    table = text_table(header, lines, left=5)
    print(f"\nRepeated, against {options.check}:\n{table}\n{found.sentence}")


def _show(suite: Suite, text: str, as_json: bool) -> None:
    """Print what would run: as JSON, or as the suite's file with the origins in comments."""
    from flamma.experiments.suite import suite_as_json, suite_as_lines

    if as_json:
        print_json(suite_as_json(suite), indent=1)
        return
    print(f"{(text or suite.as_toml()).rstrip()}\n")
    for line in suite_as_lines(suite):
        print(f"# {line}")


def _finish(comparison: Comparison, suite: Suite, out: Path, options: argparse.Namespace) -> None:
    """Draw, print and report a comparison."""
    from flamma.experiments.comparison import as_text
    from flamma.experiments.suite import origin_notes
    from flamma.reports.comparison import save_diagrams
    from flamma.reports.pictures import save_curves

    try:
        drawn = [*save_curves(out, comparison), *save_diagrams(out, comparison)]
        pictures = [str(path) for path in drawn]
    except MissingExtraError as error:
        pictures = []
        print(f"flamma: no pictures: {error}", file=sys.stderr)
    if not options.json:
        print(as_text(comparison, origin_notes(suite)))
        if verbosity(options) > Verbosity.QUIET:
            tables = ", ".join(str(out / f"table.{kind}") for kind in ("json", "csv", "md"))
            print(f"\nTables: {tables}")
            if pictures:
                print(f"Pictures: {', '.join(pictures)}")
    report_at_end(out, options)


def show_comparison(folder: Path, as_json: bool) -> None:
    """Print the table of a comparison's directory, as ``flamma compare`` did at its end."""
    from flamma.experiments.comparison import read_published

    comparison = read_published(folder / TABLE_FILE, regular=True)
    if as_json:
        print(read_text(folder / TABLE_FILE, regular=True), end="")
    else:
        print(comparison)
    for run, why in comparison.failed.items():
        print(f"flamma: {run} failed and is not in the table: {why}", file=sys.stderr)


# ``flamma tune``: search for options on validation data that no result is computed on.

_TUNE_EXAMPLES = """\
examples:
  flamma tune --dataset mnist --rounds 60 --trials 30 --out out/tune
  flamma tune --strategy fedavg --grid training.learning_rate=0.02,0.05,0.1,0.2 --out out/fedavg
  flamma run out/tune/best.toml --seed 0 --out runs/tuned

Every client's training data are cut once more, and trials are scored on what was cut off: the
held-out data, of which results are told, are not looked at. Without --grid, the step size is
searched and, where the strategy has them, decay_start and the scale of the costs; trials that
fall behind are given up early. Started again, the search goes on. The seed is 1000 unless named,
so that results on seeds 0, 1, 2, ... are not those that were tuned on.
"""


def register_tune(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma tune`` to the command line."""
    parser = commands.add_parser(
        "tune",
        help="search for step size, decay start and cost scale",
        description="Search for the options of a run that do best on held-back training data.",
        epilog=_TUNE_EXAMPLES,
    )
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="CONFIG.toml", help="where to begin"
    )
    parser.add_argument("--trials", type=int, default=30, help="how many (default 30)")
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="TABLE.KEY=A,B,..",
        help="try all of these values instead; repeatable",
    )
    parser.add_argument(
        "--objective",
        choices=["fair", "mean", "accuracy"],
        default="fair",
        help="mean accuracy, or another evaluation.metric, less its standard deviation over "
        "clients (fair), or the mean alone (mean, or as before accuracy)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory (default out/tune)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--data-dir", type=Path, help="where datasets are kept")
    add_settings(parser)
    parser.set_defaults(run=_run_tune)


def _run_tune(options: argparse.Namespace) -> None:
    """Run ``flamma tune``."""
    from flamma.experiments.config import read_config
    from flamma.experiments.result import text_table
    from flamma.experiments.tune import score_text, tune_config
    from flamma.experiments.user_objects import configured
    from flamma.metrics import LAST_ROUNDS

    tables = {"seed": 1000} | (read_config(options.config) if options.config else {})
    config, own = configured(tables, settings(options))
    out = options.out or Path("out/tune")
    with resume_hint(same_command(options)), _Display(verbosity(options)) as display:
        found = tune_config(
            config,
            out,
            own,
            options.trials,
            _grid(options.grid),
            options.objective,
            display,
            options.data_dir,
        )
    if options.json:
        said = {"options": found.options, "score": found.score, "trials": found.trials}
        print_json(said, indent=1)
        return
    finished = [t for t in found.trials if not t["given_up"] and t["score"] is not None]
    best = sorted(finished, key=lambda t: -t["score"])[:10]
    rows = [
        [
            *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in t["options"].values()),
            score_text(t["score"]),
        ]
        for t in best
    ]
    print(text_table([*found.options, "score"], rows, left=0))
    given_up = sum(t["given_up"] for t in found.trials)
    evaluated = "" if found.config.evaluation.every == 1 else "evaluated ones of the "
    last = f"{evaluated}last {min(LAST_ROUNDS, found.config.rounds)} rounds"
    print(
        f"\n{len(found.trials)} trials, {given_up} given up early. Score: {found.scored_by}, "
        f"{last}.\nBest: {out / 'best.toml'}"
    )


def _grid(texts: list[str]) -> dict[str, list[Any]] | None:
    from flamma.registry import parse_value

    grid = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise FlammaError(f"--grid takes TABLE.KEY=A,B,.., not {text!r}.")
        grid[name.strip()] = [parse_value(value.strip()) for value in values.split(",")]
    return grid or None


class _Display(LiveLine):
    """One line on the trial that has ended last."""

    def __init__(self, verbosity: Verbosity) -> None:
        super().__init__(verbosity=verbosity)
        self.best = -float("inf")

    def __call__(self, number: int, tried: JsonTable, score: float | None) -> None:
        self.best = max(self.best, -float("inf") if score is None else score)
        what = ", ".join(f"{name} {value:.4g}" for name, value in tried.items())
        from flamma.experiments.tune import score_text

        came_to = "given up" if score is None else f"score {score_text(score)}"
        trial, best = f"trial {number + 1}", f"best {score_text(self.best)}"
        self.show(f"{trial}: {what}: {came_to} ({best})", f"{trial}: {best}", trial, force=True)

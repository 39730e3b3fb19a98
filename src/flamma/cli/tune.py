"""``flamma tune``: search for options on validation data that no result is computed on."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flamma.cli.flags import add_settings, settings
from flamma.cli.interrupts import goes_on_by, same_command
from flamma.cli.live import LiveLine, Loudness, loudness
from flamma.cli.parser import Parser
from flamma.errors import FlammaError

EXAMPLES = """\
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


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma tune`` to the command line."""
    parser = commands.add_parser(
        "tune",
        help="search for step size, decay start and cost scale",
        description="Search for the options of a run that do best on held-back training data.",
        epilog=EXAMPLES,
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
    parser.set_defaults(run=run_tune)


def run_tune(options: argparse.Namespace) -> None:
    """Run ``flamma tune``."""
    from flamma.experiments.config import read_config
    from flamma.experiments.own import configured
    from flamma.experiments.presented import text_table
    from flamma.experiments.search import score_text, tune_config
    from flamma.metrics.kinds import LAST_ROUNDS

    tables = {"seed": 1000} | (read_config(options.config) if options.config else {})
    config, own = configured(tables, settings(options))
    out = options.out or Path("out/tune")
    with goes_on_by(same_command(options)), _Display(loudness(options)) as display:
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
        print(json.dumps(said, indent=1))
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
    from flamma.options import parse_value

    grid = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise FlammaError(f"--grid takes TABLE.KEY=A,B,.., not {text!r}.")
        grid[name.strip()] = [parse_value(value.strip()) for value in values.split(",")]
    return grid or None


class _Display(LiveLine):
    """One line on the trial that has ended last."""

    def __init__(self, loudness: Loudness) -> None:
        super().__init__(loudness=loudness)
        self.best = -float("inf")

    def __call__(self, number: int, tried: dict[str, Any], score: float | None) -> None:
        self.best = max(self.best, -float("inf") if score is None else score)
        what = ", ".join(f"{name} {value:.4g}" for name, value in tried.items())
        from flamma.experiments.search import score_text

        came_to = "given up" if score is None else f"score {score_text(score)}"
        trial, best = f"trial {number + 1}", f"best {score_text(self.best)}"
        self.show(f"{trial}: {what}: {came_to} ({best})", f"{trial}: {best}", trial, force=True)

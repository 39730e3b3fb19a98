"""``flamma contributions``: compare contribution measures with exact Shapley values."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from flamma.cli.console import LiveLine, Loudness, goes_on_by, loudness, same_command
from flamma.cli.parser import Parser, add_settings, settings

EXAMPLES = """\
examples:
  flamma contributions --out out/measures             all measures, 3 seeds, some minutes
  flamma contributions --out out/measures             again: goes on, or prints the table
  flamma contributions --measure shapley --measure "cgsv memory=0.5" --split dirichlet
  flamma contributions --clients 6 --seeds 1 --rounds 5

Every coalition of clients trains among itself by FedAvg; what its model is worth on the test set
gives the exact Shapley values. Spearman's and Kendall's rank correlations compare them with the
sum of each client's contributions over a run of all clients. Then each client in turn deviates;
a column says what that earns on average, as a share of what an honest client earns.
  free-rider   sends the received model back, with a little noise
  noise        adds noise to it, as long as the others' updates
  repeater     works in the first round, and sends that update again
  step-rider   takes the last step of the global model once more
  duplicate    sends what another client sends
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``flamma contributions`` to the command line."""
    parser = commands.add_parser(
        "contributions",
        help="compare contribution measures with exact Shapley values",
        description="Rank correlation of each contribution measure with the Shapley values by "
        "retraining all coalitions, and what cheating earns under it.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="CONFIG.toml", help="data, model and training"
    )
    parser.add_argument(
        "--measure",
        action="append",
        default=[],
        metavar="'NAME [KEY=VALUE ..]'",
        help="a measure and its options; repeatable (default all measures)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default 3)")
    parser.add_argument(
        "--utility",
        choices=["accuracy", "loss"],
        default="accuracy",
        help="what a coalition is worth on the test set (default accuracy)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory (out/contributions)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--data-dir", type=Path, help="where datasets are kept")
    parser.add_argument(
        "--processes", type=int, help="coalitions at the same time (default one for each core)"
    )
    leave_out = ("--strategy", "--per-round", "--processes", "--engine")
    add_settings(parser, (*leave_out, "--dropout", "--stragglers", "--failures"))
    parser.set_defaults(run=run_contributions)


def run_contributions(options: argparse.Namespace) -> None:
    """Run ``flamma contributions``."""
    from flamma.experiments.config import make_config, read_config, with_settings
    from flamma.experiments.laboratory import LABORATORY_DEFAULTS, study_contributions
    from flamma.experiments.result import text_table

    chosen = settings(options)
    chosen.pop("engine.processes", None)
    tables = LABORATORY_DEFAULTS | (read_config(options.config) if options.config else {})
    if options.model and tables["model"] == LABORATORY_DEFAULTS["model"]:
        tables["model"] = {}  # the options of the default model are not those of another
    out = options.out or Path("out/contributions")
    with goes_on_by(same_command(options)), _Display(loudness(options)) as display:
        study = study_contributions(
            make_config(with_settings(tables, chosen)),
            out=out,
            measures=options.measure,
            seeds=options.seeds,
            processes=options.processes,
            utility=options.utility,
            on_job=display,
            data_dir=options.data_dir,
        )
    if options.json:
        print(json.dumps(study.as_json(), indent=1, allow_nan=False))
        return
    print(text_table(*study.rows()))
    if loudness(options) > Loudness.QUIET:
        print(f"\nTables: {out / 'contributions.json'}, {out / 'contributions.csv'}")


class _Display(LiveLine):
    """One line on how many coalitions and runs are done."""

    def __init__(self, loudness: Loudness) -> None:
        super().__init__(10.0, loudness)

    def __call__(self, done: int, of: int) -> None:
        left = self.left(done, of - done)
        self.show(f"{done} of {of} trainings{left}", f"{done} of {of}", force=done == of)

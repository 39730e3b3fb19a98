"""``flamma run`` and ``resume``: one experiment from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.cli.flags import add_settings, settings
from flamma.cli.interrupts import goes_on_by, resuming
from flamma.cli.parser import Parser
from flamma.cli.report import add_watch, report_at_end, watched
from flamma.cli.show import print_run
from flamma.errors import DivergedError

if TYPE_CHECKING:
    from flamma.experiments.callbacks import Tracker
    from flamma.experiments.run import Run

EXAMPLES = """\
examples:
  flamma run --strategy flamma --dataset digits --split shards --clients 10 --per-round 3 \\
             --rounds 30 --seed 0 --processes 2 --out runs/first
  flamma run config.toml --set strategy.decay_start=0.4 --set costs.kind=lognormal
  flamma run --dropout 0.3 --stragglers 0.2       simulated faults
  flamma resume runs/first                        goes on where it was interrupted
  flamma show runs/first --json
  flamma run --rounds 100 --watch                 a page that follows it live
  flamma run --data hospitals.csv --target label --group hospital     your own data

A configuration file has the tables data, model, training, strategy, costs, engine, faults and
evaluation, and rounds, per_round and seed; every run directory holds a complete one. Options on
the command line win over the file. `flamma list` names strategies, datasets, models and splits;
docs/reference/configuration.md explains every key.
"""


def register(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the commands to the command line."""
    run = commands.add_parser(
        "run",
        help="run one experiment",
        description="Run one federated experiment into a directory that can be resumed.",
        epilog=EXAMPLES,
    )
    run.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="a configuration")
    add_settings(run)
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="the run directory (a new one in runs/)"
    )
    run.set_defaults(run=run_run)
    resume = commands.add_parser(
        "resume",
        help="go on with an interrupted run",
        description="Go on from the last checkpoint; the result is that of a run in one go.",
    )
    resume.add_argument("dir", type=Path, metavar="DIR", help="the run directory")
    resume.add_argument("--processes", type=int, help="worker processes (as the run was begun)")
    resume.add_argument(
        "--past-stop", action="store_true", help="go on with a run that was stopped early, too"
    )
    resume.set_defaults(run=run_resume)
    for parser in (run, resume):
        add_watch(parser)
        parser.add_argument(
            "--track",
            action="append",
            default=[],
            metavar="NAME",
            help="log the rounds for tensorboard, mlflow or wandb; repeatable",
        )
        parser.add_argument("--data-dir", type=Path, help="where datasets are kept")
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run_run(options: argparse.Namespace) -> None:
    """Run ``flamma run``."""
    from flamma.cli.live import RoundDisplay, loudness
    from flamma.experiments.own import configured
    from flamma.experiments.run import default_folder, run_config

    config, own = configured(options.config, settings(options))
    out = options.out or default_folder(config)
    with (
        _told_at_end(out, options),
        goes_on_by(resuming(out, options)),
        watched(out, options),
        RoundDisplay(config.rounds, out, loudness(options)) as display,
    ):
        done = run_config(
            config,
            out,
            own,
            on_round=display,
            callbacks=_trackers(options.track),
            data_dir=options.data_dir,
        )
    _print_end(done, options)


def run_resume(options: argparse.Namespace) -> None:
    """Run ``flamma resume``."""
    from flamma.cli.live import RoundDisplay, loudness
    from flamma.experiments.callbacks.base import Notices
    from flamma.experiments.run import Run, resume

    before = Run.load(options.dir)
    rounds = before.config.rounds
    with (
        _told_at_end(options.dir, options),
        goes_on_by(resuming(options.dir, options)),
        watched(options.dir, options),
        RoundDisplay(rounds, options.dir, loudness(options)) as display,
    ):
        done = resume(
            options.dir,
            on_round=display,
            callbacks=[*_trackers(options.track), Notices(display.notice)],
            data_dir=options.data_dir,
            processes=options.processes,
            past_stop=options.past_stop,
        )
    _print_end(done, options)


@contextmanager
def _told_at_end(out: Path, options: argparse.Namespace) -> Iterator[None]:
    """Print what a run came to that diverged, before the error is told."""
    try:
        yield
    except DivergedError:
        from flamma.experiments.run import Run

        _print_end(Run.load(out), options)
        raise


def _print_end(done: Run, options: argparse.Namespace) -> None:
    print_run(done, options.json)
    report_at_end(done.path, options)


def _trackers(names: list[str]) -> list[Tracker]:
    from flamma.experiments.callbacks.tracker import TRACKERS

    return [TRACKERS[name]() for name in dict.fromkeys(names)]

"""``flamma run`` and ``resume``: one experiment from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.cli.console import RoundDisplay, print_json, resume_hint, resuming, verbosity
from flamma.cli.parser import Parser, add_settings, settings
from flamma.cli.report import add_watch, report_at_end, watched
from flamma.errors import DivergedError, FlammaError
from flamma.io import folder_bytes

if TYPE_CHECKING:
    from flamma.experiments.result import Summary
    from flamma.experiments.run import Run
    from flamma.experiments.trackers import Tracker
    from flamma.records import RoundPrivacy


# ``flamma show``: what a run, a comparison or an audit came to.

TABLE_FILE = "table.json"
"""The file in a comparison's directory that tells it from a run's."""

_TOLD_BYTES = 20_000_000
"""The size of a run directory is told from here on."""


def register_show(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command to the command line."""
    show = commands.add_parser(
        "show",
        help="what a run, a comparison or an audit came to",
        description="Final and last-ten-rounds metrics of a run, and its worst certificate; the "
        "table of a comparison; the gains that an audit found.",
    )
    show.add_argument("dir", type=Path, metavar="DIR", help="the directory of any of them")
    show.add_argument("--json", action="store_true", help="print JSON instead of a table")
    show.set_defaults(run=_run_show)


def _run_show(options: argparse.Namespace) -> None:
    """Run ``flamma show``."""
    from flamma.experiments.findings import AUDIT_FILE
    from flamma.experiments.folder import CONFIG
    from flamma.experiments.run import Run

    if not (options.dir / CONFIG).exists():
        if (options.dir / AUDIT_FILE).exists():
            from flamma.cli.audit import show_audit

            show_audit(options.dir, options.json)
            return
        if (options.dir / TABLE_FILE).exists():
            from flamma.cli.compare import show_comparison

            show_comparison(options.dir, options.json)
            return
        _refuse_unfinished(options.dir)
    print_run(Run.load(options.dir), options.json)


def _refuse_unfinished(folder: Path) -> None:
    """Say of a comparison or an audit without a table that it is not finished."""
    for runs, command in (("runs", "compare"), ("counterfactuals", "audit")):
        if (folder / runs).is_dir():
            raise FlammaError(
                f"{folder} has no table yet: the flamma {command} that was begun there goes on if "
                f"it is started again, and flamma report {folder} shows what there is."
            )


def print_run(run: Run, as_json: bool) -> None:
    """Print what a run came to."""
    from flamma.reports.document import byte_size
    from flamma.strategies import RETIRED, label_of

    summary = run.summary()
    for problem in run.problems:
        print(f"flamma: {run.path}: {problem}.", file=sys.stderr)
    if as_json:
        _print_summary(run, summary)
        return
    name = run.config.strategy.name
    _print_metrics(run, summary, label_of(name) if name in RETIRED else name)
    _print_account(run, summary)
    if run.stopped is not None:
        print(f"{run.stopped}; flamma resume {run.path} --past-stop goes on")
    if run.params_sha256:
        size = folder_bytes(run.path)
        large = f" ({byte_size(size)})" if size >= _TOLD_BYTES else ""
        print(f"params_sha256 {run.params_sha256}\nrun directory {run.path}{large}")
    elif name in RETIRED:
        print("not finished")
    else:
        print(f"not finished: flamma resume {run.path}")


def _print_summary(run: Run, summary: Summary) -> None:
    from dataclasses import asdict

    about = {
        "path": str(run.path),
        "strategy": run.config.strategy.name,
        "finished": run.finished,
        "stopped": None if run.stopped is None else asdict(run.stopped),
        "params_sha256": run.params_sha256,
        "problems": list(run.problems),
    }
    if (spent := _privacy_spent(run)) is not None:
        about["privacy"] = asdict(spent)
    print_json(about | summary.as_json())


def _print_metrics(run: Run, summary: Summary, name: str) -> None:
    """Print which run it is, under the name of its strategy, and its metrics."""
    from flamma.experiments.result import sample_text, text_table
    from flamma.metrics import shown_in

    config = run.config
    print(
        f"{name} on {config.data.title} ({config.data.split.name}), "
        f"{config.data.clients} clients, {config.per_round} a round, seed {config.seed}: "
        f"{summary.rounds} of {config.rounds} rounds\n"
    )
    if summary.diverged:
        print(f"THE RUN DIVERGED: {summary.diverged}.\n")
    rows = [
        [metric.title, _number(summary.final.get(name)), _number(summary[name])]
        for name, metric in shown_in("show", summary.score_kind).items()
    ]
    print(text_table(["", "final", summary.averaged_title], rows))
    if summary.sample is not None:
        told = sample_text(summary.sample, summary.clients)
        print(f"Metrics over clients are over {told}, drawn once by the seed.")
    if summary.personal:
        print("Metrics over clients are of the clients' own models, not of the global one.")


def _print_account(run: Run, summary: Summary) -> None:
    """Print what the run took: work, time, losses asked for, gaps of its game, and privacy."""
    from flamma.reports.document import byte_size

    print(
        f"\nlocal epochs {summary['epochs_total']:.0f}, failures {summary.failures}, "
        f"abstentions {summary.abstentions}, {summary['seconds']:.1f} s"
    )
    if told := _times(summary, run.config.clock.targets):
        print(told)
    if summary.surveyed:
        print(
            f"losses asked for before selections: {summary.surveyed:,}, for which "
            f"{byte_size(summary.bytes_surveys)} of weights were sent"
        )
    if summary["follower_gap"] is not None:
        print(
            f"worst certificate of a round: follower gap {_number(summary['follower_gap'])}, "
            f"leader regret {_number(summary['leader_regret'])}, individual rationality "
            f"slack {_number(summary['individual_rationality_slack'])}"
        )
    if (spent := _privacy_spent(run)) is not None:
        noise_on = run.config.privacy.noise_on
        print(f"differential privacy: {spent}, noise on the {noise_on} (zero-out neighbours)")


def _privacy_spent(run: Run) -> RoundPrivacy | None:
    """Return what differential privacy the run has spent, None where there is none."""
    return run.history[-1].privacy if run.history else None


def _times(summary: Summary, targets: Mapping[str, float]) -> str:
    """Return the virtual time that a run took, and when it reached its targets, if it has any."""
    if summary["virtual_seconds"] is None:
        return ""
    parts = [f"virtual time {_number(summary['virtual_seconds'])} s"]
    words = {"seconds_to_accuracy": "accuracy", "seconds_to_fairness": "accuracy_variance"}
    for name, of in words.items():
        if of in targets:
            what = f"{of.replace('_', ' ')} {targets[of]:g}"
            when = summary[name]
            reached = "not reached" if when is None else f"reached at {_number(when)} s"
            parts.append(f"{what} {reached}")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return "0" if abs(value) < 1e-9 else f"{value:.4g}"


_EXAMPLES = """\
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
        epilog=_EXAMPLES,
    )
    run.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="a configuration")
    add_settings(run)
    run.add_argument(
        "--out", type=Path, metavar="DIR", help="the run directory (a new one in runs/)"
    )
    run.set_defaults(run=_run_run)
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
    resume.set_defaults(run=_run_resume)
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


def _run_run(options: argparse.Namespace) -> None:
    """Run ``flamma run``."""
    from flamma.experiments.run import default_folder, run_config
    from flamma.experiments.user_objects import configured

    config, own = configured(options.config, settings(options))
    out = options.out or default_folder(config)
    with (
        _told_at_end(out, options),
        resume_hint(resuming(out, options)),
        watched(out, options),
        RoundDisplay(config.rounds, out, verbosity(options)) as display,
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


def _run_resume(options: argparse.Namespace) -> None:
    """Run ``flamma resume``."""
    from flamma.experiments.callbacks import Notices
    from flamma.experiments.run import Run, resume

    before = Run.load(options.dir)
    rounds = before.config.rounds
    with (
        _told_at_end(options.dir, options),
        resume_hint(resuming(options.dir, options)),
        watched(options.dir, options),
        RoundDisplay(rounds, options.dir, verbosity(options)) as display,
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
    from flamma.experiments.trackers import TRACKERS

    return [TRACKERS[name]() for name in dict.fromkeys(names)]

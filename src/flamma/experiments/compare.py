"""Comparing strategies: all of them on the same datasets, splits and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.errors import RunError
from flamma.experiments.asked import asked_settings, in_python_terms
from flamma.experiments.config_checks import check_installed
from flamma.experiments.folder import RunFolder
from flamma.experiments.job_worker import RunJob
from flamma.experiments.jobs import OnProgress, Progress, do_jobs
from flamma.experiments.own import NOTHING_OWN, OwnParts
from flamma.experiments.own_suite import asked_suite
from flamma.experiments.progress_bar import ProgressBar, wants_bar
from flamma.experiments.run import own_parts
from flamma.experiments.run_object import Run
from flamma.experiments.scratch import place_for
from flamma.experiments.suite import SUITE, Cell, Suite
from flamma.experiments.table import Comparison, compared
from flamma.experiments.table_text import write_tables

if TYPE_CHECKING:
    from flamma.tasks.own import OwnLoss, OwnMetric
    from flamma.training.augmentations import Augment


def compare(
    suite: Suite | Mapping[str, Any] | str | Path | None = None,
    *,
    strategies: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    seeds: int | None = None,
    first_seed: int | None = None,
    data: Any = None,
    target: str | None = None,
    group: Any = None,
    task: str | None = None,
    model: Any = None,
    start: Any = None,
    freeze: str | Sequence[str] | None = None,
    loss: OwnLoss | None = None,
    metric: OwnMetric | None = None,
    augment: Augment | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    per_round: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    device: str | None = None,
    processes: int | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    data_dir: Path | None = None,
    **settings: Any,
) -> Comparison:
    """Run every strategy on every dataset, split and seed, and compare them.

    Started again with the same ``out``, it keeps what is finished and goes on with what is not; a
    run that is damaged is set aside and done again. A run whose process is killed, again and
    again, is left out of the tables and named. The tables are written to ``out`` as
    ``table.json``, ``table.csv`` and ``table.md``, last and whole.

    Parameters
    ----------
    suite : Suite, mapping, name or path
        What to compare; ``quick`` if not given, and with your own data its strategies.
    strategies, datasets, splits : sequence of str, optional
        In place of those of the suite. In a suite of settings, names of settings or of datasets,
        and splits, choose among them.
    seeds, first_seed : int, optional
        How many seeds, and the first of them; those of the suite, from 0, if not given.
    data, target, group, task, model, start, freeze, loss, metric, augment
        Your own data and model, as of :func:`flamma.run`; another comparison in the same
        directory must have the same data.
    clients, rounds, per_round, epochs, batch_size, learning_rate, momentum, device
        Settings of all runs, as of :func:`flamma.run`; they win over what the suite has.
    processes : int, optional
        How many runs go on at the same time; as many as there are cores if not given. The
        results do not depend on it.
    out : path, optional
        The directory of the comparison; a temporary one if not given, as of :func:`flamma.run`.
    progress : bool, optional
        Whether a progress bar is shown; by default in terminals and notebooks.
    on_progress : callable, optional
        Called whenever a round has finished somewhere.
    data_dir : Path, optional
        Where datasets are kept.
    **settings
        Any other option of a configuration, with two underscores for the dot:
        ``costs__kind="lognormal"``.
    """
    asked = dict(locals())
    with in_python_terms():
        own, named = own_parts(model, start, freeze, loss, metric, augment)
        flags = named | asked_settings(asked, leave_out=("processes",))
        lists = {"strategies": strategies, "datasets": datasets, "splits": splits}
        chosen, own = asked_suite(suite, seeds, flags, lists, data, group, own, first_seed)
        path, scratch = place_for(out, "comparison")
        with ProgressBar(wants_bar(progress), 1, "rounds") as bar:

            def told(news: Progress) -> None:
                bar.on_progress(news)
                if on_progress is not None:
                    on_progress(news)

            found = compare_suite(chosen, path, own, processes, told, data_dir)
    return replace(found, scratch=scratch)


def compare_suite(
    suite: Suite,
    folder: Path,
    own: OwnParts = NOTHING_OWN,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
    data_dir: Path | None = None,
) -> Comparison:
    """Carry out a suite in a directory, or what is left of it, and write its tables."""
    cells = suite.cells()
    for cell in cells:
        check_installed(cell.config)
    guard = RunFolder(folder)
    guard.lock()
    try:
        guard.write(SUITE, suite.as_toml())  # so that one who looks on knows how much is to come
        jobs = [RunJob(cell.folder, cell.config, _label(cell)) for cell in cells]
        failed = do_jobs(jobs, folder, processes, on_progress, data_dir, own)
        loaded = [
            (cell, Run.load(folder / cell.folder))
            for cell in cells
            if str(cell.folder) not in failed
        ]
        if not loaded:
            raise RunError(f"every run failed, such as {next(iter(failed.items()))}.")
        comparison = compared(suite.name, loaded, failed, suite.as_toml())
        write_tables(comparison, folder)
    finally:
        guard.close()
    return replace(comparison, path=folder)


def _label(cell: Cell) -> str:
    return f"{cell.dataset} {cell.split} {cell.strategy} seed {cell.seed}"

"""Comparing strategies: all of them on the same datasets, splits and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flamma.errors import RunError
from flamma.experiments.folder import RunFolder
from flamma.experiments.jobs import OnProgress, RunJob, do_jobs
from flamma.experiments.own_data import with_own_file
from flamma.experiments.run import Run
from flamma.experiments.suite import Cell, Suite, read_suite
from flamma.experiments.table import Comparison, compared
from flamma.experiments.table_text import write_tables


def compare(
    suite: Suite | Mapping[str, Any] | str | Path | None = None,
    *,
    out: str | Path,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
    data_dir: Path | None = None,
) -> Comparison:
    """Run every strategy on every dataset, split and seed, and compare them.

    Started again, it keeps what is finished and goes on with what is not; a run that is damaged is
    set aside and done again. A run whose process is killed, again and again, is left out of the
    tables and named. The tables are written to ``out`` as ``table.json``, ``table.csv`` and
    ``table.md``, last and whole.

    Parameters
    ----------
    suite : Suite, mapping, name or path
        What to compare; ``quick`` if not given.
    out : path
        The directory of the comparison.
    processes : int, optional
        How many runs go on at the same time; as many as there are cores if not given. The
        results do not depend on it.
    on_progress : callable, optional
        Called whenever a round has finished somewhere.
    data_dir : Path, optional
        Where datasets are kept.
    """
    chosen = with_own_file(suite if isinstance(suite, Suite) else read_suite(suite))
    folder = Path(out)
    cells = chosen.cells()
    guard = RunFolder(folder)
    guard.lock()
    try:
        jobs = [RunJob(cell.folder, cell.config, _label(cell)) for cell in cells]
        failed = do_jobs(jobs, folder, processes, on_progress, data_dir)
        loaded = [
            (cell, Run.load(folder / cell.folder))
            for cell in cells
            if str(cell.folder) not in failed
        ]
        if not loaded:
            raise RunError(f"every run failed, such as {next(iter(failed.items()))}.")
        comparison = compared(chosen.name, loaded, failed, chosen.as_toml())
        write_tables(comparison, folder)
    finally:
        guard.close()
    return comparison


def _label(cell: Cell) -> str:
    return f"{cell.dataset} {cell.split} {cell.strategy} seed {cell.seed}"

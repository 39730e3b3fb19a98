"""Many runs at once: each whole run in a process of its own, finished ones kept."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from flamma.errors import FlammaError, RunError
from flamma.experiments.config import Config
from flamma.experiments.folder import CONFIG, RunFolder
from flamma.experiments.run import Run, resume, run
from flamma.experiments.suite import Cell, Suite, read_suite
from flamma.experiments.table import Comparison, compared, write_tables
from flamma.processes import exit_with_parent
from flamma.records import RoundRecord


@dataclass(frozen=True)
class Progress:
    """How far a comparison is: rounds done of all rounds, and what finished last."""

    rounds_done: int
    rounds: int
    runs_done: int
    runs: int
    latest: str


OnProgress = Callable[[Progress], None]


def compare(
    suite: Suite | Mapping[str, Any] | str | Path | None = None,
    *,
    out: str | Path,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
    data_dir: Path | None = None,
) -> Comparison:
    """Run every strategy on every dataset, split and seed, and compare them.

    Started again, it keeps what is finished and goes on with what is not. The tables are written
    to ``out`` as ``table.json``, ``table.csv`` and ``table.md``.

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
    chosen = suite if isinstance(suite, Suite) else read_suite(suite)
    folder = Path(out)
    cells = chosen.cells()
    guard = RunFolder(folder)
    guard.lock()
    try:
        todo = [cell for cell in cells if not _finished(folder / cell.folder, cell)]
        workers = min(processes or os.cpu_count() or 1, max(1, len(todo)))
        _run_all(todo, cells, folder, workers, on_progress, data_dir)
        comparison = compared(
            chosen.name, [(cell, Run.load(folder / cell.folder)) for cell in cells]
        )
        write_tables(comparison, folder)
    finally:
        guard.close()
    return comparison


def _finished(path: Path, cell: Cell) -> bool:
    if not (path / CONFIG).exists():
        return False
    before = Run.load(path)
    if _comparable(before.config) != _comparable(cell.config):
        raise RunError(
            f"{path} was run with another configuration than the suite has now: name another --out."
        )
    return before.finished and before.params_sha256 is not None


def _comparable(config: Config) -> str:
    return config.with_settings({"engine.processes": 1}).as_toml()


def _run_all(
    todo: list[Cell],
    cells: list[Cell],
    folder: Path,
    workers: int,
    on_progress: OnProgress | None,
    data_dir: Path | None,
) -> None:
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    events: SimpleQueue[tuple[int, int]] = context.SimpleQueue()
    tally = _Tally(todo, cells, on_progress)
    tally.tell("starting")  # the first round may take minutes
    with _pool(workers, context, events) as pool:
        waiting: set[Future[None]] = {
            pool.submit(_one, index, cell, folder / cell.folder, data_dir)
            for index, cell in enumerate(todo)
        }
        while waiting:
            done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            tally.read(events)
            for future in done:
                future.result()
        tally.read(events)


@contextmanager
def _pool(workers: int, context: Any, events: Any) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(events,))
    try:
        yield pool
    except BaseException:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:  # a run can be resumed at any moment, so nothing is lost
            process.terminate()
        raise
    pool.shutdown()


_events: Any = None


def _begin(events: Any) -> None:
    """Set up a worker process: remember where to tell, and end with the parent."""
    global _events
    from flamma.engines.executor import stay_on_one_thread

    stay_on_one_thread()
    _events = events
    exit_with_parent(os.getppid())


def _one(index: int, cell: Cell, path: Path, data_dir: Path | None) -> None:
    def tell(record: RoundRecord) -> None:
        _events.put((index, record.round))

    try:
        if (path / CONFIG).exists():
            resume(path, on_round=tell, data_dir=data_dir)
        else:
            run(cell.config, out=path, on_round=tell, data_dir=data_dir)
    except FlammaError as error:
        raise RunError(f"{path}: {error}") from None
    with suppress(OSError):
        (path / ".lock").unlink()


class _Tally:
    """Counts finished rounds over all runs."""

    def __init__(self, todo: list[Cell], cells: list[Cell], on_progress: OnProgress | None) -> None:
        self.todo = todo
        self.on_progress = on_progress
        self.rounds = sum(cell.config.rounds for cell in cells)
        self.skipped = len(cells) - len(todo)
        self.before = self.rounds - sum(cell.config.rounds for cell in todo)
        self.reached = [0] * len(todo)

    def read(self, events: Any) -> None:
        """Take in what the workers have told since, and pass it on."""
        latest = ""
        while not events.empty():
            index, number = events.get()
            self.reached[index] = number
            cell = self.todo[index]
            latest = f"{cell.dataset} {cell.split} {cell.strategy} seed {cell.seed}"
        if latest:
            self.tell(latest)

    def tell(self, latest: str) -> None:
        """Say how far it is."""
        if self.on_progress is None:
            return
        done = sum(
            reached >= cell.config.rounds
            for reached, cell in zip(self.reached, self.todo, strict=True)
        )
        self.on_progress(
            Progress(
                self.before + sum(self.reached),
                self.rounds,
                self.skipped + done,
                self.skipped + len(self.todo),
                latest,
            )
        )

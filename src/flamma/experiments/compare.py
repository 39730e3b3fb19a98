"""Many runs at once: each whole run in a process of its own, finished ones kept."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from flamma.errors import FlammaError, RunError
from flamma.experiments.config import Config
from flamma.experiments.folder import CONFIG, RunFolder, free_folder
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
    chosen = suite if isinstance(suite, Suite) else read_suite(suite)
    folder = Path(out)
    cells = chosen.cells()
    guard = RunFolder(folder)
    guard.lock()
    try:
        todo = [cell for cell in cells if not _finished(folder / cell.folder, cell)]
        workers = min(processes or os.cpu_count() or 1, max(1, len(todo)))
        jobs = _Jobs(todo, folder, data_dir, _Tally(todo, cells, on_progress))
        failed = jobs.run(workers)
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


def _finished(path: Path, cell: Cell) -> bool:
    if not (path / CONFIG).exists():
        return False
    try:
        before = Run.load(path)
    except FlammaError as error:
        _set_aside(path, str(error))
        return False
    if _comparable(before.config) != _comparable(cell.config):
        raise RunError(
            f"{path} was run with another configuration than the suite has now: name another --out."
        )
    if before.finished and before.problems:
        _set_aside(path, before.problems[0])
        return False
    return before.finished and before.params_sha256 is not None


def _set_aside(path: Path, why: str) -> None:
    """Keep a damaged run under another name, so that it is done again."""
    aside = free_folder(path.parent, f".damaged-{path.name}")
    path.rename(aside)
    warnings.warn(f"{path} is damaged and done again, see {aside}: {why}", stacklevel=2)


def _comparable(config: Config) -> str:
    return config.with_settings({"engine.processes": 1}).as_toml()


@dataclass(frozen=True, eq=False)
class _Jobs:
    """The runs that are left to do, each in a worker process."""

    todo: list[Cell]
    folder: Path
    data_dir: Path | None
    tally: _Tally

    def run(self, workers: int) -> dict[str, str]:
        """Do all runs; return those that failed because their process was killed, and why.

        A process that is killed (out of memory, say) takes its pool along. The runs that were
        under way are then tried once more, one by one, to find out whose process it is.
        """
        self.tally.tell("starting")  # the first round may take minutes
        failed: dict[str, str] = {}
        left = list(range(len(self.todo)))
        while left:
            done, suspects = self._attempt(left, workers)
            for index in suspects:
                if index not in self._attempt([index], 1)[0]:
                    failed[str(self.todo[index].folder)] = "its process was killed"
            left = [index for index in left if index not in done and index not in suspects]
        return failed

    def _attempt(self, indices: list[int], workers: int) -> tuple[set[int], set[int]]:
        """Do some runs; return those that are done, and those under way when a process died."""
        context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
        events: SimpleQueue[tuple[int, int]] = context.SimpleQueue()
        done: set[int] = set()
        begun: set[int] = set()
        with _pool(workers, context, events) as pool:
            waiting: dict[Future[None], int] = {}
            try:
                with warnings.catch_warnings():
                    # The first job forks all workers, beside threads such as those of BLAS, which
                    # they never use; Python 3.12 warns of any thread.
                    warnings.filterwarnings("ignore", category=DeprecationWarning)
                    for index in indices:
                        path = self.folder / self.todo[index].folder
                        future = pool.submit(_one, index, self.todo[index], path, self.data_dir)
                        waiting[future] = index
                while waiting:
                    finished, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                    begun |= self.tally.read(events)
                    for future in finished:
                        future.result()
                        done.add(waiting.pop(future))
                begun |= self.tally.read(events)
            except BrokenProcessPool:
                begun |= self.tally.read(events)
                for future, index in waiting.items():
                    if future.done() and future.exception() is None:
                        done.add(index)
        return done, begun - done


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
    """Set up a worker process: keep the queue of events, and end with the parent."""
    global _events
    from flamma.engines.executor import stay_on_one_thread

    stay_on_one_thread()
    _events = events
    exit_with_parent(os.getppid())


def _one(index: int, cell: Cell, path: Path, data_dir: Path | None) -> None:
    def tell(record: RoundRecord) -> None:
        _events.put((index, record.round))

    _events.put((index, 0))
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

    def read(self, events: Any) -> set[int]:
        """Read the events of the workers, pass them on, and return whose they were."""
        latest, heard = "", set()
        while not events.empty():
            index, number = events.get()
            heard.add(index)
            self.reached[index] = max(self.reached[index], number)
            cell = self.todo[index]
            latest = f"{cell.dataset} {cell.split} {cell.strategy} seed {cell.seed}"
        if latest:
            self.tell(latest)
        return heard

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

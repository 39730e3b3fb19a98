"""Many runs at once: each whole run in a process of its own, finished ones kept."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from flamma.clients.truth import NOTES
from flamma.errors import ConfigError, DivergedError, EmptyRunError, FlammaError, Key, RunError
from flamma.experiments.callbacks import Callbacks
from flamma.experiments.checkpoint import CHECKPOINT_FOLDER
from flamma.experiments.config import Config
from flamma.experiments.folder import CONFIG, POPULATION, RunFolder, free_folder
from flamma.experiments.result import Run
from flamma.experiments.run import go_on, run_config
from flamma.experiments.user_objects import NO_OBJECTS, UserObjects, check_same_data
from flamma.processes import exit_with_parent
from flamma.records import RoundRecord
from flamma.registry import convert

# One of many runs, in a process of its own or in this one.


@dataclass(frozen=True)
class RunJob:
    """One of many runs.

    Attributes
    ----------
    folder : Path
        Its directory, under the one of all runs.
    config : Config
        What to run.
    label : str
        What people are told that it is.
    population : str
        The text of the ``population.csv`` that it has to go by, if not by one of its own.
    is_kept_small : bool
        Whether checkpoints and clients' notes are removed at its end.
    """

    folder: Path
    config: Config
    label: str
    population: str = ""
    is_kept_small: bool = False


_events: Any = None
_own = NO_OBJECTS


def _begin_worker(events: Any, own: UserObjects) -> None:
    """Set up a worker process: keep the queue of events and what is given, end with the parent."""
    global _events, _own
    from flamma.simulation.executor import stay_on_one_thread

    stay_on_one_thread()
    _events, _own = events, own
    exit_with_parent(os.getppid())


def _do_in_worker(index: int, job: RunJob, path: Path, data_dir: Path | None) -> None:
    """Do a run in a worker process, which tells the one that started it of every round."""
    _do_job(job, path, data_dir, _own, lambda number: _events.put((index, number)))


def _do_job(
    job: RunJob,
    path: Path,
    data_dir: Path | None,
    own: UserObjects,
    tell: Callable[[int], None],
) -> None:
    """Begin a run or go on with it, to its end; ``tell`` is called with every finished round."""

    def on_round(record: RoundRecord) -> None:
        tell(record.round)

    tell(0)
    try:
        if job.population and not (path / CONFIG).exists():
            _hand_over(path, job)
        if (path / CONFIG).exists():
            go_on(path, own, Callbacks((), on_round), data_dir)
        else:
            run_config(job.config, path, own, on_round=on_round, data_dir=data_dir)
    except (DivergedError, EmptyRunError) as error:  # what is compared includes how it ends
        warnings.warn(f"{path}: {error}", stacklevel=2)
    except FlammaError as error:
        raise RunError(f"{path}: {error}") from None
    with suppress(OSError):
        (path / ".lock").unlink()
    if job.is_kept_small:
        for name in (CHECKPOINT_FOLDER, NOTES):
            shutil.rmtree(path / name, ignore_errors=True)


def _hand_over(path: Path, job: RunJob) -> None:
    """Begin a run with a given population: a run that goes on keeps the one it finds."""
    folder = RunFolder(path)
    folder.lock()
    try:
        folder.write(POPULATION, job.population)
        folder.write(CONFIG, job.config.as_toml())  # last, for it makes the directory a run
    finally:
        folder.close()


@dataclass(frozen=True)
class Progress:
    """How far many runs are: rounds done of all rounds, and what finished last."""

    rounds_done: int
    rounds: int
    runs_done: int
    runs: int
    latest: str


OnProgress = Callable[[Progress], None]


def do_jobs(
    jobs: Sequence[RunJob],
    folder: Path,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
    data_dir: Path | None = None,
    own: UserObjects = NO_OBJECTS,
) -> dict[str, str]:
    """Do all runs that are not finished; return the folders of those that failed, and why.

    A run that is damaged is set aside and done again. A run whose process is killed, again and
    again, has failed; whatever else goes wrong with a run is raised.

    Data and a model of the user's own reach the worker processes by a fork. Where that cannot be,
    the runs go one after the other in this process.

    Raises
    ------
    RunError
        If a directory holds a run of another configuration or of other data, or a run cannot be
        carried out.
    """
    todo = [job for job in jobs if not _finished(folder / job.folder, job.config, own)]
    workers = min(processes or os.cpu_count() or 1, max(1, len(todo)))
    left = _Jobs(todo, folder, data_dir, own, _Tally(todo, jobs, on_progress))
    if not todo or own.can_be_forked:
        return left.run(workers)
    if workers > 1:
        warnings.warn(
            "data and models of your own reach other processes by a fork, which is not possible "
            "here: the runs go one after the other.",
            stacklevel=2,
        )
    return left.run_here()


def check_processes(processes: int | None) -> None:
    """Refuse a number of runs at the same time that there cannot be.

    Raises
    ------
    ConfigError
        If it is no whole number from 1 on.
    """
    whole = convert(processes, int | None, "processes")
    if whole is not None and whole < 1:
        raise ConfigError(Key("processes"), f" must be at least 1, not {whole}.")


def _finished(path: Path, config: Config, own: UserObjects) -> bool:
    if not (path / CONFIG).exists():
        return False
    try:
        before = Run.load(path)
    except FlammaError as error:
        _set_aside(path, str(error))
        return False
    if comparable(before.config) != comparable(config):
        raise RunError(
            f"{path} was run with another configuration than it has now: choose another directory."
        )
    if (data := own.federation(config)) is not None:
        check_same_data(RunFolder(path), data)
    if before.finished and before.problems:
        _set_aside(path, before.problems[0])
        return False
    return before.finished and before.params_sha256 is not None


def _set_aside(path: Path, why: str) -> None:
    """Keep a damaged run under another name, so that it is done again."""
    aside = free_folder(path.parent, f".damaged-{path.name}")
    path.rename(aside)
    warnings.warn(f"{path} is damaged and done again, see {aside}: {why}", stacklevel=2)


def comparable(config: Config) -> str:
    """Return a configuration as text, but for what results do not depend on."""
    return config.with_settings({"engine.processes": 1}).as_toml()


@dataclass(frozen=True, eq=False)
class _Jobs:
    """The runs that are left to do, each in a worker process."""

    todo: list[RunJob]
    folder: Path
    data_dir: Path | None
    own: UserObjects
    tally: _Tally

    def run_here(self) -> dict[str, str]:
        """Do all runs in this process; none can fail by being killed alone."""
        self.tally.tell("starting")
        for index, job in enumerate(self.todo):
            heard = partial(self.tally.hear, index)
            _do_job(job, self.folder / job.folder, self.data_dir, self.own, heard)
        return {}

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
        with _pool(workers, context, (events, self.own)) as pool:
            waiting: dict[Future[None], int] = {}
            try:
                with warnings.catch_warnings():
                    # The first job forks all workers, beside threads such as those of BLAS, which
                    # they never use; Python 3.12 warns of any thread.
                    warnings.filterwarnings("ignore", category=DeprecationWarning)
                    for index in indices:
                        path = self.folder / self.todo[index].folder
                        future = pool.submit(
                            _do_in_worker, index, self.todo[index], path, self.data_dir
                        )
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
def _pool(workers: int, context: Any, given: tuple[Any, ...]) -> Iterator[ProcessPoolExecutor]:
    # What is given to workers is not pickled where they are forked.
    pool = ProcessPoolExecutor(workers, context, initializer=_begin_worker, initargs=given)
    try:
        yield pool
    except BaseException:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:  # a run can be resumed at any moment, so nothing is lost
            process.terminate()
        raise
    pool.shutdown()


class _Tally:
    """Counts finished rounds over all runs."""

    def __init__(
        self, todo: list[RunJob], jobs: Sequence[RunJob], on_progress: OnProgress | None
    ) -> None:
        self.todo = todo
        self.on_progress = on_progress
        self.rounds = sum(job.config.rounds for job in jobs)
        self.skipped = len(jobs) - len(todo)
        self.before = self.rounds - sum(job.config.rounds for job in todo)
        self.reached = [0] * len(todo)

    def read(self, events: Any) -> set[int]:
        """Read the events of the workers, pass them on, and return whose they were."""
        latest, heard = "", set()
        while not events.empty():
            index, number = events.get()
            heard.add(index)
            self.reached[index] = max(self.reached[index], number)
            latest = self.todo[index].label
        if latest:
            self.tell(latest)
        return heard

    def hear(self, index: int, number: int) -> None:
        """Take note that a run in this process has come to a round."""
        self.reached[index] = number
        self.tell(self.todo[index].label)

    def tell(self, latest: str) -> None:
        """Say how far it is."""
        if self.on_progress is None:
            return
        done = sum(
            reached >= job.config.rounds
            for reached, job in zip(self.reached, self.todo, strict=True)
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

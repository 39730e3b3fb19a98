"""One of many runs, in a process of its own or in this one."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flamma.clients.behaviours.notes import NOTES
from flamma.errors import DivergedError, EmptyRunError, FlammaError, RunError
from flamma.experiments.callbacks.dispatch import Callbacks
from flamma.experiments.checkpoint import CHECKPOINT_FOLDER
from flamma.experiments.config import Config
from flamma.experiments.folder import CONFIG, POPULATION, RunFolder
from flamma.experiments.own import NOTHING_OWN, OwnParts
from flamma.experiments.run import go_on, run_config
from flamma.processes import exit_with_parent
from flamma.records import RoundRecord


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
_own = NOTHING_OWN


def begin_worker(events: Any, own: OwnParts) -> None:
    """Set up a worker process: keep the queue of events and what is given, end with the parent."""
    global _events, _own
    from flamma.engines.executor import stay_on_one_thread

    stay_on_one_thread()
    _events, _own = events, own
    exit_with_parent(os.getppid())


def do_in_worker(index: int, job: RunJob, path: Path, data_dir: Path | None) -> None:
    """Do a run in a worker process, which tells the one that started it of every round."""
    do_job(job, path, data_dir, _own, lambda number: _events.put((index, number)))


def do_job(
    job: RunJob,
    path: Path,
    data_dir: Path | None,
    own: OwnParts,
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

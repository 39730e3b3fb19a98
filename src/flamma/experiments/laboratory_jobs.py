"""The jobs of the laboratory of contribution measures, in one process or in several."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flamma.errors import RunError
from flamma.experiments.coalition_bench import CoalitionBench
from flamma.experiments.config import make_config
from flamma.experiments.folder import CONFIG
from flamma.experiments.update_deviations import UPDATE_DEVIATIONS
from flamma.processes import exit_with_parent
from flamma.registry import Choice


@dataclass(frozen=True)
class LaboratoryJob:
    """A coalition to train or, where a deviation is named, a run of all clients to measure."""

    seed: int
    coalition: int = 0
    deviation: str = ""
    client: int = 0

    @property
    def key(self) -> str:
        """What the job is called among the finished ones."""
        what = f"{self.deviation} {self.client}" if self.deviation else f"{self.coalition}"
        return f"seed {self.seed}: {what}"


@dataclass(frozen=True)
class LaboratoryTask:
    """What a worker process is told once."""

    config: str
    measures: Mapping[str, Choice]
    data_dir: Path | None


class _Worker:
    """Does jobs, with the bench of the last seed at hand."""

    def __init__(self, task: LaboratoryTask) -> None:
        from flamma.toml import parse_toml

        self.task = task
        self.config = make_config(parse_toml(task.config, CONFIG))
        self.bench: CoalitionBench | None = None

    def do(self, job: LaboratoryJob) -> dict[str, Any]:
        if self.bench is None or self.bench.seed != job.seed:
            seeded = self.config.with_settings({"seed": job.seed})
            self.bench = CoalitionBench.build(seeded, self.task.data_dir)
        if not job.deviation:
            members = [i for i in range(self.config.data.clients) if job.coalition >> i & 1]
            return {"value": self.bench.value(members)._asdict()}
        deviation = UPDATE_DEVIATIONS.get(job.deviation)
        earned, seconds = self.bench.earnings(self.task.measures, deviation, job.client)
        return {
            "earned": {name: values.tolist() for name, values in earned.items()},
            "seconds": seconds,
        }


_worker: _Worker | None = None


def _begin(task: LaboratoryTask) -> None:
    """Set up a worker process."""
    global _worker
    from flamma.engines.executor import stay_on_one_thread

    stay_on_one_thread()
    exit_with_parent(os.getppid())
    _worker = _Worker(task)


def _do(job: LaboratoryJob) -> tuple[LaboratoryJob, dict[str, Any]]:
    assert _worker is not None
    return job, _worker.do(job)


def results_of(
    task: LaboratoryTask, jobs: Sequence[LaboratoryJob], workers: int
) -> Iterator[tuple[LaboratoryJob, dict[str, Any]]]:
    """Yield the result of every job as it is done."""
    if workers == 1:
        alone = _Worker(task)
        for job in jobs:
            yield job, alone.do(job)
        return
    with _pool(task, workers) as pool, warnings.catch_warnings():
        # The first job forks all workers, beside threads such as those of BLAS, which they
        # never use; Python 3.12 warns of any thread.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        try:
            for future in as_completed([pool.submit(_do, job) for job in jobs]):
                yield future.result()
        except BrokenProcessPool:
            raise RunError(
                "a worker process was killed: the same command goes on where it was."
            ) from None


@contextmanager
def _pool(task: LaboratoryTask, workers: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(task,))
    try:
        yield pool
    except BaseException:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        raise
    pool.shutdown()

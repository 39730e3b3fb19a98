"""Worker processes, forked from this one, that share its data and can be killed at any time."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import NamedTuple

import numpy as np
import torch

from flamma.engines.executor import (
    Executor,
    Job,
    OnDone,
    Result,
    Span,
    Weights,
    one_thread,
    shared_zeros,
    stay_on_one_thread,
)
from flamma.engines.outcomes import late, one_line
from flamma.errors import FlammaError
from flamma.processes import exit_with_parent
from flamma.types import Params

WORKER_DIED = "the worker died"
"""The failure of a client whose worker process ended in the middle of its training."""

HANGING_WORKER_SECONDS = 5.0
"""Seconds beyond twice the time limit after which a worker that does not answer is killed."""

WORKER_START_SECONDS = 60.0
"""Seconds that a new worker may take to get ready."""


class CannotForkError(FlammaError):
    """Worker processes cannot be used here; the message says why."""


@dataclass(frozen=True, eq=False)
class Worker:
    """One worker process, the connection to it, and the shared memory for the weights it trains."""

    process: ForkProcess
    connection: Connection
    weights: Weights

    def kill(self) -> None:
        """End the process at once; it holds nothing that could be lost."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class PendingJob(NamedTuple):
    """The number of the job that a worker is doing, and when to give it up."""

    number: int
    deadline: float


class WorkerPool:
    """Does jobs in several processes, forked from this one.

    Forked processes see the parent's data without a copy. The received weights and each worker's
    result are in shared memory, so only small tuples are sent. A worker that dies or hangs is
    replaced, and its job fails.

    Raises
    ------
    CannotForkError
        If processes cannot be forked here.
    """

    def __init__(self, executor: Executor, processes: int) -> None:
        _check_fork(executor.device)
        self.executor = executor
        self.processes = processes
        self._params = shared_zeros(executor.size, np.float32)
        self._workers: list[Worker] = []
        self._end = weakref.finalize(self, _kill_all, self._workers, os.getpid())
        try:
            rows, size = executor.most_tasks, executor.size
            for _ in range(processes):
                weights = shared_zeros(rows * size, np.float32).reshape(rows, size)
                self._workers.append(self._fork(weights))
            for worker in self._workers:
                _wait_until_ready(worker)
        except FlammaError as error:
            self.close()
            raise CannotForkError(str(error)) from error

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.process.pid or 0 for worker in self._workers]

    def run(self, params: Params, jobs: Sequence[Job], on_done: OnDone) -> None:
        """Do all jobs with the given weights; each goes to the next worker that is free."""
        if not self._end.alive:
            raise FlammaError("the runner is closed; make a new one.")
        self._params[:] = params
        waiting = deque(range(len(jobs)))
        idle = list(range(len(self._workers)))
        busy: dict[int, PendingJob] = {}
        try:
            while waiting or busy:
                while waiting and idle:
                    place, number = idle.pop(), waiting.popleft()
                    busy[place] = PendingJob(number, self._deadline(jobs[number]))
                    self._send(place, jobs[number])
                for place, result in self._finished(busy):
                    on_done(busy.pop(place).number, result, self._workers[place].weights)
                    idle.append(place)
        except BaseException:
            # The answers of busy workers would not be read; the next job replaces the workers.
            for place in busy:
                self._workers[place].kill()
            raise

    def close(self) -> None:
        """End all workers."""
        self._end()

    def _deadline(self, job: Job) -> float:
        """Return when to kill a worker that has not answered until then."""
        if self.executor.time_limit is None or isinstance(job, Span):
            return math.inf
        turns = -(-len(job) // self.executor.trainer.width)
        allowed = 2 * self.executor.time_limit * turns + HANGING_WORKER_SECONDS
        return time.monotonic() + allowed

    def _send(self, place: int, job: Job) -> None:
        try:
            # What is sent to a worker that just died may still go into its pipe, and be lost.
            if not self._workers[place].process.is_alive():
                raise BrokenPipeError
            self._workers[place].connection.send(job)
        except OSError:
            # It died while idle, so no client failed.
            self._replace(place)
            self._workers[place].connection.send(job)

    def _finished(self, busy: dict[int, PendingJob]) -> list[tuple[int, Result]]:
        """Wait until a worker answers, dies or is overdue; return the results of such workers."""
        places = {self._workers[place].connection: place for place in busy}
        soonest = min(pending.deadline for pending in busy.values())
        timeout = None if math.isinf(soonest) else max(0.0, soonest - time.monotonic())
        results: dict[int, Result] = {}
        for connection in wait(list(places), timeout):
            assert isinstance(connection, Connection)
            place = places[connection]
            try:
                results[place] = connection.recv()
            except (EOFError, OSError):
                results[place] = WORKER_DIED
                self._replace(place)
        for place, pending in busy.items():
            if place not in results and time.monotonic() >= pending.deadline:
                results[place] = late(self.executor.time_limit)
                self._replace(place)
        return list(results.items())

    def _replace(self, place: int) -> None:
        worker = self._workers[place]
        worker.kill()
        self._workers[place] = self._fork(worker.weights)
        _wait_until_ready(self._workers[place])

    def _fork(self, weights: Weights) -> Worker:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        # A worker must not hold the parent's ends, or the others would not see the parent die.
        parents = [here, *(worker.connection for worker in self._workers)]
        process = context.Process(
            target=_serve,
            args=(self.executor, self._params, weights, there, parents, os.getpid()),
            name="flamma-worker",
            daemon=True,
        )
        with warnings.catch_warnings(), one_thread():
            # Python 3.12 warns of forking beside other threads. torch's are idle: the worker
            # uses one thread only and never waits for them.
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            process.start()
        there.close()
        return Worker(process, here, weights)


def _serve(
    executor: Executor,
    params: Params,
    weights: Weights,
    connection: Connection,
    parents: Sequence[Connection],
    parent: int,
) -> None:
    """Do jobs until the parent closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in parents:
        other.close()
    exit_with_parent(parent)
    stay_on_one_thread()
    try:
        connection.send(_training_problem())
        while True:
            job = connection.recv()
            try:
                result: Result = executor.execute(job, params, weights)
            except Exception as error:
                result = one_line(error)
            connection.send(result)
    except (EOFError, OSError):
        return


def _training_problem() -> str:
    """Return why this process cannot train, such as a GPU's threads that did not survive a fork."""
    try:
        torch.autograd.backward(torch.zeros(1, requires_grad=True).sum())
    except RuntimeError as error:
        return one_line(error)
    return ""


def _wait_until_ready(worker: Worker) -> None:
    try:
        if worker.connection.poll(WORKER_START_SECONDS):
            problem = worker.connection.recv()
        else:
            problem = f"it was not ready after {WORKER_START_SECONDS:g} s"
    except (EOFError, OSError):
        problem = "it died as it started"
    if problem:
        raise FlammaError(f"a worker process cannot train: {problem}.")


def _check_fork(device: str) -> None:
    if sys.platform != "linux":
        raise CannotForkError("worker processes need Linux.")
    if device != "cpu":
        raise CannotForkError(f"a {device} device cannot be shared by forked processes.")
    if multiprocessing.current_process().daemon:
        raise CannotForkError("this process is itself a worker and may not have its own.")


def _kill_all(workers: list[Worker], owner: int) -> None:
    # A process forked from the owner has a copy of the list, but must not kill its siblings.
    if os.getpid() == owner:
        for worker in workers:
            worker.kill()
        workers.clear()

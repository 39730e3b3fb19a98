"""Worker processes that share their parent's data, and die without taking anything along."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
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

from flamma.engines.outcomes import late, one_line
from flamma.engines.work import (
    Batch,
    Done,
    Job,
    Outcome,
    Span,
    Weights,
    Workbench,
    one_thread,
    shared_zeros,
    stay_on_one_thread,
)
from flamma.errors import FlammaError
from flamma.types import Params

DIED = "the worker died"

GRACE = 5.0
"""Seconds beyond twice the time limit after which a worker that does not answer is killed."""

START = 60.0
"""Seconds that a new worker has to get ready."""

LOOK = 0.5
"""Seconds between two looks whether the parent still lives."""


class CannotForkError(FlammaError):
    """Worker processes cannot be used here; the message says why."""


@dataclass(frozen=True, eq=False)
class Worker:
    """One worker process: where it listens, and where it leaves the weights of a batch."""

    process: ForkProcess
    connection: Connection
    slots: Weights

    def kill(self) -> None:
        """End the process now; it owns nothing that could be lost."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Assignment(NamedTuple):
    """The job a worker has, and when it shall be given up."""

    number: int
    until: float


class Pool:
    """Does jobs in several processes, forked from this one.

    The data are the parent's: a forked process sees them without a copy. The received weights
    and every worker's own result lie in shared memory, so only small tuples are sent. A worker
    that dies or hangs is replaced, and its job fails.

    Raises
    ------
    CannotForkError
        If processes cannot be forked here.
    """

    def __init__(self, bench: Workbench, processes: int) -> None:
        _check_fork(bench)
        self.bench = bench
        self.processes = processes
        self._params = shared_zeros(bench.size, np.float32)
        self._workers: list[Worker] = []
        self._end = weakref.finalize(self, _kill_all, self._workers, os.getpid())
        try:
            for _ in range(processes):
                self._workers.append(
                    self._fork(
                        shared_zeros(bench.room * bench.size, np.float32).reshape(bench.room, -1)
                    )
                )
            for worker in self._workers:
                _greet(worker)
        except FlammaError as error:
            self.close()
            raise CannotForkError(str(error)) from error

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.process.pid or 0 for worker in self._workers]

    def run(self, params: Params, jobs: Sequence[Job], done: Done) -> None:
        """Do all jobs with the given weights, the next one where there is a free worker."""
        if not self._end.alive:
            raise FlammaError("the engine is closed; make a new one.")
        self._params[:] = params
        waiting = deque(range(len(jobs)))
        idle = list(range(len(self._workers)))
        busy: dict[int, Assignment] = {}
        try:
            while waiting or busy:
                while waiting and idle:
                    place, number = idle.pop(), waiting.popleft()
                    busy[place] = Assignment(number, self._patience(jobs[number]))
                    self._send(place, jobs[number])
                for place, outcomes in self._finished(busy, jobs):
                    done(busy.pop(place).number, outcomes, self._workers[place].slots)
                    idle.append(place)
        except BaseException:
            # Whatever they would answer later belongs to nobody; the next job replaces them.
            for place in busy:
                self._workers[place].kill()
            raise

    def close(self) -> None:
        """End all workers."""
        self._end()

    def _patience(self, job: Job) -> float:
        """Return when a worker that is silent until then shall be killed."""
        if self.bench.time_limit is None or isinstance(job, Span):
            return math.inf
        turns = -(-len(job.tasks) // self.bench.trainer.width)
        return time.monotonic() + 2 * self.bench.time_limit * turns + GRACE

    def _send(self, place: int, job: Job) -> None:
        try:
            # What is sent to one that just died may still go into its pipe, and be lost.
            if not self._workers[place].process.is_alive():
                raise BrokenPipeError
            self._workers[place].connection.send(job)
        except OSError:
            # It died with nothing to do, which is nobody's failure.
            self._replace(place)
            self._workers[place].connection.send(job)

    def _finished(
        self, busy: dict[int, Assignment], jobs: Sequence[Job]
    ) -> list[tuple[int, list[Outcome]]]:
        """Wait until a worker answers, dies or is overdue, and return what became of its job."""
        places = {self._workers[place].connection: place for place in busy}
        soonest = min(assignment.until for assignment in busy.values())
        timeout = None if math.isinf(soonest) else max(0.0, soonest - time.monotonic())
        outcomes: dict[int, list[Outcome]] = {}

        def failed(place: int, reason: str) -> list[Outcome]:
            job = jobs[busy[place].number]
            return [Outcome(failure=reason)] * (len(job.tasks) if isinstance(job, Batch) else 1)

        for connection in wait(list(places), timeout):
            assert isinstance(connection, Connection)
            place = places[connection]
            try:
                outcomes[place] = connection.recv()
            except (EOFError, OSError):
                outcomes[place] = failed(place, DIED)
                self._replace(place)
        for place, assignment in busy.items():
            if place not in outcomes and time.monotonic() >= assignment.until:
                outcomes[place] = failed(place, late(self.bench.time_limit))
                self._replace(place)
        return list(outcomes.items())

    def _replace(self, place: int) -> None:
        worker = self._workers[place]
        worker.kill()
        self._workers[place] = self._fork(worker.slots)
        _greet(self._workers[place])

    def _fork(self, slots: Weights) -> Worker:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        # A worker must not hold the parent's ends, or the others would not see the parent die.
        parents = [here, *(worker.connection for worker in self._workers)]
        process = context.Process(
            target=_serve,
            args=(self.bench, self._params, slots, there, parents, os.getpid()),
            name="flamma-worker",
            daemon=True,
        )
        with warnings.catch_warnings(), one_thread():
            # Python 3.12 warns of forking beside other threads. torch's are idle: the worker
            # uses one thread only and never waits for them.
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            process.start()
        there.close()
        return Worker(process, here, slots)


def _serve(
    bench: Workbench,
    params: Params,
    slots: Weights,
    connection: Connection,
    parents: Sequence[Connection],
    parent: int,
) -> None:
    """Do jobs until the parent closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in parents:
        other.close()
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    stay_on_one_thread()
    try:
        connection.send(_problem())
        while True:
            job = connection.recv()
            connection.send(bench.do(job, params, slots.__setitem__))
    except (EOFError, OSError):
        return


def _leave_with(parent: int) -> None:
    """End this process, even amid a long training, soon after its parent is gone."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


def _problem() -> str:
    """Return why this process cannot train, such as a GPU's threads that did not survive a fork."""
    try:
        torch.autograd.backward(torch.zeros(1, requires_grad=True).sum())
    except RuntimeError as error:
        return one_line(error)
    return ""


def _greet(worker: Worker) -> None:
    """Wait until a new worker is ready."""
    try:
        in_time = worker.connection.poll(START)
        problem = worker.connection.recv() if in_time else f"it was not ready after {START:g} s"
    except (EOFError, OSError):
        problem = "it died as it started"
    if problem:
        raise FlammaError(f"a worker process cannot train: {problem}.")


def _check_fork(bench: Workbench) -> None:
    device = bench.device
    if sys.platform != "linux":
        raise CannotForkError("worker processes need Linux.")
    if device != "cpu":
        raise CannotForkError(f"a {device} device cannot be shared by forked processes.")
    if multiprocessing.current_process().daemon:
        raise CannotForkError("this process is itself a worker and may not have its own.")


def _kill_all(workers: list[Worker], owner: int) -> None:
    # A fork of the owner has the list too, but not the right.
    if os.getpid() == owner:
        for worker in workers:
            worker.kill()
        workers.clear()

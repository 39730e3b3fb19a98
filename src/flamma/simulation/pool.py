"""One worker process, forked from this one: how it is started, what it does, how it is watched."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
import time
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import NamedTuple

import numpy as np
import torch

from flamma.errors import FlammaError, Key
from flamma.processes import exit_with_parent, shared_zeros
from flamma.simulation.client_side import late, one_line
from flamma.simulation.executor import (
    Executor,
    Job,
    OnDone,
    Result,
    Span,
    Weights,
    gpu_count,
    one_thread,
    stay_on_one_thread,
    worker_device,
)
from flamma.training.torch_trainer import SAMPLES_SCORED_AT_ONCE
from flamma.types import Ints, Params

_WORKER_START_SECONDS = 60.0
"""Seconds that a new worker may take to get ready."""

_WORKER_HEARTBEAT_SECONDS = 0.5
"""Seconds between two heartbeats of a worker, and between two looks at them."""

SILENT_WORKER_SECONDS = 60.0
"""Seconds without a heartbeat after which a worker is taken for stopped, however long its job.

A busy worker has heartbeats too, from a thread of their own.
"""

_SPARE_FILES = 8
"""Files that can be opened before a worker is started: four are its pipes, a run needs the rest."""

BEGUN, BEATS = 0, 1
"""The signs of a worker, in memory shared with it: whether it began its job, and its heartbeats."""


@dataclass(frozen=True, eq=False)
class Worker:
    """A worker process, the connection to it, and the memory shared with it.

    Parameters
    ----------
    process, connection
        The process, and this end of its pipe.
    weights : Weights
        Where it writes the weights it trained.
    signs : Ints
        See :data:`BEGUN` and :data:`BEATS`.
    """

    process: ForkProcess
    connection: Connection
    weights: Weights
    signs: Ints

    def send(self, job: Job) -> None:
        """Send a job to an idle worker; raises OSError if it is dead or does not read."""
        if not self.process.is_alive():
            raise BrokenPipeError
        self.signs[BEGUN] = 0
        self.connection.send(job)

    def wait_until_ready(self) -> None:
        """Wait until the process can train, and raise FlammaError if it cannot."""
        try:
            if self.connection.poll(_WORKER_START_SECONDS):
                problem = self.connection.recv()
            else:
                problem = f"it was not ready after {_WORKER_START_SECONDS:g} s"
        except (EOFError, OSError):
            problem = "it died as it started"
        if problem:
            raise FlammaError(f"a worker process cannot train: {problem}.")

    def kill(self) -> None:
        """End the process at once; it holds nothing that could be lost."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def start_worker(
    executor: Executor,
    params: Params,
    weights: Weights,
    signs: Ints,
    connections: Sequence[Connection],
    device: str = "cpu",
) -> Worker:
    """Fork a worker from this process.

    Parameters
    ----------
    executor : Executor
        Does the jobs.
    params : Params
        The received weights, in shared memory.
    weights, signs
        See :class:`Worker`.
    connections : sequence of Connection
        The parent's ends of other pipes. A worker must not hold them, or the others would not see
        the parent die.
    device : str
        Where it trains. A GPU is started by the worker itself: it cannot be inherited.

    Raises
    ------
    OSError
        If there are not enough files, processes or memory.
    """
    # Fail early: a process that cannot be started leaves some of its pipes open.
    with ExitStack() as opened:
        for _ in range(_SPARE_FILES):
            opened.enter_context(open(os.devnull))
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    # A worker that stops in the middle of a message does not block this process for good.
    limit = struct.pack("ll", int(SILENT_WORKER_SECONDS), 0)
    with socket.socket(fileno=os.dup(here.fileno())) as pipe:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            pipe.setsockopt(socket.SOL_SOCKET, option, limit)
    process = context.Process(
        target=_serve,
        args=(executor, params, weights, signs, there, [here, *connections], os.getpid(), device),
        name="flamma-worker",
        daemon=True,
    )
    try:
        with warnings.catch_warnings(), one_thread():
            # Python 3.12 warns of forking beside other threads. torch's are idle: the worker
            # uses one thread only and never waits for them.
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            process.start()
    except OSError:
        here.close()
        raise
    finally:
        there.close()
    return Worker(process, here, weights, signs)


def _serve(
    executor: Executor,
    params: Params,
    weights: Weights,
    signs: Ints,
    connection: Connection,
    parents: Sequence[Connection],
    parent: int,
    device: str,
) -> None:
    """Do jobs until the parent closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in parents:
        other.close()
    exit_with_parent(parent)
    stay_on_one_thread()
    gc.freeze()  # what was inherited lives as long as this process; looking through it takes long
    threading.Thread(target=_beat, args=(signs,), daemon=True).start()
    try:
        results: list[Result] = []

        def done(number: int, result: Result, weights: Weights) -> None:
            results.append(result)

        connection.send(training_problem(executor, device))
        while True:
            job = connection.recv()
            signs[BEGUN] = 1
            try:
                executor.run(params, [job], done, weights)
                result = results.pop()
            except Exception as error:
                result = one_line(error)
            connection.send(result)
    except (EOFError, OSError):
        return


def _beat(signs: Ints) -> None:
    while True:
        signs[BEATS] += 1
        time.sleep(_WORKER_HEARTBEAT_SECONDS)


def training_problem(executor: Executor, device: str) -> str:
    """Get ready to train on a device; return why this process cannot, else an empty text."""
    try:
        torch.autograd.backward(torch.zeros(1, device=device, requires_grad=True).sum())
        if device != "cpu":
            executor.move_to(device)
    except (RuntimeError, AssertionError, FlammaError) as error:
        # Such as a GPU's threads that did not survive a fork, or a torch without CUDA.
        return one_line(error).rstrip(".")
    return ""


# Worker processes, forked from this one, that share its data and can be killed at any time.

_WORKER_DIED = "the worker died"
"""The failure of a client whose worker process ended in the middle of its training."""

_WORKER_SILENT = "the worker stopped answering"
"""The failure of a client whose worker process was stopped in the middle of its training."""

HANGING_WORKER_SECONDS = 5.0
"""Seconds beyond twice the time limit after which a worker that does not answer is killed."""

_MOST_ATTEMPTS = 3
"""How often a job is given to a worker, and how often a worker is started, before giving up."""


class CannotForkError(FlammaError):
    """Worker processes cannot be used here; the message says why."""


class _Lost(NamedTuple):
    """A job that its worker will not finish: why, and whether it had begun."""

    reason: str
    begun: bool


@dataclass
class _PendingJob:
    """A job that a worker is doing, and how long this process has waited for it.

    Time is counted while this process waits, so a run that was stopped as a whole (by Ctrl-Z)
    goes on where it was.

    Parameters
    ----------
    number : int
        The number of the job.
    allowed : float
        Seconds after which its worker is killed.
    waited : float
        Seconds waited so far.
    beats : int
        The worker's heartbeats when they were last looked at.
    silent : float
        Seconds waited since they last changed.
    """

    number: int
    allowed: float
    waited: float = 0.0
    beats: int = -1
    silent: float = 0.0

    def wait(self, seconds: float, beats: int) -> None:
        """Count some more seconds."""
        self.waited += seconds
        self.silent = self.silent + seconds if beats == self.beats else 0.0
        self.beats = beats


class WorkerPool:
    """Does jobs in several processes, forked from this one.

    Forked processes see the parent's data without a copy. The received weights and each worker's
    result are in shared memory, so only small tuples are sent. A worker that dies, hangs or is
    stopped is replaced. The clients it was training fail; a job that it had not begun, or that
    only scores, is given to another worker.

    Raises
    ------
    CannotForkError
        If processes cannot be forked here.
    """

    def __init__(self, executor: Executor, processes: int) -> None:
        _check_fork(executor.device)
        self.executor = executor
        self._gpus = gpu_count() if executor.device != "cpu" else 0
        self.processes = processes
        self._params = shared_zeros(executor.size, np.float32)
        self._workers: list[Worker] = []
        self._end = weakref.finalize(self, _kill_all, self._workers, os.getpid())
        rows, size = executor.most_tasks, executor.size
        try:
            for _ in range(processes):
                weights = shared_zeros(rows * size, np.float32).reshape(rows, size)
                signs = shared_zeros(2, np.int64)
                place = len(self._workers)
                self._workers.append(self._start(place, weights, signs))
            for worker in self._workers:
                worker.wait_until_ready()
        except (FlammaError, OSError) as error:
            self.close()
            raise CannotForkError(_sentence(error)) from error

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.process.pid or 0 for worker in self._workers]

    def run(self, params: Params, jobs: Sequence[Job], on_done: OnDone) -> None:
        """Do all jobs with the given weights; each goes to the next worker that is free.

        Raises
        ------
        FlammaError
            If workers cannot be replaced, or an evaluation fails again and again.
        """
        if not self._end.alive:
            raise FlammaError("the runner is closed; make a new one.")
        self._params[:] = params
        waiting = deque(range(len(jobs)))
        idle = list(range(len(self._workers)))
        busy: dict[int, _PendingJob] = {}
        losses: Counter[int] = Counter()
        try:
            while waiting or busy:
                while waiting and idle:
                    place, number = idle.pop(), waiting.popleft()
                    allowed = self._allowed(jobs[number]) * 2 ** losses[number]
                    busy[place] = _PendingJob(number, allowed)
                    self._send(place, jobs[number])
                for place, result in self._finished(busy, jobs):
                    number = busy.pop(place).number
                    idle.append(place)
                    if isinstance(result, _Lost):
                        losses[number] += 1
                        if _worth_another(jobs[number], result, losses[number]):
                            waiting.appendleft(number)
                            continue
                        result = result.reason
                    on_done(number, result, self._workers[place].weights)
        except BaseException:
            # The answers of busy workers would not be read; the next job replaces the workers.
            for place in busy:
                self._workers[place].kill()
            raise

    def close(self) -> None:
        """End all workers."""
        self._end()

    def _allowed(self, job: Job) -> float:
        """Return the seconds after which to kill a worker that has not answered."""
        limit = self.executor.time_limit
        if limit is None:
            return math.inf
        # Who can train a client within the limit can score a few hundred samples within it.
        # How many clients fit into a GPU at once is known to its workers only.
        size, at_once = len(job), self.executor.trainer.width
        if self.executor.device != "cpu":
            at_once = 1
        if isinstance(job, Span):
            size, at_once = job.stop - job.start, SAMPLES_SCORED_AT_ONCE
        return 2 * limit * -(-size // at_once) + HANGING_WORKER_SECONDS

    def _send(self, place: int, job: Job) -> None:
        """Send a job to a worker that is idle; if that one died, no client failed by it."""
        for _ in range(_MOST_ATTEMPTS):
            try:
                self._workers[place].send(job)
            except OSError:
                self._replace(place)
            else:
                return
        raise FlammaError(_keep_dying(_WORKER_DIED))

    def _finished(
        self, busy: dict[int, _PendingJob], jobs: Sequence[Job]
    ) -> list[tuple[int, Result | _Lost]]:
        """Wait a moment; return the results of workers that answered, died or are overdue."""
        places = {self._workers[place].connection: place for place in busy}
        soonest = min(pending.allowed - pending.waited for pending in busy.values())
        timeout = min(_WORKER_HEARTBEAT_SECONDS, max(0.0, soonest))
        begin = time.monotonic()
        ready = wait(list(places), timeout)
        waited = min(time.monotonic() - begin, _WORKER_HEARTBEAT_SECONDS)
        results: dict[int, Result | _Lost] = {}
        for connection in ready:
            assert isinstance(connection, Connection)
            place = places[connection]
            try:
                results[place] = connection.recv()
            except (EOFError, OSError):
                results[place] = self._lost(place, _WORKER_DIED)
        for place, pending in busy.items():
            pending.wait(waited, int(self._workers[place].signs[BEATS]))
            if place in results:
                continue
            if pending.waited >= pending.allowed:
                scores = isinstance(jobs[pending.number], Span)
                reason = _WORKER_SILENT if scores else late(self.executor.time_limit)
                results[place] = self._lost(place, reason)
            elif pending.silent >= SILENT_WORKER_SECONDS:
                results[place] = self._lost(place, _WORKER_SILENT)
        return list(results.items())

    def _lost(self, place: int, reason: str) -> _Lost:
        begun = bool(self._workers[place].signs[BEGUN])
        self._replace(place)
        return _Lost(reason, begun)

    def _replace(self, place: int) -> None:
        problem = ""
        for _ in range(_MOST_ATTEMPTS):
            worker = self._workers[place]
            worker.kill()
            try:
                self._workers[place] = self._start(place, worker.weights, worker.signs)
                self._workers[place].wait_until_ready()
            except (FlammaError, OSError) as error:
                problem = _sentence(error).rstrip(".")
            else:
                return
        raise FlammaError(_keep_dying(problem))

    def _start(self, place: int, weights: Weights, signs: Ints) -> Worker:
        device = worker_device(place, self.executor.device, self._gpus)
        others = [worker.connection for worker in self._workers]
        return start_worker(self.executor, self._params, weights, signs, others, device)


def _worth_another(job: Job, lost: _Lost, losses: int) -> bool:
    """Return whether to give a lost job to another worker.

    A training that had begun is not repeated: the client failed, as one whose machine crashed.
    """
    if losses < _MOST_ATTEMPTS:
        return isinstance(job, Span) or not lost.begun
    if isinstance(job, Span):
        raise FlammaError(
            f"the model could not be evaluated in {_MOST_ATTEMPTS} attempts ({lost.reason}); "
            "use fewer processes, or a longer ",
            Key("engine.time_limit"),
            ".",
        )
    return False


def _keep_dying(problem: str) -> str:
    return f"worker processes keep dying ({problem}); free some memory or use fewer processes."


def _sentence(error: FlammaError | OSError) -> str:
    if isinstance(error, OSError):
        return f"worker processes cannot be started ({error.strerror})."
    return str(error)


def _check_fork(device: str) -> None:
    if sys.platform != "linux":
        raise CannotForkError("worker processes need Linux.")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise CannotForkError(f"a {device} device cannot be shared by forked processes.")
    if device != "cpu" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise CannotForkError("this process uses the GPU already, so workers cannot.")
    if multiprocessing.current_process().daemon:
        raise CannotForkError("this process is itself a worker and may not have its own.")


def _kill_all(workers: list[Worker], owner: int) -> None:
    # A process forked from the owner has a copy of the list, but must not kill its siblings.
    if os.getpid() == owner:
        for worker in workers:
            worker.kill()
        workers.clear()

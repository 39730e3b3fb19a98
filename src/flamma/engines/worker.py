"""One worker process, forked from this one: how it is started, what it does, how it is watched."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess

import torch

from flamma.engines.executor import Executor, Job, Result, Weights, one_thread, stay_on_one_thread
from flamma.engines.outcomes import one_line
from flamma.errors import FlammaError
from flamma.processes import exit_with_parent
from flamma.types import Ints, Params

WORKER_START_SECONDS = 60.0
"""Seconds that a new worker may take to get ready."""

WORKER_HEARTBEAT_SECONDS = 0.5
"""Seconds between two heartbeats of a worker, and between two looks at them."""

SILENT_WORKER_SECONDS = 60.0
"""Seconds without a heartbeat after which a worker is taken for stopped, however long its job.

A busy worker has heartbeats too, from a thread of their own.
"""

SPARE_FILES = 8
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
            if self.connection.poll(WORKER_START_SECONDS):
                problem = self.connection.recv()
            else:
                problem = f"it was not ready after {WORKER_START_SECONDS:g} s"
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
    _check_spare_files()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    _limit_waiting(here)
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


def _check_spare_files() -> None:
    """Raise OSError early: a process that cannot be started leaves some of its pipes open."""
    with ExitStack() as opened:
        for _ in range(SPARE_FILES):
            opened.enter_context(open(os.devnull))


def _limit_waiting(connection: Connection) -> None:
    """Let a worker that stops in the middle of a message not block this process for good."""
    limit = struct.pack("ll", int(SILENT_WORKER_SECONDS), 0)
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            pipe.setsockopt(socket.SOL_SOCKET, option, limit)


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
        connection.send(training_problem(executor, device))
        while True:
            job = connection.recv()
            signs[BEGUN] = 1
            try:
                result: Result = executor.execute(job, params, weights)
            except Exception as error:
                result = one_line(error)
            connection.send(result)
    except (EOFError, OSError):
        return


def _beat(signs: Ints) -> None:
    while True:
        signs[BEATS] += 1
        time.sleep(WORKER_HEARTBEAT_SECONDS)


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

"""Processes identified by pid and start time, so that a reused pid is never signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psutil

from flamma.io import JsonTable

_EXIT_POLL_SECONDS = 0.05
"""Seconds between two checks whether processes have exited."""


@dataclass(frozen=True)
class Process:
    """One process, alive or not.

    ``started`` is in seconds since boot, which, unlike the time of day, cannot be set; None for a
    pid that no process had.
    """

    pid: int
    started: float | None

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has this pid now."""
        try:
            return cls(pid, _started(psutil.Process(pid)))
        except psutil.Error:
            return cls(pid, None)

    @classmethod
    def read(cls, table: Any) -> Process | None:
        """Return the process of a JSON table; None if the table is not one of :meth:`as_table`."""
        try:
            return cls(int(table["pid"]), float(table["started"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def alive(self) -> bool:
        """Whether this very process, or a thread of it, still runs; a zombie does not."""
        return self._find() is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        with contextlib.suppress(psutil.Error):
            if (found := self._find()) is not None:
                found.send_signal(number)

    def as_table(self) -> JsonTable:
        """Return what :meth:`read` reads."""
        return {"pid": self.pid, "started": self.started}

    def _find(self) -> psutil.Process | None:
        try:
            found = psutil.Process(self.pid)
            # Threads of a killed process may still hold its port.
            ended = found.status() == psutil.STATUS_ZOMBIE and found.num_threads() <= 1
            same = _started(found) == self.started and not ended
        except psutil.Error:
            return None
        return found if same else None


def _session_members(leader: Process) -> set[Process]:
    """Return the living processes of the session that a process leads or led.

    A process that is older than the leader belongs to an earlier session of the same number.
    """
    if leader.started is None:
        return set()
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader.pid:
                found.add(Process.of(pid))
    return {
        member
        for member in found
        if member.started is not None and member.started >= leader.started and member.alive
    }


def end_sessions(leaders: Collection[Process], timeout: float) -> None:
    """Terminate session leaders, then kill whatever is left of their sessions.

    ``timeout`` is the number of seconds that they have to terminate by themselves.
    """
    before = {member for leader in leaders for member in _session_members(leader)}
    for leader in leaders:
        leader.send(signal.SIGTERM)
    wait_for_exit(leaders, timeout)
    left = {member for leader in leaders for member in _session_members(leader)}
    left |= before | set(leaders)
    for member in left:
        member.send(signal.SIGKILL)
    wait_for_exit(left, timeout)


def wait_for_exit(processes: Collection[Process], timeout: float) -> None:
    """Wait until none of the processes runs any more, but no longer than ``timeout`` seconds."""
    until = time.monotonic() + timeout
    while time.monotonic() < until and any(process.alive for process in processes):
        time.sleep(_EXIT_POLL_SECONDS)


def _started(process: psutil.Process) -> float:
    return round(float(process.create_time() - psutil.boot_time()), 2)

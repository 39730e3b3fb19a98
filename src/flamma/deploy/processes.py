"""Processes by number and time of birth, so that nobody else's is ever ended.

A number is given to another process once its owner has died; number and time of birth together
name one process for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PROC = Path("/proc")
LOOK = 0.05
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Process:
    """One process, alive or not."""

    pid: int
    born: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has this number now."""
        return cls(pid, _born(pid))

    @classmethod
    def read(cls, table: Any) -> Process | None:
        """Return the process a JSON table names, None if it names none."""
        try:
            return cls(int(table["pid"]), str(table["born"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def alive(self) -> bool:
        """Whether this very process is still there."""
        return bool(self.born) and _born(self.pid) == self.born

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process is still there."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def as_table(self) -> dict[str, Any]:
        """Return what :meth:`read` reads."""
        return {"pid": self.pid, "born": self.born}


def family(leader: Process) -> list[Process]:
    """Return the living processes of the session that a process began, itself included.

    Whoever has the leader's number as session, but was born before it, belongs to another.
    """
    found = []
    for entry in PROC.iterdir() if PROC.exists() else ():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields and int(fields[3]) == leader.pid and fields[0] != "Z":
                member = Process.of(int(entry.name))
                if _age_key(member.born) >= _age_key(leader.born):
                    found.append(member)
    if not found and leader.alive:
        found.append(leader)
    return found


def end(leaders: list[Process], patience: float) -> list[Process]:
    """End processes and all of their sessions: ask first, then kill; return who was there."""
    everybody = {member for leader in leaders for member in family(leader)}
    ended = sorted(everybody, key=lambda process: process.pid)
    for leader in leaders:
        leader.send(signal.SIGTERM)
    wait_gone(leaders, patience)
    rest = {member for leader in leaders for member in family(leader)} | everybody
    for member in rest:
        member.send(signal.SIGKILL)
    wait_gone(list(rest), patience)
    return ended


def wait_gone(processes: list[Process], patience: float) -> bool:
    """Wait until none of the processes is there, and return whether it came to that."""
    until = time.monotonic() + patience
    while any(process.alive for process in processes):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK)
    return True


def die_with_parent() -> None:
    """Have this process killed when the one that forked it dies; on Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _born(pid: int) -> str:
    """Return when a process was born, as text to compare; empty if it is dead or a zombie."""
    if not PROC.exists():
        asked = subprocess.run(
            ["ps", "-o", "lstart=,state=", "-p", str(pid)], capture_output=True, text=True
        )
        text = asked.stdout.strip()
        return "" if not text or text.endswith("Z") else text[:24]
    fields = _stat(pid)
    if not fields or fields[0] in "ZX":
        return ""
    return f"{_boot()}:{fields[19]}"


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, from the state on."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _age_key(born: str) -> int:
    ticks = born.rpartition(":")[2]
    return int(ticks) if ticks.isdigit() else 0


@cache
def _boot() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()[:8]
    except OSError:
        return ""

"""The process that carries out a deployed run, as seen from another one of the same host.

Flower takes a minute to notice that it has died, and does not end one that hangs.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil

from flamma.deploy.hosts import ServerHost
from flamma.deploy.processes import Process, wait_for_exit
from flamma.deploy.supervisor import recorded
from flamma.experiments.folder import LOCK

_DEATH_CHECKS = 3
"""How often in a row a process must be found dead: one that ends well tells Flower just before."""
_KILL_SECONDS = 10.0
"""Seconds that a killed process has to be gone."""


class ServerAppProcess:
    """Finds the ServerApp that has locked a run directory, and whether it still lives.

    Parameters
    ----------
    server : ServerHost
        The host, which is this one.
    path : Path
        The run directory.
    """

    def __init__(self, server: ServerHost, path: Path) -> None:
        self._server = server
        self._lock = str((path / LOCK).resolve())
        self._process: Process | None = None
        self._dead_checks = 0

    def has_died(self) -> bool:
        """Return whether it was seen alive and is dead now."""
        if self._process is None:
            self._process = self._find()
            return False
        self._dead_checks = 0 if self._process.alive else self._dead_checks + 1
        return self._dead_checks >= _DEATH_CHECKS

    def end(self) -> None:
        """Kill it if it still lives, so that another one can go on with the run."""
        if self._process is not None and self._process.alive:
            wait_for_exit([self._process], _KILL_SECONDS)
            self._process.send(signal.SIGKILL)
            wait_for_exit([self._process], _KILL_SECONDS)

    def _find(self) -> Process | None:
        superexec = recorded(self._server)[1].get("superexec")
        if superexec is None:
            return None
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(superexec.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if any(file.path == self._lock for file in child.open_files()):
                        return Process.of(child.pid)
        return None

"""``flamma deploy up``, ``down`` and ``stop``: hosts on this machine."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from flamma.deploy.commands import READY_FILE
from flamma.deploy.control import Control, known_nodes
from flamma.deploy.hosts import HOST, Host, ServerHost, SiteHost, read_host, read_hosts
from flamma.deploy.processes import Process, end_sessions, wait_for_exit
from flamma.deploy.supervisor import PROCESSES_FILE, check_free, recorded
from flamma.errors import DeployError, FlammaError
from flamma.io import unknown

_READY_TIMEOUT_SECONDS = 120.0
"""Seconds that a federation has to get ready."""
_READY_POLL_SECONDS = 0.3
"""Seconds between two checks whether it is ready."""
_SUPERVISOR_EXIT_SECONDS = 25.0
"""Seconds that a supervisor has to end its processes and exit."""
_DETACH = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], stdout=sys.stderr, start_new_session=True).pid)
"""
"""A program that starts a process of its own session, prints its pid and exits."""


@dataclass(frozen=True)
class _Up:
    """Which hosts ``up`` started, which ran already, and how long it took."""

    started: tuple[str, ...]
    running: tuple[str, ...]
    seconds: float


def up(folder: Path, timeout: float = _READY_TIMEOUT_SECONDS) -> _Up:
    """Start the hosts of a federation that do not run, on loopback, and wait until all are online.

    Raises
    ------
    DeployError
        If a host does not get ready in time. What was started is ended then.
    """
    begun = time.monotonic()
    hosts = read_hosts(folder)
    with _only_one(folder, 2 * timeout):  # the other one may need all of its time, too
        missing = [host for host in hosts if not is_alive(host)]
        _start_all(hosts, missing, time.monotonic() + timeout)
    names = tuple(host.title for host in missing)
    running = tuple(host.title for host in hosts if host.title not in names)
    return _Up(names, running, time.monotonic() - begun)


@contextlib.contextmanager
def _only_one(folder: Path, timeout: float) -> Iterator[None]:
    """Wait for another ``up`` of the same federation; two at once would end each other's hosts."""
    try:
        with FileLock(folder / ".up.lock", timeout=timeout):
            yield
    except Timeout:
        raise DeployError(f"another command starts the hosts of {folder}.") from None


def _start_all(
    hosts: Sequence[ServerHost | SiteHost], missing: Sequence[ServerHost | SiteHost], until: float
) -> None:
    """Start the hosts that are missing, and wait for all of them; end what was started if not."""
    for host in missing:
        end_host(host)  # what a killed supervisor has left behind
        check_free(host)
    started: list[tuple[Host, Process]] = []
    try:
        for host in missing:
            started.append((host, _start(host)))
            if isinstance(host, ServerHost):  # sites that find no server wait before they retry
                _wait_ready([host], started, until)
        _wait_ready(hosts, started, until)
    except (FlammaError, KeyboardInterrupt):
        for begun_host, _ in started:
            end_host(begun_host)
        raise


def down(folder: Path, name: str | None = None) -> list[str]:
    """End the processes that ``up`` or ``start`` began, and return their hosts.

    Parameters
    ----------
    folder : Path
        The deployment, or a host's own folder.
    name : str, optional
        The only host to end: ``server``, or a site.
    """
    if name is not None:
        server, *sites = read_hosts(folder)
        found = {"server": server, **{site.title: site for site in sites}}
        if name not in found:
            raise DeployError(unknown("host", name, found))
        return [found[name].title] if end_host(found[name]) else []
    hosts = read_hosts(folder) if not (folder / HOST).exists() else [read_host(folder)]
    # Sites first, so that they can deregister.
    return [host.title for host in reversed(hosts) if end_host(host)]


def is_alive(host: Host) -> bool:
    """Return whether a host's supervisor runs on this machine."""
    supervisor, _, _ = recorded(host)
    return supervisor is not None and supervisor.alive


def _start(host: Host) -> Process:
    """Start a host's supervisor in a session of its own, which outlives this process."""
    host.logs.mkdir(parents=True, exist_ok=True)
    words = (sys.executable, "-m", "flamma", "deploy", "start", str(host.folder), "--loopback")
    with open(host.logs / "host.log", "ab") as log:
        done = subprocess.run(
            (sys.executable, "-c", _DETACH, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            check=True,
        )
    return Process.of(int(done.stdout))


def _wait_ready(
    hosts: Sequence[ServerHost | SiteHost], started: list[tuple[Host, Process]], until: float
) -> None:
    while waiting := _not_ready(hosts):
        for host, process in started:
            if not process.alive:
                raise DeployError(f"{host.title} did not start: {_last_line(host)}")
        if time.monotonic() > until:
            names = ", ".join(host.title for host in waiting)
            raise DeployError(f"{names} did not get ready in time: see {waiting[0].logs}.")
        time.sleep(_READY_POLL_SECONDS)


def _not_ready(hosts: Sequence[ServerHost | SiteHost]) -> Sequence[Host]:
    """Return the hosts that one has to wait for, the server before its sites."""
    server, *sites = hosts
    assert isinstance(server, ServerHost)
    if not known_nodes(server):
        return [server]
    if importing := [site for site in sites if not (site.state / READY_FILE).exists()]:
        return importing
    if not sites:
        return []
    try:
        with Control(server) as control:
            offline = control.offline()
    except DeployError:
        return [server]
    return [site for site in sites if site.title in offline]


def _last_line(host: Host) -> str:
    try:
        text = (host.logs / "host.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"see {host.logs}."
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("flamma: ") if lines else f"see {host.logs}."


def end_host(host: Host) -> bool:
    """End a host's processes and return whether there were any."""
    supervisor, processes, _ = recorded(host)
    known = [process for process in (supervisor, *processes.values()) if process is not None]
    any_alive = any(process.alive for process in known)
    if supervisor is not None:  # it ends its processes in the right order
        supervisor.send(signal.SIGTERM)
        wait_for_exit([supervisor], _SUPERVISOR_EXIT_SECONDS)
    end_sessions(known, _SUPERVISOR_EXIT_SECONDS)
    (host.state / PROCESSES_FILE).unlink(missing_ok=True)
    return any_alive

"""``flamma deploy start``: the supervisor of one host's processes, until a signal comes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from filelock import FileLock, Timeout

import flamma
from flamma.deploy.commands import READY_FILE, Command, commands_of, environment, server_address
from flamma.deploy.hosts import HOST, Host, ServerHost, SiteHost
from flamma.deploy.init import free_ports
from flamma.deploy.liveness import SIGNS_FILE, Signs
from flamma.deploy.logs import host_journal
from flamma.deploy.processes import Process, end_sessions
from flamma.deploy.service_manager import ALIVE, READY, STOPPING, notify
from flamma.deploy.templates import flower_config
from flamma.errors import DeployError
from flamma.events import Level
from flamma.io import Stamp, stamp, write_atomically

PROCESSES_FILE = "processes.json"
"""The file in a host's state that lists its processes, for ``status`` and ``down``."""
_SUPERVISE_SECONDS = 0.2
"""Seconds between two checks of the processes."""
_MIN_RESTART_SECONDS, _MAX_RESTART_SECONDS = 1.0, 30.0
"""Seconds before a process that died is restarted; doubled each time, up to the second number."""
_STABLE_SECONDS = 60.0
"""Seconds after which a process counts as stable, and its restart delay is reset."""
_SUPERNODE_RESTART_SECONDS = 8.0
"""Seconds before a killed SuperNode is restarted; a running ServerApp must notice its absence."""
_MAX_SILENCE_SECONDS = 90.0
"""Seconds without a sign of life after which a process is restarted; a SuperNode gives one every
20 s or so, whether the server answers or not."""
_TERMINATE_SECONDS = 10.0
"""Seconds that a process has to terminate before it is killed."""
_MAX_LOG_BYTES = 10_000_000
"""The size above which a log is moved to a file ``.1`` beside it, in place of the one before."""
_LOG_SECONDS = 1.0
"""Seconds between two looks at the sizes of the logs."""


@dataclass
class _Child:
    """A process under supervision, running or waiting for its restart."""

    command: Command
    running: subprocess.Popen[bytes] | None = None
    process: Process | None = None
    started: float = 0.0
    delay: float = _MIN_RESTART_SECONDS
    due: float = 0.0
    restarts: int = 0
    read: Stamp = ()

    def reason_to_restart(self, now: float) -> str:
        """Return why a process that runs should be restarted, nothing if it should not."""
        if self.read != stamp(*self.command.reads):
            return "has to read changed keys or certificates"
        if self.command.signs is not None:
            signs = Signs.read(self.command.signs)
            last = max(self.started, 0.0 if signs is None else signs.asked)
            if now - last > _MAX_SILENCE_SECONDS:
                return f"gave no sign of life for {now - last:.0f} s"
        return ""


@dataclass
class Supervisor:
    """Starts the processes of one host, restarts those that die, and ends all on a signal.

    Parameters
    ----------
    host : Host
        The host.
    loopback : bool
        Whether server and sites are all on this machine, whatever their addresses say.
    """

    host: Host
    loopback: bool = False
    children: list[_Child] = field(default_factory=list)
    stopping: bool = False
    asking: subprocess.Popen[bytes] | None = None
    logs_due: float = 0.0

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT.

        Raises
        ------
        DeployError
            If the host runs already, or another program listens on its port.
        """
        if os.name != "posix":
            raise DeployError("a host of a federation needs Linux or another Unix.")
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._stop)
        with _locked(self.host):
            check_free(self.host)
            self._prepare()
            self._tell("host started", f"FLamma {flamma.__version__} at {self.host.folder}")
            [runtime_port] = free_ports(1)
            commands = commands_of(self.host, self.loopback, runtime_port)
            self.children = [_Child(command) for command in commands]
            registering: subprocess.Popen[bytes] | None = None
            try:
                for child in self.children:
                    self._start(child)
                if isinstance(self.host, ServerHost):
                    words = (sys.executable, "-m", "flamma.deploy.control", str(self.host.folder))
                    registering = self._spawn(Command("register", words))
                notify(READY)
                while not self.stopping:
                    self._check()
                    notify(ALIVE)
                    time.sleep(_SUPERVISE_SECONDS)
            finally:
                notify(STOPPING)
                if registering is not None and registering.poll() is None:
                    registering.kill()
                self._end_all()
                self._tell("host stopped", f"the processes of {self.host.title} have ended")

    def _prepare(self) -> None:
        host = self.host
        for folder in (host.logs, host.state, host.flower_home):
            folder.mkdir(parents=True, exist_ok=True)
        for name in (READY_FILE, SIGNS_FILE):
            (host.state / name).unlink(missing_ok=True)
        if isinstance(host, ServerHost):
            text = flower_config(str(host.authority), host.control_port)
            write_atomically(host.flower_home / "config.toml", text.encode())
            host.nodes.unlink(missing_ok=True)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _check(self) -> None:
        now = time.monotonic()
        if now >= self.logs_due:
            self.logs_due = now + _LOG_SECONDS
            _bound_logs(self.host)
        for child in self.children:
            if child.running is None:
                if now >= child.due:
                    child.restarts += 1
                    self._start(child)
            elif (code := child.running.poll()) is not None:
                self._restart_later(child, code, now)
            elif reason := child.reason_to_restart(now):
                _log(f"{child.command.name} {reason}")
                assert child.process is not None
                end_sessions([child.process], _TERMINATE_SECONDS)
                self._restart_later(child, child.running.wait(), now)
            elif now - child.started > _STABLE_SECONDS:
                child.delay = _MIN_RESTART_SECONDS

    def _restart_later(self, child: _Child, code: int, now: float) -> None:
        name = child.command.name
        if child.process is not None:
            end_sessions([child.process], _TERMINATE_SECONDS)  # what it has left behind
        child.running, child.process = None, None
        delay = child.delay
        if name == "supernode" and code < 0 and isinstance(self.host, SiteHost):
            server = server_address(self.host, self.loopback)
            words = ("-m", "flamma.deploy.deregister", str(self.host.folder), server)
            self._spawn(Command("deregister", (sys.executable, *words)))
            delay = max(delay, _SUPERNODE_RESTART_SECONDS)
        elif name == "supernode" and isinstance(self.host, SiteHost):
            # Another process finds out, and says where this one does, why it has ended.
            server = server_address(self.host, self.loopback)
            asking = (sys.executable, "-m", "flamma.deploy.connection", str(self.host.folder))
            variables = environment(self.host)
            self.asking = subprocess.Popen(
                (*asking, server), stdin=subprocess.DEVNULL, env=variables
            )
        _log(f"{name} ended with {code}; restarting it in {delay:.0f} s")
        told = f"{name} ended with {code} and is restarted in {delay:.0f} s"
        self._tell("process ended", told, "warning", process=name, code=code)
        child.due, child.delay = now + delay, min(2 * child.delay, _MAX_RESTART_SECONDS)
        self._record()

    def _start(self, child: _Child) -> None:
        child.read = stamp(*child.command.reads)
        child.running = self._spawn(child.command)
        child.process = Process.of(child.running.pid)
        child.started = time.monotonic()
        _log(f"{child.command.name} is process {child.running.pid}")
        event = "process restarted" if child.restarts else "process started"
        told = f"{child.command.name} is process {child.running.pid}"
        self._tell(event, told, process=child.command.name, restarts=child.restarts)
        self._record()

    def _spawn(self, command: Command) -> subprocess.Popen[bytes]:
        with open(self.host.logs / f"{command.name}.log", "ab") as output:
            return subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(self.host),
                start_new_session=True,
            )

    def _tell(self, event: str, message: str, level: Level = "info", **details: Any) -> None:
        host_journal(self.host, "supervisor").tell(event, message, level, **details)

    def _record(self) -> None:
        table = {
            "supervisor": Process.of(os.getpid()).as_table(),
            "processes": {
                child.command.name: {**child.process.as_table(), "restarts": child.restarts}
                for child in self.children
                if child.process is not None
            },
        }
        text = json.dumps(table, indent=1)
        write_atomically(self.host.state / PROCESSES_FILE, text.encode(), durable=False)

    def _end_all(self) -> None:
        # What takes tasks first, so that no new one begins; the SuperLink last, so that SuperNodes
        # can deregister.
        for child in reversed(self.children):
            if child.process is not None:
                end_sessions([child.process], _TERMINATE_SECONDS)
                if child.running is not None:
                    child.running.wait()
        (self.host.state / PROCESSES_FILE).unlink(missing_ok=True)
        (self.host.state / READY_FILE).unlink(missing_ok=True)


def recorded(host: Host) -> tuple[Process | None, dict[str, Process], dict[str, int]]:
    """Return a host's supervisor, its processes by name, and the restarts of each."""
    try:
        table: Any = json.loads((host.state / PROCESSES_FILE).read_text(encoding="utf-8"))
        entries = dict(table["processes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, {}, {}
    found = {name: process for name, e in entries.items() if (process := Process.read(e))}
    restarts = {name: int(entries[name].get("restarts", 0)) for name in found}
    return Process.read(table.get("supervisor")), found, restarts


def _bound_logs(host: Host) -> None:
    """Keep only the end of logs that are too long, in a file beside them.

    A log is emptied, not renamed: the process that writes it has it open, for appending.
    """
    for log in host.logs.glob("*.log"):
        with contextlib.suppress(OSError):  # such as that of a full disk
            if log.stat().st_size <= _MAX_LOG_BYTES:
                continue
            with open(log, "r+b") as file:
                file.seek(-_MAX_LOG_BYTES, os.SEEK_END)
                end = file.read(_MAX_LOG_BYTES)
                file.truncate(0)
            log.with_name(f"{log.name}.1").write_bytes(end)


def check_free(host: Host) -> None:
    """Refuse to start a server whose ports are in use by another program."""
    if not isinstance(host, ServerHost):
        return
    for port in filter(None, (host.port, host.control_port, host.metrics_port)):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                raise DeployError(
                    f"port {port} is in use by another program: end it, or change the port in "
                    f"{host.folder / HOST} and at the sites."
                ) from None


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextlib.contextmanager
def _locked(host: Host) -> Iterator[None]:
    """Hold the lock that only one supervisor of a host's folder can have."""
    host.state.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(host.state / "lock").acquire(timeout=0)
    except Timeout:
        raise DeployError(
            f"{host.title} is already running from {host.folder}: end it first."
        ) from None
    with lock:
        yield

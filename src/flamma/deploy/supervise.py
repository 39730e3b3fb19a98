"""``flamma deploy start``: one host's processes, looked after until a signal comes."""

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
from pathlib import Path
from typing import Any, TextIO

from flamma.deploy.commands import READY, Command, commands_of, environment, server_address
from flamma.deploy.hosts import Host, ServerHost, SiteHost
from flamma.deploy.init import free_ports
from flamma.deploy.processes import Process, end
from flamma.deploy.texts import flower_config
from flamma.errors import DeployError
from flamma.files import write_atomically

PROCESSES = "processes.json"
LOOK = 0.2
SHORTEST, LONGEST = 1.0, 30.0
"""Seconds before a process that died is started again: at first, and at most."""
STEADY = 60.0
"""Seconds after which a process counts as having started well."""
OFFLINE = 8.0
"""Seconds that a SuperNode that was killed stays away, so that the server's run learns of it."""
GRACE = 10.0
LARGEST_LOG = 50_000_000


@dataclass
class Kept:
    """A process that is kept alive."""

    command: Command
    running: subprocess.Popen[bytes] | None = None
    process: Process | None = None
    started: float = 0.0
    pause: float = SHORTEST
    due: float = 0.0
    restarts: int = 0


@dataclass
class Keeper:
    """Looks after the processes of one host.

    Parameters
    ----------
    host : Host
        The host.
    loopback : bool
        Whether server and sites are all on this machine, whatever their addresses say.
    """

    host: Host
    loopback: bool = False
    kept: list[Kept] = field(default_factory=list)
    stopping: bool = False

    def run(self) -> None:
        """Start everything, start again what dies, and end everything on a signal."""
        if os.name != "posix":
            raise DeployError("a host of a federation needs Linux or another Unix.")
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._stop)
        with _alone(self.host):
            check_free(self.host)
            self._prepare()
            [runtime_port] = free_ports(1)
            commands = commands_of(self.host, self.loopback, runtime_port)
            self.kept = [Kept(command) for command in commands]
            registering: subprocess.Popen[bytes] | None = None
            try:
                for kept in self.kept:
                    self._begin(kept)
                if isinstance(self.host, ServerHost):
                    words = (sys.executable, "-m", "flamma.deploy.control", str(self.host.folder))
                    registering = self._open(Command("register", words))
                while not self.stopping:
                    self._look()
                    time.sleep(LOOK)
            finally:
                if registering is not None and registering.poll() is None:
                    registering.kill()
                self._end_all()

    def _prepare(self) -> None:
        host = self.host
        for folder in (host.logs, host.state, host.flower_home):
            folder.mkdir(parents=True, exist_ok=True)
        (host.state / READY).unlink(missing_ok=True)
        if isinstance(host, ServerHost):
            text = flower_config(str(host.authority), host.control_port)
            write_atomically(host.flower_home / "config.toml", text.encode())
            host.nodes.unlink(missing_ok=True)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _look(self) -> None:
        """Start what is due, and note what died."""
        now = time.monotonic()
        for kept in self.kept:
            if kept.running is None:
                if now >= kept.due:
                    kept.restarts += 1
                    self._begin(kept)
                continue
            code = kept.running.poll()
            if code is None:
                if now - kept.started > STEADY:
                    kept.pause = SHORTEST
                continue
            self._died(kept, code, now)

    def _died(self, kept: Kept, code: int, now: float) -> None:
        name = kept.command.name
        if kept.process is not None:
            end([kept.process], GRACE)  # what it has left behind
        kept.running, kept.process = None, None
        pause = kept.pause
        if name == "supernode" and code < 0 and isinstance(self.host, SiteHost):
            server = server_address(self.host, self.loopback)
            words = ("-m", "flamma.deploy.farewell", str(self.host.folder), server)
            self._open(Command("farewell", (sys.executable, *words)))
            pause = max(pause, OFFLINE)
        say(f"{name} ended with {code}; starting it again in {pause:.0f} s")
        kept.due, kept.pause = now + pause, min(2 * kept.pause, LONGEST)
        self._note()

    def _begin(self, kept: Kept) -> None:
        kept.running = self._open(kept.command)
        kept.process = Process.of(kept.running.pid)
        kept.started = time.monotonic()
        say(f"{kept.command.name} is process {kept.running.pid}")
        self._note()

    def _open(self, command: Command) -> subprocess.Popen[bytes]:
        log = self.host.logs / f"{command.name}.log"
        fresh = log.exists() and log.stat().st_size > LARGEST_LOG
        with open(log, "wb" if fresh else "ab") as output:
            return subprocess.Popen(
                command.words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(self.host),
                start_new_session=True,
            )

    def _note(self) -> None:
        """Write down which processes there are, for ``status`` and ``down``."""
        table = {
            "keeper": Process.of(os.getpid()).as_table(),
            "processes": {
                kept.command.name: {**kept.process.as_table(), "restarts": kept.restarts}
                for kept in self.kept
                if kept.process is not None
            },
        }
        text = json.dumps(table, indent=1)
        write_atomically(self.host.state / PROCESSES, text.encode(), durable=False)

    def _end_all(self) -> None:
        # What takes tasks first, so that nothing new is begun; the SuperLink last, so that
        # SuperNodes can say goodbye.
        for kept in reversed(self.kept):
            if kept.process is not None:
                end([kept.process], GRACE)
                if kept.running is not None:
                    kept.running.wait()
        (self.host.state / PROCESSES).unlink(missing_ok=True)
        (self.host.state / READY).unlink(missing_ok=True)


def recorded(host: Host) -> tuple[Process | None, dict[str, Process], dict[str, int]]:
    """Return a host's keeper, its processes by name, and how often each was started again."""
    try:
        table: Any = json.loads((host.state / PROCESSES).read_text(encoding="utf-8"))
        entries = dict(table["processes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, {}, {}
    found = {name: process for name, e in entries.items() if (process := Process.read(e))}
    restarts = {name: int(entries[name].get("restarts", 0)) for name in found}
    return Process.read(table.get("keeper")), found, restarts


def check_free(host: Host) -> None:
    """Raise if somebody else listens where the server wants to."""
    if not isinstance(host, ServerHost):
        return
    for port in (host.port, host.control_port):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                raise DeployError(
                    f"port {port} is in use by another program: end it, or change the port in "
                    f"{host.folder / 'host.toml'} and at the sites."
                ) from None


def say(text: str) -> None:
    """Write one line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextlib.contextmanager
def _alone(host: Host) -> Iterator[None]:
    """Hold the host's lock, which a keeper of the same folder cannot have too."""
    import fcntl

    host.state.mkdir(parents=True, exist_ok=True)
    lock: TextIO
    with open(Path(host.state) / "lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DeployError(
                f"{host.title} is already running from {host.folder}: end it first."
            ) from None
        yield

"""``flamma deploy up``, ``down`` and ``status``: a whole federation on this machine."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flamma.deploy.commands import READY
from flamma.deploy.control import Control, known_nodes
from flamma.deploy.hosts import Host, ServerHost, read_host, read_hosts, read_server
from flamma.deploy.processes import Process, end, wait_gone
from flamma.deploy.supervise import check_free, recorded
from flamma.errors import DeployError, FlammaError

PATIENCE = 120.0
"""Seconds that a federation has to get ready."""
LOOK = 0.3
GRACE = 25.0
ONLINE = "online"
DETACH = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], stdout=sys.stderr, start_new_session=True).pid)
"""
"""Starts a process and leaves it to the system, which then is its parent."""


@dataclass(frozen=True)
class Up:
    """What ``up`` found and did."""

    started: tuple[str, ...]
    running: tuple[str, ...]
    seconds: float


def up(folder: Path, patience: float = PATIENCE) -> Up:
    """Start what does not run of a federation, on loopback, and wait until all are online.

    Raises
    ------
    DeployError
        If it does not come up: why, in one sentence. What was started is ended then.
    """
    begun = time.monotonic()
    hosts = read_hosts(folder)
    missing = [host for host in hosts if not _alive(host)]
    for host in missing:
        _end(host)  # what a killed keeper has left behind
        check_free(host)
    started: dict[str, tuple[Host, Process]] = {}
    try:
        for host in missing:
            started[host.title] = (host, _start(host))
            if isinstance(host, ServerHost):  # before its sites, which would knock in vain
                _wait_ready([host], list(started.values()), begun + patience)
        _wait_ready(hosts, list(started.values()), begun + patience)
    except (FlammaError, KeyboardInterrupt):
        for begun_host, _ in started.values():
            _end(begun_host)
        raise
    running = tuple(host.title for host in hosts if host.title not in started)
    return Up(tuple(started), running, time.monotonic() - begun)


def down(folder: Path) -> list[str]:
    """End exactly the processes that ``up`` or ``start`` began, and return their hosts."""
    hosts = read_hosts(folder) if not (folder / "host.toml").exists() else [read_host(folder)]
    # Sites first, so that they can say goodbye.
    return [host.title for host in reversed(hosts) if _end(host)]


def status(folder: Path) -> dict[str, Any]:
    """Return what runs, who is online and which runs there are.

    With the server's folder alone, that is all that is told of the sites' processes: whether
    they are online.
    """
    server = read_server(folder)
    whole = server.folder != folder.resolve()
    hosts = read_hosts(folder) if whole else [server]
    table: dict[str, Any] = {
        "hosts": {host.title: _host_status(host) for host in hosts},
        "sites": dict.fromkeys(server.sites, "unknown"),
        "runs": [],
    }
    if not _alive(server):
        return table
    with contextlib.suppress(DeployError), Control(server) as control:
        states = {node.node_id: node.status for node in control.nodes()}
        for name, node in known_nodes(server).items():
            table["sites"][name] = states.get(node, "not registered")
        table["runs"] = [
            {
                "run_id": str(run.run_id),
                "status": run.outcome if run.finished else run.status,
                "details": run.details,
            }
            for run in control.runs()
        ]
    return table


def _host_status(host: Host) -> dict[str, Any]:
    keeper, processes, restarts = recorded(host)
    return {
        "running": keeper is not None and keeper.alive,
        "processes": {
            name: {"pid": process.pid, "alive": process.alive, "restarts": restarts[name]}
            for name, process in processes.items()
        },
    }


def _alive(host: Host) -> bool:
    keeper, _, _ = recorded(host)
    return keeper is not None and keeper.alive


def _start(host: Host) -> Process:
    """Start a host's keeper as a process of its own, that nobody has to wait for."""
    host.logs.mkdir(parents=True, exist_ok=True)
    words = (sys.executable, "-m", "flamma", "deploy", "start", str(host.folder), "--loopback")
    with open(host.logs / "host.log", "ab") as log:
        done = subprocess.run(
            (sys.executable, "-c", DETACH, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            check=True,
        )
    return Process.of(int(done.stdout))


def _wait_ready(hosts: list[Any], started: list[tuple[Any, Process]], until: float) -> None:
    server = hosts[0]
    assert isinstance(server, ServerHost)
    waiting = "the server"
    while time.monotonic() < until:
        for host, process in started:
            if not process.alive:
                raise DeployError(f"{host.title} did not start: {_last_line(host)}")
        cold = [host.title for host in hosts[1:] if not (host.state / READY).exists()]
        nodes = known_nodes(server)
        if not nodes:
            waiting = "the server"
        elif cold:
            waiting = ", ".join(cold)
        elif len(hosts) == 1:
            return
        else:
            with contextlib.suppress(DeployError), Control(server) as control:
                online = {n.node_id for n in control.nodes() if n.status == ONLINE}
                absent = [name for name in server.sites if nodes.get(name) not in online]
                if not absent:
                    return
                waiting = ", ".join(absent)
        time.sleep(LOOK)
    raise DeployError(
        f"{waiting} did not get ready in time: see the logs in {server.folder.parent}/*/logs."
    )


def _last_line(host: Host) -> str:
    try:
        text = (host.logs / "host.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"see {host.logs}."
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("flamma: ") if lines else f"see {host.logs}."


def _end(host: Host) -> bool:
    """End a host's processes and return whether there were any."""
    keeper, processes, _ = recorded(host)
    there = [p for p in (keeper, *processes.values()) if p is not None and p.alive]
    if keeper is not None and keeper.alive:
        keeper.send(signal.SIGTERM)
        wait_gone([keeper], GRACE)
    left: list[Process] = [p for p in (keeper, *processes.values()) if p is not None]
    end(left, GRACE)
    (host.state / "processes.json").unlink(missing_ok=True)
    return bool(there)

"""Which processes a host has, and what they are started with."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from flamma.deploy.hosts import SITE, Host, ServerHost, SiteHost
from flamma.deploy.texts import OFFLINE
from flamma.errors import MissingExtraError

READY = "ready"
"""The file by which a site's waiting process says that it is warm."""
POLL = "0.5"
"""Seconds between two looks of a superexec for work."""
OURS = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Command:
    """One process of a host."""

    name: str
    words: tuple[str, ...]


def commands_of(host: Host, loopback: bool, runtime_port: int) -> list[Command]:
    """Return the processes of a host, in the order in which they are started."""
    if isinstance(host, ServerHost):
        return server_commands(host, loopback)
    assert isinstance(host, SiteHost)
    return site_commands(host, loopback, runtime_port)


def server_commands(host: ServerHost, loopback: bool) -> list[Command]:
    """Return the SuperLink, its gate, and what starts the server's side of a run."""
    folder, own = host.folder, f"127.0.0.1:{host.control_port}"
    superlink = (
        _script("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(host.control_port)),
        *("--ssl-certfile", str(folder / "server.pem")),
        *("--ssl-keyfile", str(folder / "server.key")),
        *("--ssl-ca-certfile", str(host.authority)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--isolation", "process", "--superexec-auth-secret-file", str(host.secret)),
        *("--database", str(host.state / "superlink.db")),
    )
    superexec = (
        _script("flower-superexec"),
        *("--runtime-api-address", own, "--root-certificates", str(host.authority)),
        *("--superexec-auth-secret-file", str(host.secret)),
    )
    listen = "127.0.0.1" if loopback else host.listen
    gate = (sys.executable, "-m", "flamma.deploy.gate", str(folder), listen)
    return [
        Command("superlink", superlink),
        Command("gate", gate),
        Command("superexec", superexec),
    ]


def site_commands(host: SiteHost, loopback: bool, runtime_port: int) -> list[Command]:
    """Return the SuperNode and the process that works on its messages."""
    supernode = (
        _script("flower-supernode"),
        *("--superlink", server_address(host, loopback)),
        *("--root-certificates", str(host.authority)),
        *("--auth-supernode-private-key", str(host.key)),
        *("--node-config", f'site="{host.folder / SITE}"'),
        *("--host", "127.0.0.1", "--port", str(runtime_port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(host.secret)),
    )
    warm = (
        *(sys.executable, "-m", "flamma.deploy.warm", f"127.0.0.1:{runtime_port}"),
        *(str(host.secret), str(host.state / READY), host.app, str(host.folder / SITE)),
    )
    return [Command("supernode", supernode), Command("worker", warm)]


def server_address(host: SiteHost, loopback: bool) -> str:
    """Return where a site finds the server: on this machine, or where it really is."""
    return f"127.0.0.1:{host.server.rpartition(':')[2]}" if loopback else host.server


def environment(host: Host) -> dict[str, str]:
    """Return the environment of a host's processes: offline, quiet, nothing in the user's home."""
    scripts = sysconfig.get_path("scripts")
    return {
        **os.environ,
        **OFFLINE,
        "FLWR_HOME": str(host.flower_home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL,
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        **without_proxy(),
        "PYTHONUNBUFFERED": "1",
    }


def without_proxy() -> dict[str, str]:
    """Return the variables by which no proxy is asked for what is on this very host."""
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), *OURS]))
    return {"NO_PROXY": direct, "no_proxy": direct}


def _script(name: str) -> str:
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise MissingExtraError("a deployed federation", "flower")
    return str(path)

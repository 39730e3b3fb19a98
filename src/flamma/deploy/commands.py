"""The processes of a host: their command lines and their environment."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from flamma.deploy.hosts import LOOPBACK_NAMES, SITE, Host, ServerHost, SiteHost
from flamma.deploy.liveness import SIGNS_FILE
from flamma.deploy.logs import event_environment
from flamma.engines.flower.environment import OFFLINE_ENVIRONMENT
from flamma.extras import missing_extra

DATABASE_FILE = "superlink.db"
"""The SuperLink's database, in the server's state."""
READY_FILE = "ready"
"""The file that a site's worker writes once it can take messages."""
_SUPEREXEC_POLL_SECONDS = 0.5
"""Seconds between two requests of the server's superexec for work."""


@dataclass(frozen=True)
class Command:
    """The command line of one process.

    Attributes
    ----------
    name : str
        What it is called in logs and ``status``.
    words : tuple of str
        The command line.
    reads : tuple of Path
        What it reads once, so that it is restarted when one of these files is replaced.
    signs : Path or None
        Where it gives signs of life.
    """

    name: str
    words: tuple[str, ...]
    reads: tuple[Path, ...] = ()
    signs: Path | None = None


def commands_of(host: Host, loopback: bool, runtime_port: int) -> list[Command]:
    """Return the processes of a host, in the order in which they are started."""
    if isinstance(host, ServerHost):
        return _server_commands(host, loopback)
    assert isinstance(host, SiteHost)
    return _site_commands(host, loopback, runtime_port)


def _server_commands(host: ServerHost, loopback: bool) -> list[Command]:
    """Return the SuperLink, its proxy, the superexec that starts ServerApps, perhaps metrics."""
    folder, own = host.folder, f"127.0.0.1:{host.control_port}"
    superlink = (
        script("flower-superlink"),
        *("--host", "127.0.0.1", "--port", str(host.control_port)),
        *("--ssl-certfile", str(host.certificate)),
        *("--ssl-keyfile", str(host.certificate_key)),
        *("--ssl-ca-certfile", str(host.authority)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        *("--isolation", "process", "--superexec-auth-secret-file", str(host.secret)),
        *("--database", str(host.state / DATABASE_FILE)),
    )
    superexec = (
        script("flower-superexec"),
        *("--runtime-api-address", own, "--root-certificates", str(host.authority)),
        *("--superexec-auth-secret-file", str(host.secret)),
    )
    listen = "127.0.0.1" if loopback else host.listen
    proxy = (sys.executable, "-m", "flamma.deploy.proxy", str(folder), listen)
    metrics = Command("metrics", (sys.executable, "-m", "flamma.deploy.metrics", str(folder)))
    return [
        Command("superlink", superlink, (host.certificate, host.authority)),
        Command("proxy", proxy),
        Command("superexec", superexec, (host.authority,)),
        *([metrics] if host.metrics_port else []),
    ]


def _site_commands(host: SiteHost, loopback: bool, runtime_port: int) -> list[Command]:
    """Return the SuperNode and the worker that answers its messages."""
    script("flower-supernode")  # or say that Flower is missing
    signs = host.state / SIGNS_FILE
    supernode = (
        *(sys.executable, "-m", "flamma.deploy.supernode", str(signs)),
        *("--superlink", server_address(host, loopback)),
        *("--root-certificates", str(host.authority)),
        *("--auth-supernode-private-key", str(host.key)),
        *("--node-config", f'site="{host.folder / SITE}"'),
        *("--host", "127.0.0.1", "--port", str(runtime_port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(host.secret)),
    )
    worker = (
        *(sys.executable, "-m", "flamma.deploy.prefork", f"127.0.0.1:{runtime_port}"),
        *(str(host.secret), str(host.state / READY_FILE), host.app, str(host.folder / SITE)),
    )
    read = (host.authority, host.key)
    return [Command("supernode", supernode, read, signs), Command("worker", worker)]


def server_address(host: SiteHost, loopback: bool) -> str:
    """Return the server's address and port as a site reaches it."""
    return f"127.0.0.1:{host.server.rpartition(':')[2]}" if loopback else host.server


def environment(host: Host) -> dict[str, str]:
    """Return the environment of a host's processes: no calls home, no files in the user's home."""
    scripts = sysconfig.get_path("scripts")
    return {
        **os.environ,
        **OFFLINE_ENVIRONMENT,
        **event_environment(host),
        "FLWR_HOME": str(host.flower_home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(_SUPEREXEC_POLL_SECONDS),
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}",
        **no_http_proxy(),
        "PYTHONUNBUFFERED": "1",
    }


def no_http_proxy() -> dict[str, str]:
    """Return the variables that keep HTTP clients from using a proxy for this very host."""
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), *LOOPBACK_NAMES]))
    return {"NO_PROXY": direct, "no_proxy": direct}


def script(name: str) -> str:
    """Return the path of one of Flower's programs.

    Raises
    ------
    MissingExtraError
        If Flower is not installed.
    """
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise missing_extra("a deployed federation", "flwr")
    return str(path)

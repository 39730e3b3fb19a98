"""Whether a host does what it should: for service managers, containers and scripts.

Nothing of Flower is imported, since this is asked every few seconds.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass

from flamma.deploy.commands import READY_FILE, commands_of
from flamma.deploy.hosts import Host, ServerHost, SiteHost
from flamma.deploy.supervisor import recorded

_ANSWER_SECONDS = 5.0
"""Seconds that a port has to answer."""
_WAIT_POLL_SECONDS = 0.5
"""Seconds between two looks while it is waited for health."""


@dataclass(frozen=True)
class _Health:
    """How hosts are.

    Attributes
    ----------
    problems : tuple of str
        What is wrong, one sentence without its full stop for each; empty if all is well.
    hosts : tuple of str
        The hosts that were looked at.
    """

    problems: tuple[str, ...]
    hosts: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def sentence(self) -> str:
        """Return it as one sentence."""
        if self.healthy:
            return f"healthy: {', '.join(self.hosts)}."
        return f"not healthy: {'; '.join(self.problems)}."


def health_of(hosts: Sequence[Host], wait: float = 0.0) -> _Health:
    """Return how hosts are; with ``wait``, as soon as all is well, or after so many seconds."""
    until = time.monotonic() + wait
    while True:
        found = _Health(
            tuple(problem for host in hosts for problem in _problems(host)),
            tuple(host.title for host in hosts),
        )
        if found.healthy or time.monotonic() >= until:
            return found
        time.sleep(_WAIT_POLL_SECONDS)


def _problems(host: Host) -> list[str]:
    supervisor, processes, _ = recorded(host)
    if supervisor is None or not supervisor.alive:
        return [f"{host.title} does not run"]
    found = []
    for command in commands_of(host, loopback=True, runtime_port=0):
        process = processes.get(command.name)
        if process is None or not process.alive:
            found.append(f"the {command.name} of {host.title} is being restarted")
    if found:
        return found
    if isinstance(host, ServerHost):
        return _server_problems(host)
    if isinstance(host, SiteHost) and not (host.state / READY_FILE).exists():
        return [f"the worker of {host.title} is not ready yet"]
    return []


def _server_problems(host: ServerHost) -> list[str]:
    ports = {"SuperLink": host.control_port, "proxy": host.port}
    return [
        f"the {name} of {host.title} does not answer on port {port}"
        for name, port in ports.items()
        if not _answers(host, port)
    ]


def _answers(host: ServerHost, port: int) -> bool:
    """Return whether a port of this host answers with a certificate of the federation."""
    try:
        trusted = ssl.create_default_context(cafile=str(host.authority))
        with (
            socket.create_connection(("127.0.0.1", port), _ANSWER_SECONDS) as plain,
            trusted.wrap_socket(plain, server_hostname="127.0.0.1"),
        ):
            return True
    except OSError:  # an ssl.SSLError is one
        return False

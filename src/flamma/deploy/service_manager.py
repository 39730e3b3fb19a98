"""Telling systemd that a service is up and alive, by its notification protocol.

A service manager that wants to hear of it puts a socket into ``NOTIFY_SOCKET``; without it nothing
happens. See ``sd_notify(3)``.
"""

from __future__ import annotations

import contextlib
import os
import socket

_SOCKET_VARIABLE = "NOTIFY_SOCKET"
READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


def notify(*states: str) -> None:
    """Send states to the service manager, if there is one."""
    address = os.environ.get(_SOCKET_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    # A name that begins with @ is one of the abstract namespace, which begins with a zero byte.
    place = f"\0{address[1:]}" if address.startswith("@") else address
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
    ):
        sender.sendto("\n".join(states).encode(), place)

"""Long polling: a SuperNode's request for a message is kept open until there is one.

A SuperNode that asks for a message and gets none sleeps for three seconds. So the proxy keeps such
a request open and polls the SuperLink itself, until there is a message or the SuperNode would time
out.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from flamma.deploy.admission import Headers
from flamma.deploy.http_messages import Receive, until_disconnected

if TYPE_CHECKING:
    import httpx

    Ask = Callable[[str, bytes, Headers], Awaitable[httpx.Response]]

_LONG_POLL_SECONDS = 20.0
"""Seconds that a request for a message is kept open; a SuperNode times out after 30."""
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.3, 2.0
"""Seconds between two polls for a site: just after its last message, and much later."""
_MAX_POLLS_PER_SECOND = 30.0
"""Polls for all sites together; with so many sites that this is not enough, none is kept open."""


class LongPolling:
    """Requests for messages that are kept open.

    Parameters
    ----------
    ask : callable
        Sends a site's request for a message, its body and headers, to the SuperLink.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting = 0
        self._last_message: dict[str, float] = {}

    async def pull(
        self, site: str, body: bytes, headers: Headers, receive: Receive
    ) -> httpx.Response | None:
        """Return the reply with a message, or without one if time is up; None if the site left."""
        until = time.monotonic() + _LONG_POLL_SECONDS
        disconnected = asyncio.ensure_future(until_disconnected(receive))
        self._waiting += 1
        try:
            while True:
                reply = await self._ask(site, body, headers)
                now = time.monotonic()
                if reply.status_code != 200:
                    return reply
                if has_message(reply.content):
                    self._last_message[site] = now
                    return reply
                idle = now - self._last_message.get(site, -math.inf)
                pause = max(_MIN_POLL_SECONDS, min(_MAX_POLL_SECONDS, idle / 10))
                pause = max(pause, self._waiting / _MAX_POLLS_PER_SECOND)
                if now + pause > until or pause > _MAX_POLL_SECONDS:
                    return reply
                await asyncio.wait({disconnected}, timeout=pause)
                if disconnected.done():  # a message that is pulled now would be lost
                    return None
        finally:
            self._waiting -= 1
            disconnected.cancel()


def has_message(content: bytes) -> bool:
    """Return whether the reply to a request for a message has one."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from google.protobuf.message import DecodeError

    try:
        return bool(PullMessagesResponse.FromString(content).messages_list)
    except DecodeError:
        return True  # let the SuperNode report what it cannot read

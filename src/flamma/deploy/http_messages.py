"""Requests of sites, read with limits on their size and time, and answers to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

from flamma.deploy.admission import Allowance, BusyError, Headers

if TYPE_CHECKING:
    import httpx

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]

_Parsed = TypeVar("_Parsed")

_MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""The size limit of a request; Flower cuts arrays into pieces of 5 MiB."""
BODY_GRACE_SECONDS, SLOWEST_BYTES_PER_SECOND = 20.0, 16 * 1024
"""The time limit of a request's body: some seconds, and as many more as its bytes take at most."""
_BODY_IDLE_SECONDS = 60.0
"""Seconds without any byte of a body, within its time limit."""


class RequestError(Exception):
    """A request that is answered with a status of HTTP, and nothing else."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class DisconnectedError(Exception):
    """The site has closed the connection in the middle of a request."""


async def until_disconnected(receive: Receive) -> None:
    """Return once the site has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(headers: Headers, receive: Receive, account: Allowance) -> bytes:
    """Return a request's body, unless it is too large, too slow, or there is no room for it."""
    length = dict(headers).get(b"content-length", b"0")
    if not length.isdigit() or int(length[:20]) > _MAX_REQUEST_BYTES:
        raise RequestError(413)
    parts: list[bytes] = []
    begun = time.monotonic()
    while True:
        limit = BODY_GRACE_SECONDS + account.taken / SLOWEST_BYTES_PER_SECOND
        left = begun + limit - time.monotonic()
        try:
            event = await asyncio.wait_for(receive(), min(left, _BODY_IDLE_SECONDS))
        except TimeoutError:
            raise RequestError(408) from None
        if event["type"] == "http.disconnect":
            raise DisconnectedError
        part = event.get("body", b"")
        if account.taken + len(part) > _MAX_REQUEST_BYTES:
            raise RequestError(413)
        try:
            account.take(len(part))
        except BusyError:
            raise RequestError(503) from None
        parts.append(part)
        if not event.get("more_body", False):
            return b"".join(parts)


async def send_answer(send: Send, status: int, body: bytes = b"", headers: Headers = ()) -> None:
    """Send a whole answer, with its length."""
    if not any(key == b"content-length" for key, _ in headers):
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def parsed(read: Callable[[bytes], _Parsed], body: bytes) -> _Parsed:
    """Return a request that was read from its bytes, or refuse it."""
    from google.protobuf.message import DecodeError

    try:
        return read(body)
    except DecodeError:
        raise RequestError(400) from None


def protobuf_response(message: Any) -> httpx.Response:
    """Return an answer of the proxy's own: a message of Flower's, or the bytes of one."""
    import httpx

    kind = {"content-type": "application/protobuf"}
    content = message if isinstance(message, bytes) else message.SerializeToString()
    return httpx.Response(200, content=content, headers=kind)

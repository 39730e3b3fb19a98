"""The gate of the server: of everything a SuperLink offers, sites reach what sites need.

Flower 1.41 serves three things on one port: the fleet's requests, which are signed by a site's
registered key; and control and runtime requests, by which anybody who can reach the port may
register keys, submit runs or take over a server's task. So the SuperLink listens on the
loopback address only, and this gate is what the network sees: TLS, the fleet's requests and
nothing else, each no larger than it can be.

The gate also spares sites a wait. A SuperNode that asks for a message and gets none sleeps for
three seconds. So the gate holds such a question, and asks the SuperLink again and again, until
there is a message or the SuperNode would lose its patience.

Run as ``python -m flamma.deploy.gate FOLDER``.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.deploy.hosts import ServerHost, read_server

if TYPE_CHECKING:
    import httpx

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

FLEET = "/v1/fleet/"
LET_THROUGH = frozenset(
    FLEET + name
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
"""Registering is not among them: that is for the server's host."""

LARGEST = 32 * 1024 * 1024
"""Bytes of a request; Flower cuts arrays into pieces of 5 MiB."""
PATIENCE = 60.0
MOST_AT_ONCE = 1000
PULL = FLEET + "pull-messages"
HOLD = 20.0
"""Seconds that a question for a message is held; a SuperNode waits for 30."""
QUICK, SLOW = 0.3, 2.0
"""Seconds between two looks on behalf of a site: at first, and when it has waited for long."""
MOST_LOOKS = 30.0
"""Looks a second on behalf of all sites together; with very many sites none is held."""
KEY = b"flwr-public-key"
DROPPED = frozenset((b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"))


class TooLargeError(Exception):
    """A request is larger than any that is needed."""


class Gate:
    """An ASGI application that passes the fleet's requests on to the SuperLink."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.held = 0
        self.served: dict[bytes, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if scope["method"] != "POST" or scope["path"] not in LET_THROUGH:
            await _answer(send, 404)
            return
        try:
            body = await _body(receive)
        except TooLargeError:
            await _answer(send, 413)
            return
        import httpx

        headers = [(key, value) for key, value in scope["headers"] if key not in DROPPED]
        try:
            if scope["path"] == PULL:
                reply = await self._pull(body, headers, receive)
            else:
                reply = await self.client.post(scope["path"], content=body, headers=headers)
        except httpx.TransportError:  # the SuperLink is being restarted; sites try again
            await _answer(send, 503)
            return
        if reply is not None:
            await _answer(send, reply.status_code, reply.content, _kept(reply))

    async def _pull(
        self, body: bytes, headers: list[tuple[bytes, bytes]], receive: Receive
    ) -> httpx.Response | None:
        """Ask for a message until there is one, it is time to say no, or nobody listens."""
        site = dict(headers).get(KEY, b"")
        until = time.monotonic() + HOLD
        gone = asyncio.ensure_future(_gone(receive))
        self.held += 1
        try:
            while True:
                reply = await self.client.post(PULL, content=body, headers=headers)
                now = time.monotonic()
                if reply.status_code != 200:
                    return reply
                if _has_message(reply.content):
                    self.served[site] = now
                    return reply
                pause = self._pause(site, now)
                if now + pause > until or pause > SLOW:
                    return reply
                await asyncio.wait({gone}, timeout=pause)
                if gone.done():  # what is asked for now would be lost
                    return None
        finally:
            self.held -= 1
            gone.cancel()

    def _pause(self, site: bytes, now: float) -> float:
        waited = now - self.served.get(site, -math.inf)
        return max(QUICK, min(SLOW, waited / 10), self.held / MOST_LOOKS)


def _kept(reply: httpx.Response) -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply that still hold for it here."""
    unfit = {*DROPPED, b"content-encoding", b"content-length"}
    raw = [(key.lower(), value) for key, value in reply.headers.raw]
    length = (b"content-length", str(len(reply.content)).encode())
    return [*((key, value) for key, value in raw if key not in unfit), length]


def _has_message(content: bytes) -> bool:
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from google.protobuf.message import DecodeError

    try:
        return bool(PullMessagesResponse.FromString(content).messages_list)
    except DecodeError:
        return True  # whatever it is, it is for the SuperNode to judge


async def _gone(receive: Receive) -> None:
    """Return when the one who asked has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return b""
        part = event.get("body", b"")
        size += len(part)
        if size > LARGEST:
            raise TooLargeError
        parts.append(part)
        if not event.get("more_body", False):
            return b"".join(parts)


async def _answer(
    send: Send, status: int, body: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    fallback = [(b"content-length", str(len(body)).encode())]
    head = {"type": "http.response.start", "status": status, "headers": headers or fallback}
    await send(head)
    await send({"type": "http.response.body", "body": body})


def serve(host: ServerHost, listen: str) -> None:
    """Open the gate and stay until a signal comes."""
    import httpx
    import uvicorn

    trusted = ssl.create_default_context(cafile=str(host.authority))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    client = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{host.control_port}",
        verify=trusted,
        timeout=PATIENCE,
        limits=limits,
        trust_env=False,
    )
    uvicorn.run(
        Gate(client),
        host=listen,
        port=host.port,
        ssl_certfile=str(host.folder / "server.pem"),
        ssl_keyfile=str(host.folder / "server.key"),
        log_level="warning",
        access_log=False,
        lifespan="off",
        limit_concurrency=MOST_AT_ONCE,
        server_header=False,
    )


def main() -> None:
    """Run the gate of the server whose folder is the first argument."""
    host = read_server(Path(sys.argv[1]))
    serve(host, sys.argv[2] if len(sys.argv) > 2 else host.listen)


if __name__ == "__main__":
    main()

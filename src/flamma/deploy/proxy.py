"""The reverse proxy in front of the SuperLink: sites reach only the requests that sites need.

Flower 1.41 serves three interfaces on one port. Fleet requests are signed with a site's registered
key. Control and runtime requests are not: whoever can reach the port may register keys, submit
runs or take over a task of the server. So the SuperLink listens on the loopback address only, and
the network sees this proxy: TLS, the fleet requests in ``ALLOWED_PATHS`` that a registered site has
signed, a size limit, and time limits. Of other requests only the headers are read.

The proxy also turns a SuperNode's polling into long polling. A SuperNode that asks for a message
and gets none sleeps for three seconds. So the proxy keeps such a request open and polls the
SuperLink itself, until there is a message or the SuperNode would time out.

Run as ``python -m flamma.deploy.proxy FOLDER``.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.deploy.admission import Allowance, Budget, Connections, SiteKeys
from flamma.deploy.denials import Denials
from flamma.deploy.hosts import ServerHost, read_server
from flamma.deploy.http_messages import (
    DisconnectedError,
    Receive,
    RequestError,
    Scope,
    Send,
    read_body,
    send_answer,
    until_disconnected,
)

if TYPE_CHECKING:
    import httpx

FLEET = "/v1/fleet/"
ALLOWED_PATHS = frozenset(
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
"""The fleet requests without ``register-node``, which only the server's host may send."""

PULL_MESSAGES = FLEET + "pull-messages"
MAX_HEADER_BYTES = 16 * 1024
TLS_HANDSHAKE_SECONDS = 10.0
OPEN_AFTER_ANSWER_SECONDS = 60
"""Seconds that a connection stays open after an answer, which may still be on its way."""
MAX_CONNECTIONS = 1000
"""Connections at a time; a request over one more is answered with 503."""
SUPERLINK_TIMEOUT_SECONDS = 60.0
"""Seconds that the SuperLink has to answer one request."""
LONG_POLL_SECONDS = 20.0
"""Seconds that a request for a message is kept open; a SuperNode times out after 30."""
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.3, 2.0
"""Seconds between two polls for a site: just after its last message, and much later."""
MAX_POLLS_PER_SECOND = 30.0
"""Polls for all sites together; with so many sites that this is not enough, none is kept open."""
HOP_BY_HOP_HEADERS = frozenset(
    (b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)


class Proxy:
    """An ASGI application that passes fleet requests on to the SuperLink.

    Parameters
    ----------
    client : httpx.AsyncClient
        A client whose base URL is the SuperLink's.
    keys : SiteKeys
        The keys of the sites whose requests are passed on.
    connections : Connections
        The open connections.
    denials : Denials, optional
        Where it is written down why sites are not let in.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        keys: SiteKeys,
        connections: Connections,
        denials: Denials | None = None,
    ) -> None:
        self.client = client
        self.keys = keys
        self.connections = connections
        self.denials = denials
        self.budget = Budget()
        self.waiting = 0
        self.last_message: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request, or say why not.

        That is 404 (not allowed), 401 (not signed by a site), 408 (too slow), 413 (too large) or
        503 (try again).
        """
        if scope["type"] != "http":
            return
        try:
            if scope["method"] != "POST" or scope["path"] not in ALLOWED_PATHS:
                raise RequestError(404)
            site = self.keys.site_of(scope["headers"])
            if site is None:
                if self.denials is not None:
                    self.denials.note_headers(scope["headers"], str(scope["client"][0]))
                raise RequestError(401)
            with self.connections.serving(scope["client"]), self.budget.account(site) as account:
                await self._pass_on(site, scope, receive, send, account)
        except DisconnectedError:
            return
        except RequestError as error:
            # The rest of the body, if there is one, is not read.
            await send_answer(send, error.status, headers=[(b"connection", b"close")])

    async def _pass_on(
        self, site: str, scope: Scope, receive: Receive, send: Send, account: Allowance
    ) -> None:
        import httpx

        body = await read_body(scope["headers"], receive, account)
        headers = [(key, value) for key, value in scope["headers"] if key not in HOP_BY_HOP_HEADERS]
        try:
            if scope["path"] == PULL_MESSAGES:
                reply = await self._pull(site, body, headers, receive)
            else:
                reply = await self.client.post(scope["path"], content=body, headers=headers)
        except httpx.TransportError:  # the SuperLink is being restarted
            raise RequestError(503) from None
        if reply is not None:
            if self.denials is not None:
                self.denials.note_answer(site, scope["path"], reply.status_code, reply.content)
            await send_answer(send, reply.status_code, reply.content, _reply_headers(reply))

    async def _pull(
        self, site: str, body: bytes, headers: list[tuple[bytes, bytes]], receive: Receive
    ) -> httpx.Response | None:
        """Return the reply with a message, or without one if time is up; None if the site left."""
        until = time.monotonic() + LONG_POLL_SECONDS
        disconnected = asyncio.ensure_future(until_disconnected(receive))
        self.waiting += 1
        try:
            while True:
                reply = await self.client.post(PULL_MESSAGES, content=body, headers=headers)
                now = time.monotonic()
                if reply.status_code != 200:
                    return reply
                if _has_message(reply.content):
                    self.last_message[site] = now
                    return reply
                pause = self._pause(site, now)
                if now + pause > until or pause > MAX_POLL_SECONDS:
                    return reply
                await asyncio.wait({disconnected}, timeout=pause)
                if disconnected.done():  # a message that is pulled now would be lost
                    return None
        finally:
            self.waiting -= 1
            disconnected.cancel()

    def _pause(self, site: str, now: float) -> float:
        idle = now - self.last_message.get(site, -math.inf)
        wanted = max(MIN_POLL_SECONDS, min(MAX_POLL_SECONDS, idle / 10))
        return max(wanted, self.waiting / MAX_POLLS_PER_SECOND)


def _reply_headers(reply: httpx.Response) -> list[tuple[bytes, bytes]]:
    """Return the headers to pass on; httpx has decoded the content, so its length is new."""
    unfit = {*HOP_BY_HOP_HEADERS, b"content-encoding", b"content-length"}
    raw = [(key.lower(), value) for key, value in reply.headers.raw]
    length = (b"content-length", str(len(reply.content)).encode())
    return [*((key, value) for key, value in raw if key not in unfit), length]


def _has_message(content: bytes) -> bool:
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from google.protobuf.message import DecodeError

    try:
        return bool(PullMessagesResponse.FromString(content).messages_list)
    except DecodeError:
        return True  # let the SuperNode report what it cannot read


def run_proxy(host: ServerHost, listen: str) -> None:
    """Serve on ``listen`` until a signal comes."""
    import httpx
    import uvicorn

    trusted = ssl.create_default_context(cafile=str(host.authority))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    client = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{host.control_port}",
        verify=trusted,
        timeout=SUPERLINK_TIMEOUT_SECONDS,
        limits=limits,
        trust_env=False,
    )
    keys = SiteKeys({site: host.public_key(site) for site in host.sites})
    connections = Connections()
    # uvicorn has no setting for this.
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = TLS_HANDSHAKE_SECONDS  # type: ignore[attr-defined]
    uvicorn.run(
        Proxy(client, keys, connections, Denials(host)),
        host=listen,
        port=host.port,
        ssl_certfile=str(host.folder / "server.pem"),
        ssl_keyfile=str(host.folder / "server.key"),
        log_level="warning",
        access_log=False,
        lifespan="off",
        loop="asyncio",
        http=_protocol(connections),
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=OPEN_AFTER_ANSWER_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
        server_header=False,
    )


def _protocol(connections: Connections) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol, which tells ``connections`` what is opened and closed.

    It is the one by h11, because the other one reads headers of any length.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if self.client is not None:
                connections.opened(self.client, transport)

        def connection_lost(self, exc: Exception | None) -> None:
            if self.client is not None:
                connections.closed(self.client)
            super().connection_lost(exc)

    return Protocol


def main() -> None:
    """Run the proxy of the server whose folder is the first argument."""
    host = read_server(Path(sys.argv[1]))
    run_proxy(host, sys.argv[2] if len(sys.argv) > 2 else host.listen)


if __name__ == "__main__":
    main()

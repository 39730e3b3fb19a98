"""The reverse proxy in front of the SuperLink: sites reach only the requests that sites need.

Flower 1.41 serves three interfaces on one port. Fleet requests are signed with a site's registered
key. Control and runtime requests are not: whoever can reach the port may register keys, submit
runs or take over a task of the server. So the SuperLink listens on the loopback address only, and
the network sees this proxy: TLS, the fleet requests in ``_ALLOWED_PATHS`` that a registered site
has signed, size limits, and time limits. Of other requests only the headers are read. A site that
is removed, or whose key is replaced, is refused from then on, also on connections that are open.

A request for a message is kept open until there is one (:mod:`flamma.deploy.polling`), and an
answer of a site is passed on once it is whole (:mod:`flamma.deploy.answers`).

Run as ``python -m flamma.deploy.proxy FOLDER``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from flamma.deploy.admission import (
    ACCEPTED_AT_ONCE,
    MAX_CONNECTIONS,
    OTHER_FILES,
    Allowance,
    Budget,
    Connections,
    CountedListener,
    Headers,
    SiteKeys,
    raise_file_limit,
    watched_protocol,
)
from flamma.deploy.answers import PUSH_MESSAGES, PUSH_OBJECT, HeldAnswers
from flamma.deploy.commands import DATABASE_FILE
from flamma.deploy.denials import Denials
from flamma.deploy.hosts import ServerHost, read_server
from flamma.deploy.http_messages import (
    DisconnectedError,
    Receive,
    RequestError,
    Scope,
    Send,
    parsed,
    protobuf_response,
    read_body,
    send_answer,
)
from flamma.deploy.lost_orders import LostOrders
from flamma.deploy.orders import SentOrders
from flamma.deploy.polling import LongPolling
from flamma.deploy.traffic import ProxyTraffic
from flamma.deploy.watch import Watch, site_keys

if TYPE_CHECKING:
    import httpx
    import uvicorn

_FLEET = "/v1/fleet/"
_ALLOWED_PATHS = frozenset(
    _FLEET + name
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

_PULL_MESSAGES, _PULL_OBJECT = _FLEET + "pull-messages", _FLEET + "pull-object"
_CONFIRM = _FLEET + "confirm-message-received"
_MAX_HEADER_BYTES = 16 * 1024
_TLS_HANDSHAKE_SECONDS = 10.0
_OPEN_AFTER_ANSWER_SECONDS = 60
"""Seconds that a connection stays open after an answer, which may still be on its way."""
_SUPERLINK_TIMEOUT_SECONDS = 60.0
"""Seconds that the SuperLink has to answer one request."""
_REPEAT_SECONDS = 60.0
"""Seconds in which a message of one kind is in the log once."""
_OWN_HEADERS = frozenset(
    (b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"content-length")
)
"""Headers that are about one connection or one body, and are not passed on."""


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
    folder : Path
        Where answers are kept until they are whole.
    answer_bytes : int
        The most bytes of an answer; 0 to go by the size of what it answers.
    traffic : ProxyTraffic, optional
        What counts requests and tells of them.
    denials : Denials, optional
        Where it is written down why sites are not let in.
    database : Path, optional
        The SuperLink's database, for orders that got lost.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        keys: SiteKeys,
        connections: Connections,
        folder: Path,
        answer_bytes: int = 0,
        traffic: ProxyTraffic | None = None,
        denials: Denials | None = None,
        database: Path | None = None,
    ) -> None:
        self.client = client
        self.keys = keys
        self.connections = connections
        self.traffic = traffic or ProxyTraffic()
        self.denials = denials
        self.budget = Budget()
        self.orders = SentOrders(answer_bytes)
        self.answers = HeldAnswers(self._post, self.orders, folder)
        orders = LostOrders(lambda _, *request: self._post(_PULL_MESSAGES, *request), database)
        self.polling = LongPolling(orders.ask)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on one request, or say why not.

        That is 404 (not allowed), 401 (not signed by a site), 403 (another site's), 408 (too slow),
        413 (too large), 400 (cannot be read) or 503 (try again).
        """
        if scope["type"] != "http":
            return
        site: str | None = None
        try:
            if scope["method"] != "POST" or scope["path"] not in _ALLOWED_PATHS:
                raise RequestError(404)
            site = self.keys.site_of(scope["headers"])
            if site is None:
                if self.denials is not None:
                    self.denials.note_headers(scope["headers"], str(scope["client"][0]))
                raise RequestError(401)
            self.traffic.seen(site)
            with (
                self.connections.serving(scope["client"], site),
                self.budget.account(site) as account,
            ):
                await self._pass_on(site, scope, receive, send, account)
        except DisconnectedError:
            return
        except RequestError as error:
            self.traffic.refused(error.status, site, scope.get("client"))
            # The rest of the body, if there is one, is not read.
            await send_answer(send, error.status, headers=[(b"connection", b"close")])

    async def _pass_on(
        self, site: str, scope: Scope, receive: Receive, send: Send, account: Allowance
    ) -> None:
        path = scope["path"]
        async with self.answers.receiving(site, path):
            body = await read_body(scope["headers"], receive, account)
        headers = [(key, value) for key, value in scope["headers"] if key not in _OWN_HEADERS]
        if path == _PULL_MESSAGES:
            reply = await self._pull(site, body, headers, receive)
        elif path == PUSH_MESSAGES:
            reply = self.answers.begin(site, body, headers)
        elif path == PUSH_OBJECT:
            reply = await self.answers.add(site, body, headers)
        else:
            reply = await self._pass_plain(site, path, body, headers)
        if reply is not None:
            self.traffic.passed(site, len(body), len(reply.content))
            if self.denials is not None:
                self.denials.note_answer(site, path, reply.status_code, reply.content)
            # httpx has decoded the content, so its length is new.
            unfit = {*_OWN_HEADERS, b"content-encoding"}
            raw = [(key.lower(), value) for key, value in reply.headers.raw]
            passed_on = [(key, value) for key, value in raw if key not in unfit]
            passed_on.append((b"content-length", str(len(reply.content)).encode()))
            await send_answer(send, reply.status_code, reply.content, passed_on)

    async def _pull(
        self, site: str, body: bytes, headers: Headers, receive: Receive
    ) -> httpx.Response | None:
        if (again := self.orders.not_fetched(site)) is not None:
            return protobuf_response(again)
        reply = await self.polling.pull(site, body, headers, receive)
        if reply is not None and reply.status_code == 200:
            self.orders.sent(site, reply.content)
        return reply

    async def _pass_plain(
        self, site: str, path: str, body: bytes, headers: Headers
    ) -> httpx.Response:
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest

        if path == _CONFIRM:
            order = parsed(ConfirmMessageReceivedRequest.FromString, body).message_object_id
            if self.orders.belongs_to_other_site(site, order):
                raise RequestError(403)
        reply = await self._post(path, body, headers)
        if path == _PULL_OBJECT and reply.status_code == 200:
            number = parsed(PullObjectRequest.FromString, body).object_id
            self.orders.fetched(site, number, reply.content)
        return reply

    async def _post(self, path: str, body: bytes, headers: Headers) -> httpx.Response:
        """Send a request to the SuperLink; a SuperNode should try again where that failed.

        A SuperNode that is told of an error of the SuperLink would end.
        """
        import httpx

        try:
            reply = await self.client.post(path, content=body, headers=headers)
        except httpx.TransportError:  # the SuperLink is being restarted
            raise RequestError(503) from None
        if reply.status_code == 500:
            raise RequestError(503)
        return reply


class _CountRepeats(logging.Filter):
    """Lets one message of a kind through per minute, with the number of those left out before.

    Strangers can cause as many messages of uvicorn and asyncio as they like.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is logged."""
        kind = record.pathname, record.lineno, str(record.msg).partition("\n")[0]
        last, left_out = self._kinds.get(kind, (-_REPEAT_SECONDS, 0))
        now = time.monotonic()
        if now - last < _REPEAT_SECONDS:
            self._kinds[kind] = last, left_out + 1
            return False
        if len(self._kinds) > MAX_CONNECTIONS:
            self._kinds.clear()
        self._kinds[kind] = now, 0
        if left_out:
            record.msg = f"{record.msg} ({left_out:,} more of these since the last one)"
        return True


def _run_proxy(host: ServerHost, listen: str) -> None:
    """Serve on ``listen`` until a signal comes."""
    import httpx
    import uvicorn

    trusted = ssl.create_default_context(cafile=str(host.authority))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    client = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{host.control_port}",
        verify=trusted,
        timeout=_SUPERLINK_TIMEOUT_SECONDS,
        limits=limits,
        trust_env=False,
    )
    traffic = ProxyTraffic.of(host)
    room = min(MAX_CONNECTIONS, (raise_file_limit() - OTHER_FILES) // 2)
    connections = Connections(room, traffic.crowded)
    proxy = Proxy(
        client,
        SiteKeys(site_keys(host)),
        connections,
        host.state / "answers",
        host.answer_bytes,
        traffic,
        Denials(host),
        host.state / DATABASE_FILE,
    )
    # uvicorn has no setting for this.
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = _TLS_HANDSHAKE_SECONDS  # type: ignore[attr-defined]
    settings = uvicorn.Config(
        proxy,
        ssl_certfile=str(host.certificate),
        ssl_keyfile=str(host.certificate_key),
        log_level="warning",
        access_log=False,
        lifespan="off",
        loop="asyncio",
        http=watched_protocol(connections),
        ws="none",
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_keep_alive=_OPEN_AFTER_ANSWER_SECONDS,
        limit_concurrency=room,
        backlog=ACCEPTED_AT_ONCE,
        server_header=False,
    )
    settings.load()
    assert settings.ssl is not None
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(_CountRepeats())
    listeners = CountedListener.on(listen, host.port, connections)
    watch = Watch(host, proxy, settings.ssl, trusted)
    asyncio.run(_serve(uvicorn.Server(settings), watch, listeners))


async def _serve(server: uvicorn.Server, watch: Watch, listeners: list[CountedListener]) -> None:
    watching = asyncio.create_task(watch.run())
    try:
        await server.serve(list(listeners))
    finally:
        watching.cancel()


def main() -> None:
    """Run the proxy of the server whose folder is the first argument."""
    host = read_server(Path(sys.argv[1]))
    _run_proxy(host, sys.argv[2] if len(sys.argv) > 2 else host.listen)


if __name__ == "__main__":
    main()

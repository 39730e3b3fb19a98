"""Who may use the proxy, and how much of it: keys, connections, files, and memory for requests.

A request is authenticated by its headers, before any of its body is read. Flower signs each fleet
request of a SuperNode: the headers have the site's public key, a timestamp, and a signature of the
timestamp.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import errno
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flamma.deploy.keys import load_public_key, public_key_bytes

Headers = Sequence[tuple[bytes, bytes]]
_Peer = tuple[str, int]
"""The address and port of the other end of a connection."""

PUBLIC_KEY_HEADER = b"flwr-public-key"
SIGNATURE_HEADER = b"flwr-signature"
TIMESTAMP_HEADER = b"flwr-timestamp"

SIGNATURE_SECONDS, CLOCK_DRIFT_SECONDS = 305.0, 5.0
"""How old a signature may be, and how far in the future; the SuperLink goes by the same."""
MAX_CONNECTIONS = 1000
"""Connections at a time; a request over one more is answered with 503."""
_MAX_STRANGERS = 256
"""Connections on which no site has authenticated yet, counted before TLS begins; one more replaces
the oldest of the address that has most of them. The others of ``MAX_CONNECTIONS`` are for sites."""
MAX_OPEN_FILES = 4096
"""Files that a process of a host may have open. A connection of the proxy takes two: the site's
and the one to the SuperLink."""
OTHER_FILES = 64
"""Files that the proxy has open besides connections."""
_WAITING_CONNECTIONS, ACCEPTED_AT_ONCE = 2048, 64
"""Connections that the system keeps until they are accepted, and those that are accepted before
the ones that were closed give back their files."""
_STRANGER_SECONDS = 10.0
"""Seconds in which a new connection must bring its first authenticated request."""
_IDLE_SECONDS = 120.0
"""Seconds between the end of one request of a connection and the beginning of the next."""
_MAX_SITE_BYTES = 128 * 1024 * 1024
"""Bytes of requests that the proxy holds for one site at a time."""
_MAX_TOTAL_BYTES = 512 * 1024 * 1024
"""Bytes of requests that the proxy holds for all sites together."""


class BusyError(Exception):
    """The proxy holds as much as it may; the site should try again."""


class SiteKeys:
    """The registered keys of a federation's sites.

    Parameters
    ----------
    files : mapping
        The files of the sites' public keys, by the sites' names.

    Raises
    ------
    DeployError
        If a file is not the public key of a site.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.replace(files)

    def replace(self, files: Mapping[str, Path]) -> None:
        """Go by other keys from now on; if one cannot be read, all stay as they are."""
        self._keys = {
            base64.b64encode(public_key_bytes(path)): (name, load_public_key(path))
            for name, path in files.items()
        }

    def known(self) -> dict[str, bytes]:
        """Return the sites' keys as they are in the headers, by the sites' names."""
        return {name: key for key, (name, _) in self._keys.items()}

    def site_of(self, headers: Headers) -> str | None:
        """Return the site that has signed a request, None if none has or not just now."""
        values = [
            [value for key, value in headers if key == name]
            for name in (PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER)
        ]
        # With a header that is there twice, the SuperLink may mean the other one.
        if any(len(found) != 1 for found in values):
            return None
        [[key], [signature], [timestamp]] = values
        if key not in self._keys or not _is_fresh(timestamp):
            return None
        name, public_key = self._keys[key]
        return name if has_signed(public_key, timestamp, signature) else None


def _is_fresh(timestamp: bytes) -> bool:
    try:
        signed = datetime.datetime.fromisoformat(timestamp.decode("ascii"))
        age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
    except (ValueError, TypeError, OverflowError):  # or one without a time zone
        return False
    return -CLOCK_DRIFT_SECONDS < age < SIGNATURE_SECONDS


def has_signed(public_key: object, timestamp: bytes, signature: bytes) -> bool:
    """Return whether a timestamp is signed with the private key of a public one."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    assert isinstance(public_key, ec.EllipticCurvePublicKey)
    try:
        raw = base64.b64decode(signature, validate=True)
        public_key.verify(raw, timestamp, ec.ECDSA(hashes.SHA256()))
    except (ValueError, InvalidSignature):
        return False
    return True


class Connections:
    """Closes connections that no site uses.

    A connection is a stranger's until a site has authenticated a request on it. It is closed if
    that takes too long, or if there are too many of them. Between two requests of a site there
    is a time limit, too.

    Parameters
    ----------
    room : int
        How many connections there may be, strangers and sites together.
    tell : callable, optional
        What is called with the address of each stranger that had to make room.
    """

    def __init__(
        self, room: int = MAX_CONNECTIONS, tell: Callable[[str], object] = lambda address: None
    ) -> None:
        self.most_strangers = min(_MAX_STRANGERS, room // 2)
        self._tell = tell
        self._transports: dict[_Peer, asyncio.Transport] = {}
        self._timers: dict[_Peer, asyncio.TimerHandle] = {}
        self._strangers: dict[_Peer, socket.socket] = {}  # the oldest first
        self._sites: dict[_Peer, str] = {}

    def accepted(self, peer: _Peer, connection: socket.socket) -> None:
        """Count a connection on which TLS has not begun, and make room for it."""
        self.closed(peer)
        self._strangers[peer] = connection
        if len(self._strangers) > self.most_strangers:
            # asyncio tells nobody of a connection that ends before TLS is ready.
            for other, old in list(self._strangers.items()):
                if old.fileno() < 0:
                    self.closed(other)
        while len(self._strangers) > self.most_strangers:
            self.make_room()

    def make_room(self) -> bool:
        """Close the oldest stranger of the address with most of them; False if there is none."""
        if not self._strangers:
            return False
        [(address, _)] = Counter(address for address, _ in self._strangers).most_common(1)
        self._cut(next(peer for peer in self._strangers if peer[0] == address))
        self._tell(address)
        return True

    def opened(self, peer: _Peer, transport: asyncio.Transport) -> None:
        """Give a connection on which TLS is ready some time for its first request."""
        self._transports[peer] = transport
        self._limit(peer, _STRANGER_SECONDS)

    def closed(self, peer: _Peer) -> None:
        """Forget a connection."""
        self._strangers.pop(peer, None)
        self._transports.pop(peer, None)
        self._sites.pop(peer, None)
        if timer := self._timers.pop(peer, None):
            timer.cancel()

    def cut_off(self, sites: Collection[str]) -> None:
        """Close all connections of some sites."""
        for peer in [peer for peer, site in self._sites.items() if site in sites]:
            self._cut(peer)

    @contextmanager
    def serving(self, peer: _Peer, site: str) -> Iterator[None]:
        """Keep a connection open while a request that a site has signed is answered."""
        self._strangers.pop(peer, None)
        self._sites[peer] = site
        if timer := self._timers.pop(peer, None):
            timer.cancel()
        try:
            yield
        finally:
            if peer in self._transports:
                self._limit(peer, _IDLE_SECONDS)

    def _limit(self, peer: _Peer, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[peer] = loop.call_later(seconds, self._cut, peer)

    def _cut(self, peer: _Peer) -> None:
        transport, connection = self._transports.get(peer), self._strangers.get(peer)
        self.closed(peer)
        if transport is not None:
            transport.abort()
        elif connection is not None:
            with suppress(OSError):  # it has ended by itself; if not, asyncio reads its end
                connection.shutdown(socket.SHUT_RDWR)


class CountedListener(socket.socket):
    """A listening socket whose connections are counted as soon as they are accepted."""

    connections: Connections

    @classmethod
    def on(cls, listen: str, port: int, connections: Connections) -> list[CountedListener]:
        """Return a listener for each address that ``listen`` stands for."""
        found = socket.getaddrinfo(listen, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listeners = []
        for family, address in dict.fromkeys((family, address) for family, *_, address in found):
            plain = socket.create_server(address[:2], family=family)
            listener = cls(plain.family, plain.type, plain.proto, plain.detach())
            listener.connections = connections
            listeners.append(listener)
        return listeners

    def listen(self, backlog: int = _WAITING_CONNECTIONS) -> None:
        """Begin to listen; asyncio's number is that of connections to accept at once."""
        super().listen(max(backlog, _WAITING_CONNECTIONS))

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection.

        Without room for one more file a stranger is closed first: asyncio would wait and fill
        the log with tracebacks.
        """
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self.connections.make_room():
                raise BlockingIOError from None
            raise
        self.connections.accepted((str(address[0]), int(address[1])), connection)
        return connection, address


def raise_file_limit() -> int:
    """Let this process have ``MAX_OPEN_FILES`` open if the system does; return how many it may."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def watched_protocol(connections: Connections) -> type[asyncio.Protocol]:
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


class Budget:
    """Counts the bytes of requests that are held for each site."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """The bytes that are held for all sites together."""
        return self._held.total()

    @contextmanager
    def account(self, site: str) -> Iterator[Allowance]:
        """Give back at the end what one request of a site has taken."""
        account = Allowance(self, site)
        try:
            yield account
        finally:
            self._held[site] -= account.taken

    def take(self, site: str, size: int) -> None:
        """Count bytes for a site.

        Raises
        ------
        BusyError
            If that would be more than one site, or all together, may have.
        """
        if self._held[site] + size > _MAX_SITE_BYTES or self.total + size > _MAX_TOTAL_BYTES:
            raise BusyError
        self._held[site] += size


class Allowance:
    """What one request has taken of the budget."""

    def __init__(self, budget: Budget, site: str) -> None:
        self._budget = budget
        self._site = site
        self.taken = 0

    def take(self, size: int) -> None:
        """Count bytes; see :meth:`Budget.take`."""
        self._budget.take(self._site, size)
        self.taken += size

"""The live page: a small server on loopback that tells its readers when the directory changes.

It answers three addresses (the page, its data, and the events) with what it makes itself, and
serves no files, so no address can lead out of the directory it watches.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from flamma.errors import FlammaError
from flamma.experiments.folder import ABOUT, CLIENTS, CONFIG, POPULATION, ROUNDS
from flamma.io import Stamp, stamp
from flamma.reports.document import Document, Facts, as_json, plotly, read_document, render
from flamma.reports.reading import RUNS, TABLE, Pace

_DEFAULT_HOST = "127.0.0.1"
_POLL_SECONDS = 0.4
"""Time between two looks at the directory."""

_KEEP_ALIVE_SECONDS = 15.0
"""Time after which a silent connection gets a comment, so that no proxy closes it."""

_MAX_READERS = 32
"""Readers of events at the same time; each holds a thread."""

_FINAL_FETCH_SECONDS = 1.0
"""Time for readers to fetch the last version before the server ends."""

_WATCHED = (CONFIG, ROUNDS, CLIENTS, ABOUT, POPULATION)
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _DirectoryWatch:
    """The page of a directory as it is now, and a version that changes with the directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = threading.Condition()
        self.stopped = False
        self.readers = 0
        self._born = time.time_ns()  # so that no two servers have the same versions
        self._count = 1
        self._seen = self._signature()
        self._building = threading.Lock()
        self._built: tuple[str, Document] | None = None
        self._cost = 0.0
        self._pace = Pace()

    @property
    def version(self) -> str:
        """The version that readers were told of last."""
        return f"{self._born}-{self._count}"

    def document(self) -> Document:
        """Return the page's document, made once per version."""
        with self._building:
            version = self.version
            if self._built is None or self._built[0] != version:
                started = time.monotonic()
                self._built = (version, self._pace.timed(_document(self.path)))
                self._cost = time.monotonic() - started
            return self._built[1]

    def poll(self) -> None:
        """Look at the files once, and tell the readers if anything has changed."""
        signature = self._signature()
        if signature != self._seen:
            self._seen = signature
            with self.changed:
                self._count += 1
                self.changed.notify_all()

    def run(self) -> None:
        """Poll until stopped, less often where making the page takes long."""
        while not self.stopped:
            self.poll()
            time.sleep(max(_POLL_SECONDS, min(10.0, 5 * self._cost)))

    def stop(self) -> None:
        """End polling and the connections of all readers."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def versions(self) -> Iterator[str | None]:
        """Yield the version now and whenever it changes; None as a heartbeat."""
        told = ""
        while not self.stopped:
            with self.changed:
                if self.version == told:
                    self.changed.wait(_KEEP_ALIVE_SECONDS)
                now = self.version
            if self.stopped:
                return
            yield None if now == told else now
            told = now

    def _signature(self) -> Stamp:
        files = [self.path / name for name in (*_WATCHED, TABLE)]
        files += sorted((self.path / RUNS).glob(f"*/*/*/seed-*/{ROUNDS}"))
        return stamp(*files)


def _document(path: Path) -> Document:
    try:
        found = read_document(path)
    except FlammaError:
        return Document(
            "waiting",
            f"Waiting for a run in {path.name or path}",
            "This page is filled as soon as the first round is finished.",
            [],
            Facts([]),
            [],
            f"FLamma watches {path.name or path}",
        )
    return replace(found, footer=f"FLamma watches {path.name or path}")


class LiveServer(ThreadingHTTPServer):
    """Serves the live page of one directory; a context manager that begins and ends it.

    Parameters
    ----------
    path : Path
        The directory of a run or of a comparison; it need not exist yet.
    host : str
        The address to listen on; only this machine can reach the default.
    port : int
        The port; any free one by default.

    Raises
    ------
    FlammaError
        If the place cannot be listened on, or the ``report`` extra is missing.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, host: str = _DEFAULT_HOST, port: int = 0) -> None:
        plotly()  # without which there is no page to serve
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.watch = _DirectoryWatch(path)
        self.host = host
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise FlammaError(
                f"cannot listen on {host} port {port} ({error}): name another --host or --port."
            ) from error

    @property
    def url(self) -> str:
        """The address of the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def is_known(self, host: str) -> bool:
        """Return whether the Host header of a request names this server.

        An address, localhost and the host it listens on do; another name that resolves to this
        machine (DNS rebinding) does not.
        """
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if name.lower() in ("localhost", self.host.lower()):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a reader that disconnects is not an error."""

    def __enter__(self) -> Self:
        for work in (self.watch.run, self.serve_forever):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.poll()  # so that readers get the last round too
        if self.watch.readers:
            time.sleep(_FINAL_FETCH_SECONDS)
        self.watch.stop()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "FLamma", ""
    timeout = 30

    def do_GET(self) -> None:
        if not self.server.is_known(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "This server goes by another name")
            return
        answers = {
            "/": self._page,
            "/document.json": self._document,
            "/events": self._events,
        }
        answer = answers.get(self.path.partition("?")[0])
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            answer()

    def _page(self) -> None:
        self._send("text/html", render(self.server.watch.document(), live=True))

    def _document(self) -> None:
        self._send("application/json", as_json(self.server.watch.document()))

    def _send(self, kind: str, text: str) -> None:
        content = text.encode()
        self._begin(kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _begin(self, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in _HEADERS.items():
            self.send_header(name, value)

    def _events(self) -> None:
        watch = self.server.watch
        with watch.changed:
            if watch.readers >= _MAX_READERS:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "Too many readers")
                return
            watch.readers += 1
        try:
            self._begin("text/event-stream")
            self.end_headers()
            self.wfile.write(b"retry: 1000\n\n")
            for version in watch.versions():
                event = ": still here" if version is None else f"event: version\ndata: {version}"
                self.wfile.write(f"{event}\n\n".encode())
                self.wfile.flush()
        except OSError:
            pass  # the reader has disconnected
        finally:
            with watch.changed:
                watch.readers -= 1

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing: the terminal belongs to the run."""

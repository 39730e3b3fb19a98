"""The real proxy and raw sockets: strangers hold no memory, slow bodies end, honest sites go on."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import psutil
import pytest

from deploy.signing import load_key, make_keys, signed
from flamma.deploy import proxy as proxy_module
from flamma.deploy.admission import Connections
from flamma.deploy.hosts import read_server
from flamma.deploy.http_messages import _MAX_REQUEST_BYTES
from flamma.deploy.init import init
from flamma.deploy.proxy import _CountRepeats
from flamma.deploy.rotation import rotate_site

PUSH = "/v1/fleet/get-fab"
BODY_SECONDS, STRANGER_SECONDS, STRANGERS = 2.0, 3.0, 20
START = f"""
import sys
from flamma.deploy import admission, http_messages, proxy
http_messages.BODY_GRACE_SECONDS = {BODY_SECONDS}
http_messages.SLOWEST_BYTES_PER_SECOND = 2**20
admission._STRANGER_SECONDS, admission._MAX_STRANGERS = {STRANGER_SECONDS}, {STRANGERS}
proxy._TLS_HANDSHAKE_SECONDS = {STRANGER_SECONDS}
proxy.main()
"""
START_WITH_FEW_FILES = """
import resource, sys
from flamma.deploy import proxy
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv.pop()),) * 2)
proxy.main()
"""


class SuperLink(BaseHTTPRequestHandler):
    """Stands for the SuperLink: answers with the number of bytes it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        size = len(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", str(len(str(size))))
        self.end_headers()
        self.wfile.write(str(size).encode())

    def log_message(self, *_):
        pass


class Running:
    """A proxy in a process of its own, and the sites' and the strangers' way to it."""

    def __init__(self, folder, process):
        self.host = read_server(folder / "server")
        self.process = psutil.Process(process.pid)
        self.key = load_key(folder / "sites" / "site0" / "site.key")
        self.trusted = ssl.create_default_context(cafile=str(self.host.authority))

    def connected(self):
        plain = socket.create_connection(("127.0.0.1", self.host.port), 10)
        return self.trusted.wrap_socket(plain, server_hostname="127.0.0.1")

    def begun(self, headers, length=_MAX_REQUEST_BYTES):
        """A connection on which a request has begun whose body is still to come."""
        lines = [f"POST {PUSH} HTTP/1.1", "host: proxy", f"content-length: {length}"]
        lines += [f"{key}: {value}" for key, value in headers.items()]
        connection = self.connected()
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection

    def push(self, content=b"x" * 100_000):
        """An honest site's request."""
        with httpx.Client(verify=self.trusted, trust_env=False) as client:
            address = f"https://127.0.0.1:{self.host.port}{PUSH}"
            return client.post(address, content=content, headers=signed(self.key), timeout=20)

    @property
    def memory(self):
        return self.process.memory_info().rss


@contextlib.contextmanager
def proxied(folder, code, *arguments, log=None):
    """A proxy whose process runs some code, with what stands for a SuperLink behind it."""
    init(folder, ["site0"], {"dataset": "own", "held_out": 0.2})
    host = read_server(folder / "server")
    link = ThreadingHTTPServer(("127.0.0.1", host.control_port), SuperLink)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(host.folder / "server.pem", host.folder / "server.key")
    link.socket = context.wrap_socket(link.socket, server_side=True)
    threading.Thread(target=link.serve_forever, daemon=True).start()
    words = [sys.executable, "-c", code, str(host.folder), "127.0.0.1", *map(str, arguments)]
    process = subprocess.Popen(words, stderr=log)
    try:
        found = Running(folder, process)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError, httpx.TransportError):
                assert found.push().text == "100000"
                break
            time.sleep(0.2)
        yield found
    finally:
        process.terminate()
        process.wait(20)
        link.shutdown()
        link.server_close()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with proxied(tmp_path_factory.mktemp("proxy") / "fed", START) as found:
        yield found


def is_closed(connection, within):
    """Read what is left, and return whether the other end has closed the connection in time."""
    end = time.monotonic() + within
    connection.settimeout(0.2)
    while time.monotonic() < end:
        try:
            if not connection.recv(2**16):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def send_as_much_as_goes(connections, seconds=4.0):
    """Send bodies on all connections at once, until they are closed or nobody reads them."""
    sent, end, piece = 0, time.monotonic() + seconds, bytes(2**16)
    left = dict.fromkeys(connections, _MAX_REQUEST_BYTES - 1)
    for connection in left:
        connection.setblocking(False)
    while left and time.monotonic() < end:
        _, ready, _ = select.select([], list(left), [], 0.2)
        if not ready:
            break
        for connection in ready:
            try:
                size = connection.send(piece[: left[connection]])
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                continue
            except OSError:
                del left[connection]
                continue
            sent += size
            left[connection] -= size
            if not left[connection]:
                del left[connection]
    return sent


def test_unfinished_requests_of_strangers_hold_next_to_no_memory(running, tmp_path):
    stranger, _ = make_keys(tmp_path)
    before = running.memory
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(running.begun(signed(stranger) if k % 2 else {})) for k in range(40)
        ]
        send_as_much_as_goes(opened)
        assert running.memory - before < 50 * 2**20  # they would send 1.28 GB
        assert running.push().text == "100000"
        assert all(is_closed(connection, 20.0) for connection in opened)


def test_a_stranger_gets_its_answer_before_it_has_sent_a_body(running):
    with running.begun({}) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


def test_the_slow_body_of_a_site_is_cut_off(running):
    with running.begun(signed(running.key)) as connection:
        begun = time.monotonic()
        connection.settimeout(0.3)
        answer = b""
        while not answer and time.monotonic() < begun + 30:
            with contextlib.suppress(TimeoutError):
                connection.sendall(b"x")
                answer = connection.recv(100)
        assert answer.startswith(b"HTTP/1.1 408 ")
    assert running.push().text == "100000"


def test_the_large_body_of_a_site_goes_through(running):
    assert running.push(bytes(5 * 2**20)).text == str(5 * 2**20)
    with running.begun(signed(running.key), _MAX_REQUEST_BYTES + 1) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("text", [b"", b"POST /v1/fl", b"POST /v1/fleet/get-fab HTTP/1.1\r\na: "])
def test_a_connection_without_a_request_is_closed(running, text):
    with running.connected() as connection:
        connection.sendall(text)
        assert is_closed(connection, 30.0)


def test_a_connection_without_tls_is_closed(running):
    with socket.create_connection(("127.0.0.1", running.host.port), 10) as connection:
        assert is_closed(connection, 30.0)


def test_headers_without_an_end_are_refused(running):
    with running.connected() as connection:
        with contextlib.suppress(OSError):
            for _ in range(100):
                connection.sendall(b"x" * 10_000)
        assert is_closed(connection, 30.0)


def test_honest_sites_get_in_among_many_strangers(running):
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(running.connected()) for _ in range(3 * STRANGERS)]
        assert running.push().text == "100000"
        assert is_closed(opened[0], 10.0)  # the oldest of them made room


def try_without_tls(tmp_path, files, idle):
    """There are more of them than the proxy may have files open."""
    with (
        open(tmp_path / "log", "wb") as log,
        proxied(tmp_path / "fed", START_WITH_FEW_FILES, files, log=log) as running,
        contextlib.ExitStack() as stack,
    ):
        address = ("127.0.0.1", running.host.port)
        opened = [stack.enter_context(socket.create_connection(address, 20)) for _ in range(idle)]
        for _ in range(3):
            assert running.push().text == "100000"
        assert is_closed(opened[0], 20.0)  # the oldest of them made room
        assert running.process.num_fds() < files
    assert (tmp_path / "log").stat().st_size < 20_000


def test_connections_that_never_begin_tls_shut_no_site_out(tmp_path):
    try_without_tls(tmp_path, files=256, idle=400)


@pytest.mark.slow
def test_1500_connections_that_never_begin_tls_shut_no_site_out(tmp_path):
    try_without_tls(tmp_path, files=1024, idle=1500)


def test_the_address_with_most_strangers_makes_room():
    told = []
    connections = Connections(room=8, tell=told.append)
    with contextlib.ExitStack() as stack:
        pairs = [tuple(stack.enter_context(end) for end in socket.socketpair()) for _ in range(10)]
        for port, (own, _) in enumerate(pairs):
            address = "192.0.2.1" if port in (0, 5) else "192.0.2.2"
            connections.accepted((address, port), own)
        closed = [port for port, (_, other) in enumerate(pairs) if is_closed(other, 0.1)]
    assert closed == [1, 2, 3, 4, 6, 7]  # four are left: two of each
    assert told == ["192.0.2.2"] * 6


def test_a_connection_that_has_ended_makes_room_first():
    told = []
    connections = Connections(room=4, tell=told.append)
    with contextlib.ExitStack() as stack:
        pairs = [tuple(stack.enter_context(end) for end in socket.socketpair()) for _ in range(3)]
        for port, (own, _) in enumerate(pairs):
            connections.accepted(("192.0.2.1", port), own)
            if port == 1:
                own.close()
        assert not is_closed(pairs[0][1], 0.1)
    assert told == []


def test_messages_of_one_kind_are_counted_not_repeated(caplog, monkeypatch):
    logger = logging.getLogger("test of the proxy")
    logger.addFilter(_CountRepeats())

    def warn():
        logger.warning("Invalid %s", "request")

    for _ in range(1235):
        warn()
    logger.warning("another")
    monkeypatch.setattr(proxy_module, "_REPEAT_SECONDS", 0.0)
    warn()
    assert caplog.messages == [
        "Invalid request",
        "another",
        "Invalid request (1,234 more of these since the last one)",
    ]


def test_a_replaced_key_opens_nothing_any_more(running):
    """The last test, since the site has another key afterwards."""
    folder, old = running.host.folder.parent, running.key
    with running.begun(signed(old), length=1) as connection:
        connection.sendall(b"x")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        rotate_site(folder, "site0")
        assert is_closed(connection, 30.0)  # it would have been open for a minute
    assert running.push().status_code == 401
    running.key = load_key(folder / "sites" / "site0" / "site.key")
    assert running.push().text == "100000"

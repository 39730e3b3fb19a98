"""A site's supervisor deregisters a SuperNode that died, signed with the site's key."""

from __future__ import annotations

import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from flwr.proto.fleet_pb2 import DeactivateNodeRequest, DeactivateNodeResponse

from flamma.deploy import deregister as module
from flamma.deploy.admission import SiteKeys
from flamma.deploy.deregister import _last_node_id
from flamma.deploy.hosts import read_host, read_server
from flamma.deploy.init import init
from flamma.deploy.proxy import _ALLOWED_PATHS
from flamma.errors import DeployError


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deregister") / "fed"
    init(folder, ["site0"], {"dataset": "own", "held_out": 0.2})
    return folder


@pytest.fixture
def superlink(federation):
    """A server with the federation's certificate that remembers what it was sent."""
    requests = []

    class SuperLink(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            requests.append((self.path, dict(self.headers), body))
            answer = DeactivateNodeResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    host = read_server(federation / "server")
    server = ThreadingHTTPServer(("127.0.0.1", 0), SuperLink)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(host.folder / "server.pem", host.folder / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.requests = requests
    yield server
    server.shutdown()
    server.server_close()


def log(federation, text):
    logs = read_host(federation / "sites/site0").logs
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "supernode.log").write_text(text, encoding="utf-8")


def run_main(monkeypatch, folder, server="127.0.0.1:1"):
    monkeypatch.setattr(sys, "argv", ["deregister", str(folder), server])
    module.main()


def test_the_last_node_is_deregistered_by_a_request_that_the_proxy_lets_through(
    federation, superlink, monkeypatch
):
    log(federation, "INFO : SuperNode ID: 11\nrestarted\nINFO : SuperNode ID: 7\n")
    run_main(monkeypatch, federation / "sites/site0", f"127.0.0.1:{superlink.server_port}")
    [(path, headers, body)] = superlink.requests
    assert path in _ALLOWED_PATHS
    assert DeactivateNodeRequest.FromString(body).node_id == 7
    keys = SiteKeys({"site0": read_server(federation / "server").public_key("site0")})
    raw = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
    assert keys.site_of(raw) == "site0"


def test_a_node_that_was_never_registered_is_not_deregistered(federation, superlink, monkeypatch):
    log(federation, "INFO : Starting\n")
    run_main(monkeypatch, federation / "sites/site0", f"127.0.0.1:{superlink.server_port}")
    assert not superlink.requests


def test_a_server_that_is_gone_is_a_line_in_the_log_and_no_error(federation, monkeypatch, capsys):
    log(federation, "INFO : SuperNode ID: 7\n")
    run_main(monkeypatch, federation / "sites/site0")
    assert "could not deregister node 7" in capsys.readouterr().err


def test_the_server_has_no_node(federation, monkeypatch):
    with pytest.raises(DeployError, match="only a site has a SuperNode"):
        run_main(monkeypatch, federation / "server")


def test_only_the_end_of_a_long_log_is_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOG_TAIL_BYTES", 100)
    path = tmp_path / "supernode.log"
    path.write_text("SuperNode ID: 3\n" + "x" * 200, encoding="utf-8")
    assert _last_node_id(path) is None
    path.write_text("x" * 200 + "SuperNode ID: 4\n", encoding="utf-8")
    assert _last_node_id(path) == 4
    assert _last_node_id(tmp_path / "none") is None

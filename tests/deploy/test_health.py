"""Health: one sentence and an exit status; and what a service manager hears."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading

import pytest

from flamma.cli import main
from flamma.deploy import health as module
from flamma.deploy.hosts import read_host
from flamma.deploy.processes import Process
from flamma.deploy.service_manager import ALIVE, READY, notify


@pytest.fixture
def fed(tmp_path):
    folder = tmp_path / "fed"
    assert main(["deploy", "init", str(folder), "--sites", "1"]) == 0
    return folder


def running(host, *names):
    """Write down that processes of a host run: this very one."""
    own = Process.of(os.getpid()).as_table()
    host.state.mkdir(exist_ok=True)
    table = {"supervisor": own, "processes": {name: {**own, "restarts": 0} for name in names}}
    (host.state / "processes.json").write_text(json.dumps(table))


def test_a_host_that_does_not_run_is_not_healthy(fed, capsys):
    capsys.readouterr()
    assert main(["deploy", "health", str(fed)]) == 1
    told = capsys.readouterr().out
    assert told == "not healthy: the server does not run; site0 does not run.\n"
    assert main(["deploy", "health", str(fed / "sites/site0"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["healthy"] is False


def test_a_site_needs_both_processes_and_a_ready_worker(fed, capsys):
    host = read_host(fed / "sites/site0")
    running(host, "supernode")
    assert module.health_of([host]).problems == ("the worker of site0 is being restarted",)
    running(host, "supernode", "worker")
    assert module.health_of([host]).problems == ("the worker of site0 is not ready yet",)
    beside = threading.Timer(0.3, (host.state / "ready").write_text, [""])
    beside.start()
    assert module.health_of([host], wait=30).healthy
    capsys.readouterr()
    assert main(["deploy", "health", str(host.folder)]) == 0
    assert capsys.readouterr().out == "healthy: site0.\n"


def test_a_server_must_answer_with_its_certificate(fed):
    host = read_host(fed / "server")
    running(host, "superlink", "proxy", "superexec")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(host.folder / "server.pem", host.folder / "server.key")
    with socket.create_server(("127.0.0.1", host.port)) as listening:

        def answer():
            plain, _ = listening.accept()
            with plain, context.wrap_socket(plain, server_side=True):
                pass

        beside = threading.Thread(target=answer)
        beside.start()
        found = module.health_of([host])
        beside.join()
    assert found.problems == (
        f"the SuperLink of the server does not answer on port {host.control_port}",
    )
    assert len(module.health_of([host]).problems) == 2


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_service_manager_hears_that_it_is_up_and_alive(tmp_path, monkeypatch, kind):
    address = str(tmp_path / "notify") if kind == "path" else f"@flamma-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address if kind == "path" else f"\0{address[1:]}")
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify(READY, ALIVE)
        assert manager.recv(100) == b"READY=1\nWATCHDOG=1"
    notify(READY)  # nobody listens any more, which is no error
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY)

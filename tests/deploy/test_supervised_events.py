"""A supervisor tells of its processes, and a service manager that it is alive."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time

import pytest

from flamma.deploy import supervisor as module
from flamma.deploy.commands import Command
from flamma.deploy.hosts import SiteHost


@pytest.fixture
def signals():
    """Give the handlers of this process back afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_a_process_that_ends_is_restarted_and_all_of_it_is_told(tmp_path, monkeypatch):
    host = SiteHost(tmp_path / "a", "a", "127.0.0.1:1")
    host.folder.mkdir()
    short = Command("worker", ("sh", "-c", "exit 3"))
    monkeypatch.setattr(module, "commands_of", lambda *_: [short])
    monkeypatch.setattr(module, "_MIN_RESTART_SECONDS", 0.1)
    supervisor = module.Supervisor(host)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        threading.Timer(2.5, supervisor._stop).start()
        heard = []
        beside = threading.Thread(target=hear, args=(manager, heard))
        beside.start()
        supervisor.run()
        beside.join()
    assert heard[0] == "READY=1"
    assert heard.count("WATCHDOG=1") > 2
    assert heard[-1] == "STOPPING=1"
    lines = (host.logs / "flamma.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    events = [event["event"] for event in found]
    assert events[:3] == ["host started", "process started", "process ended"]
    assert "process restarted" in events
    assert events[-1] == "host stopped"
    assert found[2]["details"] == {"process": "worker", "code": 3}
    assert {event["host"] for event in found} == {"a"}


def hear(manager, heard):
    while not heard or heard[-1] != "STOPPING=1":
        heard.append(manager.recv(100).decode())


@pytest.mark.usefixtures("signals")
def test_a_log_is_bounded_while_its_process_writes_it(tmp_path, monkeypatch):
    host = SiteHost(tmp_path / "a", "a", "127.0.0.1:1")
    host.folder.mkdir()
    text = f"yes | head -c {3 * module._MAX_LOG_BYTES}; echo end; exec sleep 60"
    monkeypatch.setattr(module, "commands_of", lambda *_: [Command("worker", ("sh", "-c", text))])
    supervisor = module.Supervisor(host)
    log, older = host.logs / "worker.log", host.logs / "worker.log.1"

    def stop():
        until = time.monotonic() + 60
        while time.monotonic() < until and not (older.exists() and log.stat().st_size < 100):
            time.sleep(0.1)
        supervisor.stopping = True

    beside = threading.Thread(target=stop)
    beside.start()
    supervisor.run()
    beside.join()
    assert log.stat().st_size < 100
    assert 0 < older.stat().st_size <= module._MAX_LOG_BYTES
    assert b"end\n" in older.read_bytes() + log.read_bytes()

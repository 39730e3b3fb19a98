"""What an operator sees and does while a real federation runs; slow, since it is run.

``pytest -m slow tests/deploy/test_operations.py``
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request

import pytest

from deploy.prometheus_text import parsed, value
from deployment import (
    FLAMMA,
    TINY,
    after_round,
    children,
    finish,
    flamma,
    kill,
    recorded_pid,
    rounds,
    same_on_one_machine,
    sha,
    wait_for,
)
from flamma.deploy.hosts import read_server
from flamma.deploy.init import free_ports

pytestmark = pytest.mark.slow


def metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return parsed(answer.read().decode())


def events(folder, *words):
    done = flamma("deploy", "logs", folder, "--json", *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_run_is_watched_measured_backed_up_and_resumed_elsewhere(tmp_path):
    fed, out = tmp_path / "fed", tmp_path / "fed/server/runs/first"
    [port] = free_ports(1)
    words = ("--sites", 2, "--metrics-port", port, "--set", "data.uneven=0.3")
    assert flamma("deploy", "init", fed, *words).returncode == 0
    assert flamma("deploy", "health", fed).returncode == 1
    done = flamma("deploy", "up", fed)
    assert done.returncode == 0, done.stderr
    try:
        _operate(fed, out, port, tmp_path)
    finally:
        flamma("deploy", "down", fed)
    _resume_elsewhere(fed, tmp_path)


def _operate(fed, out, port, tmp_path):
    healthy = flamma("deploy", "health", fed)
    assert (healthy.returncode, healthy.stdout) == (0, "healthy: the server, site0, site1.\n")
    words = ["deploy", "run", fed, "--out", out, *TINY, "--strategy", "flamma", "--rounds", 20]
    run = subprocess.Popen(
        [*FLAMMA, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    after_round(out, 2)
    words = [*FLAMMA, "deploy", "watch", str(fed), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watching:
        try:
            told = json.loads(watching.stdout.readline())
            with urllib.request.urlopen(told["url"], timeout=60) as page:
                assert b"FLamma" in page.read()
        finally:
            watching.kill()
    first = metrics(port)
    run_label = dict(next(iter(first["flamma_run_info"])))["run"]
    done = flamma("deploy", "backup", fed, tmp_path / "backup.tar", "--keys")
    assert done.returncode == 0, done.stderr
    [app] = children(recorded_pid(fed / "server", "superexec"))
    kill(app)
    counted = value(metrics(port), "flamma_run_rounds_total", run=run_label)
    assert counted >= 2, "a ServerApp that is gone takes nothing along"
    run.kill()
    finish(run)
    kinds = {event["event"] for event in events(fed)}
    assert {"host started", "process started", "site joined", "run began"} <= kinds
    assert {"round began", "round ended", "order done", "run began"} <= kinds
    joined = [e for e in events(fed, "--host", "server") if e["event"] == "site joined"]
    assert {e["part"] for e in joined} == {"proxy", "server app"}
    ended = [e for e in events(fed) if e["event"] == "round ended"]
    done_orders = [e for e in events(fed, "--host", "site0") if e["event"] == "order done"]
    assert {e["run"] for e in ended} == {e["run"] for e in done_orders} == {run_label}
    text = (fed / "server/logs/flamma.jsonl").read_text()
    for secret in [*fed.rglob("*.key"), *fed.rglob("*.secret")]:
        assert secret.read_text().strip().splitlines()[-1] not in text
    found = metrics(port)
    assert value(found, "flamma_site_connected", site="site0") == 1
    assert value(found, "flamma_proxy_bytes_total", site="site0", direction="up") > 0


def _resume_elsewhere(fed, tmp_path):
    """The server's folder is lost; from the backup it is made anew at another place."""
    ports = read_server(fed)
    shutil.rmtree(fed / "server")
    done = flamma("deploy", "restore", tmp_path / "backup.tar", tmp_path / "moved/server")
    assert done.returncode == 0, done.stderr
    shutil.move(fed / "sites", tmp_path / "moved/sites")
    moved, out = tmp_path / "moved", tmp_path / "moved/server/runs/first"
    assert read_server(moved).port == ports.port
    before = len(rounds(out))
    assert 2 <= before < 20
    done = flamma("deploy", "up", moved)
    assert done.returncode == 0, done.stderr
    try:
        done = flamma("resume", out, timeout=1500)
        assert done.returncode == 0, done.stderr
    finally:
        flamma("deploy", "down", moved)
    assert len(rounds(out)) == 20
    assert sha(out) == sha(same_on_one_machine(out, tmp_path / "local"))


def test_health_is_told_while_a_process_is_restarted(tmp_path):
    fed = tmp_path / "fed"
    assert flamma("deploy", "init", fed, "--sites", 1).returncode == 0
    starting = subprocess.Popen([*FLAMMA, "deploy", "start", str(fed / "server")])
    try:
        done = flamma("deploy", "health", fed / "server", "--wait", 120)
        assert done.returncode == 0, done.stdout
        kill(recorded_pid(fed / "server", "proxy"))
        wait_for(
            lambda: "proxy" in flamma("deploy", "health", fed / "server").stdout,
            what="the proxy missing",
        )
        done = flamma("deploy", "health", fed / "server", "--wait", 120)
        assert done.returncode == 0, done.stdout
    finally:
        starting.terminate()
        starting.wait(60)

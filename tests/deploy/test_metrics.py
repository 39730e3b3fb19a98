"""Metrics are those of the records, in Prometheus' format, on the loopback address only."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request

import pytest

from deploy.prometheus_text import parsed, value
from flamma.deploy.exposition import MetricFamily, exposition
from flamma.deploy.hosts import ServerHost
from flamma.deploy.init import free_ports
from flamma.deploy.known_runs import remember_run
from flamma.deploy.metrics import _serve_metrics, _ServerMetrics
from flamma.deploy.run_metrics import _failure_kind
from flamma.errors import DeployError
from flamma.experiments.config import make_config
from flamma.records import CostRecord, Evaluation, OfferRecord, Outcomes, RoundRecord, Warmup


@pytest.fixture
def server(tmp_path):
    host = ServerHost(tmp_path / "server", "127.0.0.1", 1, 2, ("a", "b"), *free_ports(1))
    host.state.mkdir(parents=True)
    return host


def record(number, **more):
    failed = {1: "no answer in 40 s", 2: 'x"\n' * 9} if number == 2 else {}
    metrics = {"accuracy": 50.0 + number, "accuracy_variance": 4.5}
    return RoundRecord(
        number,
        (0, 1, 2),
        OfferRecord(0.5),
        Outcomes((), failed, (3, 2, 1), 6),
        evaluation=Evaluation(metrics),
        cost=CostRecord(bytes_up=10, bytes_down=20, seconds_train=2.0, seconds=3.0),
        **more,
    )


@pytest.fixture
def run(server, tmp_path):
    """A run of three rounds, as it lies on the disk while it goes on."""
    folder = tmp_path / 'run "x"'
    folder.mkdir()
    (folder / "config.toml").write_text(make_config({"rounds": 9}).as_toml())
    (folder / "run.json").write_text(json.dumps({"instance": "0123456789abcdef"}))
    warmup = Warmup({0: "not connected"}, 1, 2, 5.0, 0.5)
    first, *others = record(1, warmup=warmup), record(2), record(3)
    write(folder, [first, *others])
    remember_run(server, folder, 17)
    return folder


def write(folder, records):
    (folder / "rounds.jsonl").write_text("".join(f"{r.to_json()}\n" for r in records))


def test_the_metrics_of_a_run_are_sums_of_its_records(server, run):
    found = parsed(_ServerMetrics(server).page())
    this = {"run": "0123456789ab"}
    assert value(found, "flamma_run_info", **this, folder='run "x"', strategy="flamma") == 1
    assert value(found, "flamma_run_rounds_total", **this) == 3
    assert value(found, "flamma_run_rounds_planned", **this) == 9
    assert value(found, "flamma_run_gamma", **this) == 0.5
    assert value(found, "flamma_run_epochs_total", **this) == 18
    assert value(found, "flamma_run_accuracy_percent", **this) == 53
    assert value(found, "flamma_run_accuracy_variance", **this) == 4.5
    assert value(found, "flamma_run_failures_total", **this, reason="no answer") == 1
    assert value(found, "flamma_run_failures_total", **this, reason="not connected") == 1
    assert value(found, "flamma_run_failures_total", **this, reason="other") == 1
    assert value(found, "flamma_run_bytes_total", **this, direction="up") == 31
    assert value(found, "flamma_run_bytes_total", **this, direction="down") == 62
    assert value(found, "flamma_run_seconds_total", **this, phase="train") == 6
    assert value(found, "flamma_run_seconds_total", **this, phase="other") == 3
    assert value(found, "flamma_run_seconds_total", **this, phase="warm-up") == 5
    assert value(found, "flamma_run_finished", **this) == 0
    assert value(found, "flamma_run_waiting", **this) == 0
    assert value(found, "flamma_site_connected", site="a") == 0


def test_what_changes_on_the_disk_changes_here(server, run):
    metrics, this = _ServerMetrics(server), {"run": "0123456789ab"}
    metrics.page()
    write(run, [record(1), record(2)])  # went on from a checkpoint
    (run / "sites.json").write_text(json.dumps({"waiting_since": 12.5}))
    found = parsed(metrics.page())
    assert value(found, "flamma_run_rounds_total", **this) == 2
    assert value(found, "flamma_run_waiting", **this) == 1
    sites = {"a": {"requests": 1, "bytes_up": 5, "bytes_down": 6, "seen": time.time()}, "gone": {}}
    (server.state / "traffic.json").write_text(
        json.dumps({"sites": {"a": sites["a"]}, "refusals": {"401": 7}})
    )
    found = parsed(metrics.page())
    assert value(found, "flamma_site_connected", site="a") == 1
    assert value(found, "flamma_proxy_bytes_total", site="a", direction="up") == 5
    assert value(found, "flamma_proxy_refusals_total", status="401") == 7


def test_damaged_files_are_left_out_and_end_nothing(server, run):
    (run / "rounds.jsonl").write_text("damage\n")
    (run / "config.toml").write_text("damage\n")
    (server.state / "traffic.json").write_text("[1]")
    with open(server.state / "runs.jsonl", "a") as known:
        known.write('damage\n{"path": 1}\n[]\n')
    found = parsed(_ServerMetrics(server).page())
    assert value(found, "flamma_run_rounds_total", run="0123456789ab") == 0
    assert "flamma_run_gamma" not in found


def test_it_is_served_to_this_host_only(server, run):
    serving = _serve_metrics(server)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.metrics_port}"
    try:
        assert serving.server_address[0] == "127.0.0.1"
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert parsed(answer.read().decode())
        elsewhere = urllib.request.Request(f"{url}/metrics", headers={"Host": "evil.example"})
        for asked in (f"{url}/", f"{url}/../host.toml", elsewhere):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(asked)
    finally:
        serving.shutdown()
        serving.server_close()


def test_values_and_labels_are_escaped():
    odd = MetricFamily("odd", "gauge", "a\nb\\")
    for number, text in enumerate(('"', "\\", "\n", "\\n", "ü")):
        odd.add(number, label=text)
    odd.add(float("nan"), label="nan")
    odd.add(float("-inf"), label="inf")
    odd.add(None, label="none")
    found = parsed(exposition([odd, MetricFamily("empty", "gauge", "nothing")]))
    assert value(found, "odd", label="\n") == 2
    assert value(found, "odd", label="\\n") == 3
    assert value(found, "odd", label="inf") == float("-inf")
    assert len(found["odd"]) == 7
    assert "empty" not in found


def test_a_site_cannot_make_labels():
    assert {_failure_kind(f"I made up reason {number}") for number in range(99)} == {"other"}


@pytest.mark.parametrize("port", [1, 2, -1, 65536])
def test_a_port_that_cannot_be_is_refused(tmp_path, port):
    with pytest.raises(DeployError, match="metrics_port"):
        ServerHost(tmp_path, "127.0.0.1", 1, 2, ("a",), port)

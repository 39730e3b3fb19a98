"""Servers and sites that die in the middle of a run; slow, since timeouts must pass.

``pytest -m slow tests/deploy``
"""

from __future__ import annotations

import json
import signal

import psutil
import pytest

from deployment import (
    SLOW_WORK,
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
from flamma.experiments.folder import SiteStates

pytestmark = pytest.mark.slow


def test_a_supernode_killed_in_mid_round_comes_back_with_the_same_key(trial, tmp_path):
    out = tmp_path / "run"
    run = trial.begin(out, *SLOW_WORK, "--rounds", 12)
    after_round(out, 1)
    wait_for(lambda: trial.workers("site1"), what="training at site1")
    before = json.loads((trial.folder / "server/state/nodes.json").read_text())
    kill(recorded_pid(trial.folder / "sites/site1", "supernode"))
    code, _, progress = finish(run)
    assert code == 0, progress
    failed = [sorted(record.outcome.failed) for record in rounds(out)]
    assert [1] in failed
    assert all(clients in ([], [1]) for clients in failed)
    assert failed[-1] == []  # it is back, under its own number
    away = next(record for record in rounds(out) if record.outcome.failed)
    assert len(away.selected) == 3
    found = trial.status()
    assert found["sites"]["site1"] == "online"
    assert found["hosts"]["site1"]["processes"]["supernode"]["restarts"] >= 1
    assert json.loads((trial.folder / "server/state/nodes.json").read_text()) == before


def test_a_straggler_past_the_limit_is_left_behind_and_taken_back(trial, tmp_path):
    out = tmp_path / "run"
    run = trial.begin(out, *SLOW_WORK, "--rounds", 6, "--set", "engine.wait=40")
    after_round(out, 1)
    late = wait_for(lambda: trial.workers("site2"), what="training at site2")[0]
    kill(late, signal.SIGSTOP)
    after_round(out, 2)
    kill(late, signal.SIGCONT)
    code, _, progress = finish(run)
    assert code == 0, progress
    failed = [dict(record.outcome.failed) for record in rounds(out)]
    assert {2: "no answer in 40 s"} in failed
    assert failed[-1] == {}


def test_a_run_goes_on_when_the_superlink_is_killed_and_restarted(trial, tmp_path):
    out = tmp_path / "run"
    run = trial.begin(out, *SLOW_WORK, "--rounds", 6)
    after_round(out, 2)
    old = recorded_pid(trial.folder / "server", "superlink")
    kill(old)
    code, _, progress = finish(run)
    assert code == 0, progress
    assert recorded_pid(trial.folder / "server", "superlink") != old
    assert [record.round for record in rounds(out)] == [1, 2, 3, 4, 5, 6]
    assert not any(record.outcome.failed for record in rounds(out))
    assert sha(out) == sha(same_on_one_machine(out, tmp_path / "local"))


def test_a_killed_server_app_goes_on_by_itself_from_the_last_finished_round(trial, tmp_path):
    out = tmp_path / "run"
    run = trial.begin(out, "--strategy", "flamma", "--rounds", 8, *TINY)
    after_round(out, 2)
    for process in ("superexec", None):
        owner = recorded_pid(trial.folder / "server", "superexec")
        [app] = wait_for(lambda owner=owner: children(owner), what="the ServerApp")
        kill(owner if process else app)
        wait_for(lambda app=app: not psutil.pid_exists(app), what="its end")
        done = len(rounds(out))
        after_round(out, done + 1, 300)
    code, _, told = finish(run, 600)
    assert code == 0, told
    assert told.count("the run goes on after round") == 2
    assert [record.round for record in rounds(out)] == list(range(1, 9))
    assert sha(out) == sha(same_on_one_machine(out, tmp_path / "local"))
    for site in ("site0", "site1", "site2"):  # nothing of the tasks is left behind
        worker = recorded_pid(trial.folder / "sites" / site, "worker")
        wait_for(lambda worker=worker: not children(worker), 120, f"the end of tasks at {site}")


def test_an_outage_of_all_sites_costs_time_and_no_round(trial, tmp_path):
    """The proxy forwards nothing until the SuperLink has given all sites up."""
    out = tmp_path / "run"
    run = trial.begin(out, "--strategy", "fedavg", "--rounds", 8, *TINY)
    after_round(out, 2)
    proxy = recorded_pid(trial.folder / "server", "proxy")
    kill(proxy, signal.SIGSTOP)
    try:
        wait_for(lambda: (found := SiteStates.read(out)) and found.waiting_since, 200, "waiting")
    finally:
        kill(proxy, signal.SIGCONT)
    code, _, told = finish(run, 600)
    assert code == 0, told
    assert "waits: " in told
    assert all(len(record.outcome.failed) < 2 for record in rounds(out))
    assert json.loads((out / "run.json").read_text())["waits"]


def test_an_interrupt_stops_the_run_and_it_can_be_resumed(trial, tmp_path):
    out = tmp_path / "run"
    run = trial.begin(out, "--strategy", "fedavg", "--rounds", 5, *TINY)
    after_round(out, 1)
    kill(run.pid, signal.SIGINT)
    code, _, told = finish(run)
    assert code == 130
    assert "interrupted" in told
    wait_for(
        lambda: not children(recorded_pid(trial.folder / "server", "superexec")),
        what="the end of the ServerApp",
    )
    assert trial.status()["runs"][-1]["status"] == "stopped"
    again = flamma("resume", out, timeout=300)
    assert again.returncode == 0, again.stderr
    assert sha(out) == sha(same_on_one_machine(out, tmp_path / "local"))


def test_half_of_a_federation_is_started_again_and_down_ends_it_all(trial):
    """Last of this module: it takes the federation down."""
    found = trial.status()
    table = json.loads((trial.folder / "sites/site2/state/processes.json").read_text())
    kill(table["supervisor"]["pid"])
    orphan = found["hosts"]["site2"]["processes"]["supernode"]["pid"]
    done = flamma("deploy", "up", trial.folder)
    assert done.returncode == 0, done.stderr
    assert "site2; already running: the server, site0, site1" in done.stdout
    found = trial.status()
    pids = [p["pid"] for host in found["hosts"].values() for p in host["processes"].values()]
    assert orphan not in pids
    done = flamma("deploy", "down", trial.folder)
    assert done.stdout.strip() == "down: site2, site1, site0, the server"
    for pid in [orphan, *pids]:
        with pytest.raises(ProcessLookupError):
            kill(pid, signal.SIGCONT)
    assert "nothing to end" in flamma("deploy", "down", trial.folder).stdout

"""Three sites behind TLS on loopback: the real processes, from the command line."""

from __future__ import annotations

import csv
import json
import ssl
import subprocess
from operator import attrgetter

import httpx
import numpy as np
import pytest
from PIL import Image

from deploy.signing import load_key, signed
from deployment import (
    SLOW_WORK,
    TINY,
    after_round,
    finish,
    flamma,
    kill,
    rounds,
    same_on_one_machine,
    sha,
    wait_for,
)
from flamma.deploy.commands import _site_commands, environment
from flamma.deploy.hosts import read_host, read_server
from flamma.deploy.init import free_ports
from flamma.deploy.keys import make_site_key

STRATEGIES = ("flamma", "qffl", "fedavg")
same_parts = attrgetter(
    "selected", "outcome.local_epochs", "offer.decay_factor", "outcome.abstained", "evaluation"
)


def test_local_and_deployed_are_the_same_bit_for_bit(trial, tmp_path):
    """All three at a time, as users would, and two selected of three in each round."""
    runs = {
        name: trial.begin(
            tmp_path / name, "--strategy", name, "--rounds", 2, "--per-round", 2, *TINY
        )
        for name in STRATEGIES
    }
    ended = {name: finish(run) for name, run in runs.items()}
    for name, (code, shown, progress) in ended.items():
        assert code == 0, progress
        assert "round 2/2" in progress
        assert "2 of 2 rounds" in shown
        alone = same_on_one_machine(tmp_path / name, tmp_path / f"{name}-local")
        for far, near in zip(rounds(tmp_path / name), rounds(alone), strict=True):
            assert same_parts(far) == same_parts(near)
        assert sha(tmp_path / name) == sha(alone)
        assert sha(tmp_path / name) in shown


def test_what_goes_wrong_at_sites_is_recorded_and_the_run_goes_on(trial, tmp_path):
    """A client that raises, one under another's name, and one whose process dies."""
    sites = {name: trial.folder / "sites" / name / "site.toml" for name in ("site0", "site1")}
    texts = {name: path.read_text() for name, path in sites.items()}
    out = tmp_path / "run"
    run = trial.begin(out, *SLOW_WORK, "--rounds", 7)
    try:
        after_round(out, 1)
        sites["site0"].write_text('name = "site0"\n[data]\nnpz = "lost.npz"\n')
        sites["site1"].write_text(texts["site1"].replace('name = "site1"', 'name = "site2"'))
        after_round(out, 3)
        for name, path in sites.items():
            path.write_text(texts[name])
        kill(wait_for(lambda: trial.workers("site2"), what="training at site2")[0])
    finally:
        for name, path in sites.items():
            path.write_text(texts[name])
    code, shown, progress = finish(run)
    assert code == 0, progress
    failed = [dict(record.outcome.failed) for record in rounds(out)]
    assert failed[0] == {}
    third = rounds(out)[2]
    assert "lost.npz" in third.outcome.failed[0]
    assert "site2" in third.outcome.failed[1]
    assert third.outcome.epochs_total == 100
    assert {0, 1} <= set(third.evaluation.unscored)
    lost = [{**record.outcome.failed, **record.evaluation.unscored} for record in rounds(out)]
    assert any("died" in reasons.get(2, "") for reasons in lost)
    assert failed[-1] == {}
    assert f"failures {sum(map(len, failed))}" in shown


@pytest.mark.slow
def test_a_site_keeps_to_its_own_limits_and_counts_for_what_was_written_down(trial, tmp_path):
    site, host = trial.folder / "sites" / "site1" / "site.toml", trial.folder / "server/host.toml"
    texts = {path: path.read_text() for path in (site, host)}
    try:
        site.write_text(f"limits = {{epochs = 4}}\n{texts[site]}")
        host.write_text(f"{texts[host]}\n[samples]\nsite2 = 7\n")
        out = tmp_path / "run"
        run = trial.begin(out, *TINY, "--strategy", "fedavg", "--epochs", 5, "--rounds", 1)
        code, _, progress = finish(run)
    finally:
        for path, text in texts.items():
            path.write_text(text)
    assert code == 0, progress
    failed = rounds(out)[0].outcome.failed
    assert failed == {1: "the order is for 5 epochs, and this site does at most 4"}
    assert (out / "population.csv").read_text().splitlines()[3].split(",")[1] == "7"


@pytest.mark.slow
def test_sites_with_data_of_their_own(trial, tmp_path):
    """Two with arrays, one with pictures, one with a cost of its own, two that are not honest."""
    places = [trial.folder / "sites" / f"site{k}" for k in range(3)]
    texts = [(place / "site.toml").read_text() for place in places]
    rng = np.random.default_rng(0)
    for place in places[:2]:
        x, y = rng.integers(0, 256, (30, 1, 6, 6), dtype=np.uint8), np.arange(30) % 2
        np.savez(place / "own.npz", x=x, y=y)
    for number in range(24):
        label = places[2] / "pictures" / ("no", "yes")[number % 2]
        label.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (6, 6), dtype=np.uint8)).save(label / f"{number}.png")
    sources = ["npz = 'own.npz'", "npz = 'own.npz'\nheld_out = 0.5", "folder = 'pictures'"]
    try:
        for number, (place, source) in enumerate(zip(places, sources, strict=True)):
            cost = (
                'behaviour = "free-rider"\n',
                'cost = 0.3\nbehaviour = {name = "data-inflater", factor = 2}\n',
                "cost = 0.2\ntell_cost = true\n",
            )[number]
            (place / "site.toml").write_text(f'name = "site{number}"\n{cost}[data]\n{source}\n')
        out = tmp_path / "run"
        run = trial.begin(out, *TINY, "--rounds", 2, "--set", "data.dataset=own")
        code, _, progress = finish(run)
        assert code == 0, progress
    finally:
        for place, text in zip(places, texts, strict=True):
            (place / "site.toml").write_text(text)
    with open(out / "population.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["name"] for row in table] == ["site0", "site1", "site2"]
    assert [row["samples"] for row in table] == ["24", "30", "19"]  # the second has 15
    assert [row["held_out"] for row in table] == ["6", "15", "5"]
    assert [row["cost"] for row in table][1:] == ["nan", "0.2"]  # the second did not tell
    assert not any(record.outcome.failed for record in rounds(out))
    assert all(record.outcome.efforts is None for record in rounds(out))  # nobody knows
    assert json.loads((out / "model.json").read_text())["labels"] == ["no", "yes"]
    about = json.loads((out / "run.json").read_text())
    assert about["model_not_delivered"] == {}
    assert flamma("export", out, "--out", tmp_path / "server.safetensors").returncode == 0
    for number, place in enumerate(places):
        model = tmp_path / f"{number}.safetensors"
        done = flamma("deploy", "fetch", place, "--out", model)
        assert done.returncode == 0, done.stderr
        assert about["params_sha256"] in done.stdout
        assert model.read_bytes() == (tmp_path / "server.safetensors").read_bytes()


def test_a_site_without_a_registered_key_does_not_get_in(trial, tmp_path):
    """A stranger has everything a site has, but for a key that the server knows."""
    site = trial.folder / "sites" / "site0"
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    for name in ("host.toml", "site.toml", "ca.crt", "process.secret"):
        (stranger / name).write_bytes((site / name).read_bytes())
    make_site_key(stranger / "site.key", tmp_path / "stranger.pub", "stranger")
    said = supernode(stranger)  # the proxy answers 401, on which a SuperNode ends by itself
    assert "SuperNode ID" not in said.stdout
    plain = supernode(stranger, "--insecure")
    assert plain.returncode != 0
    assert all(state == "online" for state in trial.status()["sites"].values())


def supernode(folder, *more):
    host = read_host(folder)
    [port] = free_ports(1)
    words = list(_site_commands(host, True, port)[0].words)
    if more:  # without TLS, and so without a key, which Flower lets be used with TLS only
        for flag in ("--root-certificates", "--auth-supernode-private-key"):
            del words[words.index(flag) : words.index(flag) + 2]
        more = (*more, "--max-retries", "2")
    try:
        return subprocess.run(
            [*words, *more],
            env=environment(host),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"it was let in: {error.stdout}")


def post(server, path, content=b"", headers=None):
    trusted = ssl.create_default_context(cafile=str(server.authority))
    with httpx.Client(verify=trusted, trust_env=False, timeout=60) as client:
        address = f"https://127.0.0.1:{server.port}{path}"
        return client.post(address, content=content, headers=headers)


def test_the_proxy_keeps_control_requests_from_the_server(trial):
    """Nobody on the network can register keys, submit runs or take over a task."""
    server = read_server(trial.folder)
    for path in ("control/register-node", "control/start-run", "runtime/acquire-task"):
        assert post(server, f"/v1/{path}").status_code == 404
    for path in ("/docs", "/v1/fleet/register-node", "/v1/fleet/../control/start-run"):
        assert post(server, path).status_code == 404


def test_the_proxy_refuses_what_is_too_large_or_not_signed(trial):
    server = read_server(trial.folder)
    try:
        key = load_key(trial.folder / "sites" / "site0" / "site.key")
        large = post(server, "/v1/fleet/push-object", bytes(40 * 1024 * 1024), signed(key))
        assert large.status_code == 413
    except httpx.WriteError:
        pass  # it did not even read to the end
    headers = {"content-type": "application/x-protobuf"}
    unsigned = post(server, "/v1/fleet/pull-messages", headers=headers)
    assert unsigned.status_code == 401


def test_up_again_status_and_a_port_in_use(trial):
    again = flamma("deploy", "up", trial.folder)
    assert again.returncode == 0
    assert "already up" in again.stdout
    shown = flamma("deploy", "status", trial.folder)
    assert "running" in shown.stdout
    assert "online" in shown.stdout
    start = flamma("deploy", "start", trial.folder / "server")
    assert start.returncode == 2
    assert "already running" in start.stderr
    assert len(start.stderr.strip().splitlines()) == 1


def test_a_run_directory_in_use_and_bad_options(trial, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.toml").write_text("rounds = 1\n")
    for words, reason in (
        (("--out", out), "already holds a run"),
        (("--out", tmp_path / "new", "--strategy", "flama"), "did you mean flamma"),
        (("--out", tmp_path / "new", "--set", "data.clients=5"), "3 sites, not 5"),
    ):
        done = flamma("deploy", "run", trial.folder, *words)
        assert done.returncode == 2
        assert reason in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "new").exists()
    assert json.loads(flamma("deploy", "status", trial.folder, "--json").stdout)["hosts"]

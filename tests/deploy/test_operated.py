"""A federation with a bad site, and with sites that leave and get new keys, during a run; slow.

``pytest -m slow tests/deploy``
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl

import httpx
import pytest

from deploy.signing import load_key, signed
from deployment import TINY, Trial, after_round, finish, flamma, rounds, wait_for
from flamma.deploy.control import Control, known_nodes
from flamma.deploy.hosts import read_server
from flamma.deploy.loopback import up

pytestmark = pytest.mark.slow

CUSTOMIZED = """
import os, sys
from pathlib import Path

def half(contents, push_object_fn, **options):
    if Path(os.environ["BAD_SITE"]).read_text() == "half":
        push_object_fn(*list(contents)[0])
        return
    push(contents, push_object_fn=push_object_fn, **options)

if "flamma.deploy.proxy" in sys.orig_argv:
    from flamma.deploy import answers
    answers._UPLOAD_IDLE_SECONDS = 5.0
if "flamma.deploy.supernode" in sys.orig_argv and "site2" in " ".join(sys.orig_argv):
    from flwr.supernode import start_client_internal as supernode
    push = supernode.push_object_contents_from_iterable
    supernode.push_object_contents_from_iterable = half
"""
"""What the processes of the federation do as they start; only site2 is bad."""
LARGE = """
import os
from pathlib import Path

from flamma.engines.flower.client_app import app as honest
from flamma.engines.flower.final_messages import _FILE_RECORD
from flwr.app import ConfigRecord

def app(message, context):
    mischief = Path(os.environ["BAD_SITE"]).read_text()
    if mischief == "damaged" and _FILE_RECORD in message.content:
        file = message.content[_FILE_RECORD]["file"]
        file.data = file.data[:-1] + bytes([file.data[-1] ^ 1])
    reply = honest(message=message, context=context)
    if mischief == "large":
        reply.content["junk"] = ConfigRecord({"junk": os.urandom(1_000_000)})
    return reply
"""
MOST_BYTES = 200_000
PATIENCE = 400.0
"""Seconds that a federation has to get ready; the machine may be busy."""


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    place = tmp_path_factory.mktemp("operated")
    folder, code, told = place / "fed", place / "code", place / "told"
    code.mkdir()
    (code / "sitecustomize.py").write_text(CUSTOMIZED)
    (code / "large.py").write_text(LARGE)
    told.write_text("")
    assert flamma("deploy", "init", folder, "--sites", 3).returncode == 0
    with (folder / "sites/site2/host.toml").open("a") as file:
        file.write('app = "large:app"\n')
    path = folder / "server/host.toml"
    path.write_text(f"answer_bytes = {MOST_BYTES}\n{path.read_text()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("BAD_SITE", str(told))
        up(folder, timeout=PATIENCE)
        yield Trial(folder)
        flamma("deploy", "down", folder)


def after(out, condition, what):
    """Wait for a round after this moment whose failures are as they should be."""
    count = len(rounds(out))
    wait_for(lambda: any(condition(dict(r.outcome.failed)) for r in rounds(out)[count:]), 300, what)


def failures(out, client):
    return [
        record.outcome.failed[client] for record in rounds(out) if client in record.outcome.failed
    ]


def test_a_bad_site_costs_nobody_else_anything(trial, tmp_path):
    out, told = tmp_path / "run", trial.folder.parent / "told"
    words = (*TINY, "--strategy", "fedavg", "--set", "per_round=3", "--set", "engine.wait=900")
    run = trial.begin(out, *words, "--rounds", 500)
    try:
        after_round(out, 1, 300)
        for kind, reason in (
            ("half", "its answer stopped after"),
            ("large", f"its answer has more than {MOST_BYTES} bytes"),
        ):
            told.write_text(kind)
            after(out, lambda failed, reason=reason: reason in failed.get(2, ""), reason)
            told.write_text("")
            after(out, lambda failed: 2 not in failed, "honesty")
        assert [failures(out, client) for client in (0, 1)] == [[], []]
    finally:
        told.write_text("")
        end(trial, run)


def test_a_model_that_is_damaged_on_its_way_or_at_the_site_is_not_fetched(trial, tmp_path):
    out, told = tmp_path / "run", trial.folder.parent / "told"
    sites, model = trial.folder / "sites", tmp_path / "model.safetensors"
    try:
        told.write_text("damaged")
        code, _, progress = finish(trial.begin(out, *TINY, "--rounds", 1))
    finally:
        told.write_text("")
    assert code == 0, progress
    about = json.loads((out / "run.json").read_text())
    [(name, reason)] = about["model_not_delivered"].items()
    assert name == "site2"
    assert "the model is not what its checksum says" in reason
    assert "no model yet" in refused(flamma("deploy", "fetch", sites / "site2", "--out", model))
    done = flamma("deploy", "fetch", sites / "site0", "--out", model)
    assert about["params_sha256"] in done.stdout
    assert hashlib.sha256(model.read_bytes()).hexdigest() in done.stdout
    model.unlink()
    [file] = (sites / "site0" / "state" / "final").glob("*/model.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    told = refused(flamma("deploy", "fetch", sites / "site0", "--out", model))
    assert "is not what the server sent" in told
    assert not model.exists()


def refused(done):
    """Return the one line with which a command has ended."""
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    return line


def end(trial, run):
    """End a run by Flower's own command, whether this process ignores interrupts or not."""
    with Control(read_server(trial.folder)) as control:
        for found in control.runs():
            if not found.finished:
                control.stop(found.run_id)
    finish(run, 120)


def heartbeat(client, port, key, node):
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.node_pb2 import Node

    request = SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=30)
    return client.post(
        f"https://127.0.0.1:{port}/v1/fleet/send-node-heartbeat",
        content=request.SerializeToString(),
        headers={**signed(key), "content-type": "application/protobuf"},
        timeout=30,
    )


def test_sites_leave_and_get_new_keys_during_a_run(trial, tmp_path):
    server = read_server(trial.folder)
    trusted = ssl.create_default_context(cafile=str(server.authority))
    key = load_key(trial.folder / "sites/site1/site.key")
    nodes = known_nodes(server)
    out = tmp_path / "run"
    words = (*TINY, "--strategy", "fedavg", "--set", "per_round=3", "--set", "engine.wait=60")
    words += ("--set", "engine.min_sites=1")  # the run goes on while one site is left
    run = trial.begin(out, *words, "--rounds", 500)
    try:
        after_round(out, 1, 300)
        with httpx.Client(verify=trusted, trust_env=False) as client:
            ports = (server.port, server.control_port)
            for port in ports:
                assert heartbeat(client, port, key, nodes["site1"]).status_code == 200
            assert flamma("deploy", "remove-site", trial.folder, "site1").returncode == 0
            for port in ports:  # the proxy, and the SuperLink itself
                assert heartbeat(client, port, key, nodes["site1"]).status_code == 401
        after(out, lambda failed: 1 in failed, "a site that left")
        done = flamma("deploy", "rotate", trial.folder, "site2", "--json")
        assert json.loads(done.stdout)["in_force"]
        assert known_nodes(server)["site2"] != nodes["site2"]
        after(out, lambda failed: 2 in failed, "the old key is refused")
        after(out, lambda failed: 2 not in failed, "the new key is known")
        assert failures(out, 0) == []
        assert flamma("deploy", "rotate", trial.folder, "--server").returncode == 0
        assert flamma("deploy", "stop", trial.folder, "--host", "site2").returncode == 0
        after(out, lambda failed: 2 in failed, "a stopped site")
        assert flamma("deploy", "add-site", trial.folder, "west").returncode == 0
        assert up(trial.folder, timeout=PATIENCE).started == ("site2", "west")
        assert set(trial.status()["sites"]) == {"site0", "site2", "west"}
        after(out, lambda failed: set(failed) == {1}, "all others")
    finally:
        end(trial, run)

"""A new authority and a new certificate while a federation runs; slow, since it is run.

``pytest -m slow tests/deploy/test_rotation.py``
"""

from __future__ import annotations

import contextlib
import ssl

import httpx
import pytest

from deployment import TINY, Trial, after_round, finish, flamma, rounds, wait_for
from flamma.deploy.hosts import read_hosts, read_server
from flamma.deploy.loopback import up
from flamma.deploy.supervisor import recorded

pytestmark = pytest.mark.slow

ROUNDS = 30
PATIENCE = 400.0
"""Seconds that a federation has to get ready; the machine may be busy."""


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rotation") / "fed"
    assert flamma("deploy", "init", folder, "--sites", 2).returncode == 0
    up(folder, timeout=PATIENCE)
    yield Trial(folder)
    flamma("deploy", "down", folder)


def supervisors(trial):
    return [recorded(host)[0] for host in read_hosts(trial.folder)]


def trusts(authority, port):
    """Return whether a server answers there whose certificate is one of this authority."""
    trusted = ssl.create_default_context(cadata=authority)
    with contextlib.suppress(httpx.TransportError):
        httpx.get(f"https://127.0.0.1:{port}/", verify=trusted, trust_env=False, timeout=30)
        return True
    return False


def rotate(trial, what):
    done = flamma("deploy", "rotate", trial.folder, what)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_authority_comes_into_force_during_a_run_and_no_host_is_stopped(trial, tmp_path):
    server, out, before = read_server(trial.folder), tmp_path / "run", supervisors(trial)
    ports = (server.port, server.control_port)
    old = (trial.folder / "ca/ca.crt").read_text()
    words = (*TINY, "--strategy", "fedavg", "--set", "engine.wait=120")
    run = trial.begin(out, *words, "--rounds", ROUNDS)
    after_round(out, 2, 300)
    assert f"Then: flamma deploy rotate {trial.folder} --server" in rotate(trial, "--ca")
    new = (trial.folder / "ca/ca.crt").read_text()
    assert new != old
    after_round(out, len(rounds(out)) + 4, 300)
    assert all(trusts(old, port) and not trusts(new, port) for port in ports)
    rotate(trial, "--server")
    for port in ports:
        wait_for(lambda port=port: trusts(new, port), 120, f"the new certificate at {port}")
        assert not trusts(old, port)
    code, _, told = finish(run, 900)
    assert code == 0, told
    assert told.count("the run goes on after round") == 2
    assert [record.round for record in rounds(out)] == list(range(1, ROUNDS + 1))
    assert not any(record.outcome.failed for record in rounds(out))
    assert set(trial.status()["sites"].values()) == {"online"}
    assert supervisors(trial) == before

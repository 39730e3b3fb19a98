"""The live page: it follows a run, survives interruptions, and lets nothing out."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from urllib.request import urlopen

import numpy as np
import pytest

from browsing import until
from flamma.errors import FlammaError
from flamma.experiments.folder import POPULATION, RunFolder
from flamma.experiments.ledger import ledger_writer
from flamma.reports.live import LiveServer
from made_runs import made_config, made_record, made_run, write_checksums

GONE = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "Failed to load resource")


def append(path, first, last):
    """Go on with a run, as the process that runs it does; also drops what is after ``first``."""
    config, rng = made_config(), np.random.default_rng(1)
    folder = RunFolder(path)
    writer = ledger_writer(config.ledger, folder.run_id, folder.text(POPULATION))
    folder.open_at(first - 1, writer)
    for number in range(first, last + 1):
        folder.append(*made_record(config, number, np.full(8, 0.1), rng, trouble=False))
    folder.close()
    write_checksums(path)


def wait_for_rounds(page, number):
    until(
        page,
        "document.documentElement.dataset.ready === 'yes' && document.querySelector("
        f"'[data-chart=accuracy] .plot')?.data?.at(-1).x.at(-1) === {number}",
    )


def test_the_page_follows_a_run_through_restart_and_resume(tmp_path, opened):
    path = tmp_path / "run"
    with LiveServer(path) as server:
        port = server.server_address[1]
        with opened(server.url, lost=GONE) as page:
            assert page.inner_text("h1") == "Waiting for a run in run"
            made_run(path, done=3)
            wait_for_rounds(page, 3)
            assert "3 of 12 rounds are finished, about" in page.inner_text("#progress")
            assert page.get_attribute("#progress progress", "value") == "3"
            assert page.inner_text("#notices") == ""  # a healthy run misses nothing
            page.select_option("[data-explorer] select[name=client]", "1")
            append(path, 4, 6)
            wait_for_rounds(page, 6)
            assert page.input_value("[data-explorer] select[name=client]") == "1"
            append(path, 5, 5)  # resumed from round 4: the rounds after it are done again
            wait_for_rounds(page, 5)
            append(path, 6, 11)
            wait_for_rounds(page, 11)
            server.__exit__()
            until(page, "document.getElementById('live').textContent.includes('waiting')")
            append(path, 12, 12)
            with LiveServer(path, port=port):
                wait_for_rounds(page, 12)
                until(page, "document.getElementById('live').textContent === '● live'")
                assert page.inner_text("#notices") == page.inner_text("#progress") == ""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A run beside a secret, with links to the secret in the run."""
    place = tmp_path_factory.mktemp("live")
    (place / "secret.txt").write_text("the secret")
    path = made_run(place / "run")
    (path / "link.txt").symlink_to(place / "secret.txt")
    with LiveServer(path) as server:
        yield server


def ask(server, target, host=None, method="GET"):
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, target, skip_host=True)
    connection.putheader("Host", host if host is not None else f"127.0.0.1:{port}")
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    return answer, text


def test_events_tell_a_version_and_then_every_change(tmp_path):
    path = made_run(tmp_path / "run", done=2)
    with LiveServer(path) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")

        def next_version():
            while not (line := answer.readline()).startswith(b"data: "):
                assert line
            return line.removeprefix(b"data: ").strip()

        first = next_version()
        append(path, 3, 3)
        assert next_version() != first
        _, text = ask(server, "/document.json")
        assert "3 of 12 rounds" in json.loads(text)["subtitle"]
        connection.close()


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "//secret.txt",
        "/link.txt",
        "/run/link.txt",
        "/config.toml",
        "/checkpoint/",
        "http://127.0.0.1/../secret.txt",
        "/document.json/../../secret.txt",
        "/\x00",
    ],
)
def test_no_address_leads_to_a_file(served, target):
    if "\x00" in target:
        target = "/%00"
    answer, text = ask(served, target)
    assert answer.status == 404
    assert "the secret" not in text


def test_a_link_out_of_the_directory_is_not_read(tmp_path):
    (tmp_path / "secret.toml").write_text('seed = "the secret"\n')
    path = made_run(tmp_path / "run")
    (path / "config.toml").unlink()
    (path / "config.toml").symlink_to(tmp_path / "secret.toml")
    with LiveServer(path) as server:
        _, text = ask(server, "/document.json")
    assert "the secret" not in text
    assert "config.toml is not a file of this directory" in text.replace("Config", "config")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
def test_a_name_that_is_not_ours_is_refused(served, host):
    answer, text = ask(served, "/document.json", host=host)
    assert answer.status == 421
    assert "sections" not in text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:80"])
def test_this_machine_is_known(served, host):
    assert ask(served, "/document.json", host=host)[0].status == 200


def test_only_get_is_answered_and_nothing_is_kept(served):
    assert ask(served, "/", method="POST")[0].status == 501
    answer, _ = ask(served, "/")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_it_listens_on_loopback_only(served):
    assert served.server_address[0] == "127.0.0.1"
    assert served.is_private
    with pytest.raises(FlammaError, match="cannot listen on"):
        LiveServer(served.watch.path, port=served.server_address[1])


@contextmanager
def started(*arguments):
    """Run the command line in a process of its own, which does not outlive the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flamma", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_interruptible,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_flamma_watch_ends_on_an_interrupt(tmp_path):
    path = made_run(tmp_path / "run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with started("watch", path, "--port", port) as process:
        assert process.stderr.readline() == f"watch {path} at http://127.0.0.1:{port}/\n"
        assert process.stderr.readline() == "Ctrl-C ends it.\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert said == "flamma: interrupted.\n"


def test_flamma_run_watch_serves_the_run_and_ends_with_it(tmp_path):
    small = ("--rounds", 40, "--model", "logistic", "--train-samples", 100)
    with started("run", *small, "--out", tmp_path / "run", "--watch") as process:
        line = process.stderr.readline()
        url = line.removeprefix(f"watch {tmp_path / 'run'} at ").strip()
        with urlopen(f"{url}document.json", timeout=60) as answer:
            title = json.load(answer)["title"]
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0
    assert title in ("Waiting for a run in run", "FLamma on digits (shards)")
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in printed


def _interruptible():
    signal.signal(signal.SIGINT, signal.default_int_handler)

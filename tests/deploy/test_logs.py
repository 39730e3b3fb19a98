"""Reading events: of several hosts in order, since a time, as they happen, whatever is in them."""

from __future__ import annotations

import datetime
import itertools
import json
import os

import pytest

from flamma import events
from flamma.cli import main
from flamma.deploy import logs
from flamma.deploy.commands import environment
from flamma.deploy.hosts import ServerHost, SiteHost
from flamma.deploy.logs import EventFilter, event_line, events_of, host_journal, new_events
from flamma.errors import DeployError
from flamma.events import FILE_VARIABLE, HOST_VARIABLE


@pytest.fixture
def hosts(tmp_path):
    server = ServerHost(tmp_path / "server", "127.0.0.1", 1, 2, ("a",))
    site = SiteHost(tmp_path / "sites" / "a", "a", "127.0.0.1:1")
    for host in (server, site):
        host.logs.mkdir(parents=True)
    return server, site


def write(host, *times, level="info", message="m"):
    table = {"level": level, "host": host.title, "part": "proxy", "event": "e", "message": message}
    with open(host.logs / "flamma.jsonl", "a") as file:
        for time in times:
            file.write(json.dumps({"time": time, "run": "", "round": None, **table}) + "\n")


def test_events_of_all_hosts_are_in_the_order_of_their_times(hosts):
    server, site = hosts
    write(server, "2026-01-01T00:00:01.000Z", "2026-01-01T00:00:04.000Z")
    (server.logs / "flamma.jsonl").rename(server.logs / "flamma.jsonl.1")
    write(server, "2026-01-01T00:00:05.000Z")
    write(site, "2026-01-01T00:00:02.000Z", "2026-01-01T00:00:06.000Z", level="warning")
    found = [(e["time"][18], e["host"]) for e in events_of(hosts, EventFilter())]
    assert found == [
        ("1", "the server"),
        ("2", "a"),
        ("4", "the server"),
        ("5", "the server"),
        ("6", "a"),
    ]
    late = [e["time"][18] for e in events_of(hosts, EventFilter("2026-01-01T01:00:04+01:00"))]
    assert late == ["4", "5", "6"]
    loud = [e["time"][18] for e in events_of(hosts, EventFilter(level="warning"))]
    assert loud == ["2", "6"]


def test_spans_and_times_that_cannot_be_read():
    now = datetime.datetime.now(datetime.UTC)
    for text, seconds in (("90s", 90), ("10m", 600), ("2h", 7200), ("3d", 3 * 86400)):
        since = datetime.datetime.fromisoformat(EventFilter(text).since + "+00:00")
        assert abs((now - since).total_seconds() - seconds) < 3
    for text in ("yesterday", "10", "-5m", "999999999d", "0001-01-01T00:00:00+14:00"):
        with pytest.raises(DeployError, match="--since takes"):
            EventFilter(text)


def test_what_is_no_event_is_left_out_and_terminals_are_not_obeyed(hosts, capsys):
    server, _ = hosts
    damage = [b"damage", b"[1]", b'{"time": 1}', b"x" * 200_000, b"\xff\xfe", b"[" * 5000, b""]
    (server.logs / "flamma.jsonl").write_bytes(b"\n".join(damage))
    write(server, "2026-01-01T00:00:01.000Z", message="\x1b[2J bell \a")
    with open(server.logs / "flamma.jsonl", "a") as file:
        file.write('{"time": "half a li')
    [found] = events_of([server], EventFilter())
    assert event_line(found) == (
        "2026-01-01 00:00:01 info    the server proxy       e: \ufffd[2J bell \ufffd"
    )


def test_new_events_come_as_they_are_written_through_a_rotation(hosts, monkeypatch):
    monkeypatch.setattr(logs, "_NEW_EVENTS_SECONDS", 0.0)
    monkeypatch.setattr(events, "_MAX_EVENT_BYTES", 400)
    server, _ = hosts
    own = host_journal(server, "proxy")
    own.tell("before", "not told")
    following = new_events(hosts, EventFilter())
    told = []
    for number in range(6):
        own.tell("after", str(number))
        if number in (1, 4, 5):
            count = number + 1 - len(told)
            told += [event["message"] for event in itertools.islice(following, count)]
    assert told == list("012345")
    assert (server.logs / "flamma.jsonl.1").exists()


def test_processes_of_a_host_know_where_to_tell(hosts):
    server, site = hosts
    for host, name in ((server, "server"), (site, "a")):
        found = environment(host)
        assert found[FILE_VARIABLE] == str(host.logs / "flamma.jsonl")
        assert found[HOST_VARIABLE] == name
    assert FILE_VARIABLE not in os.environ


def test_the_command_prints_them(tmp_path, capsys):
    fed = tmp_path / "fed"
    assert main(["deploy", "init", str(fed), "--sites", "1"]) == 0
    for place in ("server", "sites/site0"):
        (fed / place / "logs").mkdir()
        (fed / place / "logs/flamma.jsonl").write_text(
            json.dumps(
                {
                    "time": "2026-01-01T00:00:01.000Z",
                    "level": "info",
                    "host": place,
                    "part": "proxy",
                    "run": "abc",
                    "round": 3,
                    "event": "round ended",
                    "message": "in 3 s",
                }
            )
            + "\n"
        )
    capsys.readouterr()
    assert main(["deploy", "logs", str(fed)]) == 0
    assert capsys.readouterr().out.count("round ended: in 3 s  [run abc, round 3]\n") == 2
    assert main(["deploy", "logs", str(fed), "--host", "site0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["host"] == "sites/site0"
    assert main(["deploy", "logs", str(fed / "server"), "--since", "1m"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["deploy", "logs", str(fed), "--host", "site"]) == 2
    assert "site0" in capsys.readouterr().err

"""The events of a host: lines of JSON from several processes, bounded, private, never an error."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

from flamma import events
from flamma.events import FILE_VARIABLE, HOST_VARIABLE, Journal, event_files, journal

WRITER = """
import sys
from flamma import events
events._MAX_EVENT_BYTES = 20_000
for number in range(200):
    events.journal(sys.argv[1]).tell("counted", "x" * 50, number=number)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "flamma.jsonl"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    monkeypatch.setenv(HOST_VARIABLE, "site0")
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_has_its_fields_and_the_file_is_private(file):
    journal("proxy").tell("round ended", "all well", run="0123456789abcdef", round=3, seconds=1.5)
    [found] = lines(file)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info",
        "host": "site0",
        "part": "proxy",
        "run": "0123456789ab",
        "round": 3,
        "event": "round ended",
        "message": "all well",
        "details": {"seconds": 1.5},
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_others_say_is_bounded_and_has_no_control_characters(file):
    evil = "\x1b[2J\n" + "x" * 10_000
    nested = {"deep": [evil] * 1000, evil: float("nan"), "many": {str(k): k for k in range(999)}}
    journal("proxy").tell("site refused", evil, reason=evil, nested=nested)
    text = file.read_text()
    assert text.count("\n") == 1
    assert len(text) < 50 * 500
    assert "\\u001b" not in text
    [found] = lines(file)
    assert len(found["message"]) <= events.MOST_TEXT
    assert len(found["details"]["nested"]["deep"]) == events._MAX_ENTRIES


def test_without_a_host_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    journal("client").tell("started", "nobody hears it")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_no_error(tmp_path):
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for place in (tmp_path / "lost" / "file", tmp_path, tmp_path / "link"):
        Journal(place, "server", "proxy").tell("started", "well")
    assert (tmp_path / "elsewhere").read_text() == "", "a link is not followed"


def test_processes_write_whole_lines_and_rotate_once(file):
    words = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*words, part], env={**os.environ}) for part in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    files = event_files(file)
    assert 1 < len(files) <= events._KEPT_EVENT_FILES + 1
    found = [event for path in files for event in lines(path)]
    assert all(path.stat().st_size < 21_000 for path in files)
    last = {part: [e["details"]["number"] for e in found if e["part"] == part] for part in "abc"}
    for numbers in last.values():  # the oldest may be gone, what is there is in order and whole
        assert numbers == list(range(numbers[0], 200))


def test_a_lock_that_is_never_given_back_holds_nobody_up(file, monkeypatch):
    import fcntl

    monkeypatch.setattr(events, "_EVENT_LOCK_SECONDS", 0.0001)
    monkeypatch.setattr(events, "_MAX_EVENT_BYTES", 10)
    file.write_text("{}\n")
    with open(file) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        journal("proxy").tell("started", "all the same")
    assert len(lines(file)) == 2
    journal("proxy").tell("started", "rotated now")
    assert len(lines(file)) == 1

"""Following a run: a ServerApp that died or hangs is found by the lock of the run directory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flamma.deploy import server_app_process
from flamma.deploy.processes import Process
from flamma.deploy.server_app_process import _DEATH_CHECKS, ServerAppProcess

HOLDS = """
import sys, time
from pathlib import Path
from flamma.experiments.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.lock()
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """A process that holds the lock of a run directory, as a child of what stands for Flower's."""
    words = (sys.executable, "-c", HOLDS, str(tmp_path))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        here = Process.of(process.pid)
        me = (None, {"superexec": Process.of(os.getpid())}, {})
        monkeypatch.setattr(server_app_process, "recorded", lambda server: me)
        yield process, here
        process.kill()


def test_a_dead_server_app_is_found_after_some_checks(holder, tmp_path):
    process, _ = holder
    seen = ServerAppProcess(None, tmp_path)
    assert [seen.has_died() for _ in range(5)] == [False] * 5
    process.kill()
    process.wait()
    checks = [seen.has_died() for _ in range(_DEATH_CHECKS)]
    assert checks == [False] * (_DEATH_CHECKS - 1) + [True]


def test_one_that_was_never_seen_is_not_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(server_app_process, "recorded", lambda server: (None, {}, {}))
    seen = ServerAppProcess(None, tmp_path)
    assert [seen.has_died() for _ in range(5)] == [False] * 5
    seen.end()


def test_one_that_hangs_is_killed_so_that_the_directory_is_free(holder, tmp_path, monkeypatch):
    process, here = holder
    monkeypatch.setattr(server_app_process, "_KILL_SECONDS", 0.2)
    seen = ServerAppProcess(None, tmp_path)
    seen.has_died()
    seen.end()
    process.wait(timeout=20)
    assert not here.alive

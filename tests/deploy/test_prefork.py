"""The forks of a site's worker: they exit with their parent, and their exit code says how."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

from flamma.deploy import prefork
from flamma.deploy.processes import Process, wait_for_exit

SLEEPS = """
import time
from flamma.deploy.prefork import _fork
print(_fork(time.sleep, 60), flush=True)
time.sleep(60)
"""
ENDS = """
import os, signal
from flamma.deploy.prefork import _cause, _fork
for job in (lambda: None, lambda: 1 / 0, lambda: os.kill(os.getpid(), signal.SIGKILL)):
    print(_cause(os.waitpid(_fork(job), 0)[1]))
"""


def test_a_fork_exits_with_its_parent():
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, text=True) as own:
        child = Process.of(int(own.stdout.readline()))
        assert child.alive
        own.kill()
    wait_for_exit([child], timeout=20)
    assert not child.alive


def test_the_exit_code_of_a_fork_tells_how_its_job_ended():
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["exit code 0", "exit code 1", "SIGKILL"]
    assert "ZeroDivisionError" in done.stderr


def test_the_code_that_comes_with_a_task_is_not_looked_at(monkeypatch):
    """The run and the bundle of a task could be anything: only the site's own app is run."""

    class Poison:
        def __getattribute__(self, name):
            raise AssertionError(f"{name} of the bundle was read")

    forked = []
    taken = ("the message", "the context", Poison(), Poison())
    runtime = "flwr.supernode.runtime.run_clientapp"
    monkeypatch.setattr(f"{runtime}.pull_task_input", lambda client: taken)
    monkeypatch.setattr(prefork, "_connect", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(prefork, "_fork", lambda job, *given, **_: forked.append((job, given)) or 1)
    monkeypatch.setattr(prefork, "exit_with_parent", lambda *_: None)
    monkeypatch.setattr(prefork, "_TASK_POLL_SECONDS", 0)
    monkeypatch.setattr(prefork.os, "waitpid", lambda *_: (1, 0))
    monkeypatch.setattr(prefork.os, "kill", lambda *_: None)
    prefork._run_task("address", "token", "the site's app")
    [(_, given)] = [(job, given) for job, given in forked if job is prefork._answer_message]
    assert "the site's app" in given
    assert not any(isinstance(part, Poison) for part in given)

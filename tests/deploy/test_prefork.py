"""The forks of a site's worker: they exit with their parent, and their exit code says how."""

from __future__ import annotations

import subprocess
import sys

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

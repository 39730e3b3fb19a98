"""Processes by pid and start time: nobody else's is ever ended."""

from __future__ import annotations

import dataclasses
import os
import platform
import signal
import subprocess
import sys
import time

import psutil
import pytest

from flamma.deploy.processes import Process, _session_members, end_sessions

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({number}, 0)
"""
EXIT_THREAD = {"x86_64": 60, "aarch64": 93}
"""The number of the system call that ends one thread."""


def started(code):
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    return process, process.stdout.readline().strip()


def closed(process):
    process.wait(timeout=10)
    process.stdout.close()


def test_a_process_is_its_pid_and_its_start_time():
    own = Process.of(os.getpid())
    assert own.alive
    assert Process.read(own.as_table()) == own
    assert not dataclasses.replace(own, started=own.started + 1).alive
    assert Process.read({"pid": "x"}) is None
    assert Process.read(Process(1, None).as_table()) is None
    assert Process.read(None) is None


def test_a_zombie_is_not_alive():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, but is still listed
    assert Process.of(process.pid).started is not None
    assert not Process.of(process.pid).alive
    process.wait()
    assert Process.of(process.pid).started is None


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in EXIT_THREAD, reason="needs its number"
)
def test_a_process_is_alive_while_a_thread_of_it_is():
    """The main thread of a killed process may end before one that still holds its port."""
    number = EXIT_THREAD[platform.machine()]
    process, _ = started(HEADLESS.format(number=number))
    found = Process.of(process.pid)
    until = time.monotonic() + 20
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert found.alive
    end_sessions([found], timeout=20)
    assert not found.alive
    closed(process)


def test_a_session_is_ended_with_every_process_in_it():
    process, pid = started(PARENT)
    leader, child = Process.of(process.pid), Process.of(int(pid))
    assert _session_members(leader) == {leader, child}
    end_sessions([leader], timeout=5)
    closed(process)
    assert process.returncode == -signal.SIGTERM
    assert not leader.alive
    assert not child.alive


def test_children_are_ended_after_their_leader_has_died():
    process, pid = started(PARENT)
    leader, child = Process.of(process.pid), Process.of(int(pid))
    process.kill()
    closed(process)
    assert child.alive
    end_sessions([leader], timeout=5)
    assert not child.alive


def test_a_process_that_ignores_sigterm_is_killed():
    process, _ = started(STUBBORN)
    end_sessions([Process.of(process.pid)], timeout=0.5)
    closed(process)
    assert process.returncode == -signal.SIGKILL


def test_another_process_with_the_same_pid_is_left_alone():
    """As if the pid had been given to another process since."""
    process, _ = started(STUBBORN)
    real = Process.of(process.pid)
    later = dataclasses.replace(real, started=real.started + 1)
    assert _session_members(later) == set()
    end_sessions([later], timeout=0.5)
    assert real.alive
    end_sessions([real], timeout=0.5)
    closed(process)

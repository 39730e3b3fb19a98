"""Processes by number and birth: nobody else's is ever ended."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

from flamma.deploy.processes import Process, end, family

FAMILY = """
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


def started(code):
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    return process, process.stdout.readline().strip()


def closed(process):
    process.wait(timeout=10)
    process.stdout.close()


def test_a_process_is_its_number_and_its_birth():
    own = Process.of(os.getpid())
    assert own.alive
    assert Process.read(own.as_table()) == own
    assert not dataclasses.replace(own, born="another:1").alive
    assert Process.read({"pid": "x"}) is None
    assert Process.read(None) is None


def test_a_session_is_ended_with_everybody_in_it():
    process, child = started(FAMILY)
    leader, kid = Process.of(process.pid), Process.of(int(child))
    assert {member.pid for member in family(leader)} == {leader.pid, kid.pid}
    assert {member.pid for member in end([leader], patience=5)} == {leader.pid, kid.pid}
    closed(process)
    assert not leader.alive
    assert not kid.alive


def test_children_are_found_after_their_leader_has_died():
    process, child = started(FAMILY)
    leader, kid = Process.of(process.pid), Process.of(int(child))
    process.kill()
    closed(process)
    assert kid.alive
    end([leader], patience=5)
    assert not kid.alive


def test_who_does_not_listen_is_killed():
    process, _ = started(STUBBORN)
    begun = time.monotonic()
    end([Process.of(process.pid)], patience=1)
    closed(process)
    assert time.monotonic() - begun < 5


def test_another_process_with_the_same_number_is_left_alone():
    """As if the number had been given to somebody else since."""
    process, _ = started(STUBBORN)
    real = Process.of(process.pid)
    imagined = Process(process.pid, real.born.rpartition(":")[0] + ":99999999999")
    assert end([imagined], patience=1) == []
    assert real.alive
    end([real], patience=1)
    closed(process)

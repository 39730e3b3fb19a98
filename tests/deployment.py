"""A federation of real processes on this machine, for tests that run it and kill parts of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flamma.experiments.folder import RunFolder
from flamma.experiments.run import run as run_here
from flamma.records import RoundRecord

FLAMMA = (sys.executable, "-m", "flamma")
TINY = ("--model", "logistic", "--batch-size", "64")
SLOW_WORK = ("--strategy", "fedavg", "--model", "mlp", "--epochs", "100", "--batch-size", "16")
"""Seconds of training per round, enough to be caught in the middle of it."""


def flamma(*words: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FLAMMA, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


def wait_for(condition: Callable[[], Any], seconds: float = 120, what: str = "it") -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen in {seconds:g} s")


@dataclass(frozen=True)
class Trial:
    """A whole deployment on this machine."""

    folder: Path
    begun: list[subprocess.Popen[str]] = field(default_factory=list)

    def end_runs(self) -> None:
        """End the commands that a failed test has left behind, which wait for the server."""
        for run in self.begun:
            if run.poll() is None:
                run.kill()

    def status(self) -> dict[str, Any]:
        done = flamma("deploy", "status", self.folder, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def pid(self, host: str, process: str) -> int:
        return self.status()["hosts"][host]["processes"][process]["pid"]

    def begin(self, out: Path, *words: object) -> subprocess.Popen[str]:
        """Start ``flamma deploy run`` and return it."""
        run = subprocess.Popen(
            [*FLAMMA, "deploy", "run", str(self.folder), "--out", str(out), *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.begun.append(run)
        return run

    def workers(self, site: str) -> list[int]:
        """Return the processes that run the ClientApp at a site at the moment.

        The worker forks a process for each task, whose first child sends heartbeats and whose
        second one runs the ClientApp.
        """
        worker = recorded_pid(self.folder / "sites" / site, "worker")
        return [app for task in children(worker) for app in children(task)[1:]]


def recorded_pid(host: Path, process: str) -> int:
    table = json.loads((host / "state" / "processes.json").read_text())
    return int(table["processes"][process]["pid"])


def children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child.pid)
    return sorted(found)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def rounds(out: Path) -> list[RoundRecord]:
    return RunFolder(out).rounds() if out.exists() else []


def after_round(out: Path, number: int, seconds: float = 600) -> None:
    wait_for(lambda: len(rounds(out)) >= number, seconds, f"round {number}")


def finish(run: subprocess.Popen[str], seconds: float = 900) -> tuple[int, str, str]:
    out, err = run.communicate(timeout=seconds)
    return run.returncode, out, err


def sha(out: Path) -> str:
    return json.loads((out / "run.json").read_text())["params_sha256"]


def same_on_one_machine(out: Path, place: Path) -> Path:
    """Run the very same configuration with the local engine and return its directory."""
    trainer = json.loads((out / "run.json").read_text())["trainer"]
    run_here(out / "config.toml", out=place, engine__name="local", training__trainer=trainer)
    return place

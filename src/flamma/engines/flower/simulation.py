"""``flamma run --engine flower``: Flower's simulation on Ray, in a process of its own.

Flower and Ray start threads and processes, change the environment and write to the terminal. All
that happens in a child with its own session and a temporary home; this process only follows the
run directory. When this process ends, in whatever way, the child does, and Ray's processes with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flamma.engines.flower.handover import ENVIRONMENT, hand_over
from flamma.errors import ConfigError, MissingExtraError, RunError
from flamma.experiments.data import build_data
from flamma.experiments.folder import RunFolder
from flamma.experiments.follow import Follower
from flamma.experiments.session import Assignment, OnRound

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What keeps Flower and Ray from talking to anybody, and from installing anything."""

LOG = "flower.log"
LOOK = 0.05
PATIENCE = 15.0
"""Seconds that the child has to end when it is asked to."""

CLIENT_APP = "flamma.engines.flower.client_app:app"


def execute(assignment: Assignment) -> None:
    """Begin a run, or go on with it, in Flower's simulation.

    Raises
    ------
    MissingExtraError
        If Flower or Ray are not installed.
    RunError
        If the simulation ends before the run does.
    """
    simulate(assignment)


def simulate(assignment: Assignment, client_app: str = CLIENT_APP) -> None:
    """Do what :func:`execute` does, with any ClientApp that keeps to the same messages."""
    if importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None:
        raise MissingExtraError("--engine flower", "flower")
    if assignment.model is not None:
        raise ConfigError(
            "a model of your own must have a name where clients are other processes: give it an "
            "entry point, or use the local engine."
        )
    config, data = assignment.config, assignment.data
    config.build_strategy()
    data = build_data(config, assignment.data_dir) if data is None else data
    with _temporary() as home:
        hand_over(data, home / "data")
        (home / "config.toml").write_text(config.as_toml(), encoding="utf-8")
        log, folder = home / LOG, assignment.folder
        follower = Follower(folder.path)
        try:
            with open(log, "wb") as output, _child(home, folder, client_app, output) as child:
                _follow(child, follower, assignment.on_round)
            _check(child, home, folder)
        finally:
            _keep_log(log, folder)


@contextmanager
def _temporary() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="flamma-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _child(
    home: Path, folder: RunFolder, client_app: str, output: object
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process that simulates, and see to it that it ends with all that it started."""
    command = [sys.executable, "-m", "flamma.engines.flower.simulator"]
    arguments = [str(home), str(folder.path.absolute()), client_app, str(os.getpid())]
    child = subprocess.Popen(
        [*command, *arguments],
        env=os.environ | QUIET | {"FLWR_HOME": str(home), ENVIRONMENT: str(home / "data")},
        stdin=subprocess.DEVNULL,
        stdout=output,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for this process alone
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()
        end_session(child.pid)


def end_session(leader: int) -> None:
    """Kill whatever is left of a session that this process started."""
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == leader:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


def _follow(child: subprocess.Popen[bytes], follower: Follower, on_round: OnRound | None) -> None:
    """Tell of every round that is finished, until the child ends."""
    while True:
        ended = child.poll() is not None
        for record in follower.new():
            if on_round is not None:
                on_round(record)
        if ended:
            return
        time.sleep(LOOK)


def _check(child: subprocess.Popen[bytes], home: Path, folder: RunFolder) -> None:
    """Raise what the child could not do."""
    try:
        reason = json.loads((home / "error.json").read_text(encoding="utf-8"))["error"]
    except (OSError, ValueError, KeyError):
        reason = ""
    if reason:
        raise RunError(reason)
    if child.returncode != 0:
        again = f": flamma resume {folder.path}" if folder.exists else ""
        raise RunError(
            f"Flower's simulation ended with exit code {child.returncode}, see "
            f"{folder.path / LOG}; what was recorded is safe{again}."
        )


def _keep_log(log: Path, folder: RunFolder) -> None:
    if folder.path.is_dir() and log.exists():
        shutil.copyfile(log, folder.path / LOG)

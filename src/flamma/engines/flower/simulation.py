"""``flamma run --engine flower``: Flower's simulation on Ray, in a process of its own.

Flower and Ray start threads and processes, change the environment and write to the terminal. All
that happens in a child with its own session and a temporary home; this process only follows the
run directory. However this process ends, the child and Ray's processes end with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

import psutil

from flamma.clients.truth import KEPT, NOTES
from flamma.engines.flower.environment import KEPT_VARIABLE, NOTES_VARIABLE, OFFLINE_ENVIRONMENT
from flamma.engines.flower.handover import DATA_VARIABLE, hand_over
from flamma.errors import ConfigError, RunError
from flamma.experiments.callbacks import OnRound, record_callbacks
from flamma.experiments.engine import NetworkEngine, RunParts
from flamma.experiments.folder import Follower, RunFolder
from flamma.experiments.run import build_data

_FLOWER_LOG = "flower.log"
"""The file of a run directory that has the output of Flower and Ray."""

_FOLLOW_SECONDS = 0.05
"""Seconds between two checks for finished rounds."""

_TERMINATION_SECONDS = 15.0
"""Seconds that the child has to end when it is asked to, before it is killed."""

_CLIENT_APP = "flamma.engines.flower.client_app:app"


@dataclass(frozen=True)
class FlowerSimulation(NetworkEngine):
    """Flower's simulation: clients in Ray's processes on this machine."""

    name: ClassVar[str] = "flower"
    summary: ClassVar[str] = "Flower's simulation, with clients in Ray's processes"
    needs: ClassVar[tuple[str, ...]] = ("flwr", "ray")
    gives_behaviours: ClassVar[bool] = True

    def execute(self, parts: RunParts) -> None:
        """Begin a run, or go on with it, in Flower's simulation.

        Raises
        ------
        RunError
            If the simulation ends before the run does.
        """
        simulate(parts)


def simulate(parts: RunParts, client_app: str = _CLIENT_APP) -> None:
    """Do what ``FlowerSimulation.execute`` does, with any ClientApp that takes our messages."""
    if parts.objects.model is not None:
        raise ConfigError(
            "a model of your own must have a name where clients are other processes: give it an "
            "entry point, or use the local engine."
        )
    if parts.objects.start is not None:
        raise ConfigError(
            "weights to start from must be in a file where clients are other processes: save them "
            "as safetensors and give its name, or use the local engine."
        )
    if parts.objects.loss is not None or parts.objects.metric is not None:
        raise ConfigError(
            "a loss or metric of your own is a function of this process, and clients are others: "
            "put it into a task with an entry point, or use the local engine."
        )
    config, data = parts.config, parts.objects.federation(parts.config)
    data = build_data(config, parts.data_dir) if data is None else data
    with tempfile.TemporaryDirectory(prefix="flamma-", ignore_cleanup_errors=True) as temporary:
        home = Path(temporary)
        hand_over(data, home / "data")
        (home / "config.toml").write_text(config.as_toml(), encoding="utf-8")
        record_callbacks(home, parts.callbacks.hand_over())
        log, folder = home / _FLOWER_LOG, parts.folder
        follower, told = Follower(folder.path), parts.callbacks.following(config, folder)
        try:
            with open(log, "wb") as output, _child(home, folder, client_app, output) as child:
                _follow(child, follower, told)
            _check(child, home, folder)
        finally:
            if folder.path.is_dir() and log.exists():
                shutil.copyfile(log, folder.path / _FLOWER_LOG)


@contextmanager
def _child(
    home: Path, folder: RunFolder, client_app: str, output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process that simulates, and make sure that it ends with all it started."""
    command = [sys.executable, "-m", "flamma.engines.flower.simulator"]
    arguments = [str(home), str(folder.path.absolute()), client_app, str(os.getpid())]
    run = folder.path.absolute()
    own = {
        "FLWR_HOME": str(home),
        DATA_VARIABLE: str(home / "data"),
        NOTES_VARIABLE: str(run / NOTES),
        KEPT_VARIABLE: str(run / KEPT),
    }
    child = subprocess.Popen(
        [*command, *arguments],
        env=os.environ | OFFLINE_ENVIRONMENT | own,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for this process alone
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_TERMINATION_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()
        _end_session(child.pid)


def _end_session(leader: int) -> None:
    """Kill whatever is left of a session that this process started."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader:
                process.kill()


def _follow(child: subprocess.Popen[bytes], follower: Follower, on_round: OnRound) -> None:
    """Pass on the record of every finished round until the child ends."""
    while True:
        ended = child.poll() is not None
        for record in follower.new():
            on_round(record)
        if ended:
            return
        time.sleep(_FOLLOW_SECONDS)


def _check(child: subprocess.Popen[bytes], home: Path, folder: RunFolder) -> None:
    """Raise the child's error, if it had one."""
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
            f"{folder.path / _FLOWER_LOG}; what was recorded is safe{again}."
        )

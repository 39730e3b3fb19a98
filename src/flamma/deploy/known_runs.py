"""The run directories of a federation, in the order in which their runs were submitted."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from flamma.deploy.hosts import ServerHost
from flamma.errors import DeployError
from flamma.events import append_line, now_text
from flamma.experiments.folder import ABOUT, RunFolder

RUNS_FILE = "runs.jsonl"
"""The file in the server's state with a line for every run that was submitted."""


@dataclass(frozen=True)
class KnownRun:
    """A run that was submitted to the federation.

    Attributes
    ----------
    path : Path
        Its directory.
    flower_id : str
        Flower's number of it.
    """

    path: Path
    flower_id: str

    @property
    def instance(self) -> str:
        """What tells it from other runs, at the server and at sites; empty before it has begun."""
        return str(RunFolder(self.path).read_json(ABOUT).get("instance") or "")


def remember_run(server: ServerHost, path: Path, flower_id: int | str) -> None:
    """Write down that a run was submitted; what watches the federation finds it there."""
    table = {"path": str(path), "run_id": str(flower_id), "submitted": now_text()}
    with contextlib.suppress(OSError):  # the run goes on all the same
        append_line(server.state / RUNS_FILE, f"{json.dumps(table)}\n".encode())


def known_runs(server: ServerHost) -> list[KnownRun]:
    """Return the runs whose directories are still there, the one submitted last at the end."""
    found: dict[Path, KnownRun] = {}
    try:
        lines = (server.state / RUNS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            table = json.loads(line)
            path = Path(str(table["path"]))
            found.pop(path, None)  # one that was submitted again is newer now
            found[path] = KnownRun(path, str(table["run_id"]))
    return [run for run in found.values() if RunFolder(run.path).exists]


def newest_run(server: ServerHost, name: str = "") -> KnownRun:
    """Return the run that was submitted last, or the last one whose directory has this name.

    Raises
    ------
    DeployError
        If there is none.
    """
    runs = [run for run in known_runs(server) if name in ("", run.path.name, str(run.path))]
    if not runs:
        what = f"run called {name}" if name else "run"
        raise DeployError(
            f"{server.folder} knows of no {what}: begin one with flamma deploy run {server.folder}."
        )
    return runs[-1]

"""``flamma deploy backup``: the server's state in one file, taken while it runs.

The database of the SuperLink is copied by SQLite's own means. Of a run, all files that its manifest
names must be of one moment: if a checkpoint was written meanwhile, the run is copied once more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import flamma
from flamma.deploy.archives import ArchiveWriter, checked_name, written_archive
from flamma.deploy.commands import DATABASE_FILE, READY_FILE
from flamma.deploy.hosts import ServerHost
from flamma.deploy.known_runs import RUNS_FILE, known_runs
from flamma.deploy.supervisor import PROCESSES_FILE
from flamma.errors import DeployError
from flamma.events import now_text
from flamma.experiments.folder import MANIFEST, RunFolder
from flamma.io import TEMPORARY_SUFFIX

_PRIVATE_SUFFIXES = (".key", ".secret")
"""How the names of files end that hold a private key or a secret."""
_NOT_SAVED = ("logs", "flower", "state")
"""Folders of a server that are made anew, or of which only some files are saved."""
_STATE_SUFFIXES = (".json", ".toml")
_NOT_SAVED_STATE = (PROCESSES_FILE, READY_FILE, "nodes.json")
"""Files of the state that tell of processes that run now."""
_COPY_ATTEMPTS, _COPY_PAUSE_SECONDS = 20, 0.2
"""How often a run is copied if it writes a checkpoint meanwhile."""


def back_up(server: ServerHost, path: Path, keys: bool = False) -> tuple[int, int]:
    """Write a server's state and its runs into an archive; return how many files and runs it has.

    Parameters
    ----------
    server : ServerHost
        The server; it may run.
    path : Path
        The archive; one that is there is replaced when the new one is whole.
    keys : bool
        Whether private keys are in it, too.

    Raises
    ------
    FlammaError
        If something cannot be read, or the archive cannot be written.
    """
    runs = _runs(server)
    left_out: list[str] = []
    with (
        written_archive(path) as archive,
        tempfile.TemporaryDirectory(
            prefix=".flamma-", suffix=TEMPORARY_SUFFIX, dir=path.parent
        ) as scratch,
    ):
        for name, file in _settings(server, set(runs)):
            if file.suffix in _PRIVATE_SUFFIXES and not keys:
                left_out.append(name)
            else:
                archive.add(name, file)
        _add_state(server, archive, Path(scratch))
        for number, (run, place) in enumerate(sorted(runs.items())):
            for name, file in _copied_run(run, Path(scratch) / str(number)):
                archive.add(f"{place}/{name}", file)
        known = [runs[run.path.resolve()] for run in known_runs(server)]  # the last one at the end
        places = [*sorted(set(runs.values()) - set(known)), *known]
        about = {"flamma": flamma.__version__, "made": now_text(), "left_out": left_out}
        archive.finish({**about, "runs": places})
    return len(archive.files), len(runs)


def _runs(server: ServerHost) -> dict[Path, str]:
    """Return the run directories, and where they will be in the folder that is restored."""
    found = {run.path.resolve() for run in known_runs(server)}
    found |= {file.parent.resolve() for file in (server.folder / "runs").glob("*/config.toml")}
    places: dict[Path, str] = {}
    for path in sorted(found):
        if path.is_relative_to(server.folder):
            places[path] = path.relative_to(server.folder).as_posix()
    for path in sorted(found - places.keys()):
        name = f"runs/{path.name}"
        while name in places.values() or (server.folder / name).exists():
            name += "-2"
        places[path] = name
    return places


def _settings(server: ServerHost, runs: set[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the plain files of a server's folder that are neither state nor of a run."""
    for folder, names, files in os.walk(server.folder):
        here = Path(folder)
        unwanted = _NOT_SAVED if here == server.folder else ()
        names[:] = sorted(n for n in names if n not in unwanted and here / n not in runs)
        yield from _plain_files(server.folder, here, files)


def _plain_files(top: Path, folder: Path, names: list[str]) -> Iterator[tuple[str, Path]]:
    for name in sorted(names):
        file = folder / name
        if file.is_symlink() or not file.is_file():
            continue
        if not name.endswith((TEMPORARY_SUFFIX, ".lock")):
            inside = file.relative_to(top).as_posix()
            yield str(checked_name(inside)), file


def _add_state(server: ServerHost, archive: ArchiveWriter, scratch: Path) -> None:
    for file in sorted(server.state.glob("*")):
        fits = file.suffix in _STATE_SUFFIXES and file.name not in _NOT_SAVED_STATE
        if fits and file.name != RUNS_FILE and file.is_file():
            archive.add(f"state/{file.name}", file)
    database = server.state / DATABASE_FILE
    if database.exists():
        copy = scratch / DATABASE_FILE
        _copy_database(database, copy)
        archive.add(f"state/{DATABASE_FILE}", copy)


def _copy_database(database: Path, copy: Path) -> None:
    try:
        with (
            contextlib.closing(sqlite3.connect(database, timeout=60)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:
        raise DeployError(f"cannot copy {database}: {error}.") from error


def _copied_run(run: Path, scratch: Path) -> list[tuple[str, Path]]:
    """Copy a run directory that may be written to, so that it is of one moment.

    Raises
    ------
    DeployError
        If checkpoints are written faster than they can be copied.
    """
    for _ in range(_COPY_ATTEMPTS):
        shutil.rmtree(scratch, ignore_errors=True)
        before = RunFolder(run).text(MANIFEST)
        with contextlib.suppress(FileNotFoundError):  # a checkpoint was replaced
            _copy_run(run, scratch)
            if RunFolder(run).text(MANIFEST) == before:
                files = (file for file in sorted(scratch.rglob("*")) if file.is_file())
                return [(file.relative_to(scratch).as_posix(), file) for file in files]
        time.sleep(_COPY_PAUSE_SECONDS)
    raise DeployError(
        f"{run} is written faster than it can be copied: interrupt it by Ctrl-C, make the backup, "
        f"and go on by flamma resume {run}."
    )


def _copy_run(run: Path, scratch: Path) -> None:
    """Copy the checkpoints first: the records that they need are on disk before them."""
    walked = ((Path(folder), names) for folder, _, names in os.walk(run))
    files = [file for folder, names in walked for _, file in _plain_files(run, folder, names)]
    for file in sorted(files, key=lambda file: file.parent == run):
        target = scratch / file.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)

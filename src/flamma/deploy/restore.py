"""``flamma deploy restore``: a server's folder from a backup, on this host or another."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from flamma.deploy.archives import checked_name, unpack
from flamma.deploy.hosts import ServerHost, read_server
from flamma.deploy.keys import make_secret
from flamma.deploy.known_runs import remember_run
from flamma.errors import DeployError
from flamma.experiments.folder import RunFolder
from flamma.experiments.result import DEPLOYMENT
from flamma.io import TEMPORARY_SUFFIX, JsonTable, sync_folder


def restore(archive: Path, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Make a server's folder of a backup; it appears whole or not at all.

    Returned are the run directories, and the files that must be brought from elsewhere. Runs that
    lay elsewhere are in ``runs`` of the folder. A run that was going on is not followed
    but goes on by ``flamma resume``, from its last checkpoint. The secret of the host's processes
    is made anew if the backup has none.

    Raises
    ------
    DeployError
        If the folder is not empty, or the archive is damaged or no backup.
    """
    folder = Path(os.path.abspath(folder))
    try:
        if folder.exists() and any(folder.iterdir()):
            raise DeployError(f"{folder} is not empty: nothing is overwritten, name a new folder.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(
            tempfile.mkdtemp(prefix=".flamma-", suffix=TEMPORARY_SUFFIX, dir=folder.parent)
        )
    except OSError as error:
        raise DeployError(f"cannot make {folder}: {error.strerror}.") from error
    try:
        about = unpack(archive, scratch)
        runs, left_out = _listed(about, "runs"), _listed(about, "left_out")
        server = read_server(scratch)
        if not server.secret.exists():
            make_secret(server.secret)
        _remember(server, folder, runs)
        if folder.exists():
            folder.rmdir()
        os.rename(scratch, folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise DeployError(f"cannot restore {folder}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    missing = tuple(name for name in left_out if not (folder / name).exists())
    return tuple(str(folder / run) for run in runs), missing


def _listed(about: JsonTable, key: str) -> tuple[str, ...]:
    """Return a list of paths that an archive tells, all of which are inside it."""
    found = about.get(key)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise DeployError(f"the backup does not say what its {key} are; it is damaged.")
    return tuple(str(checked_name(name)) for name in found)


def _remember(server: ServerHost, folder: Path, runs: Iterable[str]) -> None:
    """Tell runs where their server is now, and the server where its runs are."""
    server.state.mkdir(exist_ok=True, mode=0o700)
    for run in runs:
        own = RunFolder(server.folder / run)
        known = {key: value for key, value in own.read_json(DEPLOYMENT).items() if key != "run_id"}
        own.write(DEPLOYMENT, json.dumps({**known, "server": str(folder)}, indent=1))
        remember_run(server, folder / run, "")

"""The folder of datasets on this machine, and reading files from it with their checksums."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from flamma.data.records import DataFile
from flamma.errors import DataError


def data_folder(
    chosen: Path | None = None,
    environment: Mapping[str, str] | None = None,
    platform: str = sys.platform,
) -> Path:
    """Return the folder of all datasets: the chosen one, ``FLAMMA_DATA``, or the user's cache.

    The cache is ``$XDG_CACHE_HOME`` or ``~/.cache`` on Linux, ``~/Library/Caches`` on macOS and
    ``%LOCALAPPDATA%`` on Windows; in it, ``flamma/data``.

    Examples
    --------
    >>> data_folder(Path("here")).as_posix()
    'here'
    >>> data_folder(environment={"FLAMMA_DATA": "/srv/data"}).as_posix()
    '/srv/data'
    >>> data_folder(environment={"XDG_CACHE_HOME": "/var/cache"}, platform="linux").as_posix()
    '/var/cache/flamma/data'
    """
    environment = os.environ if environment is None else environment
    if chosen is not None:
        return Path(chosen)
    if environment.get("FLAMMA_DATA"):
        return Path(environment["FLAMMA_DATA"])
    return _cache(environment, platform) / "flamma" / "data"


def _cache(environment: Mapping[str, str], platform: str) -> Path:
    if platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    # The specification says that a relative XDG_CACHE_HOME is to be ignored.
    chosen = Path(environment.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else Path.home() / ".cache"


def is_file_of(content: bytes, file: DataFile) -> bool:
    """Return whether these bytes have the size and the checksum of the file."""
    return len(content) == file.size and hashlib.sha256(content).hexdigest() == file.sha256


def is_present(folder: Path, file: DataFile) -> bool:
    """Return whether the folder has the file with the right checksum."""
    try:
        return is_file_of((folder / file.name).read_bytes(), file)
    except OSError:
        return False


def looks_present(folder: Path, files: tuple[DataFile, ...]) -> bool:
    """Return whether files of these names and sizes exist, without reading them."""
    try:
        return all((folder / file.name).stat().st_size == file.size for file in files)
    except OSError:
        return False


def read_verified(folder: Path, file: DataFile, dataset: str) -> bytes:
    """Return a file's bytes, checked against its checksum.

    Raises
    ------
    DataError
        If the file is missing, unreadable or damaged.
    """
    path = folder / file.name
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(missing(dataset, folder)) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    if not is_file_of(content, file):
        raise DataError(
            f"{path} is damaged (its checksum is wrong): "
            f"get it again with `{_command(dataset, folder)}`."
        )
    return content


def missing(dataset: str, folder: Path) -> str:
    """Return the message that tells how to fetch a dataset that is missing."""
    command = _command(dataset, folder)
    return (
        f"{dataset} is not in {folder}: get it with `{command}`, or offline with `{command} "
        f"--from DIR` from a folder that holds its files, or set FLAMMA_DATA to a folder that "
        f"has it."
    )


def _command(dataset: str, folder: Path) -> str:
    usual = folder.parent == data_folder()
    return f"flamma data fetch {dataset}" + ("" if usual else f" --data-dir {folder.parent}")

"""Reads a site's arrays from a file of numpy, whose every part is checked."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError

ZIP_END_BYTES, ZIP64_COUNT = 22, 0xFFFF
"""The size of the last record of a zip, and its count of members if that stands elsewhere."""


def read_npz(
    path: Path,
) -> tuple[NDArray[Any], NDArray[Any], tuple[NDArray[Any], NDArray[Any]] | None]:
    """Return samples and labels, and those that are held out if the file has them.

    Raises
    ------
    DataError
        If the file is damaged, or has no such arrays without pickles.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_directory(archive, path)
            names = set(archive.namelist())
            for name in ("x", "y"):
                if f"{name}.npy" not in names:
                    raise DataError(f"{path} has no array {name}.")
            given = [f"{name}.npy" in names for name in ("held_x", "held_y")]
            if any(given) and not all(given):
                raise DataError(f"{path} needs both held_x and held_y, or neither.")
            x, y = _member(archive, "x"), _member(archive, "y")
            if not any(given):
                return x, y, None
            return x, y, (_member(archive, "held_x"), _member(archive, "held_y"))
    except DataError:
        raise
    except OSError as error:
        if error.errno == errno.EINVAL:  # the directory at its end says where more should be
            raise DataError(f"{path} is damaged: a part of the file is missing.") from error
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # zipfile, zlib and numpy's parser have errors of many kinds
        raise DataError(
            f"{path} cannot be read as npz without pickles or a password: {_reason(error)}."
        ) from error


def _check_directory(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse an archive whose directory is damaged, so that members would be overlooked."""
    with path.open("rb") as file:
        file.seek(-ZIP_END_BYTES - len(archive.comment), os.SEEK_END)
        count = int.from_bytes(file.read(ZIP_END_BYTES)[10:12], "little")
    if count not in (len(archive.infolist()), ZIP64_COUNT):
        raise DataError(f"{path} is damaged: its directory does not list all of its arrays.")
    for member in archive.infolist():
        archive.open(member).close()  # raises if the member itself has another name


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        # Only at the end of a file its checksum is verified, which np.load does not wait for.
        if file.read(1):
            raise DataError(f"the array {name} is longer than its header says.")
    return array


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__

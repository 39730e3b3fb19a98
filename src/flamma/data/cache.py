"""A cache of arrays on disk, which the next process maps into memory instead of decoding again.

The record of a cache has the SHA-256, type and shape of every array, and a checksum of its own.
All are verified when the arrays are loaded, so a damaged cache is never taken for the data.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import FlammaError
from flamma.files import write_atomically

CACHE_RECORD = "about.json"

_log = logging.getLogger(__name__)


def store_arrays(folder: Path, key: str, arrays: Mapping[str, NDArray[Any]], about: Any) -> None:
    """Store arrays and a small JSON value under a key, in place of what is there.

    If the folder cannot be written, nothing is cached and no error is raised.
    """
    try:
        described = {}
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            content = buffer.getbuffer()
            described[name] = {**_form(array), "sha256": hashlib.sha256(content).hexdigest()}
            write_atomically(folder / _file(key, name), content, durable=False)
        record = {"key": key, "about": about, "arrays": described}
        record["sha256"] = _checksum(record)
        write_atomically(folder / CACHE_RECORD, json.dumps(record).encode(), durable=False)
        for old in folder.glob("*.npy"):
            if not old.name.startswith(key[:16]):
                old.unlink(missing_ok=True)
    except (FlammaError, OSError):
        return


def cached_arrays(
    folder: Path, key: str, names: tuple[str, ...]
) -> tuple[list[NDArray[Any]], Any] | None:
    """Return the arrays and the value stored under this key, None if they are not usable.

    The arrays are mapped copy-on-write: changing them does not change the files. If the cache is
    damaged, a warning is logged.
    """
    path = folder / CACHE_RECORD
    try:
        content = path.read_bytes()
    except OSError:
        return None  # nothing was cached
    try:
        record = json.loads(content)
        if record.pop("sha256") != _checksum(record):
            raise ValueError("the checksum of its record is another")
        if record["key"] != key:
            return None  # the cache of other data or options
        arrays = [_load(folder / _file(key, name), record["arrays"][name]) for name in names]
        return arrays, record["about"]
    except Exception as error:  # whatever the damage is, the data themselves are read again
        reason = str(error) or type(error).__name__
        _log.warning("the cache %s is damaged (%s): the data are read again", folder, reason)
        return None


def _load(path: Path, described: Mapping[str, Any]) -> NDArray[Any]:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != described["sha256"]:
        raise ValueError(f"the checksum of {path.name} is another")
    array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    if _form(array) != {name: described[name] for name in ("dtype", "shape")}:
        raise ValueError(f"{path.name} has another form")
    return array


def _form(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "shape": list(array.shape)}


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _file(key: str, name: str) -> str:
    return f"{key[:16]}-{name}.npy"

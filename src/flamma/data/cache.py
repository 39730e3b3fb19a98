"""A cache of arrays on disk, which the next process maps into memory instead of decoding again."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import FlammaError
from flamma.files import write_atomically

CACHE_RECORD = "about.json"


def store_arrays(folder: Path, key: str, arrays: Mapping[str, NDArray[Any]], about: Any) -> None:
    """Store arrays and a small JSON value under a key, in place of what is there.

    If the folder cannot be written, nothing is cached and no error is raised.
    """
    try:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            write_atomically(folder / _file(key, name), buffer.getbuffer(), durable=False)
        record = json.dumps({"key": key, "about": about}).encode()
        write_atomically(folder / CACHE_RECORD, record, durable=False)
        for old in folder.glob("*.npy"):
            if not old.name.startswith(key[:16]):
                old.unlink(missing_ok=True)
    except (FlammaError, OSError):
        return


def cached_arrays(
    folder: Path, key: str, names: tuple[str, ...]
) -> tuple[list[NDArray[Any]], Any] | None:
    """Return the arrays and the value stored under this key, None if they are not usable.

    The arrays are mapped copy-on-write: changing them does not change the files.
    """
    try:
        record = json.loads((folder / CACHE_RECORD).read_text(encoding="utf-8"))
        if record["key"] != key:
            return None
        arrays = [
            np.load(folder / _file(key, name), mmap_mode="c", allow_pickle=False) for name in names
        ]
        return arrays, record["about"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file(key: str, name: str) -> str:
    return f"{key[:16]}-{name}.npy"

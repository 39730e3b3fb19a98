"""Arrays kept on disk for the next process, which maps them instead of decoding anew."""

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

ABOUT = "about.json"


def keep(folder: Path, key: str, arrays: Mapping[str, NDArray[Any]], about: Any) -> None:
    """Keep arrays and a small record under a key; where that is not possible, nothing is kept."""
    try:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            write_atomically(folder / _file(key, name), buffer.getbuffer(), durable=False)
        record = json.dumps({"key": key, "about": about}).encode()
        write_atomically(folder / ABOUT, record, durable=False)
        for old in folder.glob("*.npy"):
            if not old.name.startswith(key[:16]):
                old.unlink(missing_ok=True)
    except (FlammaError, OSError):
        return


def kept(folder: Path, key: str, names: tuple[str, ...]) -> tuple[list[NDArray[Any]], Any] | None:
    """Return what was kept under this very key; None if there is nothing, or it is damaged.

    The arrays are mapped copy-on-write: nothing that is done to them reaches the files.
    """
    try:
        record = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
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

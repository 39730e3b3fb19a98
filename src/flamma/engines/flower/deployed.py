"""A deployed site's own data, kept beside it in a form that a new process opens at once.

Every message to a site starts a process. Decoding images for each would cost more than training on
them, so the arrays are written once as ``.npy`` and mapped into memory afterwards, until the site's
file or its data change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import flamma
from flamma.files import read_text

if TYPE_CHECKING:
    from flamma.data.federated import Images
    from flamma.engines.flower.site import Holdings
    from flamma.types import Ints

CACHE = ".flamma-cache"
ARRAYS = ("x", "y", "held_x", "held_y")


@dataclass(frozen=True, eq=False)
class Opened:
    """A site's holdings, as they were written before."""

    name: str
    cost: float | None
    shape: tuple[int, ...]
    classes: int
    x: Images
    y: Ints
    held_x: Images
    held_y: Ints


def open_site(path: str) -> Holdings:
    """Return what the site of a ``site.toml`` holds.

    Raises
    ------
    FlammaError
        If the file or its data cannot be used.
    """
    file = Path(path)
    folder = file.parent / CACHE / _key(file)
    with contextlib.suppress(OSError, ValueError, KeyError):  # not there, or damaged: made anew
        return _read(folder)
    # By name, so that the arrays that are cached open without what decodes them.
    site: Holdings = import_module("flamma.data.site_files").load_site(file)
    with contextlib.suppress(OSError):  # where nothing can be written it is decoded every time
        _write(site, folder)
    return site


def _key(file: Path) -> str:
    """Return what changes if the site's file, its data or this package do."""
    text = read_text(file)
    parts = [flamma.__version__, text]
    try:
        table: Any = tomllib.loads(text).get("data", {})
    except tomllib.TOMLDecodeError:
        table = {}
    for value in table.values() if isinstance(table, dict) else ():
        if isinstance(value, str) and value:
            parts += _stamps(file.parent / value)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _stamps(place: Path) -> list[str]:
    files = [place] if place.is_file() else sorted(place.rglob("*")) if place.is_dir() else []
    stats = [(file, file.stat()) for file in files if file.is_file()]
    return [f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats]


def _read(folder: Path) -> Holdings:
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    arrays = {
        name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS
    }
    return Opened(about["name"], about["cost"], tuple(about["shape"]), about["classes"], **arrays)


def _write(site: Holdings, folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        for name in ARRAYS:
            np.save(made / f"{name}.npy", getattr(site, name), allow_pickle=False)
        about = {
            "name": site.name,
            "cost": site.cost,
            "classes": site.classes,
            "shape": list(site.shape),
        }
        (made / "about.json").write_text(json.dumps(about), encoding="utf-8")
        for old in folder.parent.iterdir():  # of data that have changed since
            if old != made and not old.name.startswith(".new-"):
                shutil.rmtree(old, ignore_errors=True)
        os.replace(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)

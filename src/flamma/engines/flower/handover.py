"""A federation's data handed to other processes of this machine: files that they share.

Plain ``.npy`` files are mapped into memory, so that however many processes read them, they take
the room of one.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from flamma.data.federated import FederatedData

ABOUT = "about.json"
ENVIRONMENT = "FLAMMA_FLOWER_DATA"
"""Where the processes of a simulation find the folder."""


def hand_over(data: FederatedData, folder: Path) -> None:
    """Write a federation's arrays into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _arrays():
        np.save(folder / f"{name}.npy", getattr(data, name), allow_pickle=False)
    about = {"classes": data.classes, "name": data.name}
    (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")


def take_over(folder: Path) -> FederatedData:
    """Return the federation that was written into a folder, without reading it into memory."""
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    arrays = {name: _load(folder / f"{name}.npy") for name in _arrays()}
    return FederatedData(**arrays, classes=about["classes"], name=about["name"])


def server_part(data: FederatedData) -> FederatedData:
    """Return what the server itself holds: test and validation sets, no client's data."""
    nothing = np.zeros(2, dtype=np.int64)
    return replace(
        data,
        train_x=data.train_x[:0],
        train_y=data.train_y[:0],
        train_offsets=nothing,
        held_x=data.held_x[:0],
        held_y=data.held_y[:0],
        held_offsets=nothing,
    )


def no_data(shape: tuple[int, ...], classes: int) -> FederatedData:
    """Return what a server holds that has no data at all."""
    x, y = np.zeros((0, *shape), dtype=np.float32), np.zeros(0, dtype=np.int64)
    nothing = np.zeros(2, dtype=np.int64)
    return FederatedData(x, y, nothing, x[:0], y, nothing, x[:], y, x, y, classes, "none")


def _arrays() -> list[str]:
    return [f.name for f in fields(FederatedData) if f.name not in ("classes", "name")]


def _load(path: Path) -> np.ndarray:
    array = np.load(path, mmap_mode="r" if path.stat().st_size > 2**12 else None)
    return np.asarray(array)

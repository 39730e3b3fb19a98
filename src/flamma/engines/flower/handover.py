"""A federation's data for other processes of this machine: files that they share.

Plain ``.npy`` files are mapped into memory, so that any number of processes that read them share
one copy.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flamma.data.encoding import SampleEncoding
from flamma.data.federated import DataDescription, FederatedData
from flamma.data.tables import Label
from flamma.errors import RunError
from flamma.tasks import DEFAULT_TASK, TASKS
from flamma.types import Inputs, Targets

_DATA_DESCRIPTION = "data.json"
DATA_VARIABLE = "FLAMMA_FLOWER_DATA"
"""The environment variable that tells the processes of a simulation where the folder is."""

_MAPPED_BYTES = 2**12
"""Smaller files are read instead of mapped."""


def hand_over(data: FederatedData, folder: Path) -> None:
    """Write a federation's arrays into a folder, for :func:`take_over`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _arrays():
        np.save(folder / f"{name}.npy", getattr(data, name), allow_pickle=False)
    about = {**asdict(data.about), "classes": data.classes}
    (folder / _DATA_DESCRIPTION).write_text(json.dumps(about), encoding="utf-8")


def take_over(folder: Path) -> FederatedData:
    """Return the federation that was written into a folder, mapped instead of read."""
    about = json.loads((folder / _DATA_DESCRIPTION).read_text(encoding="utf-8"))
    arrays: dict[str, Any] = {}
    for name in _arrays():
        path = folder / f"{name}.npy"
        mode: Literal["r"] | None = "r" if path.stat().st_size > _MAPPED_BYTES else None
        arrays[name] = np.asarray(np.load(path, mmap_mode=mode))
    classes = about.pop("classes")
    if about["encoding"] is not None:
        about["encoding"] = SampleEncoding.from_json(about["encoding"])
    for name in ("labels", "client_names"):  # JSON has no tuples
        about[name] = tuple(about[name])
    return FederatedData(**arrays, classes=classes, about=DataDescription(**about))


def server_part(data: FederatedData) -> FederatedData:
    """Return what the server holds: test and validation sets, and no client's data."""
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


def no_data(
    shape: tuple[int, ...],
    classes: int,
    task: str = DEFAULT_TASK,
    labels: tuple[Label, ...] = (),
) -> FederatedData:
    """Return the data of a server that has none: empty arrays of the right shape."""
    x, y = TASKS[task].blank(0, shape)
    nothing = np.zeros(2, dtype=np.int64)
    about = DataDescription("none", labels, task=task)
    return FederatedData(x, y, nothing, x[:0], y, nothing, x[:], y, x, y, classes, about)


def with_validation(data: FederatedData, x: Inputs, y: Targets) -> FederatedData:
    """Return the server's data with a validation set, which must be like the sites' samples."""
    largest = int(y.max()) if y.dtype.kind == "i" else 0
    if x.shape[1:] != data.shape or largest >= data.classes:
        raise RunError(
            f"the server's validation set has samples of the shape {x.shape[1:]} with labels up to "
            f"{largest}, but the sites have {data.shape} in {data.classes} classes."
        )
    return replace(data, validation_x=x, validation_y=y)


def _arrays() -> list[str]:
    return [f.name for f in fields(FederatedData) if f.name not in ("classes", "about")]

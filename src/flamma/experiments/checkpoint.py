"""A strategy's state on disk: safetensors for arrays, with the other numbers in their metadata.

The run's manifest names the newest file with its SHA-256; the one before it is kept, so a damaged
file costs some rounds and not the run.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from flamma.errors import RunError
from flamma.experiments.manifest import CheckpointEntry, Manifest
from flamma.files import write_atomically
from flamma.strategies.base import S, State

CHECKPOINT_FOLDER = "checkpoint"
VERSION_1_INDEX = "latest.json"
"""What named the checkpoints of version 0.1, which had no manifest."""

SHARE_OF_TIME = 0.05
"""Checkpoints are written no oftener than costs this share of the time."""

KEPT_CHECKPOINTS = 2


class Checkpoints:
    """The checkpoints of the run in a directory."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / CHECKPOINT_FOLDER
        self._wrote_at = -float("inf")
        self._took = 0.0

    def is_due(self) -> bool:
        """Return whether enough time has passed since the last one."""
        return time.monotonic() - self._wrote_at >= self._took / SHARE_OF_TIME

    def save(self, state: State) -> None:
        """Write the state; whatever it depends on is on disk already."""
        from safetensors.numpy import save

        started = time.monotonic()
        arrays, numbers = _parts(state)
        content = save(arrays, metadata={"numbers": json.dumps(numbers)})
        name = f"round-{state.round:06d}.safetensors"
        write_atomically(self.folder / name, content)
        manifest = Manifest.read(self.run) or Manifest()
        newest = CheckpointEntry(name, hashlib.sha256(content).hexdigest(), state.round)
        others = [entry for entry in manifest.checkpoints if entry.file != name]
        kept = (newest, *others)[:KEPT_CHECKPOINTS]
        replace(manifest, checkpoints=kept).write(self.run)
        for old in self.folder.glob("round-*.safetensors"):
            if old.name not in {entry.file for entry in kept}:
                old.unlink(missing_ok=True)
        self._wrote_at = time.monotonic()
        self._took = self._wrote_at - started

    def load(self, like: S, recorded: int | None = None) -> S | None:
        """Return the newest intact state of the same kind as ``like``; None if there is none.

        Parameters
        ----------
        like : State
            The state before the first round.
        recorded : int, optional
            The last round that is recorded; a state beyond it would leave rounds without a record.

        Raises
        ------
        RunError
            If checkpoints were written but none of them is intact.
        """
        manifest = Manifest.read(self.run)
        entries = self._version_1_entries() if manifest is None else manifest.checkpoints
        intact = []
        for entry in entries:
            content = _read(self.folder / Path(entry.file).name)
            if content is not None and hashlib.sha256(content).hexdigest() == entry.sha256:
                intact.append((entry, content))
        if entries and not intact and self.folder.exists():
            raise RunError(
                f"every checkpoint in {self.folder} is damaged: remove that folder to start the "
                f"run again from round 1."
            )
        for entry, content in intact:
            if recorded is None or entry.round <= max(recorded, 0):
                return _restored(like, content)
        return None

    def _version_1_entries(self) -> tuple[CheckpointEntry, ...]:
        content = _read(self.folder / VERSION_1_INDEX)
        if content is None:
            return ()
        try:
            return tuple(
                CheckpointEntry(str(e["file"]), str(e["sha256"]), int(e["round"]))
                for e in json.loads(content)["checkpoints"]
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return (CheckpointEntry("damaged", "", 0),)


def _parts(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    arrays = {k: np.ascontiguousarray(v) for k, v in values.items() if isinstance(v, np.ndarray)}
    return arrays, {k: v for k, v in values.items() if k not in arrays}


def _restored(like: S, content: bytes) -> S:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        numbers = json.loads(header["__metadata__"]["numbers"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"a checkpoint cannot be read: {error}.") from error
    wanted, known = _parts(like)
    fits = arrays.keys() == wanted.keys() and all(
        arrays[k].shape == wanted[k].shape and arrays[k].dtype == wanted[k].dtype for k in wanted
    )
    if not fits or not isinstance(numbers, dict) or numbers.keys() != known.keys():
        raise RunError("the checkpoint is of another configuration than config.toml.")
    restored: dict[str, Any] = {**arrays, **numbers}
    return replace(like, **restored)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None

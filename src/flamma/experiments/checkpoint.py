"""A strategy's state on disk: safetensors for arrays, JSON for numbers.

``checkpoint/latest.json`` names the newest file with its SHA-256; the one before it is kept, so
a damaged file costs some rounds and not the run.
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
from flamma.files import write_atomically
from flamma.strategies.base import State

LATEST = "latest.json"
SHARE_OF_TIME = 0.05


class Checkpoints:
    """The checkpoints of one run, written no oftener than costs a twentieth of the time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._wrote_at = -float("inf")
        self._took = 0.0

    def save(self, state: State, force: bool = False) -> None:
        """Write the state, unless the last one was written just now."""
        started = time.monotonic()
        if not force and started - self._wrote_at < self._took / SHARE_OF_TIME:
            return
        from safetensors.numpy import save

        arrays, numbers = _parts(state)
        content = save(arrays, metadata={"numbers": json.dumps(numbers)})
        name = f"round-{state.round:06d}.safetensors"
        write_atomically(self.folder / name, content, durable=False)
        latest = {
            "file": name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "round": state.round,
            "numbers": numbers,
        }
        before = self._index()
        entries = [latest, *(e for e in before if e["file"] != name)][:2]
        text = json.dumps({"checkpoints": entries}, indent=1)
        write_atomically(self.folder / LATEST, text.encode(), durable=False)
        kept = {entry["file"] for entry in entries}
        for old in self.folder.glob("round-*.safetensors"):
            if old.name not in kept:
                old.unlink(missing_ok=True)
        self._wrote_at = time.monotonic()
        self._took = self._wrote_at - started

    def load(self, like: State) -> State | None:
        """Return the newest intact state of the same kind as ``like``; None if none was written.

        Raises
        ------
        RunError
            If checkpoints were written but none of them is intact.
        """
        entries = self._index()
        for entry in entries:
            content = _read(self.folder / Path(entry["file"]).name)
            if content is not None and hashlib.sha256(content).hexdigest() == entry["sha256"]:
                return _restored(like, content, entry["numbers"])
        if entries or (self.folder / LATEST).exists():
            raise RunError(
                f"every checkpoint in {self.folder} is damaged: remove that folder to start the "
                f"run again from round 1."
            )
        return None

    def _index(self) -> list[dict[str, Any]]:
        content = _read(self.folder / LATEST)
        try:
            entries = json.loads(content)["checkpoints"] if content else []
            return [e for e in entries if {"file", "sha256", "round", "numbers"} <= e.keys()]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []


def _parts(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    arrays = {k: np.ascontiguousarray(v) for k, v in values.items() if isinstance(v, np.ndarray)}
    return arrays, {k: v for k, v in values.items() if k not in arrays}


def _restored(like: State, content: bytes, numbers: dict[str, Any]) -> State:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
    except SafetensorError as error:
        raise RunError(f"a checkpoint cannot be read: {error}.") from error
    wanted, _ = _parts(like)
    fits = arrays.keys() == wanted.keys() and all(
        arrays[k].shape == wanted[k].shape and arrays[k].dtype == wanted[k].dtype for k in wanted
    )
    if not fits:
        raise RunError("the checkpoint is of another configuration than config.toml.")
    restored: dict[str, Any] = {**arrays, **numbers}
    return replace(like, **restored)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None

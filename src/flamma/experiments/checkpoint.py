"""A strategy's state on disk: safetensors for arrays, with the other numbers in their metadata.

The run's manifest names the newest file with its SHA-256; the one before it is kept, so a damaged
file costs some rounds and not the run. Rows of weights are in a file of their own already, where
no row of a kept checkpoint is overwritten: a checkpoint has their places and checksums, so that it
costs what has changed since the last one. It is written beside the training.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flamma.errors import RunError
from flamma.experiments.folder import CheckpointEntry, Manifest, add_checkpoint
from flamma.io import Extent, read_tensors, write_atomically
from flamma.strategies.base import S, State
from flamma.strategies.rows import Rows
from flamma.types import Params

CHECKPOINT_FOLDER = "checkpoint"

SHARE_OF_TIME = 0.05
"""Checkpoints are written no oftener than costs this share of the time."""

_KEPT_CHECKPOINTS = 2

_NO_TABLES: Mapping[str, Extent] = {}

_AVERAGED = "averaged"
"""The array of a state that has the served weights, where these are not those that are trained."""


class Checkpoints:
    """The checkpoints of the run in a directory; leaving it waits for one that is being written.

    Attributes
    ----------
    oldest : int or None
        The round of the oldest one that the run may go on from; None if there is none yet.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / CHECKPOINT_FOLDER
        self.oldest: int | None = None
        self._began = -float("inf")
        self._took = 0.0
        self._writer: threading.Thread | None = None
        self._problem: BaseException | None = None
        self._homes: dict[str, Rows] = {}
        self._held: dict[str, list[Rows]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.wait()
        except Exception:
            if kind is None:  # else the first problem is the one to tell
                raise

    def is_due(self) -> bool:
        """Return whether enough time has passed since the last one was begun."""
        passed = time.monotonic() - self._began
        writing = self._writer is not None and self._writer.is_alive()
        return passed >= (passed if writing else self._took) / SHARE_OF_TIME

    def start(
        self,
        state: State,
        synced: Callable[[], None] = lambda: None,
        tables: Mapping[str, Extent] = _NO_TABLES,
    ) -> None:
        """Write the state beside the training; ``synced`` puts on disk what it depends on.

        ``tables`` are the growing files of the run at that round. A checkpoint that is still being
        written is waited for, and its error is raised here.
        """
        import safetensors.numpy  # noqa: F401 - a thread that imports could be caught in a fork

        self.wait()
        self._began = time.monotonic()
        self._writer = threading.Thread(
            target=self._write, args=(state, synced, tables), name="checkpoint", daemon=True
        )
        self._writer.start()

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and raise what went wrong with it."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def save(self, state: State) -> None:
        """Write the state now; whatever else it depends on is on disk already."""
        self.start(state)
        self.wait()

    def settle(self, like: S) -> S:
        """Return the state before the first round with its rows in the run's directory.

        Raises
        ------
        RunError
            If the disk has no room for them.
        """
        for name, rows in _rows(like).items():
            if name not in self._homes:
                self._homes[name] = rows.moved(self.folder / f"{name}.rows")
        homes: dict[str, Any] = self._homes
        return replace(like, **homes)

    def load(
        self,
        like: S,
        recorded: int | None = None,
        is_whole: Callable[[CheckpointEntry], bool] = lambda entry: True,
    ) -> S | None:
        """Return the newest intact state of the same kind as ``like``; None if there is none.

        Parameters
        ----------
        like : State
            The state before the first round.
        recorded : int, optional
            The last round that is recorded; a state beyond it would leave rounds without a record.
        is_whole : callable, optional
            Whether what was written down up to a checkpoint is undamaged; such a one is preferred.

        Raises
        ------
        RunError
            If checkpoints were written but none of them is intact.
        """
        like = self.settle(like)
        entries = self.entries()
        self.oldest = min((entry.round for entry in entries), default=None)
        intact = []
        for entry, content in self._intact(entries):
            state = _restored(like, content)
            # Its rows stay until the manifest no longer names it, whether it is taken or not.
            self._held[entry.file] = list(_rows(state).values())
            intact.append((entry, state))
        usable = [
            (is_whole(entry), state)
            for entry, state in intact
            if recorded is None or entry.round <= max(recorded, 0)
        ]
        for _, state in sorted(usable, key=lambda found: not found[0]):
            if all(rows.intact() for rows in _rows(state).values()):
                return state
        if entries and (usable or not intact) and self.folder.exists():
            raise RunError(
                f"every checkpoint in {self.folder} is damaged: remove that folder to start the "
                f"run again from round 1."
            )
        return None

    def entries(self) -> tuple[CheckpointEntry, ...]:
        """Return the checkpoints that are kept, the newest first."""
        manifest = Manifest.read(self.run)
        return () if manifest is None else manifest.checkpoints

    def params(self, number: int | None = None) -> Params | None:
        """Return the served weights after a round, by default the last; None if they are lost."""
        wanted = [entry for entry in self.entries() if number in (None, entry.round)]
        for _, content in self._intact(wanted):
            arrays = _arrays(content)
            return arrays.get(_AVERAGED, arrays.get("params"))
        return None

    def _intact(
        self, entries: Sequence[CheckpointEntry]
    ) -> Iterator[tuple[CheckpointEntry, bytes]]:
        """Yield those checkpoints that are as they were written, with their content."""
        for entry in entries:
            with contextlib.suppress(OSError):
                content = read_tensors(self.folder / Path(entry.file).name, entry.sha256)
                yield entry, content

    def _write(
        self, state: State, synced: Callable[[], None], tables: Mapping[str, Extent]
    ) -> None:
        try:
            synced()
            self._save(state, tables)
            self._took = time.monotonic() - self._began
        except BaseException as problem:  # told by the thread that trains
            self._problem = problem

    def _save(self, state: State, tables: Mapping[str, Extent]) -> None:
        from safetensors.numpy import save

        state = self._at_home(state)
        arrays, numbers = _parts(state)
        content = save(arrays, metadata={"numbers": json.dumps(numbers)})
        name = f"round-{state.round:06d}.safetensors"
        for rows in _rows(state).values():
            rows.file.sync()
        write_atomically(self.folder / name, content)
        digest = hashlib.sha256(content).hexdigest()
        newest = CheckpointEntry(name, digest, state.round, tables)
        kept = add_checkpoint(self.run, newest, _KEPT_CHECKPOINTS)
        names = {entry.file for entry in kept}
        for old in self.folder.glob("round-*.safetensors"):
            if old.name not in names:
                old.unlink(missing_ok=True)
        self.oldest = min(entry.round for entry in kept)
        # Only now may the rows of older checkpoints be overwritten.
        self._held = {
            file: rows
            for file, rows in (self._held | {name: list(_rows(state).values())}).items()
            if file in names
        }

    def _at_home(self, state: S) -> S:
        """Return the state with copies of those rows that are not in the run's directory."""
        copies: dict[str, Any] = {}
        for name, rows in _rows(state).items():
            home = self._homes.get(name) or rows.emptied().moved(self.folder / f"{name}.rows")
            self._homes[name] = home
            if rows.file is not home.file:
                known = rows.known
                copies[name] = home.updated(known.tolist(), rows.each(known), known[:0])
        return replace(state, **copies)


def _rows(state: State) -> dict[str, Rows]:
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value for name, value in values.items() if isinstance(value, Rows)}


def _parts(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    rows = _rows(state)
    arrays = {k: np.ascontiguousarray(v) for k, v in values.items() if isinstance(v, np.ndarray)}
    numbers = {k: v for k, v in values.items() if k not in arrays and k not in rows}
    tables = {f"{k}.{part}": a for k, v in rows.items() for part, a in v.table().items()}
    return arrays | tables, numbers


def _arrays(content: bytes) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"a checkpoint cannot be read: {error}.") from error


def _restored(like: S, content: bytes) -> S:
    arrays = _arrays(content)
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        numbers = json.loads(header["__metadata__"]["numbers"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"a checkpoint cannot be read: {error}.") from error
    rows = {}
    for name, empty in _rows(like).items():
        parts = [part for part in empty.table() if f"{name}.{part}" in arrays]
        rows[name] = empty.restored({part: arrays[f"{name}.{part}"] for part in parts})
    wanted, known = _parts(like)
    fits = arrays.keys() == wanted.keys() and all(
        name.partition(".")[0] in rows
        or (arrays[name].shape == array.shape and arrays[name].dtype == array.dtype)
        for name, array in wanted.items()
    )
    if not fits or not isinstance(numbers, dict) or numbers.keys() != known.keys():
        raise RunError("the checkpoint is of another configuration than config.toml.")
    plain = {name: array for name, array in arrays.items() if name.partition(".")[0] not in rows}
    restored: dict[str, Any] = {**plain, **numbers, **rows}
    return replace(like, **restored)

"""The manifest of a run: the checksums of everything that resuming it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from flamma.errors import RunError
from flamma.files import (
    MOST_SETTINGS_FILE_BYTES,
    MOST_TABLE_FILE_BYTES,
    file_sha256,
    read_regular,
    write_atomically,
)

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint: its file, the file's SHA-256, and the round after which it was written."""

    file: str
    sha256: str
    round: int


@dataclass(frozen=True)
class Manifest:
    """What belongs to a run, and the checksum of each part.

    Attributes
    ----------
    files : mapping of str to str
        The SHA-256 of files that never change once a run has begun, by name.
    checkpoints : tuple of CheckpointEntry
        The newest first.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    checkpoints: tuple[CheckpointEntry, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the manifest of a run directory, None if it has none.

        Raises
        ------
        RunError
            If it is damaged.
        """
        try:
            text = read_regular(folder / MANIFEST, MOST_SETTINGS_FILE_BYTES).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            text = ""
        table = verified(text)
        try:
            if table is None:
                raise ValueError("checksum")
            entries = tuple(CheckpointEntry(**entry) for entry in table["checkpoints"])
            return cls(dict(table["files"]), entries)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{folder / MANIFEST} is damaged, so the run cannot be trusted: restore it, or run "
                f"the configuration anew into another directory."
            ) from error

    def write(self, folder: Path) -> None:
        """Write the manifest, whole or not at all."""
        write_atomically(folder / MANIFEST, signed(asdict(self)).encode())

    def check(self, folder: Path) -> None:
        """Refuse a directory whose files are not those that the run was begun with.

        Raises
        ------
        RunError
            If one is missing or changed.
        """
        for name, expected in self.files.items():
            if file_sha256(folder / name, MOST_TABLE_FILE_BYTES) != expected:
                raise RunError(
                    f"{folder / name} is not as it was when the run began: restore it, or run the "
                    f"configuration anew into another directory."
                )


def signed(table: Mapping[str, Any]) -> str:
    """Return a table as JSON with a checksum of its content."""
    content = {key: value for key, value in table.items() if key != "checksum"}
    return json.dumps({**content, "checksum": _checksum(content)}, indent=1, allow_nan=False) + "\n"


def verified(text: str) -> dict[str, Any] | None:
    """Return the table of a text that :func:`signed` made, None if it is damaged."""
    try:
        table = json.loads(text)
        told = table.pop("checksum")
        return table if told == _checksum(table) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

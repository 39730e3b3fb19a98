"""What happens on a host of a federation, as lines of JSON in one file.

All processes of a host append to the same file. A line is written at once, so that lines of two
processes do not mix, and the file is renamed when it is large. Nothing that goes wrong here ends
the process that wanted to tell something.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flamma.io import printable

EVENTS_FILE = "flamma.jsonl"
"""The name of the file, in the folder of a host's logs."""
FILE_VARIABLE, HOST_VARIABLE = "FLAMMA_EVENTS_FILE", "FLAMMA_EVENTS_HOST"
"""The environment variables that tell a host's processes where the file is, and their host."""
_MAX_EVENT_BYTES = 10_000_000
"""The size above which the file is renamed and a new one begun."""
_KEPT_EVENT_FILES = 5
"""How many renamed files are kept: ``flamma.jsonl.1`` is the newest of them."""
MOST_TEXT, _MAX_ENTRIES = 400, 50
"""Characters of one text of an event, and entries of one list or table in it."""
SHOWN_RUN_DIGITS = 12
"""Digits of a run's ``instance`` that tell it from others, at the server and at sites."""
_EVENT_LOCK_ATTEMPTS, _EVENT_LOCK_SECONDS = 20, 0.005
"""How often the file's lock is tried for, and the pause: its holder may be a stopped process."""

Level = Literal["info", "warning", "error"]
EVENT_LEVELS: tuple[Level, ...] = ("info", "warning", "error")


@dataclass(frozen=True)
class Journal:
    """Where one part of a host writes what happens.

    Parameters
    ----------
    file : Path or None
        The host's file of events; None writes nothing, as in a simulation.
    host : str
        The host: ``server``, or a site's name.
    part : str
        The part of it, such as ``supervisor`` or ``proxy``.
    """

    file: Path | None
    host: str = ""
    part: str = ""

    def tell(
        self,
        event: str,
        message: str,
        level: Level = "info",
        run: str = "",
        round: int | None = None,
        **details: Any,
    ) -> None:
        """Write down one event.

        Parameters
        ----------
        event : str
            What happened, in words that are always the same: ``"site refused"``.
        message : str
            One sentence for people. Texts of other parties are cut, and have no control characters.
        level : str
            ``info``, ``warning`` or ``error``.
        run : str
            The run's ``instance``, if it belongs to one.
        round : int, optional
            The round, if it belongs to one.
        **details
            Numbers and texts for programs. Nothing secret: whoever keeps the host's logs reads it.
        """
        if self.file is None:
            return
        table = {
            "time": now_text(),
            "level": level,
            "host": self.host,
            "part": self.part,
            "run": run[:SHOWN_RUN_DIGITS],
            "round": round,
            "event": event,
            "message": printable(message, MOST_TEXT),
            **({"details": _bounded(details)} if details else {}),
        }
        line = json.dumps(table, allow_nan=False, separators=(",", ":")) + "\n"
        with contextlib.suppress(OSError):  # a full disk is no reason to end a run
            append_line(self.file, line.encode())


def journal(part: str) -> Journal:
    """Return the journal of the host that this process belongs to; silent if to none."""
    file = os.environ.get(FILE_VARIABLE)
    return Journal(Path(file) if file else None, os.environ.get(HOST_VARIABLE, ""), part)


def now_text() -> str:
    """Return the time in UTC, with milliseconds."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z"


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a private file that several processes write to; rename a large file first.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    descriptor = _open(path)
    try:
        locked = _lock(descriptor)
        about = os.fstat(descriptor)
        if about.st_size + len(line) > _MAX_EVENT_BYTES and locked:
            if os.path.samestat(about, os.stat(path)):  # else another process was faster
                for number in range(_KEPT_EVENT_FILES - 1, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(f"{path}.{number}", f"{path}.{number + 1}")
                os.replace(path, f"{path}.1")
            fresh = _open(path)
            os.close(descriptor)
            descriptor = fresh
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def event_files(path: Path) -> list[Path]:
    """Return the files of events that there are, the oldest first."""
    older = [path.with_name(f"{path.name}.{number}") for number in range(_KEPT_EVENT_FILES, 0, -1)]
    return [file for file in (*older, path) if file.exists()]


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags, 0o600)


def _lock(descriptor: int) -> bool:
    """Return whether this process has the file's lock now; closing the file gives it back."""
    try:
        import fcntl  # only Unix has it, and only there are hosts
    except ImportError:
        return False
    for _ in range(_EVENT_LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_EVENT_LOCK_SECONDS)
        else:
            return True
    return False


def _rotate(path: Path) -> None:
    for number in range(_KEPT_EVENT_FILES - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}.{number}", f"{path}.{number + 1}")
    os.replace(path, f"{path}.1")


def _bounded(value: Any) -> Any:
    """Return a value as short JSON: finite numbers, texts of printable characters, few entries."""
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        entries = list(value.items())[:_MAX_ENTRIES]
        return {printable(str(key), MOST_TEXT): _bounded(entry) for key, entry in entries}
    if isinstance(value, list | tuple):
        return [_bounded(entry) for entry in value[:_MAX_ENTRIES]]
    return printable(str(value), MOST_TEXT)

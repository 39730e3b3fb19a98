"""Whether a process is alive, as its own signs tell, and whether it has read what files say now."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flamma.errors import FlammaError
from flamma.io import write_atomically

SIGNS_FILE = "supernode.json"
"""The file in a site's state in which its SuperNode gives signs of life."""
_MIN_WRITE_SECONDS = 1.0
"""Seconds between two notes of an answered request."""


@dataclass(frozen=True)
class Signs:
    """The last signs of life of a SuperNode.

    Attributes
    ----------
    asked : float
        When it last tried to reach the server with a heartbeat, in seconds since boot.
    answered : float or None
        When the server last answered it, in seconds since 1970.
    """

    asked: float
    answered: float | None

    @classmethod
    def read(cls, path: Path) -> Signs | None:
        """Return the signs in a file; None if there are none."""
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
            answered = found["answered"]
            return cls(float(found["asked"]), None if answered is None else float(answered))
        except (OSError, ValueError, KeyError, TypeError):
            return None


class SignGiver:
    """Writes signs of life into a file; threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._asked = time.monotonic()
        self._answered: float | None = None
        self._written = 0.0

    def asks(self) -> None:
        """Note that the SuperNode tries to tell the server that it is alive."""
        with self._lock:
            self._asked = time.monotonic()
            self._write()

    def is_answered(self) -> None:
        """Note that the server has answered."""
        with self._lock:
            self._answered = time.time()
            if time.monotonic() - self._written > _MIN_WRITE_SECONDS:
                self._write()

    def _write(self) -> None:
        text = json.dumps({"asked": self._asked, "answered": self._answered})
        with contextlib.suppress(FlammaError):  # a full disk; the work goes on
            write_atomically(self._path, text.encode(), durable=False)
        self._written = time.monotonic()

"""Following a run that another process writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from flamma.experiments.folder import ROUNDS


class Follower:
    """Reads the rounds of a run as another process finishes them, each line once.

    Parameters
    ----------
    path : Path
        The run directory; it need not be there yet.

    Notes
    -----
    A run that goes on from a checkpoint replaces the file by a shorter one and does some rounds
    again. What was there at the beginning is not told; what is done again may be told again.
    """

    def __init__(self, path: Path) -> None:
        self._file = path / ROUNDS
        self._place: tuple[int, int] = (0, 0)
        self._last = 0
        for record in self.new():
            self._last = record["round"]

    def new(self) -> list[dict[str, Any]]:
        """Return the records of the rounds that were finished since this was asked last."""
        try:
            with open(self._file, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                known, offset = self._place
                file.seek(offset if inode == known else 0)
                content = file.read()
        except OSError:
            return []
        lines, newline, _ = content.rpartition(b"\n")
        start = offset if inode == known else 0
        self._place = (inode, start + len(lines) + len(newline))
        records = [record for line in lines.splitlines() if (record := _parsed(line))]
        fresh = records if inode == known else [r for r in records if r["round"] > self._last]
        if records:
            self._last = records[-1]["round"]
        return fresh


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(record, dict) and isinstance(record.get("round"), int)
    return record if whole else None

"""Following a run that another process writes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from flamma.errors import RecordError
from flamma.experiments.folder import ROUNDS
from flamma.files import MOST_TABLE_FILE_BYTES, open_regular
from flamma.records import RoundRecord


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
            self._last = record.round

    def new(self) -> list[RoundRecord]:
        """Return the records of the rounds that were finished since this was asked last."""
        try:
            with open_regular(self._file, MOST_TABLE_FILE_BYTES) as file:
                inode = os.fstat(file.fileno()).st_ino
                known, offset = self._place
                file.seek(offset if inode == known else 0)
                content = file.read() or b""
        except OSError:
            return []
        lines, newline, _ = content.rpartition(b"\n")
        start = offset if inode == known else 0
        self._place = (inode, start + len(lines) + len(newline))
        records = []
        for line in lines.splitlines():
            with contextlib.suppress(RecordError):  # a line that another version wrote, or damage
                records.append(RoundRecord.from_json(line))
        fresh = records if inode == known else [r for r in records if r.round > self._last]
        if records:
            self._last = records[-1].round
        return fresh

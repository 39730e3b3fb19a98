"""The file of a ledger: appended to while a run goes on, cut back when it resumes, and read."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from flamma.experiments.ledger import (
    LEDGER,
    LEDGER_HEADER,
    LedgerConfig,
    LedgerLine,
    LedgerWriter,
    check_ledger,
    parse_lines,
)
from flamma.experiments.population import read_names
from flamma.files import write_atomically
from flamma.records import RoundRecord

if TYPE_CHECKING:
    from flamma.experiments.folder import RunFolder


@dataclass(frozen=True, eq=False)
class Ledger:
    """A ledger that was read and found intact.

    Attributes
    ----------
    config : LedgerConfig
        Its currency and budget.
    lines : tuple of LedgerLine
        All payments, in order.
    last_hash : str
        The hash of the last line, which stands for all of them; whoever has kept it can tell
        later whether a ledger is still the same.
    """

    config: LedgerConfig
    lines: tuple[LedgerLine, ...]
    last_hash: str


class LedgerFile:
    """The ledger of a run that goes on; the file is there from the first payment on."""

    def __init__(self, path: Path, writer: LedgerWriter) -> None:
        self.path = path
        self.writer = writer
        self._file: TextIO | None = None

    def open_at(self, text: str, records: Sequence[RoundRecord], last_round: int) -> None:
        """Cut the file back to a round, of which ``text`` is the content.

        A run that was begun before there were ledgers gets its earlier lines from its records.

        Raises
        ------
        RunError
            If a line up to that round is not as it was written.
        """
        earlier = [record for record in records if record.round <= last_round]
        if last_round < 1:
            rows = []
        elif text:
            where = str(self.path)
            rows = check_ledger(text, self.writer, earlier, last_round, ended=False, where=where)
        else:
            rows = [row for record in earlier for row in self.writer.lines(record)]
        if rows:
            self._write(rows)
        else:
            self.path.unlink(missing_ok=True)

    def append(self, record: RoundRecord) -> None:
        """Add the payments of a round."""
        rows = self.writer.lines(record)
        if rows and self._file is None:
            self._write([])
        if rows and self._file is not None:
            self._file.write("".join(f"{row}\n" for row in rows))
            self._file.flush()

    def sync(self) -> None:
        """Make what was appended survive a power failure."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _write(self, rows: Sequence[str]) -> None:
        text = "".join(f"{row}\n" for row in (LEDGER_HEADER, *rows))
        write_atomically(self.path, text.encode())
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115


def ledger_writer(config: LedgerConfig, run_id: str, population: str) -> LedgerWriter:
    """Return the writer of a run's ledger, given the text of its ``population.csv``."""
    try:
        names = read_names(population)
    except (IndexError, csv.Error):  # a damaged file, which the manifest tells of
        names = ()
    return LedgerWriter(config, run_id, names)


def read_ledger(
    folder: RunFolder,
    config: LedgerConfig,
    population: str,
    records: Sequence[RoundRecord],
    *,
    ended: bool,
) -> Ledger | None:
    """Return the ledger of a run, None if it has none.

    The records are to be read before the ledger: a run that goes on writes payments first.

    Raises
    ------
    RunError
        If a line is not as it was written; the first one is named.
    """
    if not (folder.path / LEDGER).exists():
        return None
    writer = ledger_writer(config, folder.run_id, population)
    last_round = records[-1].round if records else 0
    where = str(folder.path / LEDGER)
    text = folder.text(LEDGER)
    rows = check_ledger(text, writer, records, last_round, ended=ended, where=where)
    return Ledger(config, tuple(parse_lines(rows)), writer.last_hash)

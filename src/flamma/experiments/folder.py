"""A run directory: what is in it, and how it is read and written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from flamma.errors import RecordError, RunError
from flamma.files import write_atomically
from flamma.records import RoundRecord

CONFIG, ROUNDS, CLIENTS = "config.toml", "rounds.jsonl", "clients.csv"
POPULATION, ABOUT, CHECKPOINT = "population.csv", "run.json", "checkpoint"
CLIENT_COLUMNS = ("round", "client", "accuracy", "loss", "held_out")


class RunFolder:
    """The files of one run. Rounds and client scores are appended and flushed line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rounds: TextIO | None = None
        self._clients: TextIO | None = None
        self._lock = FileLock(path / ".lock", timeout=0, thread_local=False)

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / CONFIG).exists()

    def lock(self) -> None:
        """Keep other processes from writing here until this one closes or dies."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            raise RunError(f"{self.path} is in use by another process: wait or end it.") from error
        except OSError as error:
            raise _cannot("write to", self.path, error) from error

    def write(self, name: str, text: str) -> None:
        """Write a whole file."""
        write_atomically(self.path / name, text.encode())

    def open_at(self, last_round: int) -> None:
        """Open the growing files, dropping what was written after ``last_round``."""
        try:
            lines = self.text(ROUNDS).splitlines()
            kept_rounds = sum(record.round <= last_round for record in self.rounds())
            text = "".join(f"{line}\n" for line in lines[:kept_rounds])
            write_atomically(self.path / ROUNDS, text.encode(), durable=False)
            kept = self._client_lines(last_round)
            write_atomically(self.path / CLIENTS, kept.encode(), durable=False)
            self._rounds = open(self.path / ROUNDS, "a", encoding="utf-8")  # noqa: SIM115
            self._clients = open(self.path / CLIENTS, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise _cannot("write to", self.path, error) from error

    def append(self, record: RoundRecord, client_rows: Iterable[Iterable[object]]) -> None:
        """Add one round, and the scores of its clients if it was evaluated."""
        assert self._rounds is not None
        assert self._clients is not None
        try:
            rows = [",".join(map(str, row)) for row in client_rows]
            if rows:
                self._clients.write("\n".join(rows) + "\n")
                self._clients.flush()
            self._rounds.write(record.to_json() + "\n")
            self._rounds.flush()
        except OSError as error:
            raise _cannot("write to", self.path, error) from error

    def rounds(self) -> list[RoundRecord]:
        """Return the records of the finished rounds; a torn last line is left out.

        Raises
        ------
        RunError
            If a newer version of FLamma wrote them.
        """
        records, problems, newer = self._read_rounds()
        if newer:
            raise RunError(f"{self.path}: {problems[0]}.")
        return records

    def read_rounds(self) -> tuple[list[RoundRecord], list[str]]:
        """Return the records that can be read, and what is wrong with the others."""
        records, problems, _ = self._read_rounds()
        return records, problems

    def _read_rounds(self) -> tuple[list[RoundRecord], list[str], bool]:
        records: list[RoundRecord] = []
        for number, line in enumerate(self.text(ROUNDS).splitlines(), start=1):
            try:
                record = RoundRecord.from_json(line)
                if record.round != len(records) + 1:
                    raise RecordError(f"it is of round {record.round}")
                records.append(record)
            except RecordError as error:
                return records, [f"{ROUNDS}, line {number}, cannot be read: {error}"], error.newer
        return records, [], False

    def read_json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the run, empty if it is missing or damaged."""
        try:
            content = json.loads(self.text(name))
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def close(self) -> None:
        """Close the files and let others write here."""
        for file in (self._rounds, self._clients):
            if file is not None:
                with contextlib.suppress(OSError):  # what could not be written was told before
                    file.close()
        self._rounds = self._clients = None
        self._lock.release()

    def _client_lines(self, last_round: int) -> str:
        lines = self.text(CLIENTS).splitlines()[1:]
        width = len(CLIENT_COLUMNS) - 1
        whole = [line for line in lines if line.count(",") == width]
        kept = [line for line in whole if int(line.split(",", 1)[0]) <= last_round]
        return "\n".join([",".join(CLIENT_COLUMNS), *kept]) + "\n"

    def text(self, name: str) -> str:
        """Return the text of a file of the run, empty if it is missing."""
        try:
            return (self.path / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise _cannot("read", self.path / name, error) from error


def free_folder(parent: Path, name: str) -> Path:
    """Return a folder under ``parent`` that does not exist yet: name, name-2, name-3, ..."""
    path, number = parent / name, 2
    while os.path.lexists(path):
        path, number = parent / f"{name}-{number}", number + 1
    return path


def _cannot(verb: str, path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot {verb} {path}: {error.strerror}; what was written before is safe, "
        f"name another --out or make room, then flamma resume."
    )

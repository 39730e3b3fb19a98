"""A run directory: what is in it, and how it is read and written."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from flamma.errors import RunError
from flamma.files import write_atomically

CONFIG, ROUNDS, CLIENTS = "config.toml", "rounds.jsonl", "clients.csv"
POPULATION, ABOUT, CHECKPOINT = "population.csv", "run.json", "checkpoint"
CLIENT_COLUMNS = ("round", "client", "accuracy", "loss", "held_out")


class RunFolder:
    """The files of one run. Rounds and client scores are appended and flushed line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rounds: TextIO | None = None
        self._clients: TextIO | None = None
        self._lock: TextIO | None = None

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / CONFIG).exists()

    def lock(self) -> None:
        """Keep other processes from writing here until this one closes or dies."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise _cannot("write to", self.path, error) from error
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this platform
            pass
        except OSError as error:
            self.close()
            raise RunError(f"{self.path} is in use by another process: wait or end it.") from error

    def write(self, name: str, text: str) -> None:
        """Write a whole file."""
        write_atomically(self.path / name, text.encode())

    def open_at(self, last_round: int) -> None:
        """Open the growing files, dropping what was written after ``last_round``."""
        try:
            rounds = [r for r in self.rounds() if r["round"] <= last_round]
            text = "".join(f"{_line(record)}\n" for record in rounds)
            write_atomically(self.path / ROUNDS, text.encode(), durable=False)
            kept = self._client_lines(last_round)
            write_atomically(self.path / CLIENTS, kept.encode(), durable=False)
            self._rounds = open(self.path / ROUNDS, "a", encoding="utf-8")  # noqa: SIM115
            self._clients = open(self.path / CLIENTS, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise _cannot("write to", self.path, error) from error

    def append(self, record: dict[str, Any], client_rows: Iterable[Iterable[object]]) -> None:
        """Add one round, and the scores of its clients if it was judged."""
        assert self._rounds is not None
        assert self._clients is not None
        try:
            rows = [",".join(map(str, row)) for row in client_rows]
            if rows:
                self._clients.write("\n".join(rows) + "\n")
                self._clients.flush()
            self._rounds.write(_line(record) + "\n")
            self._rounds.flush()
        except OSError as error:
            raise _cannot("write to", self.path, error) from error

    def rounds(self) -> list[dict[str, Any]]:
        """Return the records of the finished rounds; a torn last line is left out."""
        return self.read_rounds()[0]

    def read_rounds(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the records that can be read, and what is wrong with the others."""
        records: list[dict[str, Any]] = []
        problems = []
        for number, line in enumerate(self.text(ROUNDS).splitlines(), start=1):
            try:
                record = json.loads(line)
                if record["round"] != len(records) + 1:
                    raise ValueError
                records.append(record)
            except (ValueError, KeyError, TypeError):
                problems.append(f"{ROUNDS}, line {number}, cannot be read")
                break
        return records, problems

    def client_table(self) -> list[dict[str, str]]:
        """Return the scores of the clients, one row per client and judged round."""
        return list(csv.DictReader(io.StringIO(self.text(CLIENTS))))

    def read_json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the run, empty if it is missing or damaged."""
        try:
            content = json.loads(self.text(name))
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def close(self) -> None:
        """Close the files and let others write here."""
        for file in (self._rounds, self._clients, self._lock):
            if file is not None:
                with contextlib.suppress(OSError):  # what could not be written was told before
                    file.close()
        self._rounds = self._clients = self._lock = None

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


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, allow_nan=False, separators=(",", ":"))


def _cannot(verb: str, path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot {verb} {path}: {error.strerror}; what was written before is safe, "
        f"name another --out or make room, then flamma resume."
    )

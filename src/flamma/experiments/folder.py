"""A run directory: what is in it, and how it is read and written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from flamma.errors import InputFileError, RecordError, RunError
from flamma.experiments.ledger import LEDGER, LedgerFile, LedgerWriter
from flamma.io import (
    MAX_FILE_BYTES,
    Extent,
    GrowingFile,
    file_sha256,
    open_regular,
    read_regular,
    read_text,
    remove_leftovers,
    write_atomically,
)
from flamma.records import RoundRecord

# The manifest of a run: the checksums of everything that resuming and reading it depends on.

MANIFEST = "manifest.json"

_MANIFEST_LOCK = threading.RLock()
"""Held while a manifest is changed: a checkpoint is written beside the training."""


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint: its file, the file's SHA-256, and the round after which it was written.

    ``tables`` has the extent of every growing file at that round; version 0.2 wrote none.
    """

    file: str
    sha256: str
    round: int
    tables: Mapping[str, Extent] = field(default_factory=dict)

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Self:
        """Return the entry of a table of the manifest."""
        tables = {name: Extent(**extent) for name, extent in table.get("tables", {}).items()}
        return cls(table["file"], table["sha256"], table["round"], tables)


@dataclass(frozen=True)
class Manifest:
    """What belongs to a run, and the checksum of each part.

    Attributes
    ----------
    files : mapping of str to str
        The SHA-256 of files by name; of one that is replaced, those of the old and the new file.
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
            text = read_regular(folder / MANIFEST, MAX_FILE_BYTES).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            text = ""
        table = verified(text)
        try:
            if table is None:
                raise ValueError("checksum")
            entries = tuple(CheckpointEntry.parse(entry) for entry in table["checkpoints"])
            return cls(dict(table["files"]), entries)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
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
        for name in _UNCHANGING:
            if name in self.files and not self.has(folder, name):
                raise RunError(
                    f"{folder / name} is not as it was when the run began: restore it, or run the "
                    f"configuration anew into another directory."
                )

    def has(self, folder: Path, name: str) -> bool:
        """Return whether a file is as it was written."""
        return file_sha256(folder / name, MAX_FILE_BYTES) in self.files[name].split()


def add_checkpoint(folder: Path, newest: CheckpointEntry, kept: int) -> Sequence[CheckpointEntry]:
    """Put a checkpoint at the head of a run's manifest, and return those that are kept."""
    with _MANIFEST_LOCK:
        manifest = Manifest.read(folder) or Manifest()
        others = [entry for entry in manifest.checkpoints if entry.file != newest.file]
        checkpoints = (newest, *others)[:kept]
        replace(manifest, checkpoints=checkpoints).write(folder)
    return checkpoints


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
    return _sha256(text.encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# The directory itself.

CONFIG, ROUNDS, CLIENTS = "config.toml", "rounds.jsonl", "clients.csv"
POPULATION, ABOUT = "population.csv", "run.json"
DATA_SHA256 = "data_sha256"
"""The key of ``run.json`` with the checksum of the file that a run's data were read from."""

LOCK = ".lock"
"""The file that is locked by the process that writes a run."""

FINITE = "finite"
"""The key of ``run.json`` that is there, and false, if the final weights are not finite."""

STOPPED = "stopped"
"""The key of ``run.json`` that tells of a run that ended before its last round."""

MODEL_CARD, CALLBACKS_FILE = "model.json", "callbacks.json"

_RUN_ID_DIGITS = 16
_UNCHANGING = (CONFIG, POPULATION)
"""What never changes once a run has begun."""

_CHECKED = (*_UNCHANGING, ABOUT, MODEL_CARD, CALLBACKS_FILE)
"""The files whose checksum the manifest has."""

_CLIENT_HEADER = "round,client,accuracy,loss,held_out\n"


@dataclass
class _RoundLines:
    """The lines of ``rounds.jsonl``: intact ones with their records, damaged ones, and why.

    ``newer`` is the problem with a line that a newer version of FLamma wrote.
    """

    intact: list[tuple[str, RoundRecord]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    newer: str = ""


class RunFolder:
    """The files of one run. Rounds and client scores are appended and flushed line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rounds: GrowingFile | None = None
        self._clients: GrowingFile | None = None
        self._ledger: LedgerFile | None = None
        self._lock = FileLock(path / LOCK, timeout=0, thread_local=False)

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / CONFIG).exists()

    def lock(self) -> None:
        """Keep other processes from writing here until this one closes or dies."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            remove_leftovers(self.path)
        except Timeout as error:
            raise RunError(f"{self.path} is in use by another process: wait or end it.") from error
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def check_free(self) -> None:
        """Refuse a directory that holds a run already.

        Raises
        ------
        RunError
            If it does.
        """
        if self.exists:
            raise RunError(
                f"{self.path} already holds a run: flamma resume {self.path}, or choose another "
                f"directory."
            )

    def write(self, name: str, text: str) -> None:
        """Write a whole file; the manifest has its checksum before it is there."""
        with _MANIFEST_LOCK:
            manifest = Manifest.read(self.path) if name in _CHECKED else None
            if manifest is not None and manifest.files:
                known = [_sha256(text.encode())]
                if self._is_intact(name):
                    known.insert(0, file_sha256(self.path / name))
                files = {**manifest.files, name: " ".join(known)}
                replace(manifest, files=files).write(self.path)
            write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, table: Mapping[str, Any]) -> None:
        """Write a table as a whole file of JSON."""
        self.write(name, json.dumps(table, indent=1, allow_nan=False) + "\n")

    def write_about(self, **more: Any) -> None:
        """Write ``run.json`` with what it has and more."""
        self.write_json(ABOUT, self.read_json(ABOUT) | more)

    def seal(self) -> None:
        """Write down the checksums of the first files, or check them if that was done before.

        Raises
        ------
        RunError
            If a file is not as it was when the run began.
        """
        known = Manifest.read(self.path)
        if known is not None and known.files:
            known.check(self.path)
            return
        there = (name for name in _CHECKED if (self.path / name).exists())
        Manifest({name: file_sha256(self.path / name) for name in there}).write(self.path)

    @property
    def run_id(self) -> str:
        """What the records of this run are marked with; empty before it began."""
        with contextlib.suppress(RunError):
            manifest = Manifest.read(self.path)
            if manifest is not None:
                return manifest.files.get(CONFIG, "")[:_RUN_ID_DIGITS]
        return ""

    def open_at(self, last_round: int, ledger: LedgerWriter | None = None) -> None:
        """Open the growing files, dropping rounds after ``last_round``, which are done again.

        What is damaged is set aside. Payments are written down if there is a writer of the ledger.

        Raises
        ------
        RunError
            If the files cannot be written, or the ledger was changed.
        """
        read = self.read_lines()
        try:
            rounds = "".join(f"{line}\n" for line, r in read.intact if r.round <= last_round)
            damaged = "".join(f"{line}\n" for line in read.damaged)
            kept = self._kept(ROUNDS, last_round, rounds, damaged)
            clients = self._kept(CLIENTS, last_round, self._client_lines(last_round), "")
            self._drop_checkpoints_after(last_round)
            self._rounds = GrowingFile(self.path / ROUNDS, kept)
            self._clients = GrowingFile(self.path / CLIENTS, clients or _CLIENT_HEADER.encode())
            if ledger is not None:
                self._ledger = LedgerFile(self.path / LEDGER, ledger)
                lines = set(kept.decode().split("\n"))
                records = [record for line, record in read.intact if line in lines]
                self._ledger.open_at(self.text(LEDGER), records, last_round)
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def _kept(self, name: str, last_round: int, text: str, damaged: str) -> bytes:
        """Return the content of a growing file up to a round, and set aside what is damaged.

        Parameters
        ----------
        name : str
            The file.
        last_round : int
            The last round that counts.
        text, damaged : str
            Its lines up to that round, and those that cannot be read: all that is known of it
            where no checkpoint has its checksum.
        """
        content = self.text(name).encode()
        entries = [entry for entry in self._checkpoints() if entry.round <= last_round]
        extents = [entry.tables[name] for entry in entries if name in entry.tables]
        kept, aside = text.encode(), damaged.encode()
        if extents and entries[0].round == last_round:
            whole = [extent.length for extent in extents if extent.begins(content)]
            kept = content[: max(whole, default=0)]
            aside = b"" if extents[0].length in whole else content[len(kept) :]
        if aside:
            place = self.path / f"{name.partition('.')[0]}.damaged"
            with open(place, "ab", opener=_without_waiting) as file:
                file.write(aside)
            amount = aside.count(b"\n")
            warnings.warn(
                f"{self.path / name} is damaged: {amount} lines of it were set aside in "
                f"{place.name}",
                stacklevel=3,
            )
        return kept

    def _drop_checkpoints_after(self, last_round: int) -> None:
        """Take checkpoints of rounds that are done again out of the manifest."""
        with _MANIFEST_LOCK:
            manifest = Manifest.read(self.path) or Manifest()
            kept = tuple(entry for entry in manifest.checkpoints if entry.round <= last_round)
            if kept != manifest.checkpoints:
                replace(manifest, checkpoints=kept).write(self.path)

    def _checkpoints(self) -> tuple[CheckpointEntry, ...]:
        manifest = Manifest.read(self.path)
        return () if manifest is None else manifest.checkpoints

    def is_whole(self, entry: CheckpointEntry) -> bool:
        """Return whether rounds and scores are as they were at a checkpoint."""
        contents = {name: self.text(name).encode() for name in (ROUNDS, CLIENTS)}
        return all(
            entry.tables[name].begins(content)
            for name, content in contents.items()
            if name in entry.tables
        )

    def changed_tables(self, ended: bool) -> list[str]:
        """Return which growing files are not as they were written, one clause each.

        Of a run that has ended there must be nothing more than at its last checkpoint.
        """
        try:
            newest = next(iter(self._checkpoints()), None)
        except RunError:  # which is told by whoever reads the manifest
            newest = None
        changed = []
        for name, extent in newest.tables.items() if newest else ():
            content = self.text(name).encode()
            if not extent.begins(content) or (ended and len(content) > extent.length):
                changed.append(f"{name} does not match its checksum in {MANIFEST}")
        return changed

    def append(self, record: RoundRecord, client_rows: Sequence[str]) -> None:
        """Add one round, its payments, and the scores of its clients if it was evaluated."""
        assert self._rounds is not None
        assert self._clients is not None
        try:
            if client_rows:
                self._clients.append("".join(f"{row}\n" for row in client_rows))
            if self._ledger is not None:
                self._ledger.append(record)
            self._rounds.append(record.to_json() + "\n")
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def extents(self) -> dict[str, Extent]:
        """Return how far the growing files go now."""
        files = {ROUNDS: self._rounds, CLIENTS: self._clients}
        found = {name: file.extent for name, file in files.items() if file is not None}
        paid = None if self._ledger is None else self._ledger.extent
        return found if paid is None else {**found, LEDGER: paid}

    def sync(self) -> None:
        """Make what was appended survive a power failure, before a checkpoint depends on it."""
        try:
            for file in (self._clients, self._rounds, self._ledger):
                if file is not None:
                    file.sync()
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def rounds(self) -> list[RoundRecord]:
        """Return the records of the finished rounds, without damaged lines.

        Raises
        ------
        RunError
            If a version of FLamma wrote them that cannot be read.
        """
        read = self.read_lines()
        if read.newer:
            raise RunError(f"{self.path}: {read.newer}.")
        return [record for _, record in read.intact]

    def read_rounds(self) -> tuple[list[RoundRecord], list[str]]:
        """Return the records that can be read, and what is wrong with the others."""
        read = self.read_lines()
        return [record for _, record in read.intact], read.problems

    def read_lines(self) -> _RoundLines:
        """Return the lines of ``rounds.jsonl``, intact and damaged ones."""
        read, own = _RoundLines(), self.run_id
        *lines, torn = self.text(ROUNDS).split("\n")
        for number, line in enumerate(lines, start=1):
            last = read.intact[-1][1].round if read.intact else 0
            try:
                record = RoundRecord.from_json(line)
                if record.round <= last:
                    raise RecordError(f"it is of round {record.round}")
                if record.run is not None and own and record.run != own:
                    raise RecordError("it is of another run")
                read.problems += [
                    f"{ROUNDS} has no record of round {missing}"
                    for missing in range(last + 1, record.round)
                ]
                read.intact.append((line, record))
            except RecordError as error:
                if error.older:
                    raise RunError(
                        f"{self.path} is of version 0.1 of FLamma: commit 5770684 reads it."
                    ) from None
                problem = f"{ROUNDS}, line {number}, cannot be read: {error}"
                read.newer = read.newer or (problem if error.newer else "")
                read.problems.append(problem)
                read.damaged.append(line)
        if torn:  # what a killed process was about to write is done again
            read.problems.append(f"{ROUNDS}, line {len(lines) + 1}, cannot be read: it is cut off")
        return read

    def read_json(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the run, empty if it is missing, damaged or of another run."""
        text = self.text(name)
        try:
            content = json.loads(text) if self._is_intact(name) else {}
        except (ValueError, RecursionError):
            return {}
        content = content if isinstance(content, dict) else {}
        content.pop("checksum", None)
        return content

    def _is_intact(self, name: str) -> bool:
        """Return whether a file is as it was written, as far as the manifest tells.

        Files of version 0.2 that are not in the manifest have a checksum of their own.
        """
        try:
            manifest = Manifest.read(self.path)
        except RunError:
            return name not in _CHECKED
        if manifest is None or not manifest.files or name not in _CHECKED:
            return True
        if name in manifest.files:
            return manifest.has(self.path, name)
        table = verified(self.text(name))
        return table is not None and table.get("run", self.run_id) == self.run_id

    def close(self) -> None:
        """Close the files and let others write here."""
        for file in (self._rounds, self._clients, self._ledger):
            if file is not None:
                with contextlib.suppress(OSError):  # what could not be written was told before
                    file.close()
        self._rounds = self._clients = self._ledger = None
        self._lock.release()

    def _client_lines(self, last_round: int) -> str:
        text = self.text(CLIENTS)
        kept = [_CLIENT_HEADER]
        start, end = text.find("\n") + 1, text.rfind("\n") + 1
        while 0 < start < end:  # the lines of one round after the other, not one by one
            number = text[start : start + 10].partition(",")[0]  # longer ones are damage
            stop = text.find("\n", start) + 1
            while stop < end and text.startswith(f"{number},", stop):
                stop = text.find("\n", stop) + 1
            if number.isascii() and number.isdigit() and int(number) <= last_round:
                kept.append(text[start:stop])
            start = stop
        return "".join(kept)

    def text(self, name: str) -> str:
        """Return the text of a file of the run, empty if it is missing."""
        try:
            content = read_regular(self.path / name, MAX_FILE_BYTES)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise RunError(f"cannot read {self.path / name}: {error.strerror or error}.") from error
        return content.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, and a pipe only if somebody reads it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def run_id_of(config: str) -> str:
    """Return what the records of a run with this configuration file are marked with."""
    return hashlib.sha256(config.encode()).hexdigest()[:_RUN_ID_DIGITS]


def free_folder(parent: Path, name: str) -> Path:
    """Return a folder under ``parent`` that does not exist yet: name, name-2, name-3, ..."""
    path, number = parent / name, 2
    while os.path.lexists(path):
        path, number = parent / f"{name}-{number}", number + 1
    return path


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot write to {path}: {error.strerror}; what was written before is safe, "
        f"choose another directory or make room, then flamma resume."
    )


# Which sites a run has and what it waits for: written where its rounds happen, shown elsewhere.

SITES = "sites.json"
"""The file of a run directory that tells which sites are there at the moment."""

_MOST_TOLD_SITES = 5
"""Sites that a sentence names; of more it tells how many there are."""


@dataclass(frozen=True)
class SiteStates:
    """The sites of a run at one time.

    Attributes
    ----------
    round : int
        The round that is carried out or waited for; 0 before the first.
    sites, needed : int
        How many sites the run has, and how many must be connected for it to go on.
    missing : mapping
        Why sites are not there, by name.
    waiting_since : float
        Since when the run waits for sites, in seconds of the time of day; 0 if it does not.
    """

    round: int
    sites: int
    needed: int
    missing: Mapping[str, str] = field(default_factory=dict)
    waiting_since: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> SiteStates | None:
        """Return what a run directory tells; None if it tells nothing, or it cannot be read."""
        try:
            return cls.parse(read_text(folder / SITES, regular=True))
        except InputFileError:
            return None

    @classmethod
    def parse(cls, text: str) -> SiteStates | None:
        """Return what the text of such a file tells; None if it cannot be read."""
        try:
            table: Any = json.loads(text)
            missing = {str(name): str(why) for name, why in dict(table["missing"]).items()}
            number, sites, needed = (int(table[key]) for key in ("round", "sites", "needed"))
            return cls(number, sites, needed, missing, float(table["waiting_since"]))
        except (ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Write it into a run directory."""
        write_atomically(folder / SITES, json.dumps(asdict(self), indent=1).encode(), durable=False)

    def tells_the_same_as(self, other: SiteStates) -> bool:
        """Return whether nothing has changed but the round."""
        own = (self.missing, bool(self.waiting_since))
        return own == (other.missing, bool(other.waiting_since))

    def sentence(self, reasons: Mapping[str, str] | None = None) -> str:
        """Return it as one sentence; ``reasons`` is what else is known of sites, by name.

        Examples
        --------
        >>> print(SiteStates(4, 3, 2, {"a": "not connected", "b": "refused"}, 1e9).sentence())
        round 4 waits: 1 of 3 sites is connected, 2 are needed; a: not connected; b: refused
        >>> print(SiteStates(4, 3, 2, {"a": "not connected"}).sentence({"a": "its clock is wrong"}))
        round 4 goes on without a: its clock is wrong
        >>> print(SiteStates(5, 3, 2).sentence())
        round 5: all 3 sites are connected
        """
        number = f"round {self.round}" if self.round else "the run"
        known = {**self.missing, **{k: v for k, v in (reasons or {}).items() if k in self.missing}}
        parts = [f"{name}: {why}" for name, why in list(known.items())[:_MOST_TOLD_SITES]]
        if len(known) > len(parts):
            parts.append(f"{len(known) - len(parts)} more")
        told = "; ".join(parts)
        if self.waiting_since:
            here = self.sites - len(self.missing)
            verb = "is" if here == 1 else "are"
            needs = f"{self.needed} {'is' if self.needed == 1 else 'are'} needed"
            return f"{number} waits: {here} of {self.sites} sites {verb} connected, {needs}; {told}"
        if told:
            return f"{number} goes on without {told}"
        return f"{number}: all {self.sites} sites are connected"


# Following a run that another process writes.


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
            with open_regular(self._file, MAX_FILE_BYTES) as file:
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

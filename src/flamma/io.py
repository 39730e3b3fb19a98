"""Files and names: atomic writing, bounded reading, TOML and tensors, and near names."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from itertools import accumulate, compress
from pathlib import Path
from typing import Any

from flamma.errors import ConfigError, InputFileError

JsonTable = dict[str, Any]
"""An object of JSON, or a table of TOML: texts, numbers, lists and tables by name."""

TableView = Mapping[str, Any]
"""Such a table where it is only read."""

Stamp = tuple[tuple[int, int, int], ...]
"""Which files were there, and in what state."""

SITE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
"""What a site of a federation may be called: it is a folder and part of a host's name too."""

_MAX_NAME_BYTES = 100
"""The longest name of a folder, in UTF-8; file systems allow 255 bytes with all that is added."""

_SHORTEST_PART, _SIMILAR, _VERY_SIMILAR = 4, 0.65, 0.8
"""Letters of a part by which a name can be meant, and the similarity of names that begin alike,
and that of others."""

_MOST_SHOWN = 200
"""The most characters of a value that a message quotes."""


def check_folder_name(name: str, what: str) -> str:
    """Return a name that is safe as one folder below another, or say what is wrong with it.

    Parameters
    ----------
    name : str
        What a user calls a dataset, a split, a strategy or a suite.
    what : str
        What the name is of, for the message.

    Raises
    ------
    ConfigError
        If the name is empty or long, begins with a dot, has a slash or cannot be printed.

    Examples
    --------
    >>> check_folder_name("flamma γ=0.5", "strategies")
    'flamma γ=0.5'
    >>> check_folder_name("../elsewhere", "strategies")
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: strategies: '../elsewhere' cannot be the name of a folder: use up to
    100 letters, digits and signs, without slashes, and no dot or blank at an end.
    """
    usable = (
        name == name.strip(" .")
        and name.isprintable()
        and not set(name) & set("/\\")
        and 0 < len(name.encode()) <= _MAX_NAME_BYTES
    )
    if usable:
        return name
    raise ConfigError(
        f"{what}: {quoted(name)} cannot be the name of a folder: use up to {_MAX_NAME_BYTES} "
        f"letters, digits and signs, without slashes, and no dot or blank at an end."
    )


def quoted(value: Any) -> str:
    r"""Return a value for a message: on one line, and cut where it is long.

    Examples
    --------
    >>> quoted("a\nb"), quoted("a" * 1000).count("a")
    ("'a\\nb'", 196)
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes out no whole number of more than 4300 digits
        return "a number of thousands of digits"
    return printable(text, _MOST_SHOWN)


def printable(text: str, most: int) -> str:
    r"""Return a text on one line, without what a terminal would obey, and cut where it is long.

    Examples
    --------
    >>> printable("a\x1b[2Jb\n c", 80)
    'a�[2Jb  c'
    """
    cut = f"{text[: most - 3]}..." if len(text) > most else text
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in cut).strip()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most like this one, or nothing if none is like it.

    Of names that begin differently only very similar ones, or parts of each other, are. Upper and
    lower case, hyphens and underscores do not matter.

    Examples
    --------
    >>> nearest("Fed_Avg", ["fedavg", "fedprox"])
    'fedavg'
    >>> nearest("x", ["fedavg", "fedprox"])
    ''
    """
    name = str(name)  # keys of a mapping from Python can be anything
    if len(name) > _MAX_NAME_BYTES:  # comparing takes the square of the length
        return ""
    plain: dict[str, str] = {}
    for candidate in known:
        plain.setdefault(_plain(candidate), candidate)
    typed = _plain(name)
    found = [
        known for known in get_close_matches(typed, plain, n=5, cutoff=0.6) if _alike(typed, known)
    ]
    found = found or [known for known in plain if sorted(known) == sorted(typed)]
    return plain[found[0]] if found else ""


def _alike(typed: str, known: str) -> bool:
    """Return whether similar names may be meant for each other.

    The first letter is rarely wrong: "test" is no slip of "least".
    """
    part = min(len(typed), len(known)) >= _SHORTEST_PART and (typed in known or known in typed)
    least = _SIMILAR if typed[:1] == known[:1] else _VERY_SIMILAR
    return part or SequenceMatcher(None, typed, known).ratio() >= least


def unknown(
    kind: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> str:
    """Return the sentence that says a name is not known and which are.

    ``elsewhere`` has names that are known in another place, and what to call them in a suggestion.

    Examples
    --------
    >>> unknown("strategy", "flama", ["fedavg", "flamma"])
    "unknown strategy 'flama': did you mean flamma? (known: fedavg, flamma)."
    >>> unknown("key", "alpah", ["rounds"], {"alpha": "data.alpha"})
    "unknown key 'alpah': did you mean data.alpha? (known: rounds)."
    """
    names = tuple(known)
    called = {**(elsewhere or {}), **{own: own for own in names}}
    guess = called.get(nearest(name, called))
    hint = f": did you mean {guess}?" if guess else ""
    return f"unknown {kind} {quoted(name)}{hint} (known: {', '.join(names) or 'none'})."


def _plain(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")


# Reading and writing files so that nothing half-written is ever left under its name.

TEMPORARY_SUFFIX = ".flamma-tmp"
"""How the names of files end that are still being written."""

MAX_FILE_BYTES = 1 << 30
"""The largest file that is read, but for weights; tables of a million clients have about 0.1 GB."""

_GROWTH_BYTES = 1 << 20
"""By how much a file may grow while it is read; beyond that it is cut off."""

_LONGEST_TENSOR_HEADER = 100_000_000
"""Bytes of the header of a safetensors file, as that format limits them."""


class DamagedTensorsError(OSError):
    """A file is not the safetensors file that its header or its checksum says."""


def write_atomically(path: Path, content: bytes | memoryview, durable: bool = True) -> None:
    """Write a file under a temporary name beside its place, then rename it.

    With ``durable`` it survives a power failure too; without, only the death of the process. A
    link is followed. What is there and is no regular file, such as ``/dev/stdout``, is written
    through and never replaced.

    Raises
    ------
    InputFileError
        If the place cannot be written to.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            _write_through(target, content)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content, durable)
    except OSError as error:
        raise InputFileError(
            f"cannot write {path}: {error.strerror or error}; name another place."
        ) from error
    except ValueError as error:  # a name that no file can have
        raise InputFileError(f"cannot write {str(path)!r}: {error}; name another place.") from error


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power failure, where the platform can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file that was written survive a power failure; one that is gone needs nothing."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        os.fsync(file.fileno())


def remove_leftovers(folder: Path) -> None:
    """Remove what writers that were killed have left behind in a folder, two levels down."""
    for place in ("", "*/", "*/*/"):
        for file in folder.glob(f"{place}.*{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError):
                file.unlink()


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder and those in it; links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # a file that was removed meanwhile
                total += os.lstat(os.path.join(path, name)).st_size
    return total


@dataclass(frozen=True)
class Extent:
    """The length of a growing file at a checkpoint, and the SHA-256 of its content so far."""

    length: int
    sha256: str

    def begins(self, content: bytes) -> bool:
        """Return whether a content begins with what was there."""
        start = content[: self.length]
        return len(start) == self.length and hashlib.sha256(start).hexdigest() == self.sha256


class GrowingFile:
    """A file that grows by lines, and the checksum of its content."""

    def __init__(self, path: Path, content: bytes) -> None:
        write_atomically(path, content)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self._length, self._digest = len(content), hashlib.sha256(content)

    def append(self, lines: str) -> None:
        """Add whole lines, and hand them to the operating system."""
        content = lines.encode()
        self._file.write(lines)
        self._file.flush()
        self._length += len(content)
        self._digest.update(content)

    @property
    def extent(self) -> Extent:
        """Its length and checksum now."""
        return Extent(self._length, self._digest.hexdigest())

    def sync(self) -> None:
        """Make what was appended survive a power failure."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close it."""
        self._file.close()


def open_regular(path: Path, most_bytes: int | None = None) -> io.BufferedReader:
    """Open a regular file, or a link to one, of at most so many bytes.

    A pipe is not waited for, and a device not read.

    Raises
    ------
    OSError
        If it is anything else, or larger.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        check_regular(descriptor, path, most_bytes)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(descriptor: int, path: Path, most_bytes: int | None = None) -> None:
    """Refuse an open file that is not a regular one, or has more bytes.

    Raises
    ------
    OSError
        If it is.
    """
    about = os.fstat(descriptor)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if most_bytes is not None and about.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))


def read_regular(path: Path, most_bytes: int | None = None) -> bytes:
    """Return the content of a file that :func:`open_regular` opens.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with open_regular(path, most_bytes) as file:
        return b"".join(_parts(file, os.fstat(file.fileno()).st_size + _GROWTH_BYTES))


def read_tensors(path: Path, sha256: str | None = None) -> bytes:
    """Return the content of a safetensors file, once its size and its SHA-256 are right.

    So a file of any size is read that is what it says, and nothing else is loaded into memory.

    Raises
    ------
    OSError
        If it cannot be read.
    DamagedTensorsError
        If it is no such file; that is an OSError, too.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if _tensor_bytes(file) != size or sha256 not in (None, _digest_of(file)):
            raise DamagedTensorsError("its header or its checksum does not fit it")
        file.seek(0)
        return file.read(size)


def file_sha256(path: Path, most_bytes: int | None = None) -> str:
    """Return the SHA-256 of a regular file, nothing if it cannot be read."""
    try:
        with open_regular(path, most_bytes) as file:
            return _digest_of(file)
    except OSError:
        return ""


def read_text(path: Path, most_bytes: int = MAX_FILE_BYTES, regular: bool = False) -> str:
    """Return the text of a file, or say in one sentence why it cannot be read.

    No more than ``most_bytes`` are read, and a larger file is refused. With ``regular`` so is
    whatever else a name may stand for; without it the user may name a pipe.
    """
    try:
        if regular:
            content = read_regular(path, most_bytes)
        else:
            with path.open("rb") as file:
                content = b"".join(_parts(file, most_bytes + 1))
        if len(content) > most_bytes:
            raise InputFileError(f"cannot read {path}: it has more than {most_bytes:,} bytes.")
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except InputFileError:
        raise
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputFileError(f"cannot read {path}: it is not UTF-8 text.") from error
    except ValueError as error:  # a name that no file can have
        raise InputFileError(f"cannot read {str(path)!r}: {error}.") from error


def _parts(file: io.BufferedReader, most_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file, at most so many bytes of it.

    Files of the kernel count as regular, but may be endless, or have nothing to read for now.
    """
    while most_bytes > 0 and (part := file.read(min(most_bytes, _GROWTH_BYTES))):
        yield part
        most_bytes -= len(part)


def _digest_of(file: io.BufferedReader) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    for part in _parts(file, os.fstat(file.fileno()).st_size + _GROWTH_BYTES):
        digest.update(part)
    return digest.hexdigest()


def _tensor_bytes(file: io.BufferedReader) -> int:
    """Return how long a safetensors file is by its own header; -1 if that is damaged."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= _LONGEST_TENSOR_HEADER:
        return -1
    try:
        header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
        return 8 + length + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return -1


def _replace(target: Path, content: bytes | memoryview, durable: bool) -> None:
    descriptor, temporary = tempfile.mkstemp(
        prefix=f".{target.name[:100]}.", suffix=TEMPORARY_SUFFIX, dir=target.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(target.parent)


def _write_through(target: Path, content: bytes | memoryview) -> None:
    """Write to a device or a pipe; one that has no reader is refused instead of waited for."""
    if not stat.S_ISDIR(target.stat().st_mode):
        descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return
    raise IsADirectoryError(21, "it is a directory")


# Reading TOML from untrusted files: bounded in size and depth, never a traceback.

_MAX_TOML_BYTES = 1 << 20
"""The largest file of settings that is read; real ones have a few thousand bytes."""

_MAX_TOML_DEPTH = 16
"""How deep tables and lists may be nested; a suite needs five."""

_MOST_REASON = 200
"""The most characters of a parser's reason in a message."""

_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:\\.|[^\\])*?"""'
    r"|'''.*?'''"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|\#[^\n]*",
    re.DOTALL,
)
_DEEP_KEY = re.compile(rf"(?:\.[\w \t-]*+){{{_MAX_TOML_DEPTH}}}")


def read_toml(path: Path, regular: bool = False) -> dict[str, Any]:
    """Return the tables of a TOML file; with ``regular`` nothing but a regular file is read.

    Raises
    ------
    InputFileError
        If the file cannot be read.
    ConfigError
        If it is not TOML, or larger or deeper than any file of settings is.
    """
    text = read_text(path, _MAX_TOML_BYTES, regular)
    return parse_toml(text, printable(str(path), _MOST_REASON))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Return the tables of a TOML text; ``name`` is what it is called in messages.

    Raises
    ------
    ConfigError
        As :func:`read_toml`.

    Examples
    --------
    >>> parse_toml("rounds = 3", "the configuration")
    {'rounds': 3}
    >>> parse_toml("rounds = [[[[[[[[[[[[[[[[[[", "the configuration")
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: the configuration is nested more than 16 deep: write flatter tables.
    """
    if len(text.encode(errors="replace")) > _MAX_TOML_BYTES:
        raise ConfigError(f"{name} has more than {_MAX_TOML_BYTES >> 20} MB: shorten it.")
    # Deep brackets and keys of very many parts are refused before parsing, which takes the square
    # of the depth.
    bare = _STRINGS_AND_COMMENTS.sub("s", text)
    steps = {"[": 1, "{": 1, "]": -1, "}": -1}
    depths = accumulate(steps[c] for c in re.findall(r"[\[\]{}]", bare))
    if max(depths, default=0) > _MAX_TOML_DEPTH or _DEEP_KEY.search(bare):
        raise ConfigError(
            f"{name} is nested more than {_MAX_TOML_DEPTH} deep: write flatter tables."
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits are ValueErrors
        reason = printable(str(error).rstrip("."), _MOST_REASON)
        raise ConfigError(f"{name} is not valid TOML: {reason}.") from error


def stamp(*paths: Path) -> Stamp:
    """Return what tells whether files were replaced or changed since."""
    found = []
    for path in paths:
        try:
            about = path.stat()
            found.append((about.st_ino, about.st_mtime_ns, about.st_size))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)


# CSV files: one reader for tables of samples, of clients and of runs.

_CSV_DELIMITERS = ",;\t|"
"""What may stand between cells: the first of these that the header has most of."""

_CSV_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def csv_rows(content: str | bytes, file: str) -> Iterator[tuple[int, list[str]]]:
    r"""Yield the number of each row's last line and its cells, the header first.

    Cells may be in double quotes; blanks around cells and empty lines do not count.

    Raises
    ------
    InputFileError
        With the line, if the file is not UTF-8 text, a quote is not closed, or a row has another
        number of cells than the header.

    Examples
    --------
    >>> list(csv_rows('age; ward\n39; "a"\n', "people.csv"))
    [(1, ['age', 'ward']), (2, ['39', 'a'])]
    """
    text = content if isinstance(content, str) else _csv_text(content, file)
    first = re.search(r"\S.*", text)
    delimiter = max(_CSV_DELIMITERS, key=first[0].count) if first else ","
    lines = (
        match[0] for match in _CSV_LINE.finditer(text)
    )  # StringIO would be four times as large
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    header = 0
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if len(cells) < 2 and not any(cells):
                continue
            header = header or len(cells)
            if len(cells) != header:
                raise InputFileError(
                    f"{file}, line {reader.line_num}: there are {len(cells)} cells, but the header "
                    f"has {header}."
                )
            yield reader.line_num, cells
    except csv.Error as error:
        raise InputFileError(f"{file}, line {reader.line_num}: {error}.") from error


@dataclass(frozen=True, eq=False)
class CsvTable:
    """The cells of a CSV file by the name of their column, and the line of each row."""

    file: str
    columns: dict[str, tuple[str, ...]]
    lines: tuple[int, ...]

    def error(self, row: int, problem: str) -> InputFileError:
        """Return the error that a row has a problem, for the caller to raise."""
        return InputFileError(f"{self.file}, line {self.lines[row]}: {problem}.")

    def where(self, kept: Sequence[bool]) -> CsvTable:
        """Return the table of some rows."""
        columns = {name: tuple(compress(cells, kept)) for name, cells in self.columns.items()}
        return CsvTable(self.file, columns, tuple(compress(self.lines, kept)))


def read_csv(
    content: str | bytes, file: str, needed: Collection[str] = (), others: bool = True
) -> CsvTable:
    r"""Return the columns of a CSV file whose first line has their names.

    Parameters
    ----------
    content : str or bytes
        What the file holds.
    file : str
        What it is called in messages.
    needed : collection of str
        Columns that it must have.
    others : bool
        Whether other columns are kept, too.

    Raises
    ------
    InputFileError
        As :func:`csv_rows`, or if a column is missing or there twice, or there are no rows.

    Examples
    --------
    >>> read_csv("age,ward\n39,a\n50,b\n", "people.csv").columns["age"]
    ('39', '50')
    """
    rows = csv_rows(content, file)
    _, header = next(rows, (0, []))
    if not set(needed) <= set(header):
        wants = f"column{'s' * (len(needed) > 1)} {' and '.join(needed)}"
        has = printable(", ".join(header), _MOST_SHOWN) or "nothing"
        raise InputFileError(f"{file} needs the {wants}, but its first line has {has}.")
    if not header:
        raise InputFileError(f"{file} is empty.")
    kept = header if others else [name for name in header if name in needed]
    if twice := sorted({name for name in kept if name and kept.count(name) > 1}):
        raise InputFileError(f"{file}, line 1: there is more than one column {quoted(twice[0])}.")
    places = [header.index(name) for name in kept]
    lines, cells = [], []
    for line, row in rows:
        lines.append(line)
        cells.append(row if others else [row[place] for place in places])
    if not cells:
        raise InputFileError(f"{file} has a header, but no rows.")
    return CsvTable(file, dict(zip(kept, zip(*cells, strict=True), strict=True)), tuple(lines))


def _csv_text(content: bytes, file: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputFileError(
            f"{file}, line {line}: this is not UTF-8 text; save the file as UTF-8."
        ) from None
    if "\0" in text:
        raise InputFileError(f"{file} is no text: it has bytes of zero.")
    return text

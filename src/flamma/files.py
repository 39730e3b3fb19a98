"""Reading and writing files so that nothing half-written is ever left under its name."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flamma.errors import InputFileError

TEMPORARY_SUFFIX = ".flamma-tmp"
"""How the names of files end that are still being written."""

MOST_TABLE_FILE_BYTES = 1 << 30
"""The largest table that is read, such as ``rounds.jsonl``; a million clients take about 0.1 GB."""

MOST_SETTINGS_FILE_BYTES = 1 << 26
"""The largest file of single facts that is read, such as ``run.json``; real ones have some KB."""

GROWTH_BYTES = 1 << 20
"""By how much a file may grow while it is read; beyond that it is cut off."""

LONGEST_TENSOR_HEADER = 100_000_000
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
        return b"".join(_parts(file, os.fstat(file.fileno()).st_size + GROWTH_BYTES))


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


def read_text(path: Path, most_bytes: int = MOST_TABLE_FILE_BYTES, regular: bool = False) -> str:
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
    while most_bytes > 0 and (part := file.read(min(most_bytes, GROWTH_BYTES))):
        yield part
        most_bytes -= len(part)


def _digest_of(file: io.BufferedReader) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    for part in _parts(file, os.fstat(file.fileno()).st_size + GROWTH_BYTES):
        digest.update(part)
    return digest.hexdigest()


def _tensor_bytes(file: io.BufferedReader) -> int:
    """Return how long a safetensors file is by its own header; -1 if that is damaged."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= LONGEST_TENSOR_HEADER:
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
        os.chmod(temporary, 0o666 & ~_umask())
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

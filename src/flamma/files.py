"""Reading and writing files so that nothing half-written is ever left under its name."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from flamma.errors import InputFileError

TEMPORARY_SUFFIX = ".flamma-tmp"
"""How the names of files end that are still being written."""


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


def read_text(path: Path, most_bytes: int | None = None) -> str:
    """Return the text of a file, or say in one sentence why it cannot be read.

    With ``most_bytes`` no more than that is read, and a larger file is refused.
    """
    try:
        with path.open("rb") as file:
            content = file.read() if most_bytes is None else file.read(most_bytes + 1)
        if most_bytes is not None and len(content) > most_bytes:
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

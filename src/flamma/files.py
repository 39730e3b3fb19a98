"""Reading and writing files so that nothing half-written is ever left under its name."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from flamma.errors import InputFileError


def write_atomically(path: Path, content: bytes | memoryview, durable: bool = True) -> None:
    """Write a file under a temporary name beside its place, then rename it.

    With ``durable`` it survives a power failure too; without, only the death of the process.

    Raises
    ------
    InputFileError
        If the place cannot be written to.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise InputFileError(
            f"cannot write {path}: {error.strerror}; name another place."
        ) from error


def read_text(path: Path) -> str:
    """Return the text of a file, or say in one sentence why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputFileError(f"cannot read {path}: it is not UTF-8 text.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

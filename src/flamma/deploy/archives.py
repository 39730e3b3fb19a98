"""Archives of a server's state: plain tar files whose every entry has a checksum."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from flamma.errors import DeployError
from flamma.experiments.folder import signed, verified
from flamma.io import TEMPORARY_SUFFIX, JsonTable, TableView, sync_folder

_CONTENTS = "backup.json"
"""The last entry of an archive, with what is in it and the checksums."""
_ARCHIVE_VERSION = 1
_MAX_ARCHIVED_FILES = 1_000_000
_MAX_CONTENTS_BYTES = 500_000_000
_MAX_PATH_LENGTH = 1000
_BLOCK_BYTES = 1 << 20


class ArchiveWriter:
    """Adds files to an archive, and at the end what is in it."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self.files: dict[str, JsonTable] = {}

    def add(self, name: str, file: Path) -> None:
        """Add a file under a name; its owner and its mode are not kept."""
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            bounded = _Hashing(opened, size)
            entry = _entry(name, size)
            self._archive.addfile(entry, bounded)
        self.files[name] = {"bytes": size, "sha256": bounded.digest.hexdigest()}

    def finish(self, about: TableView) -> None:
        """Add the contents, with more about the archive."""
        table = {"version": _ARCHIVE_VERSION, **about, "files": self.files}
        content = signed(table).encode()
        self._archive.addfile(_entry(_CONTENTS, len(content)), io.BytesIO(content))


@contextlib.contextmanager
def written_archive(path: Path) -> Iterator[ArchiveWriter]:
    """Write an archive, private, under a temporary name that becomes its own at the end.

    Raises
    ------
    DeployError
        If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(
            prefix=f".{path.name[:100]}.", suffix=TEMPORARY_SUFFIX, dir=path.parent
        )
    except OSError as error:
        raise DeployError(f"cannot write {path}: {error.strerror}; name another place.") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                yield ArchiveWriter(archive)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise DeployError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def unpack(path: Path, folder: Path) -> JsonTable:
    """Unpack an archive into an empty folder, and return what it says about itself.

    Only plain files are unpacked, and only into the folder; all of them are private.

    Raises
    ------
    DeployError
        If it is not an archive of ours, is damaged, or has an entry that does not belong there.
    """
    found: dict[str, JsonTable] = {}
    about: JsonTable | None = None
    try:
        with tarfile.open(path, "r:") as archive:
            for entry in archive:
                if about is not None or len(found) > _MAX_ARCHIVED_FILES:
                    raise DeployError(f"{path} has more in it than it should.")
                source = archive.extractfile(entry) if entry.type == tarfile.REGTYPE else None
                if source is None:
                    raise DeployError(
                        f"{path} has an entry that is no plain file: {entry.name[:100]!r}."
                    )
                if entry.name == _CONTENTS:
                    about = verified(source.read(_MAX_CONTENTS_BYTES).decode(errors="replace"))
                    about = about or {}
                else:
                    found[entry.name] = _copied(source, folder / checked_name(entry.name), entry)
    except (tarfile.TarError, EOFError) as error:
        raise DeployError(f"{path} is not a backup, or is damaged: {error}.") from error
    except OSError as error:
        raise DeployError(f"cannot restore {path}: {error.strerror or error}.") from error
    if not about or about.get("files") != found:
        raise DeployError(f"{path} is damaged: its files do not match their checksums.")
    if about.get("version") != _ARCHIVE_VERSION:
        raise DeployError(
            f"{path} is of version {about.get('version')!r}, which this FLamma does not know: "
            f"install a newer one."
        )
    return about


def checked_name(name: str) -> PurePosixPath:
    """Return the name of an entry as a path that stays in its folder.

    Raises
    ------
    DeployError
        If it would lead out of the folder, or is no name for a file.
    """
    parts = name.split("/")
    unfit = any(part in ("", ".", "..") for part in parts)
    if unfit or not name.isprintable() or "\\" in name or len(name) > _MAX_PATH_LENGTH:
        raise DeployError(f"the backup has an entry that does not belong there: {name[:100]!r}.")
    return PurePosixPath(name)


def _copied(source: IO[bytes], target: Path, entry: tarfile.TarInfo) -> JsonTable:
    """Write an entry to a new file, and return its size and its checksum."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            file.write(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry


class _Hashing:
    """Reads so many bytes of a file and computes their checksum; a file may grow meanwhile."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        wanted = self._left if size < 0 else min(size, self._left)
        block = self._file.read(wanted)
        self._left -= len(block)
        self.digest.update(block)
        return block

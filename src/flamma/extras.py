"""Optional packages: the extras of FLamma that bring them, and the error if one is missing."""

from __future__ import annotations

import re
from importlib.util import find_spec

from flamma.errors import MissingExtraError

# What the installed package is called: not ``flamma``, which on the index is somebody else's.

DISTRIBUTION = "flamma-fl"
"""The name of the distribution; the import and the command are ``flamma`` all the same."""

WHEEL_PREFIX = "flamma_fl"
"""How the files of the distribution begin, since a wheel's name has no hyphen."""


PURPOSES = {
    "report": "HTML reports and pictures",
    "flower": "Flower's simulation, apps and deployed sites",
    "tune": "flamma tune",
    "privacy": "differential privacy",
    "parquet": "data in parquet files",
    "pandas": "results as DataFrames",
    "onnx": "models as ONNX files",
    "tensorboard": "the tracker tensorboard",
    "mlflow": "the tracker mlflow",
    "wandb": "the tracker wandb",
}
"""What each extra is for; the extras of developers are left out."""

_MODULES = {"mlflow-skinny": "mlflow", "protobuf": "google.protobuf"}
"""The modules of packages that are not imported by their own name."""

DEPLOYMENT_MODULES = ("flwr", "cryptography", "httpx", "google.protobuf", "uvicorn")
"""What the hosts of a deployed federation run on; only simulations need Ray."""


def _packages_of(extra: str, distribution: str = DISTRIBUTION) -> list[str]:
    """Return the packages that an extra of a distribution brings, with those of their own extras.

    Without the metadata of the distribution there are none.
    """
    from importlib.metadata import PackageNotFoundError, requires  # takes a while

    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return []
    found = []
    for line in lines:
        needed, _, marker = line.partition(";")
        named = re.match(r"([\w.-]+)(?:\[([^]]*)\])?", needed)
        if named and re.search(rf"""extra == ['"]{extra}['"]""", marker):
            found.append(named[1])
            for inner in filter(None, (named[2] or "").split(",")):
                found += _packages_of(inner.strip(), named[1])
    return list(dict.fromkeys(found))


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that cannot be imported."""
    return [package for package in _packages_of(extra) if not is_installed(_module(package))]


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing more than its parent package."""
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def extra_of(module: str) -> str:
    """Return the extra with the package that a module belongs to; empty if there is none."""
    for extra in PURPOSES:
        for package in map(_module, _packages_of(extra)):
            if f"{module}.".startswith(f"{package}.") or package.startswith(f"{module}."):
                return extra
    return ""


def install_command(extra: str) -> str:
    """Return the command that installs an extra, in FLamma's checkout."""
    return f"pip install -c constraints.txt '.[{extra}]'"


def missing_extra(feature: str, module: str) -> MissingExtraError:
    """Return the error for a feature that needs a module which is not installed."""
    extra = extra_of(module)
    if not extra:
        return MissingExtraError(f"{feature} needs the package {module}, which is not installed.")
    # No name of an index: the package called flamma there is somebody else's.
    return MissingExtraError(
        f"{feature} needs the extra {extra}, which is not installed: {install_command(extra)} in "
        f"FLamma's checkout, or pip install 'WHEEL[{extra}]' with the wheel it came from."
    )


def require(feature: str, *modules: str) -> None:
    """Check that the modules of a feature are installed.

    Raises
    ------
    MissingExtraError
        If one is not; the message has the command that installs it.
    """
    for module in modules:
        if not is_installed(module):
            raise missing_extra(feature, module)


def _module(package: str) -> str:
    return _MODULES.get(package, package.replace("-", "_"))

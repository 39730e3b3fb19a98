"""Where this copy of FLamma is installed, and how to install one."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlparse

import flamma
from flamma.distribution import DISTRIBUTION

INSTALL = "pip install -c constraints.txt '.[report]'"
"""The command that installs FLamma, in a copy of its repository."""


def how_to_install() -> str:
    """Return the sentence that says how to install it while no package index has it."""
    return (
        f"There is no release on a package index yet: install from a copy of the source, {INSTALL}"
    )


def installed_as() -> str:
    """Return where the package is, and what it was installed from, as a line."""
    place = Path(flamma.__file__).parent
    try:
        origin = source_of(distribution(DISTRIBUTION))
    except PackageNotFoundError:
        origin = "not installed, used from its source"
    return f"in {place} ({origin})"


def source_of(package: Distribution) -> str:
    """Return what an installed package was installed from, as ``pip`` recorded it."""
    try:
        table = json.loads(package.read_text("direct_url.json") or "")
        url, editable = str(table["url"]), bool(table.get("dir_info", {}).get("editable"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "installed from a package index or by hand"
    parts = urlparse(url)
    # Without the user's name and password, which a URL may have.
    where = unquote(parts.path if parts.scheme == "file" else f"{parts.hostname}{parts.path}")
    return f"installed from {where}{', editable' if editable else ''}"

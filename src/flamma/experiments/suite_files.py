"""The suites that come with the package, by name."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from flamma.errors import ConfigError
from flamma.files import read_text
from flamma.names import unknown


def suite_names() -> list[str]:
    """Return the names of the suites that come with the package."""
    folder = files("flamma.experiments") / "suites"
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def suite_file(source: str | Path) -> Path:
    """Return the file of a suite: one of ours by name, or the path itself.

    Raises
    ------
    ConfigError
        If it is neither; the nearest name is told.
    """
    if source in suite_names():
        return Path(str(files("flamma.experiments") / "suites" / f"{source}.toml"))
    if not os.path.exists(source) and not str(source).endswith(".toml"):
        raise ConfigError(unknown("suite", str(source), suite_names()))
    return Path(source)


def suite_text(source: str | Path) -> str:
    """Return a suite as it is written."""
    return read_text(suite_file(source))

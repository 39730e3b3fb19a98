"""The suites that come with the package, by name."""

from __future__ import annotations

from importlib.resources import files


def suite_names() -> list[str]:
    """Return the names of the suites that come with the package."""
    folder = files("flamma.experiments") / "suites"
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )

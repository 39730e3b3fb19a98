"""What a site does to its own samples before anything else: code that is installed at the site.

Only the site's own ``site.toml`` names it. A server can neither send code nor choose some.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError
from flamma.registry import Choice, Registry

Preparation = Callable[..., tuple[NDArray[Any], NDArray[Any]]]
"""Takes samples and labels as they were read, and returns those to use; has options of its own."""

SITE_PREPARATIONS: Registry[Preparation] = Registry("preparation", "flamma.site_preparations", {})
"""All preparations that are installed, by name."""


def prepared(
    choice: Choice | None, x: NDArray[Any], y: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return samples and labels as the chosen preparation makes them.

    Raises
    ------
    DataError
        If it raises, or returns anything but as many samples as labels.
    """
    if choice is None:
        return x, y
    called = f"the preparation {choice.name}"
    try:
        new_x, new_y = SITE_PREPARATIONS.bind(choice)(x, y)
        samples, labels = np.asarray(new_x), np.asarray(new_y)
    except Exception as error:  # whatever a site's own code may do
        lines = str(error).splitlines() or [type(error).__name__]
        raise DataError(f"{called} failed: {lines[0].rstrip('.')}.") from error
    if samples.shape[:1] != labels.shape[:1]:
        raise DataError(
            f"{called} must return as many samples as labels, but their shapes are "
            f"{samples.shape} and {labels.shape}."
        )
    return samples, labels


def source_state(choice: Choice | None) -> list[Any]:
    """Return what changes when the code of a preparation does, for the key of a cache."""
    if choice is None:
        return []
    file = getattr(inspect.getmodule(SITE_PREPARATIONS[choice.name]), "__file__", None)
    if file is None or not Path(file).exists():
        return []
    about = Path(file).stat()
    return [file, about.st_size, about.st_mtime_ns]

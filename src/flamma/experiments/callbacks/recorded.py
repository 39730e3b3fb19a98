"""Callbacks with a name: written down with a run, so that it goes on with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from flamma.errors import ConfigError, RunError
from flamma.experiments.callbacks.base import Callback
from flamma.experiments.manifest import signed, verified
from flamma.files import MOST_SETTINGS_FILE_BYTES, read_regular, write_atomically
from flamma.registry import Registry

RECORDED_CALLBACKS = "callbacks.json"
"""The file of a run directory that names its callbacks; it is no part of the run's id."""

CALLBACKS: Registry[type[Callback]] = Registry(
    "callback",
    "flamma.callbacks",
    {
        "early-stopping": "flamma.experiments.callbacks.early_stopping:EarlyStopping",
        "best-checkpoint": "flamma.experiments.callbacks.best_checkpoint:BestCheckpoint",
    },
)
"""All callbacks by name: dataclasses, whose fields are what is written down of them."""


def record_callbacks(folder: Path, callbacks: Iterable[Callback]) -> None:
    """Write down those callbacks that have a name; a run without any has no such file."""
    named = [callback for callback in callbacks if callback.name]
    file = folder / RECORDED_CALLBACKS
    if named:
        tables = [{"name": c.name, **_options(c)} for c in named]
        write_atomically(file, signed({"callbacks": tables}).encode())
    else:
        file.unlink(missing_ok=True)


def recorded_callbacks(folder: Path) -> list[Callback]:
    """Return the callbacks that a run was begun with, as far as they have a name.

    Raises
    ------
    RunError
        If the file is damaged, or names what is not there.
    """
    file = folder / RECORDED_CALLBACKS
    try:
        table = verified(read_regular(file, MOST_SETTINGS_FILE_BYTES).decode(errors="replace"))
        if table is None:
            raise ConfigError("its checksum is not right")
        choices = [CALLBACKS.choose(entry, "callbacks") for entry in table["callbacks"]]
        return [CALLBACKS[choice.name](**choice.options) for choice in choices]
    except FileNotFoundError:
        return []
    except (OSError, KeyError, TypeError, ConfigError) as error:
        why = str(error).rstrip(".")
        raise RunError(
            f"{file} cannot be used ({why}): remove it to go on without these callbacks."
        ) from error


def resumed_callbacks(folder: Path, given: Iterable[Callback], leave_out: str) -> list[Callback]:
    """Return the callbacks that a run goes on with.

    Those that are given come instead of recorded ones of the same name, which is also how their
    options are changed; those of the name ``leave_out`` are not taken up again.
    """
    chosen = list(given)
    without = {callback.name for callback in chosen} | {leave_out}
    return [*chosen, *(c for c in recorded_callbacks(folder) if c.name not in without)]


def _options(callback: Callback) -> dict[str, Any]:
    with contextlib.suppress(TypeError):
        own = fields(callback)  # type: ignore[arg-type]
        return {field.name: getattr(callback, field.name) for field in own if field.init}
    raise ConfigError(f"the callback {callback.name} must be a dataclass to be written down.")

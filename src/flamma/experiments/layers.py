"""Where the settings of a run come from: layers of settings, of which a later one wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flamma.experiments.config import Config, with_settings

NAME_KEYS: Mapping[str, str] = {
    "strategy": "name",
    "model": "name",
    "engine": "name",
    "costs": "kind",
}
"""The tables that choose something, each with the key of its name."""

DEFAULT_ORIGIN, SUITE_ORIGIN, OVERRIDE_ORIGIN, FLAG_ORIGIN = "default", "suite", "override", "flag"
SETTING_ORIGIN = "setting"


@dataclass(frozen=True)
class Layer:
    """Dotted settings from one place; ``part`` is what an override is for."""

    origin: str
    settings: Mapping[str, Any]
    part: str = ""


@dataclass(frozen=True)
class TracedSetting:
    """A setting of a run: its value and where that comes from.

    ``part`` is what an override is for, and ``beaten`` the same setting in the layers below, of
    which the last would have been in force without this one.
    """

    name: str
    value: Any
    origin: str
    part: str = ""
    beaten: tuple[TracedSetting, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the setting as ``--show-suite --json`` prints it."""
        told: dict[str, Any] = {"name": self.name, "value": self.value, "origin": self.origin}
        return told | ({"for": self.part} if self.part else {})


def dotted_settings(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted settings.

    Examples
    --------
    >>> dotted_settings({"strategy": {"name": "fedprox", "mu": 1}, "rounds": 3})
    {'strategy.name': 'fedprox', 'strategy.mu': 1, 'rounds': 3}
    """
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= dotted_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def spelled_out(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables in which what is named by a text alone has a table with that name.

    Examples
    --------
    >>> spelled_out({"strategy": "fedavg", "costs": "constant"})
    {'strategy': {'name': 'fedavg'}, 'costs': {'kind': 'constant'}}
    """
    return {
        key: {NAME_KEYS[key]: value} if key in NAME_KEYS and isinstance(value, str) else value
        for key, value in tables.items()
    }


def under_flags(layer: Layer, flags: Mapping[str, Any]) -> Layer:
    """Return a layer without what flags replace as a whole: the options of what they name anew.

    A flag that names another model leaves nothing of the options that an override has for its own.
    """
    replaced = {
        table for table, key in NAME_KEYS.items() if table in flags or f"{table}.{key}" in flags
    }
    kept = {
        name: value
        for name, value in layer.settings.items()
        if name.partition(".")[0] not in replaced
    }
    return Layer(layer.origin, kept, layer.part)


def merged(run: Mapping[str, Any], layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the tables that all runs share with the layers put over them in order."""
    tables = spelled_out(run)
    for layer in layers:
        tables = with_settings(tables, layer.settings)
    return tables


def trace(config: Config, layers: Sequence[Layer]) -> list[TracedSetting]:
    """Return every setting of a configuration and which layer it comes from, the last that has it.

    What no layer has is a default.
    """
    traced = []
    for name, value in dotted_settings(config.as_tables()).items():
        found = [
            TracedSetting(name, layer.settings[name], layer.origin, layer.part)
            for layer in layers
            if name in layer.settings
        ]
        last = found.pop() if found else TracedSetting(name, value, DEFAULT_ORIGIN)
        traced.append(replace(last, value=value, beaten=tuple(found)))
    return traced

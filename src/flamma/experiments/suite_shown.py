"""What a suite would run, and where every setting of it comes from, for people and programs."""

from __future__ import annotations

from typing import Any

from flamma.experiments.layers import (
    DEFAULT_ORIGIN,
    FLAG_ORIGIN,
    OVERRIDE_ORIGIN,
    TracedSetting,
)
from flamma.experiments.suite import Cell, Suite
from flamma.options import toml_value

CHOSEN = ("data.dataset", "data.split", "strategy.name", "seed")
"""What tells one cell from another, and is not a setting that all may share."""

MOST_NOTED = 40
"""Overrides that are told under a table, at most."""


def suite_as_json(suite: Suite) -> dict[str, Any]:
    """Return what would run: for each dataset, split and strategy all settings and their origins.

    Seeds share their settings but for the seed itself.
    """
    return {
        "name": suite.name,
        "seeds": list(suite.all_seeds()),
        "runs": len(suite.cells()),
        "cells": [
            {
                "dataset": cell.dataset,
                "split": cell.split,
                "strategy": cell.strategy,
                "settings": [s.as_json() for s in suite.traced(cell) if s.name != "seed"],
            }
            for cell in _first_seeds(suite)
        ],
    }


def suite_as_lines(suite: Suite) -> list[str]:
    """Return what would run as lines: settings that all share, then those of single cells.

    What is at its default is left out; :func:`suite_as_json` has that, too.
    """
    cells = _first_seeds(suite)
    chosen = CHOSEN[2:] if suite.settings else CHOSEN
    traced = [
        [s for s in suite.traced(c) if s.origin != DEFAULT_ORIGIN and s.name not in chosen]
        for c in cells
    ]
    shared = [setting for setting in traced[0] if all(setting in own for own in traced)]
    lines = [f"{len(suite.cells())} runs; what is not named is at its default. All runs have:"]
    lines += [_line(setting) for setting in shared]
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for cell, settings in zip(cells, traced, strict=True):
        own = tuple(_line(setting) for setting in settings if setting not in shared)
        alike.setdefault((f"{cell.dataset} ({cell.split})", own), []).append(cell.strategy)
    for (place, own), strategies in alike.items():
        lines += [f"On {place} {', '.join(strategies)}:", *(own or ["  nothing else"])]
    return lines


def origin_notes(suite: Suite) -> list[str]:
    """Return a sentence for what flags set, and for what the suite sets for single parts of it."""
    found: dict[str, dict[str, None]] = {OVERRIDE_ORIGIN: {}, FLAG_ORIGIN: {}}
    beaten: dict[str, None] = {}
    for setting in (setting for cell in _first_seeds(suite) for setting in suite.traced(cell)):
        if setting.origin in found and setting.name not in CHOSEN:
            found[setting.origin][_words(setting)] = None
        if setting.origin == FLAG_ORIGIN:
            beaten |= {below.part: None for below in setting.beaten if below.part}
    over = f", over what the suite has for {', '.join(beaten)}" if beaten else ""
    notes = []
    if found[FLAG_ORIGIN]:
        notes.append(f"From flags, for all runs{over}: {'; '.join(found[FLAG_ORIGIN])}.")
    if len(found[OVERRIDE_ORIGIN]) > MOST_NOTED:
        notes.append(
            f"The suite's overrides change {len(found[OVERRIDE_ORIGIN])} settings: --show-suite "
            f"names them."
        )
    elif found[OVERRIDE_ORIGIN]:
        notes.append(f"From the suite's overrides: {'; '.join(found[OVERRIDE_ORIGIN])}.")
    return notes


def _first_seeds(suite: Suite) -> list[Cell]:
    return [cell for cell in suite.cells() if cell.seed == suite.first_seed]


def _line(setting: TracedSetting) -> str:
    origin = f"{setting.origin} {setting.part}".strip()
    beaten = [f"{_text(b.value)} for {b.part}" for b in setting.beaten if b.part]
    instead = f" instead of {', '.join(beaten)}" if beaten else ""
    return f"  {setting.name} = {_text(setting.value)}  ({origin}{instead})"


def _words(setting: TracedSetting) -> str:
    who = f" for {setting.part}" if setting.part else ""
    return f"{setting.name} {_text(setting.value)}{who}"


def _text(value: Any) -> str:
    return "none" if value is None else toml_value(value)

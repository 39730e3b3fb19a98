"""A suite as it was asked for: a named one or one's own data, narrowed, with flags over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flamma.errors import ConfigError
from flamma.experiments.config import OWN, with_settings
from flamma.experiments.layers import spelled_out
from flamma.experiments.own import NOTHING_OWN, OwnParts, gathered_for
from flamma.experiments.suite import Suite, narrowed, read_suite

LISTED = {"strategies": "strategy", "datasets": "data.dataset", "splits": "data.split"}
"""The lists of a suite, and the setting of a run that each is a list of."""

OWN_SUITE = "own"
"""The name of a comparison of one's own data for which no suite was named."""


def asked_suite(
    source: Suite | Mapping[str, Any] | str | Path | None,
    seeds: int | None = None,
    flags: Mapping[str, Any] | None = None,
    lists: Mapping[str, Sequence[str] | None] | None = None,
    data: Any = None,
    group: Any = None,
    own: OwnParts = NOTHING_OWN,
) -> tuple[Suite, OwnParts]:
    """Return the suite that is asked for, and what of it is the user's own.

    ``flags`` are dotted settings; those that name one strategy, dataset or split are lists of one.
    With data of one's own the suite's datasets give way to them and, unless splits are asked for,
    its splits to the natural clients.
    """
    left = dict(flags or {})
    asked = {kind: names for kind, names in (lists or {}).items() if names}
    for kind, setting in LISTED.items():
        if (name := _named(left, setting)) is not None:
            asked.setdefault(kind, [name])
    if "seed" in left:
        raise ConfigError("a suite has several seeds, not one: say how many by --seeds.")
    if isinstance(data, str | Path):
        left["data.file"] = str(data)
    named = source if isinstance(source, Suite) or source is None else read_suite(source)
    shared = {} if named is None else spelled_out(named.run)
    gathered = gathered_for(with_settings(shared, left), data, group)
    if gathered is None:
        return narrowed(named or read_suite(), seeds, left, **asked), own
    from flamma.experiments.own_data import completed

    # Without a suite nothing is set that was tuned for other data.
    usual = read_suite()
    suite = named or Suite(OWN_SUITE, seeds=usual.seeds, strategies=usual.strategies)
    complete = completed(with_settings(shared, left), gathered, own.model is not None)
    places = {"splits": [complete["data"].get("split", "groups")], **asked, "datasets": [OWN]}
    chosen = replace(narrowed(suite, seeds, left, **places), run=complete)
    return chosen, replace(own, data=gathered, known={})


def _named(flags: dict[str, Any], setting: str) -> str | None:
    """Return the one name that flags have for a setting, and take it out of them."""
    table = flags.get(setting)
    if isinstance(table, Mapping) and set(table) == {"name"}:
        flags.pop(setting)
        return str(table["name"])
    key = f"{setting}.name" if setting == "strategy" else setting
    return str(flags.pop(key)) if isinstance(flags.get(key), str) else None

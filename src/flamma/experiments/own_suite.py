"""A suite as it was asked for: narrowed, with flags over it, and with data of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.data.federated import FederatedData
from flamma.errors import ConfigError
from flamma.experiments.config import OWN, with_settings
from flamma.experiments.layers import spelled_out
from flamma.experiments.own import NOTHING_OWN, OwnParts, gathered_for
from flamma.experiments.suite import Suite, narrowed, read_suite
from flamma.experiments.tables import OF_OWN_DATA, ConfigTables, title_of
from flamma.options import convert

if TYPE_CHECKING:
    from flamma.data.own.gathered import GatheredSamples

LISTED = {"strategies": "strategy", "datasets": "data.dataset", "splits": "data.split"}
"""The lists of a suite, and the setting of a run that each is a list of."""


def asked_suite(
    source: Suite | Mapping[str, Any] | str | Path | None,
    seeds: int | None = None,
    flags: Mapping[str, Any] | None = None,
    lists: Mapping[str, Sequence[str] | None] | None = None,
    data: Any = None,
    group: Any = None,
    own: OwnParts = NOTHING_OWN,
    first_seed: int | None = None,
) -> tuple[Suite, OwnParts]:
    """Return the suite that is asked for, and what of it is the user's own.

    ``flags`` are dotted settings; those that name one strategy, dataset or split are lists of one.

    Raises
    ------
    ConfigError
        If a dataset is asked for beside data of one's own, or a single seed.
    """
    left = dict(flags or {})
    asked = {kind: names for kind, names in (lists or {}).items() if names}
    for kind, setting in LISTED.items():
        if (name := _named(left, setting)) is not None:
            asked.setdefault(kind, [name])
    if "seed" in left:
        raise ConfigError(
            "a suite has several seeds, not one: say how many by --seeds, and from which on by "
            "--first-seed."
        )
    if isinstance(data, str | Path):
        left["data.file"] = str(data)
    suite = source if isinstance(source, Suite) else read_suite(source)
    gathered = gathered_for(with_settings(spelled_out(suite.run), left), data, group)
    if gathered is None:
        return narrowed(suite, seeds, left, first_seed, **asked), own
    if suite.settings:
        raise ConfigError("data of your own have no place in a suite of settings: use another.")
    if "datasets" in asked:
        raise ConfigError("there are data of your own and datasets by name: leave one out.")
    chosen = narrowed(suite, seeds, left, first_seed, **asked)
    chosen = with_own_data(chosen, gathered, own.model is not None, "splits" in asked)
    return chosen, replace(own, data=gathered, known={})


def with_own_data(
    suite: Suite, own: GatheredSamples | FederatedData, has_model: bool, has_splits: bool
) -> Suite:
    """Return a suite for data of one's own in place of its datasets.

    Natural clients take the place of its splits, unless splits are asked for, and of its settings
    those are changed that cannot be with so many clients or such samples; flags stay.
    """
    from flamma.experiments.own_data import (
        OF_PICTURES,
        completed,
        needs_server_samples,
        server_samples,
    )

    flags = suite.flags
    tables = with_settings(spelled_out(suite.run), flags)
    asked = with_settings({}, flags)
    told = {k: v for k, v in tables.get("data", {}).items() if k in OF_OWN_DATA}
    asked["data"] = told | asked.get("data", {})
    is_natural = isinstance(own, FederatedData) or own.groups is not None
    if not isinstance(own, FederatedData) and any(map(needs_server_samples, suite.strategies)):
        asked["data"].setdefault("validation_samples", server_samples(own))
    chosen = completed(asked, own, has_model)
    decided = {f"data.{key}": v for key, v in chosen["data"].items() if key != "split"}
    clients = chosen["data"]["clients"]
    if tables.get("per_round", ConfigTables.per_round) > clients:
        decided["per_round"] = chosen["per_round"]
    if not has_model and tables.get("model", {}).get("name") in (None, *OF_PICTURES):
        decided["model.name"] = chosen["model"]["name"]
    path = chosen["data"].get("file")
    title = title_of(Path(path)) if path else OWN
    named = replace(suite, name=f"{suite.name}-{title}", pairs=())
    run = with_settings(spelled_out(suite.run), decided)
    splits = ["groups"] if is_natural and not has_splits else None
    return replace(narrowed(named, datasets=[OWN], splits=splits), run=run)


def _named(flags: dict[str, Any], setting: str) -> str | None:
    """Return the one name that flags have for a setting, and take it out of them."""
    table = flags.get(setting)
    if isinstance(table, Mapping) and set(table) == {"name"}:
        flags.pop(setting)
        return str(table["name"])
    key = f"{setting}.name" if setting == "strategy" else setting
    return convert(flags.pop(key), str, key) if key in flags else None

"""Parts of a suite: its settings, and what its overrides may be for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from flamma.data.build import DEFAULT_SPLIT
from flamma.errors import ConfigError
from flamma.experiments.config import with_dataset_defaults, with_settings
from flamma.experiments.layers import dotted_settings, spelled_out
from flamma.experiments.tables import DataConfig
from flamma.names import quoted, unknown

Settings = Mapping[str, Any]
"""What differs in each setting, by its name."""


def check_tables(given: Mapping[str, Any], what: str) -> None:
    """Refuse what must be tables and is not."""
    for name, table in given.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"suite.{what}.{name} must be a table, not {quoted(table)}.")


def data_of(run: Mapping[str, Any], setting: Mapping[str, Any]) -> tuple[str, str]:
    """Return the dataset and the split of a setting.

    Examples
    --------
    >>> data_of({"data": {"split": "iid"}}, {"data": {"dataset": "mnist"}})
    ('mnist', 'iid')
    """
    tables = with_settings(spelled_out(run), dotted_settings(spelled_out(setting)))
    data = with_dataset_defaults(tables).get("data", {})
    split = data.get("split", DEFAULT_SPLIT.name)
    return str(data.get("dataset", DataConfig.dataset)), str(split)


def setting_places(run: Mapping[str, Any], settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the settings, each with the name of its split."""
    return tuple((name, data_of(run, table)[1]) for name, table in settings.items())


def chosen_settings(
    run: Mapping[str, Any],
    settings: Settings,
    names: Sequence[str] | None,
    splits: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the settings of these names or datasets, and of these splits; all if none is given.

    Raises
    ------
    ConfigError
        If there is no such setting or dataset, or nothing is left.
    """
    data = {name: data_of(run, table) for name, table in settings.items()}
    known = dict.fromkeys([*settings, *(dataset for dataset, _ in data.values())])
    for name in names or ():
        if name not in known:
            raise ConfigError(unknown("setting", name, list(known)))
    kept = {
        name: table
        for name, table in settings.items()
        if (not names or name in names or data[name][0] in names)
        and (not splits or data[name][1] in splits)
    }
    if not kept:
        raise ConfigError("no setting of the suite has these data and this split.")
    return kept


def put_over(base: Settings, own: Settings) -> dict[str, Any]:
    """Return named tables with others put over those of the same name."""
    found = dict(base)
    for name, table in own.items():
        found[name] = with_settings(found.get(name, {}), dotted_settings(table))
    return found


def names_in(
    datasets: Sequence[str], splits: Sequence[str], strategies: Sequence[str]
) -> list[str]:
    """Return what overrides may be for, the more special later."""
    pairs = [(datasets, splits), (datasets, strategies), (datasets, splits, strategies)]
    special = ("/".join(parts) for kinds in pairs for parts in product(*kinds))
    return [*datasets, *splits, *strategies, *special]


def variants(overrides: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that overrides make variants, each with the strategy behind it.

    Examples
    --------
    >>> variants({"late": {"strategy": {"name": "flamma", "decay_start": 0.6}}, "qffl": {}})
    {'late': 'flamma'}
    """
    found = {}
    for name, over in overrides.items():
        options = dotted_settings(over) if isinstance(over, Mapping) else {}
        behind = options.get("strategy.name", options.get("strategy"))
        if behind is not None:
            found[name.rpartition("/")[2]] = str(behind)
    return found

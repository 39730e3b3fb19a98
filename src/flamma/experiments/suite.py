"""A suite: strategies x datasets x splits, or settings, x seeds, and what differs between them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flamma.data.build import DEFAULT_SPLIT
from flamma.data.federated import FederatedData
from flamma.errors import ConfigError, Key
from flamma.experiments.config import (
    DEFAULT_ORIGIN,
    FLAG_ORIGIN,
    OF_OWN_DATA,
    OVERRIDE_ORIGIN,
    OWN,
    SETTING_ORIGIN,
    SUITE_ORIGIN,
    Config,
    ConfigTables,
    DataConfig,
    Layer,
    TracedSetting,
    dotted_settings,
    make_config,
    merged,
    read_config,
    spelled_out,
    title_of,
    trace,
    under_flags,
    with_dataset_defaults,
    with_settings,
)
from flamma.experiments.user_objects import NO_OBJECTS, UserObjects, gathered_for
from flamma.io import (
    JsonTable,
    TableView,
    check_folder_name,
    parse_toml,
    quoted,
    read_text,
    unknown,
)
from flamma.registry import convert, from_table, to_toml, toml_value
from flamma.strategies import FAMILIES, STRATEGIES, family_of, strategies_named, unknown_strategy

if TYPE_CHECKING:
    from flamma.data.own import GatheredSamples
    from flamma.experiments.comparison import Comparison


# Parts of a suite: its settings, and what its overrides may be for.

Settings = TableView
"""What differs in each setting, by its name."""


def _check_tables(given: TableView, what: str) -> None:
    """Refuse what must be tables and is not."""
    for name, table in given.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"suite.{what}.{name} must be a table, not {quoted(table)}.")


def _data_of(run: TableView, setting: TableView) -> tuple[str, str]:
    """Return the dataset and the split of a setting.

    Examples
    --------
    >>> _data_of({"data": {"split": "iid"}}, {"data": {"dataset": "mnist"}})
    ('mnist', 'iid')
    """
    tables = with_settings(spelled_out(run), dotted_settings(spelled_out(setting)))
    data = with_dataset_defaults(tables).get("data", {})
    split = data.get("split", DEFAULT_SPLIT.name)
    return str(data.get("dataset", DataConfig.dataset)), str(split)


def _setting_places(run: TableView, settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the settings, each with the name of its split."""
    return tuple((name, _data_of(run, table)[1]) for name, table in settings.items())


def _chosen_settings(
    run: TableView,
    settings: Settings,
    names: Sequence[str] | None,
    splits: Sequence[str] | None,
) -> JsonTable:
    """Return the settings of these names or datasets, and of these splits; all if none is given.

    Raises
    ------
    ConfigError
        If there is no such setting or dataset, or nothing is left.
    """
    data = {name: _data_of(run, table) for name, table in settings.items()}
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


def put_over(base: Settings, own: Settings) -> JsonTable:
    """Return named tables with others put over those of the same name."""
    found = dict(base)
    for name, table in own.items():
        found[name] = with_settings(found.get(name, {}), dotted_settings(table))
    return found


def _names_in(
    datasets: Sequence[str], splits: Sequence[str], strategies: Sequence[str]
) -> list[str]:
    """Return what overrides may be for, the more special later."""
    pairs = [(datasets, splits), (datasets, strategies), (datasets, splits, strategies)]
    special = ("/".join(parts) for kinds in pairs for parts in product(*kinds))
    return [*datasets, *splits, *strategies, *special]


def variants(overrides: TableView) -> dict[str, str]:
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


# The suites that come with the package, by name.


def suite_names() -> list[str]:
    """Return the names of the suites that come with the package."""
    folder = files("flamma.experiments") / "suites"
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def _suite_file(source: str | Path) -> Path:
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
    return read_text(_suite_file(source))


KINDS = ("datasets", "splits", "strategies")
PLACES = ("datasets", "splits", "pairs")
"""What a suite of settings does not say."""

SUITE = "suite.toml"
"""The file of a comparison's directory that says what it is to run."""

_MOST_RUNS = 100_000
"""The most runs of a suite; all of their configurations are in memory at once."""


@dataclass(frozen=True)
class Cell:
    """One run of a suite; of a suite of settings, the setting is in the place of the dataset."""

    dataset: str
    split: str
    strategy: str
    seed: int
    config: Config

    @property
    def folder(self) -> Path:
        """Where the run is, under the comparison's directory."""
        return Path("runs") / self.dataset / self.split / self.strategy / f"seed-{self.seed}"


@dataclass(frozen=True)
class Suite:
    """What a comparison compares: all strategies on all datasets and splits with all seeds.

    A strategy whose override names another one (``strategy.name``) is a variant of that under its
    own label.

    Parameters
    ----------
    name : str
        Names the default directory, ``out/NAME``.
    seeds : int
        How many seeds.
    first_seed : int
        The first seed; the others follow it.
    datasets, splits : tuple of str
        Names of ``flamma list``.
    pairs : tuple
        Which dataset has which split, as pairs of their names, which then need not be given above;
        if left out, every dataset has every split.
    settings : mapping
        In place of datasets and splits: a table for each setting, by its name, with what differs
        in it (data, clients, rounds, costs, ...), as in a run's configuration. Of a suite that it
        extends, a list of names takes these settings only.
    strategies : tuple of str
        Names of ``flamma list``, of strategies or of families of them, or labels of your own.
    run : mapping
        What all runs share, as in a run's configuration.
    overrides : mapping
        Per dataset, split, strategy, ``dataset/split``, ``dataset/strategy`` or
        ``dataset/split/strategy``: tables that are put over ``run`` in this order. The name of a
        setting stands for a dataset here.
    flags : mapping
        Dotted settings that were given by hand; they are put over everything else.
    """

    name: str = "suite"
    seeds: int = 3
    datasets: tuple[str, ...] = ("digits",)
    splits: tuple[str, ...] = ("iid", "shards")
    pairs: tuple[tuple[str, str], ...] = ()
    strategies: tuple[str, ...] = ("fedavg", "flamma")
    run: TableView = field(default_factory=dict)
    overrides: TableView = field(default_factory=dict)
    flags: TableView = field(default_factory=dict)
    settings: TableView = field(default_factory=dict)
    first_seed: int = 0

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(Key("seeds"), f" must be at least 1, not {self.seeds}.")
        if self.first_seed < 0:
            raise ConfigError(Key("first_seed"), f" must be at least 0, not {self.first_seed}.")
        if self.settings:
            # They take the places of datasets, each with its own split.
            _check_tables(self.settings, "settings")
            places = _setting_places(self.run, self.settings)
            object.__setattr__(self, "pairs", places)
            for kind, names in zip(KINDS, zip(*places, strict=True), strict=False):
                object.__setattr__(self, kind, tuple(dict.fromkeys(names)))
        named = strategies_named(self.strategies, variants(self.overrides))
        object.__setattr__(self, "strategies", named)
        runs = self.seeds * math.prod(len(getattr(self, kind)) for kind in KINDS)
        if runs > _MOST_RUNS:
            raise ConfigError(f"a suite may have {_MOST_RUNS:,} runs, but this has {runs:,}.")
        for kind in KINDS:
            chosen = getattr(self, kind)
            if not chosen or len(set(chosen)) != len(chosen):
                raise ConfigError(f"{kind} of a suite must name at least one, and each once.")
            for name in chosen:
                check_folder_name(name, f"{kind} of a suite")
        check_folder_name(self.name, "the name of a suite")
        if not self.compared_pairs():
            raise ConfigError("none of the pairs of a suite is of its datasets and splits.")
        known = _names_in(self.datasets, self.splits, self.strategies)
        for name in self.overrides:
            if name not in known:
                raise ConfigError(unknown("name in overrides", name, known))

    def as_toml(self) -> str:
        """Return the suite as a file says it, without what it extends."""
        tables = {field.name: getattr(self, field.name) for field in fields(self)}
        # The text of a suite without these is what it was before there were any.
        optional = ("settings", "flags", "first_seed")
        left_out = [name for name in optional if not tables[name]]
        for name in (*left_out, *(PLACES if self.settings else ())):
            del tables[name]
        return to_toml(tables)

    def compared_pairs(self) -> list[tuple[str, str]]:
        """Return the datasets, each with its splits.

        Where a suite has ``pairs``, a dataset or a split that is in none of them goes with all.
        """
        paired = {name for pair in self.pairs for name in pair}
        return [
            pair
            for pair in product(self.datasets, self.splits)
            if pair in self.pairs or not paired.issuperset(pair)
        ]

    def all_seeds(self) -> range:
        """Return the seeds that every strategy has a run with."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def cells(self) -> list[Cell]:
        """Return all runs; their configurations are checked before the first one starts."""
        found = []
        for dataset, split in self.compared_pairs():
            made = {name: self._config(dataset, split, name) for name in self.strategies}
            for seed, (name, config) in product(self.all_seeds(), made.items()):
                found.append(Cell(dataset, split, name, seed, replace(config, seed=seed)))
        return found

    def layers(self, dataset: str, split: str, strategy: str) -> list[Layer]:
        """Return what is put over ``run`` for a cell, in this order: overrides, then flags."""
        own = self.settings.get(dataset)
        settings = (
            [Layer(SETTING_ORIGIN, dotted_settings(spelled_out(own)), dataset)] if own else []
        )
        overrides = [
            Layer(OVERRIDE_ORIGIN, dotted_settings(spelled_out(self.overrides[name])), name)
            for name in _names_in([dataset], [split], [strategy])
            if name in self.overrides
        ]
        kept = [under_flags(layer, dotted_settings(self.flags)) for layer in settings + overrides]
        return [*kept, *([Layer(FLAG_ORIGIN, dotted_settings(self.flags))] if self.flags else [])]

    def traced(self, cell: Cell) -> list[TracedSetting]:
        """Return every setting of a cell and where it comes from."""
        chosen = ("data.dataset", "data.split", "strategy.name", "seed")
        shared = dotted_settings(spelled_out(self.run)) | dict.fromkeys(chosen)
        layers = self.layers(cell.dataset, cell.split, cell.strategy)
        return trace(cell.config, [Layer(SUITE_ORIGIN, shared), *layers])

    def _config(self, dataset: str, split: str, strategy: str) -> Config:
        tables = merged(self.run, self.layers(dataset, split, strategy))
        own = tables.get("strategy", {})
        named = own.get("name", strategy) if isinstance(own, Mapping) else own
        if isinstance(named, str) and named not in STRATEGIES:
            raise ConfigError(unknown_strategy(named))
        data = {} if self.settings else {"data.dataset": dataset, "data.split": split}
        chosen = {**data, "strategy.name": named, "seed": self.first_seed}
        return make_config(with_settings(tables, chosen))


def read_suite(source: str | Path | TableView | None = None) -> Suite:
    """Return a suite: one of ours by name, from a TOML file, or from tables.

    A suite that ``extends`` another (one of ours, or a file beside it) has all of that but for what
    it says itself; what that overrides for something this one does not compare is left out.

    Examples
    --------
    >>> read_suite("quick").datasets
    ('digits',)
    """
    if source is None:
        source = "quick"
    if isinstance(source, Mapping):
        return _built(source, Path())
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"suite must be a suite, tables, a name or the path of a TOML file, not "
            f"{quoted(source)}."
        )
    path = _suite_file(source)
    return _built(read_config(path), path.parent, (path,))


def narrowed(
    suite: Suite,
    seeds: int | None = None,
    settings: TableView | None = None,
    first_seed: int | None = None,
    **lists: Sequence[str] | None,
) -> Suite:
    """Return the suite with other seeds and settings, or with other lists of its three kinds.

    ``datasets``, ``splits`` and ``strategies`` replace the suite's own; overrides of what is no
    longer in it go too. ``settings`` are flags: they win over everything in the suite. In a suite
    of settings, names of settings or of datasets, and splits, choose among them.
    """
    chosen = {kind: tuple(names) for kind, names in lists.items() if names}
    if "strategies" in chosen:
        chosen["strategies"] = strategies_named(chosen["strategies"], variants(suite.overrides))
    if suite.settings:
        wanted = chosen.pop("datasets", None), chosen.pop("splits", None)
        suite = _of_settings(suite, _chosen_settings(suite.run, suite.settings, *wanted))
    left = {kind: chosen.get(kind, getattr(suite, kind)) for kind in KINDS}
    names = _names_in(left["datasets"], left["splits"], left["strategies"])
    return replace(
        suite,
        seeds=suite.seeds if seeds is None else int(seeds),
        first_seed=suite.first_seed if first_seed is None else int(first_seed),
        flags={**suite.flags, **(settings or {})},
        overrides={name: o for name, o in suite.overrides.items() if name in names},
        **left,
    )


def _built(tables: TableView, beside: Path, within: tuple[Path, ...] = ()) -> Suite:
    """Return the suite of tables, put over the one it extends if it names one."""
    named = tables.get("settings")
    only = None if named is None or isinstance(named, Mapping) else named
    left_out = ("extends",) if only is None else ("extends", "settings")
    own = from_table(Suite, {k: v for k, v in tables.items() if k not in left_out}, "suite.")
    _check_tables(own.get("overrides", {}), "overrides")
    if "settings" in own and (both := [kind for kind in PLACES if kind in own]):
        raise ConfigError(f"a suite has settings or {both[0]}, not both: leave one of them out.")
    for kind, names in zip(KINDS, zip(*own.get("pairs", ()), strict=True), strict=False):
        own.setdefault(kind, tuple(dict.fromkeys(names)))
    if "extends" in tables:
        base = convert(tables["extends"], str, "suite.extends")
        path = _suite_file(base if base in suite_names() else beside / base)
        if path in within:
            raise ConfigError(f"the suite {base} extends itself: take out one `extends`.")
        extended = _built(read_config(path), path.parent, (*within, path))
        return _put_over(extended, own, only)
    if only is not None:
        raise ConfigError("suite.settings must be tables, unless the suite extends another.")
    if not {*KINDS, "settings"} & own.keys():
        raise ConfigError(
            f"a suite must say what it compares: give it {', '.join(KINDS[:-1])} or "
            f"{KINDS[-1]}, or let it extend another (`extends`)."
        )
    return Suite(**own)


def _put_over(extended: Suite, own: JsonTable, only: Any) -> Suite:
    """Return a suite with what another one, which extends it, says itself."""
    lists = {kind: own.get(kind) for kind in KINDS}
    if only is not None:
        lists["datasets"] = convert(only, tuple[str, ...], "suite.settings")
    base = narrowed(extended, **lists)
    if "settings" in own:
        base = _of_settings(base, put_over(base.settings, own.pop("settings")))
    run = with_settings(base.run, dotted_settings(own.pop("run", {})))
    overrides = put_over(base.overrides, own.pop("overrides", {}))
    return replace(base, **own, run=run, overrides=overrides)


def _of_settings(suite: Suite, settings: TableView) -> Suite:
    """Return a suite with these settings, and of its overrides those of what is still in it."""
    names, splits = zip(*_setting_places(suite.run, settings), strict=True)
    known = _names_in(names, splits, suite.strategies)
    kept = {name: over for name, over in suite.overrides.items() if name in known}
    return replace(suite, settings=settings, overrides=kept)


# What a suite would run, and where every setting of it comes from, for people and programs.

_CHOSEN = ("data.dataset", "data.split", "strategy.name", "seed")
"""What tells one cell from another, and is not a setting that all may share."""

_MOST_NOTED = 40
"""Overrides that are told under a table, at most."""


def suite_as_json(suite: Suite) -> JsonTable:
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
    chosen = _CHOSEN[2:] if suite.settings else _CHOSEN
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
        if setting.origin in found and setting.name not in _CHOSEN:
            who = f" for {setting.part}" if setting.part else ""
            found[setting.origin][f"{setting.name} {_text(setting.value)}{who}"] = None
        if setting.origin == FLAG_ORIGIN:
            beaten |= {below.part: None for below in setting.beaten if below.part}
    over = f", over what the suite has for {', '.join(beaten)}" if beaten else ""
    notes = []
    if found[FLAG_ORIGIN]:
        notes.append(f"From flags, for all runs{over}: {'; '.join(found[FLAG_ORIGIN])}.")
    if len(found[OVERRIDE_ORIGIN]) > _MOST_NOTED:
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


def _text(value: Any) -> str:
    return "none" if value is None else toml_value(value)


# A suite as it was asked for: narrowed, with flags over it, and with data of one's own.

LISTED = {"strategies": "strategy", "datasets": "data.dataset", "splits": "data.split"}
"""The lists of a suite, and the setting of a run that each is a list of."""


def asked_suite(
    source: Suite | TableView | str | Path | None,
    seeds: int | None = None,
    flags: TableView | None = None,
    lists: Mapping[str, Sequence[str] | None] | None = None,
    data: Any = None,
    group: Any = None,
    own: UserObjects = NO_OBJECTS,
    first_seed: int | None = None,
) -> tuple[Suite, UserObjects]:
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
            "a suite has several seeds, not one: say how many by ",
            Key("seeds"),
            ", and from which on by ",
            Key("first_seed"),
            ".",
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
    chosen = _with_own_data(chosen, gathered, own.model is not None, "splits" in asked)
    return chosen, replace(own, data=gathered, known={})


def _with_own_data(
    suite: Suite, own: GatheredSamples | FederatedData, has_model: bool, has_splits: bool
) -> Suite:
    """Return a suite for data of one's own in place of its datasets.

    Natural clients take the place of its splits, unless splits are asked for, and of its settings
    those are changed that cannot be with so many clients or such samples; flags stay.
    """
    from flamma.experiments.user_objects import (
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


def _named(flags: JsonTable, setting: str) -> str | None:
    """Return the one name that flags have for a setting, and take it out of them."""
    table = flags.get(setting)
    if isinstance(table, Mapping) and set(table) == {"name"}:
        flags.pop(setting)
        return str(table["name"])
    key = f"{setting}.name" if setting == "strategy" else setting
    return convert(flags.pop(key), str, key) if key in flags else None


# The strategies of a comparison by family: many are easier to read in groups.

MOST_UNGROUPED = 12
"""Tables and pictures of more strategies are grouped by family."""


def families_compared(
    comparison: Comparison, behind: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Return the strategies of a comparison by family, in the order in which families are listed.

    There are no families where there are few strategies, or all are of the same one. A variant
    is of the family of the strategy behind it, as ``behind`` or the comparison's suite tells.
    """
    names = list(dict.fromkeys(row.strategy for row in comparison.rows))
    if len(names) <= MOST_UNGROUPED:
        return {}
    named = _variants_of(comparison.suite) | dict(behind or {})
    of = {name: family_of(named.get(name, name)) for name in names}
    found = {family: [name for name in names if of[name] == family] for family in FAMILIES}
    found = {family: members for family, members in found.items() if members}
    return found if len(found) > 1 else {}


def family_name(family: str) -> str:
    """Return the name of a family as a heading has it."""
    return "FLamma" if family == "flamma" else family.capitalize()


def _variants_of(suite: str) -> dict[str, str]:
    """Return the strategies behind the variants of a suite as a table has it, which may be bad."""
    try:
        overrides = parse_toml(suite, "the suite").get("overrides")
    except ConfigError:
        return {}
    return variants(overrides) if isinstance(overrides, Mapping) else {}

"""A suite: strategies x datasets x splits x seeds, and what differs between strategies."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from flamma.errors import ConfigError
from flamma.experiments.config import Config, make_config, read_config, with_settings
from flamma.experiments.layers import (
    FLAG_ORIGIN,
    OVERRIDE_ORIGIN,
    SUITE_ORIGIN,
    Layer,
    TracedSetting,
    dotted_settings,
    merged,
    spelled_out,
    trace,
    under_flags,
)
from flamma.experiments.suite_files import suite_names as suite_names
from flamma.files import read_text
from flamma.names import check_folder_name, quoted, unknown
from flamma.options import convert, from_table, to_toml
from flamma.strategies import STRATEGIES, strategies_named, unknown_strategy

KINDS = ("datasets", "splits", "strategies")

MOST_RUNS = 100_000
"""The most runs of a suite; all of their configurations are in memory at once."""


@dataclass(frozen=True)
class Cell:
    """One run of a suite."""

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
        How many seeds; they are 0, 1, 2, ...
    datasets, splits : tuple of str
        Names of ``flamma list``.
    pairs : tuple
        Which dataset has which split, as pairs of their names, which then need not be given above;
        if left out, every dataset has every split.
    strategies : tuple of str
        Names of ``flamma list``, of strategies or of families of them, or labels of your own.
    run : mapping
        What all runs share, as in a run's configuration.
    overrides : mapping
        Per dataset, split, strategy, ``dataset/split``, ``dataset/strategy`` or
        ``dataset/split/strategy``: tables that are put over ``run`` in this order.
    flags : mapping
        Dotted settings that were given by hand; they are put over everything else.
    """

    name: str = "suite"
    seeds: int = 3
    datasets: tuple[str, ...] = ("digits",)
    splits: tuple[str, ...] = ("iid", "shards")
    pairs: tuple[tuple[str, str], ...] = ()
    strategies: tuple[str, ...] = ("fedavg", "flamma")
    run: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds must be at least 1, not {self.seeds}.")
        named = strategies_named(self.strategies, variants(self.overrides))
        object.__setattr__(self, "strategies", named)
        runs = self.seeds * math.prod(len(getattr(self, kind)) for kind in KINDS)
        if runs > MOST_RUNS:
            raise ConfigError(f"a suite may have {MOST_RUNS:,} runs, but this has {runs:,}.")
        for kind in KINDS:
            chosen = getattr(self, kind)
            if not chosen or len(set(chosen)) != len(chosen):
                raise ConfigError(f"{kind} of a suite must name at least one, and each once.")
            for name in chosen:
                check_folder_name(name, f"{kind} of a suite")
        check_folder_name(self.name, "the name of a suite")
        if not self.compared_pairs():
            raise ConfigError("none of the pairs of a suite is of its datasets and splits.")
        known = _names(self.datasets, self.splits, self.strategies)
        for name in self.overrides:
            if name not in known:
                raise ConfigError(unknown("name in overrides", name, known))

    def as_toml(self) -> str:
        """Return the suite as a file says it, without what it extends."""
        tables = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.flags:  # so that the text of a suite is what it was before there were any
            del tables["flags"]
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

    def cells(self) -> list[Cell]:
        """Return all runs; their configurations are checked before the first one starts."""
        return [
            Cell(dataset, split, strategy, seed, self._config(dataset, split, strategy, seed))
            for dataset, split in self.compared_pairs()
            for seed in range(self.seeds)
            for strategy in self.strategies
        ]

    def layers(self, dataset: str, split: str, strategy: str) -> list[Layer]:
        """Return what is put over ``run`` for a cell, in this order: overrides, then flags."""
        overrides = [
            Layer(OVERRIDE_ORIGIN, dotted_settings(spelled_out(self.overrides[name])), name)
            for name in _names([dataset], [split], [strategy])
            if name in self.overrides
        ]
        kept = [under_flags(layer, dotted_settings(self.flags)) for layer in overrides]
        return [*kept, *([Layer(FLAG_ORIGIN, dotted_settings(self.flags))] if self.flags else [])]

    def traced(self, cell: Cell) -> list[TracedSetting]:
        """Return every setting of a cell and where it comes from."""
        chosen = ("data.dataset", "data.split", "strategy.name", "seed")
        shared = dotted_settings(spelled_out(self.run)) | dict.fromkeys(chosen)
        layers = self.layers(cell.dataset, cell.split, cell.strategy)
        return trace(cell.config, [Layer(SUITE_ORIGIN, shared), *layers])

    def _config(self, dataset: str, split: str, strategy: str, seed: int) -> Config:
        tables = merged(self.run, self.layers(dataset, split, strategy))
        own = tables.get("strategy", {})
        named = own.get("name", strategy) if isinstance(own, Mapping) else own
        if isinstance(named, str) and named not in STRATEGIES:
            raise ConfigError(unknown_strategy(named))
        chosen = {
            "data.dataset": dataset,
            "data.split": split,
            "strategy.name": named,
            "seed": seed,
        }
        return make_config(with_settings(tables, chosen))


def read_suite(source: str | Path | Mapping[str, Any] | None = None) -> Suite:
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
    path = _suite_file(source)
    return _built(read_config(path), path.parent, (path,))


def narrowed(
    suite: Suite,
    seeds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    **lists: Sequence[str] | None,
) -> Suite:
    """Return the suite with other seeds and settings, or with other lists of its three kinds.

    ``datasets``, ``splits`` and ``strategies`` replace the suite's own; overrides of what is no
    longer in it go too. ``settings`` are flags: they win over everything in the suite.
    """
    chosen = {kind: tuple(names) for kind, names in lists.items() if names}
    if "strategies" in chosen:
        chosen["strategies"] = strategies_named(chosen["strategies"], variants(suite.overrides))
    left = {kind: chosen.get(kind, getattr(suite, kind)) for kind in KINDS}
    names = _names(left["datasets"], left["splits"], left["strategies"])
    return replace(
        suite,
        seeds=suite.seeds if seeds is None else seeds,
        flags={**suite.flags, **(settings or {})},
        overrides={name: o for name, o in suite.overrides.items() if name in names},
        **left,
    )


def suite_text(source: str | Path) -> str:
    """Return a suite as it is written."""
    return read_text(_suite_file(source))


def _built(tables: Mapping[str, Any], beside: Path, within: tuple[Path, ...] = ()) -> Suite:
    """Return the suite of tables, put over the one it extends if it names one."""
    own = from_table(Suite, {k: v for k, v in tables.items() if k != "extends"}, "suite.")
    for name, over in own.get("overrides", {}).items():
        if not isinstance(over, Mapping):
            raise ConfigError(f"suite.overrides.{name} must be a table, not {quoted(over)}.")
    for kind, names in zip(KINDS, zip(*own.get("pairs", ()), strict=True), strict=False):
        own.setdefault(kind, tuple(dict.fromkeys(names)))
    if "extends" not in tables:
        if not set(KINDS) & own.keys():
            raise ConfigError(
                f"a suite must say what it compares: give it {', '.join(KINDS[:-1])} or "
                f"{KINDS[-1]}, or let it extend another (`extends`)."
            )
        return Suite(**own)
    named = convert(tables["extends"], str, "suite.extends")
    path = _suite_file(named if named in suite_names() else beside / named)
    if path in within:
        raise ConfigError(f"the suite {named} extends itself: take out one `extends`.")
    extended = _built(read_config(path), path.parent, (*within, path))
    base = narrowed(extended, **{kind: own.get(kind) for kind in KINDS})
    run = with_settings(base.run, dotted_settings(own.pop("run", {})))
    overrides = dict(base.overrides)
    for name, over in own.pop("overrides", {}).items():
        overrides[name] = with_settings(overrides.get(name, {}), dotted_settings(over))
    return replace(base, **own, run=run, overrides=overrides)


def _names(datasets: Sequence[str], splits: Sequence[str], strategies: Sequence[str]) -> list[str]:
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


def _suite_file(source: str | Path) -> Path:
    if source in suite_names():
        return Path(str(files("flamma.experiments") / "suites" / f"{source}.toml"))
    if not os.path.exists(source) and not str(source).endswith(".toml"):
        raise ConfigError(unknown("suite", str(source), suite_names()))
    return Path(source)

"""A suite: strategies x datasets x splits, or settings, x seeds, and what differs between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from flamma.errors import ConfigError
from flamma.experiments.config import Config, make_config, read_config, with_settings
from flamma.experiments.layers import (
    FLAG_ORIGIN,
    OVERRIDE_ORIGIN,
    SETTING_ORIGIN,
    SUITE_ORIGIN,
    Layer,
    TracedSetting,
    dotted_settings,
    merged,
    spelled_out,
    trace,
    under_flags,
)
from flamma.experiments.suite_files import suite_file
from flamma.experiments.suite_files import suite_names as suite_names
from flamma.experiments.suite_parts import (
    check_tables,
    chosen_settings,
    names_in,
    put_over,
    setting_places,
)
from flamma.experiments.suite_parts import variants as variants
from flamma.names import check_folder_name, quoted, unknown
from flamma.options import convert, from_table, to_toml
from flamma.strategies import STRATEGIES, strategies_named, unknown_strategy

KINDS = ("datasets", "splits", "strategies")
PLACES = ("datasets", "splits", "pairs")
"""What a suite of settings does not say."""

SUITE = "suite.toml"
"""The file of a comparison's directory that says what it is to run."""

MOST_RUNS = 100_000
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
    run: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    first_seed: int = 0

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds must be at least 1, not {self.seeds}.")
        if self.first_seed < 0:
            raise ConfigError(f"first_seed must be at least 0, not {self.first_seed}.")
        if self.settings:
            self._place_settings()
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
        known = names_in(self.datasets, self.splits, self.strategies)
        for name in self.overrides:
            if name not in known:
                raise ConfigError(unknown("name in overrides", name, known))

    def _place_settings(self) -> None:
        """Let settings take the places of datasets, each with its own split."""
        check_tables(self.settings, "settings")
        places = setting_places(self.run, self.settings)
        object.__setattr__(self, "pairs", places)
        for kind, names in zip(KINDS, zip(*places, strict=True), strict=False):
            object.__setattr__(self, kind, tuple(dict.fromkeys(names)))

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
            for name in names_in([dataset], [split], [strategy])
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
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"suite must be a suite, tables, a name or the path of a TOML file, not "
            f"{quoted(source)}."
        )
    path = suite_file(source)
    return _built(read_config(path), path.parent, (path,))


def narrowed(
    suite: Suite,
    seeds: int | None = None,
    settings: Mapping[str, Any] | None = None,
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
        suite = _of_settings(suite, chosen_settings(suite.run, suite.settings, *wanted))
    left = {kind: chosen.get(kind, getattr(suite, kind)) for kind in KINDS}
    names = names_in(left["datasets"], left["splits"], left["strategies"])
    return replace(
        suite,
        seeds=suite.seeds if seeds is None else int(seeds),
        first_seed=suite.first_seed if first_seed is None else int(first_seed),
        flags={**suite.flags, **(settings or {})},
        overrides={name: o for name, o in suite.overrides.items() if name in names},
        **left,
    )


def _built(tables: Mapping[str, Any], beside: Path, within: tuple[Path, ...] = ()) -> Suite:
    """Return the suite of tables, put over the one it extends if it names one."""
    named = tables.get("settings")
    only = None if named is None or isinstance(named, Mapping) else named
    left_out = ("extends",) if only is None else ("extends", "settings")
    own = from_table(Suite, {k: v for k, v in tables.items() if k not in left_out}, "suite.")
    check_tables(own.get("overrides", {}), "overrides")
    if "settings" in own and (both := [kind for kind in PLACES if kind in own]):
        raise ConfigError(f"a suite has settings or {both[0]}, not both: leave one of them out.")
    for kind, names in zip(KINDS, zip(*own.get("pairs", ()), strict=True), strict=False):
        own.setdefault(kind, tuple(dict.fromkeys(names)))
    if "extends" in tables:
        extended = _extended(tables["extends"], beside, within)
        return _put_over(extended, own, only)
    if only is not None:
        raise ConfigError("suite.settings must be tables, unless the suite extends another.")
    if not {*KINDS, "settings"} & own.keys():
        raise ConfigError(
            f"a suite must say what it compares: give it {', '.join(KINDS[:-1])} or "
            f"{KINDS[-1]}, or let it extend another (`extends`)."
        )
    return Suite(**own)


def _extended(given: Any, beside: Path, within: tuple[Path, ...]) -> Suite:
    """Return the suite that another one names, which may extend others but not itself."""
    named = convert(given, str, "suite.extends")
    path = suite_file(named if named in suite_names() else beside / named)
    if path in within:
        raise ConfigError(f"the suite {named} extends itself: take out one `extends`.")
    return _built(read_config(path), path.parent, (*within, path))


def _put_over(extended: Suite, own: dict[str, Any], only: Any) -> Suite:
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


def _of_settings(suite: Suite, settings: Mapping[str, Any]) -> Suite:
    """Return a suite with these settings, and of its overrides those of what is still in it."""
    names, splits = zip(*setting_places(suite.run, settings), strict=True)
    known = names_in(names, splits, suite.strategies)
    kept = {name: over for name, over in suite.overrides.items() if name in known}
    return replace(suite, settings=settings, overrides=kept)

"""What is audited: a configuration, a finished run, or every setting of a suite."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flamma.errors import ConfigError, DataError, RunError
from flamma.experiments.auditing.evidence import Evidence, read_evidence
from flamma.experiments.config import OWN, Config, read_config
from flamma.experiments.folder import CONFIG
from flamma.experiments.jobs import comparable
from flamma.experiments.own_data import with_own_file
from flamma.experiments.run import Run, configured
from flamma.experiments.suite import KINDS, Cell, Suite, narrowed, read_suite, suite_names
from flamma.names import unknown

DEFAULT_SEEDS = 3

DEFAULT_AUDIT: Mapping[str, Any] = {
    "rounds": 30,
    "per_round": 3,
    "data": {"dataset": "digits", "split": "shards", "clients": 10},
    "strategy": {"name": "flamma"},
    "costs": {"kind": "lognormal", "value": 0.1, "spread": 0.5},
}
"""What is audited if nothing is named: the embedded digits, two shards for each client."""


@dataclass(frozen=True)
class AuditSource:
    """What is audited, and the finished honest runs that need not be done again.

    Attributes
    ----------
    name : str
        Names the default directory.
    cells : tuple of Cell
        An honest run for each strategy, dataset, split and seed.
    finished : mapping of Path to Evidence
        Honest runs that are there already, by the folder of their cell.
    out : Path
        The default directory.
    """

    name: str
    cells: tuple[Cell, ...]
    out: Path
    finished: Mapping[Path, Evidence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cell in self.cells:
            config = cell.config
            if config.behaviours:
                raise ConfigError(
                    "an audit begins with honest clients, but this configuration has behaviours "
                    "already: take out the table behaviours."
                )
            if not config.engine.controls_clients:
                raise ConfigError(
                    f"an audit decides what clients do, which engine {config.engine.name} does not "
                    f"allow: use the local engine."
                )
            for kind, name in (("data", config.data.dataset), ("model", config.model.name)):
                if name == OWN and not (kind == "data" and config.data.file):
                    raise ConfigError(
                        f"an audit does its runs anew, and {kind} of your own cannot be loaded by "
                        f"name: register them, see docs/how-to/bring-your-own.md."
                    )


def read_source(
    given: str | Path | Suite | Config | Mapping[str, Any] | None,
    settings: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    strategies: Sequence[str] | None = None,
) -> AuditSource:
    """Return what a file, a directory, a suite's name or a configuration asks to audit.

    Parameters
    ----------
    given : path, name, Suite, Config or mapping, optional
        The directory of a finished run, the TOML file of a configuration or a suite, or the name
        of a suite; by default :data:`DEFAULT_AUDIT`.
    settings : mapping, optional
        Dotted settings that are put over it.
    seeds : int, optional
        How many seeds, from that of the configuration on.
    strategies : sequence of str, optional
        Names of strategies or of families, in place of those of a suite.

    Raises
    ------
    FlammaError
        If it is none of these, or cannot be audited.
    """
    changes = dict(settings or {})
    if seeds is not None and seeds < 1:
        raise ConfigError(f"seeds must be at least 1, not {seeds}.")
    if isinstance(given, str | Path):
        given = _suite_at(given) or Path(given)
    if isinstance(given, Suite):
        return _of_suite(given, changes, seeds, strategies)
    if strategies:
        raise ConfigError(
            "only a suite has several strategies to choose from: name one, or say --strategy."
        )
    if isinstance(given, Path):
        if given.is_dir():
            return _of_run(given, changes, seeds)
        return _of_tables(read_config(given), changes, seeds, given.stem)
    tables = given.as_tables() if isinstance(given, Config) else given or DEFAULT_AUDIT
    return _of_tables(tables, changes, seeds)


def _suite_at(given: str | Path) -> Suite | None:
    """Return the suite of a name or a file; None for a configuration or a run."""
    if given in suite_names():
        return read_suite(given)
    path = Path(given)
    if path.is_dir():
        return None
    if not os.path.exists(path) and path.suffix != ".toml":
        raise ConfigError(unknown("run, configuration or suite", str(given), suite_names()))
    is_suite = {*KINDS, "extends", "overrides", "run"} & read_config(path).keys()
    return read_suite(path) if is_suite else None


def check_data(source: AuditSource, data_dir: Path | None = None) -> None:
    """Refuse a finished run whose data are gone, or are not the data that it was run with.

    Raises
    ------
    FlammaError
        With what is missing.
    """
    from flamma.experiments.setup import build_data

    for cell in source.cells:
        evidence = source.finished.get(cell.folder)
        if evidence is None:
            continue
        try:
            data = build_data(cell.config, data_dir)
        except DataError as error:
            raise DataError(
                f"{evidence.path} cannot be audited without its data: {error}"
            ) from None
        if not np.array_equal(data.samples, evidence.population.samples):
            raise DataError(
                f"{evidence.path} cannot be audited: {cell.dataset} is split otherwise now than it "
                f"was for this run."
            )


def _of_suite(
    suite: Suite,
    changes: Mapping[str, Any],
    seeds: int | None,
    strategies: Sequence[str] | None,
) -> AuditSource:
    chosen = with_own_file(narrowed(suite, seeds, changes, strategies=strategies))
    return AuditSource(suite.name, tuple(chosen.cells()), Path("out") / f"audit-{suite.name}")


def _of_tables(
    tables: Mapping[str, Any], changes: Mapping[str, Any], seeds: int | None, name: str = ""
) -> AuditSource:
    if tables is DEFAULT_AUDIT and "data.file" in changes:
        tables = {k: v for k, v in tables.items() if k not in ("data", "per_round")}
    config, _ = configured(tables, changes)
    data = config.data
    name = name or f"{config.strategy.name}-{data.title}-{data.split.name}"
    return AuditSource(name, _cells(config, seeds or DEFAULT_SEEDS), Path("out") / f"audit-{name}")


def _of_run(path: Path, changes: Mapping[str, Any], seeds: int | None) -> AuditSource:
    if not (path / CONFIG).exists():
        raise RunError(f"{path} holds no run to audit: there is no {CONFIG} in it.")
    run = Run.load(path)
    chosen = run.config.with_settings(changes)
    trainer = run.about.get("trainer")  # another one would round differently
    config = chosen.with_settings({"training.trainer": trainer} if trainer else {})
    cells = _cells(config, seeds or 1)
    source = AuditSource(path.name, cells, path / "audit")
    evidence = read_evidence(path)
    same = comparable(chosen) == comparable(run.config)
    finished = {cells[0].folder: evidence} if same else {}
    return AuditSource(source.name, cells, source.out, finished)


def _cells(config: Config, seeds: int) -> tuple[Cell, ...]:
    data, name = config.data, config.strategy.name
    return tuple(
        Cell(data.dataset, data.split.name, name, seed, config.with_settings({"seed": seed}))
        for seed in range(config.seed, config.seed + seeds)
    )

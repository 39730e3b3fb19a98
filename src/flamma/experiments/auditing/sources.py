"""What is audited: a configuration, a finished run, or every setting of a suite."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from flamma.errors import ConfigError, DataError, RunError
from flamma.experiments.auditing.evidence import Evidence, read_evidence
from flamma.experiments.config import Config, read_config
from flamma.experiments.folder import CONFIG
from flamma.experiments.jobs import comparable
from flamma.experiments.own import NOTHING_OWN, OwnParts, configured, gathered_for
from flamma.experiments.own_suite import asked_suite
from flamma.experiments.run_object import Run
from flamma.experiments.suite import KINDS, Cell, Suite, read_suite, suite_names
from flamma.names import quoted, unknown
from flamma.tasks import refuse_losses

DEFAULT_SEEDS = 3

DEFAULT_AUDIT: Mapping[str, Any] = {
    "rounds": 30,
    "per_round": 3,
    "data": {"dataset": "digits", "split": "shards", "clients": 10},
    "strategy": {"name": "flamma"},
    "costs": {"kind": "lognormal", "value": 0.1, "spread": 0.5},
}
"""What is audited if nothing is named: the embedded digits, two shards for each client."""

DATA_DECIDE = ("data", "per_round")
"""What of it data of one's own decide."""


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
    own : OwnParts
        Data and a model of the user's own, where the configurations name none.
    """

    name: str
    cells: tuple[Cell, ...]
    out: Path
    finished: Mapping[Path, Evidence] = field(default_factory=dict)
    own: OwnParts = NOTHING_OWN

    def __post_init__(self) -> None:
        for cell in self.cells:
            config = cell.config
            if config.behaviours:
                raise ConfigError(
                    "an audit begins with honest clients, but this configuration has behaviours "
                    "already: take out the table behaviours."
                )
            refuse_losses(config.evaluation.metric, "an audit tells changes of a score")
            if not config.engine.controls_clients:
                raise ConfigError(
                    f"an audit decides what clients do, which engine {config.engine.name} does not "
                    f"allow: use the local engine."
                )
            if lacking := self.own.lacks(config):
                raise ConfigError(
                    f"an audit does its runs anew, and {lacking} of your own cannot be loaded by "
                    f"name: audit it from Python, {lacking}=..., or register them, see "
                    f"docs/how-to/bring-your-own.md."
                )


def read_source(
    given: str | Path | Suite | Config | Mapping[str, Any] | None,
    settings: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    strategies: Sequence[str] | None = None,
    data: Any = None,
    group: Any = None,
    own: OwnParts = NOTHING_OWN,
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
    data, group : any, optional
        Data of one's own, and the client of each sample.
    own : OwnParts
        A model of one's own.

    Raises
    ------
    FlammaError
        If it is none of these, or cannot be audited.
    """
    changes = dict(settings or {})
    seeds = None if seeds is None else int(seeds)
    if given is not None and not isinstance(given, str | Path | Suite | Config | Mapping):
        raise ConfigError(
            f"source must be a run, a suite, a configuration or the path of one, not "
            f"{quoted(given)}."
        )
    if seeds is not None and seeds < 1:
        raise ConfigError(f"seeds must be at least 1, not {seeds}.")
    if isinstance(given, str | Path):
        given = _suite_at(given) or Path(given)
    if isinstance(given, Suite):
        lists = {"strategies": strategies}
        suite, own = asked_suite(given, seeds, changes, lists, data, group, own)
        out = Path("out") / f"audit-{suite.name}"
        return AuditSource(suite.name, tuple(suite.cells()), out, own=own)
    if strategies:
        raise ConfigError(
            "only a suite has several strategies to choose from: name one, or say --strategy."
        )
    if isinstance(given, Path):
        if given.is_dir():
            return _of_run(given, changes, seeds, _with_data(given, data, group, own))
        chosen, own = configured(read_config(given), changes, data, group, own)
        return _of_config(chosen, seeds, own, given.stem)
    has_file = data is not None or "data.file" in changes
    usual = {k: v for k, v in DEFAULT_AUDIT.items() if not has_file or k not in DATA_DECIDE}
    chosen, own = configured(given or usual, changes, data, group, own)
    return _of_config(chosen, seeds, own)


def _suite_at(given: str | Path) -> Suite | None:
    """Return the suite of a name or a file; None for a configuration or a run."""
    if given in suite_names():
        return read_suite(given)
    path = Path(given)
    if path.is_dir():
        return None
    if not os.path.exists(path) and path.suffix != ".toml":
        raise ConfigError(unknown("run, configuration or suite", str(given), suite_names()))
    is_suite = {*KINDS, "extends", "overrides", "run", "settings"} & read_config(path).keys()
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
            own = source.own.federation(cell.config)
            data = build_data(cell.config, data_dir) if own is None else own
        except DataError as error:
            raise DataError(
                f"{evidence.path} cannot be audited without its data: {error}"
            ) from None
        if not np.array_equal(data.samples, evidence.population.samples):
            raise DataError(
                f"{evidence.path} cannot be audited: {cell.dataset} is split otherwise now than it "
                f"was for this run."
            )


def _of_config(config: Config, seeds: int | None, own: OwnParts, name: str = "") -> AuditSource:
    data = config.data
    name = name or f"{config.strategy.name}-{data.title}-{data.split.name}"
    out = Path("out") / f"audit-{name}"
    return AuditSource(name, _cells(config, seeds or DEFAULT_SEEDS), out, own=own)


def _with_data(path: Path, data: Any, group: Any, own: OwnParts) -> OwnParts:
    """Return the user's own parts with the data of a run, read as its configuration says."""
    if data is None:
        return own
    tables = read_config(path / CONFIG, regular=True) if (path / CONFIG).exists() else {}
    return replace(own, data=gathered_for(tables, data, group), known={})


def _of_run(
    path: Path, changes: Mapping[str, Any], seeds: int | None, own: OwnParts
) -> AuditSource:
    if not (path / CONFIG).exists():
        raise RunError(f"{path} holds no run to audit: there is no {CONFIG} in it.")
    run = Run.load(path)
    chosen = run.config.with_settings(changes)
    trainer = run.about.get("trainer")  # another one would round differently
    config = chosen.with_settings({"training.trainer": trainer} if trainer else {})
    cells = _cells(config, seeds or 1)
    source = AuditSource(path.name, cells, path / "audit", own=own)
    evidence = read_evidence(path)
    same = comparable(chosen) == comparable(run.config)
    finished = {cells[0].folder: evidence} if same else {}
    return replace(source, finished=finished)


def _cells(config: Config, seeds: int) -> tuple[Cell, ...]:
    data, name = config.data, config.strategy.name
    return tuple(
        Cell(data.dataset, data.split.name, name, seed, config.with_settings({"seed": seed}))
        for seed in range(config.seed, config.seed + seeds)
    )

"""The configuration of a run: tables of named, typed, checked options.

What has a name (split, model, strategy, costs, engine) owns its options: the parameters of the
function or dataclass behind the name are the further keys of the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from flamma.clients.behaviours import BehaviourAssignment, read_assignments
from flamma.clients.clock import ClockConfig
from flamma.clients.costs import COSTS
from flamma.clients.faults import Faults
from flamma.data.build import choose_split
from flamma.data.datasets import DATASETS
from flamma.errors import ConfigError, StrategyError
from flamma.experiments.config_checks import check_config
from flamma.experiments.engine import ENGINES, Engine
from flamma.experiments.evaluation import EvaluationConfig
from flamma.experiments.ledger import LedgerConfig
from flamma.experiments.tables import OWN as OWN
from flamma.experiments.tables import (
    ConfigTables,
    DataConfig,
    WeightsConfig,
    in_our_spelling,
    keys_of_tables,
)
from flamma.models.registry import MODELS
from flamma.names import check_folder_name, quoted, unknown
from flamma.options import from_table, options_of, to_toml
from flamma.privacy.table import PrivacyConfig
from flamma.registry import Choice
from flamma.strategies import STRATEGIES, Strategy, current_strategy
from flamma.strategies.fedavg import Averaging
from flamma.toml import read_toml
from flamma.training.table import TrainingConfig
from flamma.types import Params, Plan, Population

YOUNGER_KEYS = ("metric",)
"""Keys of ``[evaluation]`` that are written only if they are set."""


OF_FIRST_RUNS = {f.name for f in fields(ConfigTables)} - {"ledger", "privacy", "clock"}
"""The keys that every complete configuration has."""


@dataclass(frozen=True)
class Config:
    """A complete, re-runnable description of a run; made by :func:`make_config`."""

    rounds: int
    per_round: int
    seed: int
    data: DataConfig
    model: Choice
    training: TrainingConfig
    strategy: Strategy[Any]
    costs: Choice
    engine: Engine
    faults: Faults
    evaluation: EvaluationConfig
    behaviours: tuple[BehaviourAssignment, ...] = ()
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    clock: ClockConfig = field(default_factory=ClockConfig)

    def __post_init__(self) -> None:
        check_config(self)

    def with_settings(self, settings: Mapping[str, Any]) -> Config:
        """Return the configuration with dotted settings, such as ``engine.processes``, put in."""
        return make_config(with_settings(self.as_tables(), settings))

    def as_tables(self) -> dict[str, Any]:
        """Return the configuration as nested tables, complete with every default.

        Tables and keys that are younger than the first runs are left out at their defaults, so
        that the ids of runs stay what they were.
        """
        younger: dict[str, LedgerConfig | PrivacyConfig] = {
            "ledger": self.ledger,
            "privacy": self.privacy,
        }
        changed = {
            name: dataclasses.asdict(table)
            for name, table in younger.items()
            if table != type(table)()
        }
        if self.clock != ClockConfig():
            changed["clock"] = self.clock.as_table()
        return {
            "rounds": self.rounds,
            "per_round": self.per_round,
            "seed": self.seed,
            "data": self.data.as_table(),
            "model": {"name": self.model.name, **self.model.options, **self.weights.as_table()},
            "training": self.training.as_table(),
            "strategy": {"name": self.strategy.name, **_strategy_options(self.strategy)},
            "costs": {"kind": self.costs.name, **self.costs.options},
            "engine": {"name": self.engine.name, **_options(self.engine)},
            "faults": dataclasses.asdict(self.faults),
            "evaluation": _without_younger(self.evaluation),
            "behaviours": {own.key: own.as_table() for own in self.behaviours},
            **changed,
        }

    def as_toml(self) -> str:
        """Return the configuration as TOML that :func:`read_config` reads back."""
        return to_toml(self.as_tables())


@dataclass(frozen=True)
class UnregisteredStrategy(Averaging[Any]):
    """The strategy of a run whose code is not there any more: its name and its table, no more."""

    table: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, table: Any) -> UnregisteredStrategy:
        """Return what stands for a strategy in the configuration of a run that is read."""
        options = {"name": table} if isinstance(table, str) else dict(table)
        named = type(cls.__name__, (cls,), {"name": options.pop("name")})
        return cast(UnregisteredStrategy, named(plan, table=options))

    def check(self, what: str) -> None:
        """Refuse what needs the strategy's code.

        Raises
        ------
        StrategyError
            Always.
        """
        raise StrategyError(
            f"{what} needs the strategy {quoted(self.name)}, which is not registered: import the "
            f"module that registers it first, or install the package that brings it."
        )

    def init(self, params: Params, population: Population) -> Any:
        """Refuse to begin."""
        self.check("this")


def make_config(tables: Mapping[str, Any], needs_strategy: bool = True) -> Config:
    """Return the configuration that nested tables describe, the rest at its defaults.

    Without ``needs_strategy`` an :class:`UnregisteredStrategy` stands for one that is not there,
    so that a run can be read.

    Raises
    ------
    ConfigError
        If a key is unknown (the nearest match is named), a type wrong or a value impossible.

    Examples
    --------
    >>> make_config({"rounds": 5, "strategy": {"name": "fedprox", "mu": 1}}).strategy.mu
    1.0
    >>> make_config({"ruonds": 5})
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: unknown key 'ruonds': did you mean rounds? (known: rounds,
    per_round, seed, data, model, training, strategy, costs, engine, faults, evaluation,
    behaviours, ledger, privacy, clock).
    """
    for key in tables:
        if key not in (names := [f.name for f in fields(ConfigTables)]):
            raise ConfigError(unknown("key", key, names, keys_of_tables()))
    tables = with_dataset_defaults(in_our_spelling(tables))
    top = ConfigTables(**from_table(ConfigTables, tables))
    training = top.training
    plan = Plan(
        top.rounds,
        top.per_round,
        training.epochs,
        training.learning_rate,
        training.batch_size,
        top.ledger.utility_budget,
        training.momentum,
        training.make_schedule(),
    )
    model, weights = _model(top.model)
    strategy = _strategy(current_strategy(top.strategy), plan, needs_strategy)
    engine = ENGINES.choose(top.engine, "engine", default=ConfigTables.engine, shared=True)
    return Config(
        rounds=top.rounds,
        per_round=top.per_round,
        seed=top.seed,
        data=read_data_table(top.data),
        model=model,
        training=training,
        strategy=strategy,
        costs=COSTS.choose(top.costs, "costs", key="kind", default=ConfigTables.costs, shared=True),
        engine=ENGINES[engine.name](**engine.options),
        faults=top.faults,
        evaluation=top.evaluation,
        behaviours=read_assignments(top.behaviours),
        ledger=top.ledger,
        weights=weights,
        privacy=top.privacy,
        clock=top.clock,
    )


def read_config(path: Path, regular: bool = False) -> dict[str, Any]:
    """Return the tables of a TOML file, unchecked; :func:`make_config` checks them.

    With ``regular``, as in a directory, nothing but a regular file is read.
    """
    return read_toml(path, regular)


def with_settings(tables: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with dotted settings, such as ``strategy.mu``, put in.

    Examples
    --------
    >>> with_settings({"rounds": 5}, {"strategy.mu": 0.1, "rounds": 6})
    {'rounds': 6, 'strategy': {'mu': 0.1}}
    """
    merged: dict[str, Any] = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()
    }
    for name, value in settings.items():
        *path, last = name.split(".")
        table = merged
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{name} cannot be set: {part} is not a table.")
        table[last] = value
    return merged


def with_dataset_defaults(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with the settings that fit their dataset, where nothing else is asked for.

    Options of a model are put in for that model only. Complete tables, as runs keep them, stay as
    they are: a setting that they do not have was not there when they were written.

    Examples
    --------
    >>> with_dataset_defaults({"data": {"dataset": "adult", "clients": 4}})
    {'data': {'dataset': 'adult', 'clients': 4}, 'model': {'name': 'logistic'}}
    """
    if set(tables) >= OF_FIRST_RUNS:
        return dict(tables)
    data, model = tables.get("data", {}), tables.get("model", {})
    name = data.get("dataset") if isinstance(data, Mapping) else None
    fitting = DATASETS[name].defaults if isinstance(name, str) and name in DATASETS else {}
    named = model.get("name") if isinstance(model, Mapping) else model
    other_model = named not in (None, fitting.get("model.name"))
    wanted = {}
    for setting, value in fitting.items():
        table, _, key = setting.rpartition(".")
        given = (tables.get(table, {}) if table else tables) or {}
        if not (other_model and table == "model") and key not in given:
            wanted[setting] = value
    return with_settings(tables, wanted)


def read_data_table(given: Any) -> DataConfig:
    """Return the data table; its keys are those of the data and those of the split.

    Raises
    ------
    ConfigError
        If a key is unknown or a value of the wrong type.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"data must be a table, not {quoted(given)}.")
    split, rest = choose_split(given, [f.name for f in fields(DataConfig) if f.name != "split"])
    data = DataConfig(split=split, **from_table(DataConfig, rest, "data."))
    check_folder_name(data.dataset, "data.dataset")
    return data


def _strategy(given: Any, plan: Plan, needs_strategy: bool) -> Strategy[Any]:
    name = given.get("name") if isinstance(given, Mapping) else given
    if isinstance(name, str) and not needs_strategy and name not in STRATEGIES:
        return UnregisteredStrategy.of(plan, given)
    chosen = STRATEGIES.choose(given, "strategy", default=ConfigTables.strategy)
    return STRATEGIES[chosen.name](plan=plan, **chosen.options)


def _model(given: Any) -> tuple[Choice, WeightsConfig]:
    """Return the model, and what it begins with, whose keys are in the same table."""
    keys = options_of(WeightsConfig)
    table = given if isinstance(given, Mapping) else {"name": given}
    own = {key: value for key, value in table.items() if key in keys}
    weights = WeightsConfig(**from_table(WeightsConfig, own, "model."))
    if table.get("name") == OWN:
        return Choice(OWN), weights
    rest = {key: value for key, value in table.items() if key not in keys} if own else given
    return MODELS.choose(rest, "model", default=ConfigTables.model, beside=keys), weights


def _without_younger(table: Any) -> dict[str, Any]:
    """Return a table, without its younger keys where they are at their defaults."""
    values = dataclasses.asdict(table)
    default = {f.name: f.default for f in fields(table)}
    return {k: v for k, v in values.items() if k not in YOUNGER_KEYS or v != default[k]}


def _strategy_options(strategy: Strategy[Any]) -> Mapping[str, Any]:
    if isinstance(strategy, UnregisteredStrategy):
        return strategy.table
    return _options(strategy, "plan")


def _options(chosen: Any, *leave_out: str) -> dict[str, Any]:
    """Return the options of a strategy or an engine as a configuration writes them."""
    values = {f.name: getattr(chosen, f.name) for f in fields(chosen) if f.name not in leave_out}
    return {k: v.as_value() if isinstance(v, Choice) else v for k, v in values.items()}

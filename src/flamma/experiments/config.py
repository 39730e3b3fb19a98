"""The configuration of a run: tables of named, typed, checked options."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from flamma.clients.faults import Faults
from flamma.errors import ConfigError
from flamma.experiments.options import convert, from_table, to_toml
from flamma.files import read_text
from flamma.strategies import STRATEGIES, Strategy
from flamma.types import Plan


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how they are split over the clients."""

    dataset: str = "digits"
    split: str = "shards"
    clients: int = 10
    shards_per_client: int = 2
    classes_per_client: int = 2
    alpha: float = 0.5
    uneven: float = 0.0
    held_out: float = 0.2
    train_samples: int | None = None
    validation_samples: int = 200


@dataclass(frozen=True)
class ModelConfig:
    """Which model; what a model has no use for is not passed to it."""

    name: str = "lenet5"
    width: float | None = None
    norm: Literal["group", "batch"] | None = None
    stem_stride: int | None = None
    hidden: tuple[int, ...] | None = None


@dataclass(frozen=True)
class TrainingConfig:
    """How a client trains."""

    epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.0
    trainer: Literal["auto", "torch", "lanes"] = "auto"
    device: str = "auto"


@dataclass(frozen=True)
class CostsConfig:
    """What local epochs cost the clients."""

    kind: str = "constant"
    value: float = 0.1
    spread: float = 0.5
    file: str = ""


@dataclass(frozen=True)
class EngineConfig:
    """Where clients run; 0 seconds mean no time limit."""

    name: Literal["local", "flower"] = "local"
    processes: int = 1
    time_limit: float = 0.0
    wait: float = 3600.0


@dataclass(frozen=True)
class FaultsConfig:
    """Simulated mishaps, each a probability per client and round."""

    dropout: float = 0.0
    stragglers: float = 0.0
    failures: float = 0.0


@dataclass(frozen=True)
class EvaluationConfig:
    """How often every client judges the model; the last round is always judged."""

    every: int = 1


@dataclass(frozen=True)
class StrategyConfig:
    """A strategy and its own options."""

    name: str = "flamma"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """A complete, re-runnable description of a run."""

    rounds: int = 30
    per_round: int = 3
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    costs: CostsConfig = field(default_factory=CostsConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        positive = {
            "rounds": self.rounds,
            "per_round": self.per_round,
            "data.clients": self.data.clients,
            "training.batch_size": self.training.batch_size,
            "training.epochs": self.training.epochs,
            "engine.processes": self.engine.processes,
            "evaluation.every": self.evaluation.every,
        }
        for name, value in positive.items():
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}.")
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, not {self.seed}.")
        if self.per_round > self.data.clients:
            raise ConfigError(
                f"per_round is {self.per_round}, but there are only {self.data.clients} clients: "
                f"lower per_round or raise data.clients."
            )
        if not self.training.learning_rate > 0:
            raise ConfigError("training.learning_rate must be positive.")
        if not 0 <= self.training.momentum < 1:
            raise ConfigError("training.momentum must lie in [0, 1).")
        if not self.engine.wait > 0:
            raise ConfigError("engine.wait must be a positive number of seconds.")
        self.build_faults()
        if self.build_strategy().pools_data and self.engine.name != "local":
            raise ConfigError(
                f"{self.strategy.name} trains on everybody's data in one place: use the local "
                f"engine."
            )

    @property
    def plan(self) -> Plan:
        """What the strategy is told of the experiment."""
        training = self.training
        return Plan(
            self.rounds,
            self.per_round,
            training.epochs,
            training.learning_rate,
            training.batch_size,
        )

    def build_strategy(self) -> Strategy:
        """Return the strategy with its options, checked."""
        kind = STRATEGIES[self.strategy.name]
        known = {f.name: f for f in fields(kind) if f.name != "plan"}
        options = from_table(kind, self.strategy.options, "strategy", set(known))
        return kind(plan=self.plan, **options)

    def build_faults(self) -> Faults:
        """Return the simulated mishaps."""
        return Faults(**dataclasses.asdict(self.faults))

    def as_tables(self) -> dict[str, Any]:
        """Return the configuration as nested tables, complete with every default."""
        tables = dataclasses.asdict(self)
        strategy = self.build_strategy()
        tables["strategy"] = {"name": self.strategy.name} | {
            f.name: getattr(strategy, f.name) for f in fields(strategy) if f.name != "plan"
        }
        return tables

    def as_toml(self) -> str:
        """Return the configuration as TOML that :func:`read_config` reads back."""
        return to_toml(self.as_tables())


def make_config(tables: Mapping[str, Any]) -> Config:
    """Return the configuration that nested tables describe, the rest at its defaults.

    Raises
    ------
    ConfigError
        If a key is unknown (the nearest match is named), a type wrong or a value impossible.

    Examples
    --------
    >>> make_config({"rounds": 5, "strategy": {"name": "fedprox", "mu": 1}}).strategy.options
    {'mu': 1}
    >>> make_config({"ruonds": 5})
    Traceback (most recent call last):
    ...
    flamma.errors.ConfigError: unknown key 'ruonds': did you mean rounds? (known: rounds,
    per_round, seed, data, model, training, strategy, costs, engine, faults, evaluation).
    """
    tables = dict(tables)
    for short in ("strategy", "model"):  # a bare name is short for a table with that name
        if isinstance(tables.get(short), str):
            tables[short] = {"name": tables[short]}
    strategy = tables.get("strategy", {})
    if isinstance(strategy, Mapping):
        own = dict(strategy)
        name = convert(own.pop("name", StrategyConfig.name), str, "strategy.name")
        tables["strategy"] = {"name": name, "options": own}
    return Config(**from_table(Config, tables, ""))


def read_config(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file, unchecked; :func:`make_config` checks them."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


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

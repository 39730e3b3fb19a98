"""The configuration of a run: tables of named, typed, checked options.

What has a name (split, model, strategy, costs, engine) owns its options: the parameters of the
function or dataclass behind the name are the further keys of the table.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, cast

from flamma.clients.behaviours import BehaviourAssignment, assign, read_assignments
from flamma.clients.costs import COSTS
from flamma.clients.time import ClockConfig, Faults
from flamma.data.build import DEFAULT_SPLIT, VALIDATION_SAMPLES, choose_split
from flamma.data.datasets import DATASETS
from flamma.data.splits import HELD_OUT, SPLITS
from flamma.errors import ConfigError, Key, StrategyError
from flamma.experiments.engine import ENGINES, Engine
from flamma.experiments.ledger import LedgerConfig
from flamma.experiments.private import check_private
from flamma.extras import require
from flamma.io import JsonTable, TableView, check_folder_name, nearest, quoted, read_toml, unknown
from flamma.models import MODELS
from flamma.privacy import PrivacyConfig, require_accountant
from flamma.registry import CheckedOptions, Choice, at_least, from_table, options_of, to_toml
from flamma.strategies import RETIRED, STRATEGIES, Strategy
from flamma.strategies.fedavg import Averaging
from flamma.tasks import metric_names
from flamma.training.config import TrainingConfig
from flamma.types import Params, Plan, Population

# When a run evaluates its model, and on how many clients.

_ALL_EVALUATED_UP_TO = 100_000
"""With more clients than this, a sample of them is evaluated unless the configuration says more."""

_EVALUATED_SAMPLE = 10_000
"""The size of that sample."""


@dataclass(frozen=True)
class EvaluationConfig(CheckedOptions, within="evaluation."):
    """How often the model is evaluated, and on how many clients.

    Parameters
    ----------
    every : int
        Evaluate after every so many rounds; the last round is always evaluated.
    clients : int, optional
        Evaluate on the held-out data of so many clients, drawn once for the whole run by the
        seed; 0 for all. If left out, all clients are evaluated up to 100,000 of them, and 10,000
        where there are more.
    metric : str
        What a client's score is: a metric of the task, such as ``balanced-accuracy`` or ``auc`` of
        classification, ``perplexity`` of next tokens, or ``loss``; that of the dataset, or the
        first one that the task has, if left out. ``own`` for one given from Python.
    """

    every: Annotated[int, at_least(1)] = 1
    clients: Annotated[int | None, at_least(0)] = None
    metric: str = ""

    def sample_of(self, clients: int) -> int | None:
        """Return how many of so many clients are drawn for evaluation, None if all are evaluated.

        Examples
        --------
        >>> EvaluationConfig().sample_of(1_000_000), EvaluationConfig(clients=0).sample_of(1000)
        (10000, None)
        """
        wanted = self.clients
        if wanted is None:
            wanted = 0 if clients <= _ALL_EVALUATED_UP_TO else _EVALUATED_SAMPLE
        return wanted if 0 < wanted < clients else None


# The tables of a configuration file: their keys, types and defaults.
#
# What has a name (split, model, strategy, costs, engine) owns the further keys of its table.

OWN = "own"
"""What a configuration calls data or a model that were given from Python, or that sites bring."""

_MOST_TITLE = 40
"""Characters of a file's name that data are called by."""

OF_OWN_DATA = ("file", "target", "group", "drop", "task", "standardise", "size", "channels")
"""The keys of the table data that are about data of one's own."""


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how they are split over the clients.

    Parameters
    ----------
    dataset : str
        A name of ``flamma data list``; ``own`` for data given from Python or held by sites.
    split : str
        How the samples are dealt to the clients; the options of a split are further keys here.
    clients : int
        How many clients there are.
    held_out : float
        The share of each client's samples that is held out for evaluation.
    train_samples : int
        Train on about so many samples in all; all of them if left out.
    validation_samples : int
        The size of the server's own validation set, cut off before the split.
    file : str
        A CSV or parquet file, or a folder of pictures, with data of your own.
    target : str
        The column of your own table that is predicted.
    group : str
        The column of your own table that names the client of each row.
    drop : list of str
        Columns of your own table that are left out.
    task : str
        What is learned of your own data, or of a dataset that has several tasks:
        ``classification``, ``regression`` or ``next-token``.
    standardise : bool
        Whether features of your own data are standardised; tables and pictures are by default.
    size : (int, int)
        The height and width that your own pictures are resized to.
    channels : int
        1 if your own pictures are read as grey, 3 if in colour; by default as they are.
    """

    dataset: str = "digits"
    split: Choice = DEFAULT_SPLIT
    clients: Annotated[int, at_least(1)] = 10
    held_out: float = HELD_OUT
    train_samples: int | None = None
    validation_samples: int = VALIDATION_SAMPLES
    file: str | None = None
    target: str | None = None
    group: str | None = None
    drop: tuple[str, ...] = ()
    task: str | None = None
    standardise: bool | None = None
    size: tuple[int, ...] = ()
    channels: int | None = None

    @property
    def title(self) -> str:
        """What the data are called where people read it: their file, or the dataset."""
        return self.dataset if self.file is None else title_of(Path(self.file))

    def as_table(self) -> JsonTable:
        """Return the table, the split's options among its keys.

        Keys of your own data are left out where they say nothing, so that the ids of runs stay
        what they were.
        """
        table = {f.name: getattr(self, f.name) for f in fields(self)}
        table = {k: v for k, v in table.items() if k not in OF_OWN_DATA or v not in (None, ())}
        return table | {"split": self.split.name} | dict(self.split.options)


@dataclass(frozen=True)
class WeightsConfig:
    """What a model begins with, and what of it stays as it is: further keys of its table.

    Parameters
    ----------
    start : str
        A file of weights to begin with, safetensors or npz, with the names of the model's state
        dict; ``own`` for weights given from Python. If left out, the seed draws them.
    freeze : list of str
        Parameters that are not trained and do not travel, by their names or patterns such as
        ``features.*``.
    """

    start: str = ""
    freeze: tuple[str, ...] = ()

    def as_table(self) -> JsonTable:
        """Return the keys that are not at their defaults, so that the ids of runs stay."""
        table = {"start": self.start, "freeze": list(self.freeze)}
        return {key: value for key, value in table.items() if value}


@dataclass(frozen=True)
class ConfigTables:
    """The top level of a configuration file: three keys, and the tables before they are read.

    Parameters
    ----------
    rounds : int
        How many rounds.
    per_round : int
        How many clients are selected in a round.
    seed : int
        The seed of everything random.
    """

    rounds: Annotated[int, at_least(1)] = 30
    per_round: Annotated[int, at_least(1)] = 3
    seed: Annotated[int, at_least(0)] = 0
    data: Any = field(default_factory=dict)
    model: Any = "lenet5"
    training: TrainingConfig = field(default_factory=TrainingConfig)
    strategy: Any = "flamma"
    costs: Any = "constant"
    engine: Any = "local"
    faults: Faults = field(default_factory=Faults)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    behaviours: Any = field(default_factory=dict)
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    clock: ClockConfig = field(default_factory=ClockConfig)


def title_of(path: Path) -> str:
    """Return what a file of data is called, as the name of a folder can be.

    Examples
    --------
    >>> title_of(Path("data/three hospitals.csv"))
    'three-hospitals'
    """
    return re.sub(r"[^\w.-]+", "-", path.stem)[:_MOST_TITLE].strip("-. ") or "own"


def _with_current_keys(tables: TableView) -> TableView:
    """Return tables in which ``training.optimizer`` is called ``training.optimiser``.

    Raises
    ------
    ConfigError
        If both are there.
    """
    training = tables.get("training")
    if not isinstance(training, Mapping) or "optimizer" not in training:
        return tables
    if "optimiser" in training:
        raise ConfigError("training has optimiser and optimizer: leave one of them out.")
    renamed = {("optimiser" if k == "optimizer" else k): v for k, v in training.items()}
    return {**tables, "training": renamed}


def keys_of_tables() -> dict[str, str]:
    """Return the keys of all tables, each with the table before it, such as ``data.alpha``."""
    keys: dict[str, Iterable[str]] = {
        "data": [*SPLITS.option_owners(), *options_of(DataConfig)],
        "model": [*MODELS.option_owners(), *options_of(WeightsConfig)],
        "training": options_of(TrainingConfig),
        "strategy": STRATEGIES.option_owners(),
        "costs": COSTS.option_owners(),
        "engine": ENGINES.option_owners(),
        "faults": options_of(Faults),
        "evaluation": options_of(EvaluationConfig),
        "ledger": options_of(LedgerConfig),
        "privacy": options_of(PrivacyConfig),
        "clock": options_of(ClockConfig),
    }
    # Of a key that several tables have, the first one is named.
    return {key: f"{table}.{key}" for table in reversed(keys) for key in keys[table]}


# What a configuration is refused with: impossible values, and tables that do not go together.


def _check_config(config: Config) -> None:
    """Refuse a configuration that cannot be run.

    Raises
    ------
    ConfigError
        In one sentence, with what to do instead.
    """
    _check_numbers(config)
    config.training.check()
    _check_weights(config)
    _check_measures(config)
    _check_behaviours(config)
    check_private(config.privacy, config.strategy, config.data.clients)
    if config.training.has_own_augmentation and not config.engine.controls_clients:
        raise ConfigError(
            "an augmentation of your own must have a name where clients are other processes: "
            "give it an entry point, or use the local engine."
        )
    _check_strategy(config)
    _check_clock(config)


def check_installed(config: Config) -> None:
    """Refuse to carry out a configuration whose optional packages are missing.

    Without them a configuration can still be read, such as that of a finished run.
    """
    require(f"the engine {config.engine.name}", *config.engine.needs)
    if config.privacy.is_on:
        require_accountant()


def _check_numbers(config: Config) -> None:
    if config.per_round > config.data.clients:
        raise ConfigError(
            Key("per_round"),
            f" is {config.per_round}, but there are only {config.data.clients} clients: lower ",
            Key("per_round"),
            " or raise ",
            Key("data.clients"),
            ".",
        )


def _check_weights(config: Config) -> None:
    if config.weights.start and config.weights.freeze and config.engine.clients_hold_data:
        raise ConfigError(
            "frozen weights of a file do not travel to sites: leave out ",
            Key("model.start"),
            " or ",
            Key("model.freeze"),
            ".",
        )


def _check_measures(config: Config) -> None:
    """Refuse a loss or a metric that there is not; the task's are known with the data."""
    if config.training.loss not in ("", OWN):
        raise ConfigError(
            Key("training.loss"),
            f" is left out or {OWN}, not {quoted(config.training.loss)}: give a function to "
            f"flamma.run(loss=...).",
        )
    known = [OWN, *metric_names()]
    if config.evaluation.metric and config.evaluation.metric not in known:
        raise ConfigError(unknown("metric", config.evaluation.metric, known))


def _check_behaviours(config: Config) -> None:
    """Refuse behaviours that cannot be assigned, or that the engine's clients do not take."""
    if config.behaviours and not config.engine.gives_behaviours:
        raise ConfigError(
            f"clients of the engine {config.engine.name} do not take their behaviour from the "
            f"table [behaviours]: put behaviour = {{name = ...}} into the site.toml of a site."
        )
    assign(config.behaviours, config.data.clients, config.seed)


def _check_strategy(config: Config) -> None:
    """Refuse a strategy with an optimiser or an engine that it cannot work with."""
    strategy, optimiser = config.strategy, config.training.optimiser
    if optimiser != TrainingConfig.optimiser and strategy.needs.sgd:
        raise ConfigError(
            f"{strategy.name} takes clients' updates for sums of gradients, which those "
            f"of {optimiser.name} are not: use ",
            Key("training.optimiser"),
            " sgd.",
        )
    if strategy.needs.pooled_data and not config.engine.controls_clients:
        raise ConfigError(
            f"{strategy.name} trains on all clients' data in one place: use the local engine."
        )


def _check_clock(config: Config) -> None:
    """Refuse virtual time where clients' time is their own."""
    if config.engine.controls_clients:
        return
    if config.strategy.needs.clock:
        raise ConfigError(
            f"{config.strategy.name} is asynchronous, in virtual time, which the engine "
            f"{config.engine.name} has not: use the local engine, or another strategy."
        )
    if config.clock.is_on:
        raise ConfigError(
            f"the engine {config.engine.name} has no virtual clock: leave out the table "
            f"[clock], or use the local engine."
        )


_YOUNGER_KEYS = ("metric",)
"""Keys of ``[evaluation]`` that are written only if they are set."""


_OF_FIRST_RUNS = {f.name for f in fields(ConfigTables)} - {"ledger", "privacy", "clock"}
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
        _check_config(self)

    def with_settings(self, settings: TableView) -> Config:
        """Return the configuration with dotted settings, such as ``engine.processes``, put in."""
        return make_config(with_settings(self.as_tables(), settings))

    def as_tables(self) -> JsonTable:
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
        if isinstance(self.strategy, UnregisteredStrategy):
            options = self.strategy.table
        else:
            options = _options(self.strategy, "plan")
        # Younger keys of the evaluation are left out at their defaults.
        default = {f.name: f.default for f in fields(self.evaluation)}
        evaluation = {
            key: value
            for key, value in dataclasses.asdict(self.evaluation).items()
            if key not in _YOUNGER_KEYS or value != default[key]
        }
        return {
            "rounds": self.rounds,
            "per_round": self.per_round,
            "seed": self.seed,
            "data": self.data.as_table(),
            "model": {"name": self.model.name, **self.model.options, **self.weights.as_table()},
            "training": self.training.as_table(),
            "strategy": {"name": self.strategy.name, **options},
            "costs": {"kind": self.costs.name, **self.costs.options},
            "engine": {"name": self.engine.name, **_options(self.engine)},
            "faults": dataclasses.asdict(self.faults),
            "evaluation": evaluation,
            "behaviours": {own.key: own.as_table() for own in self.behaviours},
            **changed,
        }

    def as_toml(self) -> str:
        """Return the configuration as TOML that :func:`read_config` reads back."""
        return to_toml(self.as_tables())


@dataclass(frozen=True)
class UnregisteredStrategy(Averaging[Any]):
    """The strategy of a run whose code is not there any more: its name and its table, no more."""

    table: TableView = field(default_factory=dict)

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
        if self.name in RETIRED:
            why = "was retired: use commit 5770684, or mifa or flamma-plus in a new run"
        else:
            why = (
                "is not registered: import the module that registers it first, or install the "
                "package that brings it"
            )
        raise StrategyError(f"{what} needs the strategy {quoted(self.name)}, which {why}.")

    def init(self, params: Params, population: Population) -> Any:
        """Refuse to begin."""
        self.check("this")


def make_config(tables: TableView, needs_strategy: bool = True) -> Config:
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
            # It may be a key of a table.
            called = keys_of_tables() | {name: name for name in names}
            guess = called.get(nearest(key, called), "")
            hint = (": did you mean ", Key(guess), "?") if guess else ()
            known_keys = f" (known: {', '.join(names)})."
            raise ConfigError(f"unknown key {quoted(key)}", *hint, known_keys, nearest=guess)
    tables = with_dataset_defaults(_with_current_keys(tables))
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
    strategy = _strategy(top.strategy, plan, needs_strategy)
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


def read_config(path: Path, regular: bool = False) -> JsonTable:
    """Return the tables of a TOML file, unchecked; :func:`make_config` checks them.

    With ``regular``, as in a directory, nothing but a regular file is read.
    """
    return read_toml(path, regular)


def with_settings(tables: TableView, settings: TableView) -> JsonTable:
    """Return tables with dotted settings, such as ``strategy.mu``, put in.

    Examples
    --------
    >>> with_settings({"rounds": 5}, {"strategy.mu": 0.1, "rounds": 6})
    {'rounds': 6, 'strategy': {'mu': 0.1}}
    """
    merged: JsonTable = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in tables.items()
    }
    for name, value in settings.items():
        *path, last = name.split(".")
        table = merged
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(Key(name), f" cannot be set: {part} is not a table.")
        table[last] = value
    return merged


def with_dataset_defaults(tables: TableView) -> JsonTable:
    """Return tables with the settings that fit their dataset, where nothing else is asked for.

    Options of a model are put in for that model only. Complete tables, as runs keep them, stay as
    they are: a setting that they do not have was not there when they were written.

    Examples
    --------
    >>> with_dataset_defaults({"data": {"dataset": "adult", "clients": 4}})
    {'data': {'dataset': 'adult', 'clients': 4}, 'model': {'name': 'logistic'}}
    """
    if set(tables) >= _OF_FIRST_RUNS:
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
        raise ConfigError(Key("data"), f" must be a table, not {quoted(given)}.")
    split, rest = choose_split(given, [f.name for f in fields(DataConfig) if f.name != "split"])
    data = DataConfig(split=split, **from_table(DataConfig, rest, "data."))
    check_folder_name(data.dataset, "data.dataset")
    return data


def _strategy(given: Any, plan: Plan, needs_strategy: bool) -> Strategy[Any]:
    name = given.get("name") if isinstance(given, Mapping) else given
    if isinstance(name, str) and not needs_strategy and name not in STRATEGIES:
        return UnregisteredStrategy.of(plan, given)
    chosen = STRATEGIES.choose(given, "strategy", default=ConfigTables.strategy)
    strategy: Strategy[Any] = STRATEGIES.bind(chosen)(plan=plan)
    return strategy


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


def _options(chosen: Any, *leave_out: str) -> JsonTable:
    """Return the options of a strategy or an engine as a configuration writes them."""
    values = {
        f.metadata.get("option", f.name): getattr(chosen, f.name)
        for f in fields(chosen)
        if f.name not in leave_out
    }
    return {k: v.as_value() if isinstance(v, Choice) else v for k, v in values.items()}


# Where the settings of a run come from: layers of settings, of which a later one wins.

_NAME_KEYS: Mapping[str, str] = {
    "strategy": "name",
    "model": "name",
    "engine": "name",
    "costs": "kind",
}
"""The tables that choose something, each with the key of its name."""

DEFAULT_ORIGIN, SUITE_ORIGIN, OVERRIDE_ORIGIN, FLAG_ORIGIN = "default", "suite", "override", "flag"
SETTING_ORIGIN = "setting"


@dataclass(frozen=True)
class Layer:
    """Dotted settings from one place; ``part`` is what an override is for."""

    origin: str
    settings: TableView
    part: str = ""


@dataclass(frozen=True)
class TracedSetting:
    """A setting of a run: its value and where that comes from.

    ``part`` is what an override is for, and ``beaten`` the same setting in the layers below, of
    which the last would have been in force without this one.
    """

    name: str
    value: Any
    origin: str
    part: str = ""
    beaten: tuple[TracedSetting, ...] = ()

    def as_json(self) -> JsonTable:
        """Return the setting as ``--show-suite --json`` prints it."""
        told: JsonTable = {"name": self.name, "value": self.value, "origin": self.origin}
        return told | ({"for": self.part} if self.part else {})


def dotted_settings(tables: TableView, prefix: str = "") -> JsonTable:
    """Return nested tables as dotted settings.

    Examples
    --------
    >>> dotted_settings({"strategy": {"name": "fedprox", "mu": 1}, "rounds": 3})
    {'strategy.name': 'fedprox', 'strategy.mu': 1, 'rounds': 3}
    """
    flat: JsonTable = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= dotted_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def spelled_out(tables: TableView) -> JsonTable:
    """Return tables in which what is named by a text alone has a table with that name.

    Examples
    --------
    >>> spelled_out({"strategy": "fedavg", "costs": "constant"})
    {'strategy': {'name': 'fedavg'}, 'costs': {'kind': 'constant'}}
    """
    return {
        key: {_NAME_KEYS[key]: value} if key in _NAME_KEYS and isinstance(value, str) else value
        for key, value in tables.items()
    }


def under_flags(layer: Layer, flags: TableView) -> Layer:
    """Return a layer without what flags replace as a whole: the options of what they name anew.

    A flag that names another model leaves nothing of the options that an override has for its own.
    """
    replaced = {
        table for table, key in _NAME_KEYS.items() if table in flags or f"{table}.{key}" in flags
    }
    kept = {
        name: value
        for name, value in layer.settings.items()
        if name.partition(".")[0] not in replaced
    }
    return Layer(layer.origin, kept, layer.part)


def merged(run: TableView, layers: Sequence[Layer]) -> JsonTable:
    """Return the tables that all runs share with the layers put over them in order."""
    tables = spelled_out(run)
    for layer in layers:
        tables = with_settings(tables, layer.settings)
    return tables


def trace(config: Config, layers: Sequence[Layer]) -> list[TracedSetting]:
    """Return every setting of a configuration and which layer it comes from, the last that has it.

    What no layer has is a default.
    """
    traced = []
    for name, value in dotted_settings(config.as_tables()).items():
        found = [
            TracedSetting(name, layer.settings[name], layer.origin, layer.part)
            for layer in layers
            if name in layer.settings
        ]
        last = found.pop() if found else TracedSetting(name, value, DEFAULT_ORIGIN)
        traced.append(replace(last, value=value, beaten=tuple(found)))
    return traced

"""What a user gives from Python as a model: as settings of a configuration, and what they omit."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.data.build import VALIDATION_SAMPLES
from flamma.data.federated import FederatedData
from flamma.data.own import GatheredSamples, from_data, gather
from flamma.errors import ConfigError, Key, RunError
from flamma.experiments.config import (
    OWN,
    Config,
    ConfigTables,
    DataConfig,
    keys_of_tables,
    make_config,
    read_config,
    read_data_table,
    spelled_out,
    with_settings,
)
from flamma.experiments.folder import ABOUT, DATA_SHA256, RunFolder
from flamma.experiments.settings import SETTINGS, key_of, keyword_of
from flamma.io import JsonTable, TableView, nearest, quoted
from flamma.models.zoo import LENET_SMALLEST_SIDE
from flamma.registry import options_of
from flamma.strategies import STRATEGIES
from flamma.training.augmentations import OWN_AUGMENTATION

if TYPE_CHECKING:
    from flamma.models.weights import StartWeights
    from flamma.tasks import OwnLoss, OwnMetric
    from flamma.training.augmentations import Augment


@dataclass(frozen=True, eq=False)
class _GivenModel:
    """A model and weights to begin with, as far as a configuration cannot hold them.

    Attributes
    ----------
    settings : mapping
        What the configuration says of them.
    make : callable, optional
        The user's own ``(shape, classes) -> torch.nn.Module``.
    start : StartWeights, optional
        Weights that are in no file, such as those of a module that was given.
    """

    settings: TableView = field(default_factory=dict)
    make: Callable[..., Any] | None = None
    start: StartWeights | None = None


def given_model(model: Any = None, start: Any = None, freeze: Any = None) -> _GivenModel:
    """Return what a user's model, weights to begin with and frozen parts come to.

    Parameters
    ----------
    model : torch.nn.Module, class, callable or str, optional
        See :func:`~flamma.models.weights.model_factory`.
    start : path, mapping or Run, optional
        A file of weights, a state dict, or a run whose result is the start.
    freeze : str or sequence of str, optional
        Names of parameters, or patterns.

    Raises
    ------
    FlammaError
        If one of them cannot be used.
    """
    settings: JsonTable = {}
    make: Callable[..., Any] | None = None
    weights: StartWeights | None = None
    if isinstance(model, str):
        settings["model.name"] = model
    elif model is not None:
        from flamma.models.weights import given_weights, model_factory

        settings["model.name"], make = OWN, model_factory(model)
        weights = given_weights(model) if start is None else None
    if weights is not None:
        settings["model.start"] = OWN
    if isinstance(start, str | PathLike):
        settings["model.start"] = str(Path(start).absolute())
    elif start is not None:
        settings["model.start"], weights = OWN, _weights(start)
    if freeze is not None:
        names = [freeze] if isinstance(freeze, str) else freeze
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise ConfigError('freeze must be names of parameters, such as ["features.*"].')
        settings["model.freeze"] = list(names)
    return _GivenModel(settings, make, weights)


def _weights(start: Any) -> StartWeights:
    from flamma.experiments.run import Run
    from flamma.experiments.trained import trained_weights
    from flamma.models.weights import StartWeights

    if isinstance(start, Run):
        return StartWeights.of_state_dict(trained_weights(start), f"the model of {start.path}")
    if isinstance(start, Mapping):
        return StartWeights.of_state_dict(start, "the state dict")
    raise ConfigError(
        f"start must be a file, a state dict or a run, not a {type(start).__name__}: of a module "
        f"give its state_dict(), or the module itself as model."
    )


# Data of one's own in a run: what they decide of a configuration, and the federation of them.

OF_PICTURES = ("lenet5", "resnet18")
"""Models that take pictures only."""


def gathered_by(data: Any, table: TableView, group: Any = None) -> Any:
    """Return data of one's own as the table ``data`` of a configuration says; a federation as is.

    ``group`` is an array with the client of each sample, in place of a column.
    """
    if isinstance(data, FederatedData):
        return data
    return gather(
        data,
        target=table.get("target"),
        group=table.get("group") if group is None else group,
        drop=table.get("drop", ()),
        size=tuple(table.get("size", ())),
        channels=table.get("channels"),
    )


def completed(
    tables: TableView, own: GatheredSamples | FederatedData, model: bool = False
) -> JsonTable:
    """Return the tables of a configuration with what the data decide where nothing is asked for.

    Natural clients are the clients, at most all of them are selected in a round, no samples are
    set aside for the server, and the model is one that takes such samples. ``model`` is whether
    the user has given one.
    """
    data = _table(tables)
    if data.get("dataset", OWN) != OWN:
        raise ConfigError(
            f"there are data of your own and the dataset {quoted(data['dataset'])}: leave one out."
        )
    given: JsonTable = {"dataset": OWN}
    if "file" in data:
        given["file"] = os.path.abspath(data["file"])  # so that a run can be resumed from anywhere
    if isinstance(own, FederatedData):
        given |= {"clients": own.clients}
    else:
        natural = 0 if own.groups is None else int(own.groups.max()) + 1
        defaults = {
            "clients": natural or DataConfig.clients,
            "split": "groups" if natural else "iid",
            "validation_samples": 0,
        }
        given |= {key: value for key, value in defaults.items() if key not in data}
    chosen = {**tables, "data": {**data, **given}}
    clients = chosen["data"]["clients"]
    if "per_round" not in tables and isinstance(clients, int):
        chosen["per_round"] = max(1, min(ConfigTables.per_round, clients))
    named = tables.get("model", {})
    if not model and isinstance(named, Mapping) and "name" not in named:
        shape = own.shape if isinstance(own, FederatedData) else own.encoding.shape
        chosen["model"] = {"name": default_model(shape), **named}
    return chosen


def _asked_for(config: Config) -> JsonTable:
    """Return the tables of a configuration without what own data decide, where it is at defaults.

    A configuration that is complete does not tell what was asked for from what was filled in.
    """
    tables = config.as_tables()
    if config.data.dataset == OWN:
        return tables
    del tables["data"]["dataset"]
    usual = make_config({}).as_tables()
    decided = ("clients", "split", "validation_samples", *config.data.split.options)
    for key in decided:
        if tables["data"].get(key) == usual["data"].get(key):
            tables["data"].pop(key, None)
    for key in ("per_round", "model"):
        if tables[key] == usual[key]:
            del tables[key]
    return tables


def federation_of(config: Config, own: GatheredSamples | FederatedData) -> FederatedData:
    """Return the federation of a run's own data, in numbers that its model takes."""
    data = config.data
    built = from_data(
        own,
        task=None if isinstance(own, FederatedData) else data.task,
        standardise=data.standardise,
        clients=data.clients,
        split=data.split,
        held_out=data.held_out,
        train_samples=data.train_samples,
        validation_samples=data.validation_samples,
        seed=config.seed,
    )
    if built.clients != data.clients:
        raise ConfigError(
            Key("data.clients"),
            f" is {data.clients}, but your own data have {built.clients} clients.",
        )
    takes_reals = config.model.name in (*OF_PICTURES, "mlp", "logistic")
    return _real_valued(built) if takes_reals else built


def default_model(shape: tuple[int, ...]) -> str:
    """Return the name of a model that takes samples of this shape.

    Examples
    --------
    >>> default_model((1, 28, 28)), default_model((9,))
    ('lenet5', 'mlp')
    """
    picture = len(shape) == 3 and min(shape[1:]) >= LENET_SMALLEST_SIDE
    return "lenet5" if picture else "mlp"


def check_same_data(folder: RunFolder, data: FederatedData) -> None:
    """Refuse to go on with a run whose data are other ones than it began with.

    Raises
    ------
    RunError
        If it has.
    """
    before = folder.read_json(ABOUT).get(DATA_SHA256) if folder.exists else None
    if before is not None and before != data.sha256:
        raise RunError(
            f"{quoted(data.name)} is not as it was when {folder.path} began: give the same data, "
            f"or run it anew into another directory."
        )


def server_samples(own: GatheredSamples) -> int:
    """Return how many samples the server gets where a strategy needs a validation set."""
    return min(VALIDATION_SAMPLES, len(own.x) // 10)


def needs_server_samples(strategy: str) -> bool:
    """Return whether a strategy scores updates on the server's own data."""
    return strategy in STRATEGIES and STRATEGIES[strategy].needs.validation


def _real_valued(data: FederatedData) -> FederatedData:
    """Return the federation with samples of whole numbers as real ones."""
    if data.train_x.dtype != np.int64:
        return data
    parts = ("train_x", "held_x", "test_x", "validation_x")
    encoding = None if data.encoding is None else replace(data.encoding, dtype="float32")
    as_reals = {name: getattr(data, name).astype(np.float32) for name in parts}
    return replace(data, about=replace(data.about, encoding=encoding), **as_reals)


def _table(tables: TableView) -> JsonTable:
    data = tables.get("data", {})
    return dict(data) if isinstance(data, Mapping) else {}


# What users bring from Python: data and a model, on their way to one run or to many.

ConfigSource = Config | TableView | str | Path | None
"""What a run is configured by: a configuration, tables, the path of a file, or nothing."""


@dataclass(frozen=True, eq=False)
class UserObjects:
    """Data, a model and first weights of the user's own; None where the configuration names them.

    Attributes
    ----------
    data : GatheredSamples or FederatedData, optional
        Samples that are yet to be dealt to clients, by each run's configuration, or a federation.
    model : callable, optional
        The user's own ``(shape, classes) -> torch.nn.Module``.
    start : StartWeights, optional
        Weights to begin with.
    loss, metric : callable, optional
        The user's own loss of a sample, and what is told of a client.
    augment : callable, optional
        The user's own augmentation of training samples.
    """

    data: GatheredSamples | FederatedData | None = None
    model: Callable[..., Any] | None = None
    start: StartWeights | None = None
    loss: OwnLoss | None = None
    metric: OwnMetric | None = None
    augment: Augment | None = None
    known: dict[str, FederatedData] = field(default_factory=dict, repr=False)

    @property
    def can_be_forked(self) -> bool:
        """Whether worker processes can have them: without a fork, or on a GPU, they cannot."""
        parts = (self.data, self.model, self.start, self.loss, self.metric, self.augment)
        if all(part is None for part in parts):
            return True
        torch: Any = sys.modules.get("torch")
        return hasattr(os, "fork") and not (torch and torch.cuda.is_initialized())

    def lacks(self, config: Config) -> str:
        """Return which part a configuration needs that is not here, such as ``data``, or nothing.

        A file of data is read again, and data that sites hold are not needed.
        """
        data = None if config.engine.clients_hold_data or config.data.file else config.data.dataset
        named = {
            "data": data,
            "model": config.model.name,
            "loss": config.training.loss,
            "metric": config.evaluation.metric,
        }
        if config.training.has_own_augmentation and self.augment is None:
            return "augment"
        lacking = (kind for kind, n in named.items() if n == OWN and getattr(self, kind) is None)
        return next(lacking, "")

    def federation(self, config: Config) -> FederatedData | None:
        """Return the user's own data as a run has them; None if a dataset is named.

        Many runs share theirs, so the last one is kept.
        """
        if self.data is None:
            return None

        key = repr((config.data, config.seed, config.model.name))
        if key not in self.known:
            built = federation_of(config, self.data)
            if not built.sha256:
                about = replace(built.about, sha256=content_sha256(built))
                built = replace(built, about=about)
            self.known.clear()
            self.known[key] = built
        return self.known[key]


NO_OBJECTS = UserObjects()


def content_sha256(data: FederatedData) -> str:
    """Return the SHA-256 of all samples and labels of a federation, and of whose they are.

    By it data that were in no file are known again when a run goes on.
    """
    digest = hashlib.sha256()
    for own in fields(data):
        value = getattr(data, own.name)
        if isinstance(value, np.ndarray):
            digest.update(f"{own.name} {value.dtype.str} {value.shape}\n".encode())
            digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()


def configured(
    config: ConfigSource,
    settings: TableView,
    data: Any = None,
    group: Any = None,
    own: UserObjects = NO_OBJECTS,
) -> tuple[Config, UserObjects]:
    """Return what to run, with settings put over it, and what of it is the user's own.

    ``data`` are in any form that :func:`~flamma.data.own.from_data` takes, or the path of a
    file; ``group`` may be an array with the client of each sample.
    """
    dotted = dict(settings)
    if isinstance(data, str | Path):
        dotted["data.file"] = str(data)
    has_data = data is not None or "data.file" in dotted
    tables = with_settings(tables_of(config, has_data), dotted)
    gathered = gathered_for(tables, data, group)
    if gathered is None:
        return make_config(tables), own

    chosen = make_config(completed(tables, gathered, own.model is not None))
    return chosen, replace(own, data=gathered, known={})


def gathered_for(tables: TableView, data: Any = None, group: Any = None) -> Any:
    """Return the user's own data, given or in the file that tables name, or None."""
    named = tables.get("data", {})
    source = data if data is not None else named.get("file") if isinstance(named, Mapping) else None
    if source is None:
        return None
    read_data_table(named)

    return gathered_by(source, named, group)


def tables_of(config: ConfigSource, has_data: bool = False) -> JsonTable:
    """Return the tables of a configuration; with own data, without what these decide."""
    if isinstance(config, Config):
        return _asked_for(config) if has_data else config.as_tables()
    if isinstance(config, str | Path):
        return spelled_out(read_config(Path(config)))
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config must be a configuration, tables or the path of a TOML file, not "
            f"{quoted(config)}."
        )
    return spelled_out(config or {})


# The arguments of `flamma.run`, `compare`, `tune` and `audit`.


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


_WHOLE = (_is_whole, "a whole number")
_PATH = (lambda value: isinstance(value, str | Path) and str(value) != "", "a path")
_FUNCTION = (callable, "a function")

_ACCEPTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "seeds": (_is_whole, "a whole number, how many seeds there are: each follows the last"),
    "first_seed": _WHOLE,
    "trials": _WHOLE,
    "grid": (lambda value: isinstance(value, Mapping), "options, each with a list of values"),
    "objective": (
        lambda value: _is_text(value) and value in ("fair", "mean", "accuracy"),
        "fair or mean",
    ),
    "target": (lambda value: isinstance(value, str), "a text, the name of a column"),
    "task": (_is_text, "a text"),
    "loss": _FUNCTION,
    "metric": (
        lambda value: callable(value) or isinstance(value, str),
        "one function, or the name of one metric",
    ),
    "progress": (lambda value: isinstance(value, bool), "True or False"),
    "callbacks": (
        lambda value: (
            _is_iterable(value) and not isinstance(value, str | bytes | Mapping | np.ndarray)
        ),
        "a list of callbacks",
    ),
    "augment": (
        lambda value: callable(value) or isinstance(value, str | list | tuple | Mapping),
        "a function, or names of augmentations",
    ),
    "on_round": _FUNCTION,
    "on_progress": _FUNCTION,
    "on_trial": _FUNCTION,
    "out": _PATH,
    "data_dir": _PATH,
}
"""What is accepted by arguments that no table of the configuration checks."""

_OBJECTS = ("data", "model", "start", "freeze", "loss", "metric", "augment")
"""Settings that also take an object from Python."""


@dataclass(frozen=True, eq=False)
class Asked:
    """The arguments that a function was called with.

    Attributes
    ----------
    settings : mapping
        Dotted settings of a configuration.
    objects : UserObjects
        What of it is the user's own, but for data.
    data, group : any
        Data, and the client of each sample.
    further : mapping
        Arguments of this function alone by name, None where they were not given.
    """

    settings: JsonTable
    objects: UserObjects
    data: Any
    group: Any
    further: TableView

    @classmethod
    def of(cls, given: TableView, *further: str, taken: tuple[str, ...] = ()) -> Asked:
        """Return what a function was called with, given its local variables.

        Parameters
        ----------
        given : mapping
            The arguments by name, and ``settings``, those beyond them. Common settings have short
            names, others two underscores for a dot. What is None was not given.
        *further : str
            Names that this function takes beyond its parameters and the settings.
        taken : tuple of str
            Names of common settings that mean something else to this function.

        Raises
        ------
        ConfigError
            If a value is of a wrong type or there is no such setting; the nearest one is named.

        Examples
        --------
        >>> given = {"learning_rate": 0.1, "rounds": None, "settings": {"strategy__mu": 1}}
        >>> Asked.of(given).settings
        {'training.learning_rate': 0.1, 'strategy.mu': 1}
        """
        parameters = {name: value for name, value in given.items() if name != "settings"}
        values = parameters | given["settings"]
        for name, value in values.items():
            if value is None and name not in ("trials", "objective"):
                continue
            accepts, words = _ACCEPTED.get(name, (None, ""))
            if accepts is not None and not accepts(value):
                raise ConfigError(f"{name}= must be {words}, not {quoted(value)}.")
        objects, settings = user_objects({name: values.get(name) for name in _OBJECTS})
        others = {*parameters, *further}
        for name in SETTINGS:
            value, is_own = values.get(name), name in taken or name in (*_OBJECTS, *further)
            if value is None or is_own or (name == "group" and not isinstance(value, str)):
                continue
            settings |= spelled_out({key_of(name): plain_value(value)})
        for name, value in values.items():
            if name in SETTINGS or name in others:
                continue
            key = key_of(name)
            if key.partition(".")[0] not in options_of(ConfigTables):
                raise _unknown_argument(name, {*others, *SETTINGS}, taken)
            settings |= spelled_out({key: plain_value(value)})
        rest = {name: values.get(name) for name in further}
        return cls(settings, objects, values.get("data"), values.get("group"), rest)

    def configured(self, config: ConfigSource) -> tuple[Config, UserObjects]:
        """Return what to run: a configuration with the settings put over it."""
        return configured(config, self.settings, self.data, self.group, self.objects)


def _unknown_argument(name: str, known: Iterable[str], taken: tuple[str, ...]) -> ConfigError:
    called = {key: keyword_of(setting, taken) for key, setting in keys_of_tables().items()}
    called |= {argument: f"{argument}=" for argument in known}
    typed = name.rpartition("__")[2]
    other_number = next((n for n in (f"{typed}s", typed.removesuffix("s")) if n in known), "")
    guess = called.get(typed if typed in called else other_number or nearest(typed, called), "")
    hint = f": did you mean {guess}?" if guess else ""
    return ConfigError(
        f"unknown argument {name}={hint} (an option of a table has two underscores, such as "
        f"strategy__mu=; docs/reference/configuration.md names all).",
        nearest=guess.removesuffix("="),
    )


def plain_value(value: Any) -> Any:
    """Return a value as configurations have it: nothing of numpy's, and tables of its own.

    Examples
    --------
    >>> plain_value(np.int64(3)), plain_value(np.float64(0.5))
    (3, 0.5)
    """
    if isinstance(value, Mapping):
        return {key: plain_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain_value, value)) if type(value) in (list, tuple) else value
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def names_given(argument: str, value: Any, numbers: bool = False) -> list[Any] | None:
    """Return the names that an argument lists; a text has commas between them.

    Raises
    ------
    ConfigError
        If it is something else; ``numbers`` is whether whole numbers are accepted beside names.

    Examples
    --------
    >>> names_given("clients", "cheapest,3"), names_given("clients", [3], numbers=True)
    (['cheapest', '3'], [3])
    """
    if value is None:
        return None
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    listed = [] if isinstance(value, Mapping | bytes) or not _is_iterable(value) else list(value)
    if listed and all(isinstance(n, str) or (numbers and _is_whole(n)) for n in listed):
        return listed
    kinds = "names and numbers" if numbers else "names"
    raise ConfigError(f"{argument}= must be a list of {kinds}, or one text, not {quoted(value)}.")


def user_objects(given: TableView) -> tuple[UserObjects, JsonTable]:
    """Return what the user brings besides data, and the settings that name it."""
    model, loss, metric, augment = (given[n] for n in ("model", "loss", "metric", "augment"))
    table = {"model": dict(model)} if isinstance(model, Mapping) else {}
    named = given_model(None if table else model, given["start"], given["freeze"])
    settings: JsonTable = {}
    if loss is not None:
        settings["training.loss"] = OWN
    if metric is not None:
        settings["evaluation.metric"] = metric if isinstance(metric, str) else OWN
    if augment is not None:
        settings["training.augmentation"] = OWN_AUGMENTATION if callable(augment) else augment
    objects = UserObjects(
        model=named.make,
        start=named.start,
        loss=loss,
        metric=None if isinstance(metric, str) else metric,
        augment=augment if callable(augment) else None,
    )
    return objects, {**table, **named.settings, **settings}

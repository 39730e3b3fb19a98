"""Data of one's own in a run: what they decide of a configuration, and the federation of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flamma.data.build import VALIDATION_SAMPLES
from flamma.data.federated import FederatedData
from flamma.data.own.adapters import gather
from flamma.data.own.federate import federated_from
from flamma.data.own.gathered import GatheredSamples
from flamma.errors import ConfigError, RunError
from flamma.experiments.config import OWN, Config, make_config, with_settings
from flamma.experiments.folder import ABOUT, DATA_SHA256, RunFolder
from flamma.experiments.layers import spelled_out
from flamma.experiments.suite import Suite, narrowed
from flamma.experiments.tables import OF_OWN_DATA, ConfigTables, DataConfig, title_of
from flamma.models.lenet import LENET_SMALLEST_SIDE
from flamma.names import quoted
from flamma.strategies import STRATEGIES

OF_PICTURES = ("lenet5", "resnet18")
"""Models that take pictures only."""


def gathered_by(data: Any, table: Mapping[str, Any], group: Any = None) -> Any:
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
    tables: Mapping[str, Any], own: GatheredSamples | FederatedData, model: bool = False
) -> dict[str, Any]:
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
    given: dict[str, Any] = {"dataset": OWN}
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
        chosen["model"] = {"name": default_model(shape_of(own)), **named}
    return chosen


def asked_for(config: Config) -> dict[str, Any]:
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
    built = federated_from(
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
            f"data.clients is {data.clients}, but your own data have {built.clients} clients."
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


def shape_of(own: GatheredSamples | FederatedData) -> tuple[int, ...]:
    """Return the shape of one sample."""
    return own.shape if isinstance(own, FederatedData) else own.encoding.shape


def check_same_data(folder: RunFolder, data: FederatedData) -> None:
    """Refuse to go on with a run whose file of data has changed.

    Raises
    ------
    RunError
        If it has.
    """
    before = folder.read_json(ABOUT).get(DATA_SHA256) if folder.exists else None
    if before is not None and before != data.sha256:
        raise RunError(
            f"{quoted(data.name)} is not as it was when {folder.path} began: restore the file, or "
            f"run it anew into another directory."
        )


def with_own_file(suite: Suite) -> Suite:
    """Return a suite for the file of data that it names; one without as it is.

    The file is its dataset, natural clients take the place of its splits, and of its settings those
    are changed that cannot be with so many clients or such samples; flags stay.
    """
    flags = suite.flags
    tables = with_settings(spelled_out(suite.run), flags)
    path = file_of(tables)
    if path is None or flags.get("data.dataset") == OWN:
        return suite
    asked = with_settings({}, flags)
    asked["data"] = {k: v for k, v in _table(tables).items() if k in OF_OWN_DATA} | _table(asked)
    own = gathered_by(path, asked["data"])
    if any(map(_needs_server_samples, suite.strategies)):
        asked["data"].setdefault("validation_samples", server_samples(own))
    chosen = completed(asked, own)
    decided = {f"data.{key}": v for key, v in chosen["data"].items() if key != "split"}
    clients = chosen["data"]["clients"]
    if tables.get("per_round", ConfigTables.per_round) > clients:
        decided["per_round"] = chosen["per_round"]
    if tables.get("model", {}).get("name") in (None, *OF_PICTURES):
        decided["model.name"] = chosen["model"]["name"]
    splits = None if own.groups is None else [chosen["data"]["split"]]
    named = replace(suite, name=f"{suite.name}-{title_of(path)}")
    return narrowed(named, None, decided, datasets=[OWN], splits=splits)


def server_samples(own: GatheredSamples) -> int:
    """Return how many samples the server gets where a strategy needs a validation set."""
    return min(VALIDATION_SAMPLES, len(own.x) // 10)


def _needs_server_samples(strategy: str) -> bool:
    return strategy in STRATEGIES and getattr(STRATEGIES[strategy], "needs_validation", False)


def file_of(tables: Mapping[str, Any]) -> Path | None:
    """Return the file of data that tables name, None if they name none."""
    named = _table(tables).get("file")
    return Path(named) if isinstance(named, str) else None


def _real_valued(data: FederatedData) -> FederatedData:
    """Return the federation with samples of whole numbers as real ones."""
    if data.train_x.dtype != np.int64:
        return data
    parts = ("train_x", "held_x", "test_x", "validation_x")
    encoding = None if data.encoding is None else replace(data.encoding, dtype="float32")
    as_reals = {name: getattr(data, name).astype(np.float32) for name in parts}
    return replace(data, encoding=encoding, **as_reals)


def _table(tables: Mapping[str, Any]) -> dict[str, Any]:
    data = tables.get("data", {})
    return dict(data) if isinstance(data, Mapping) else {}

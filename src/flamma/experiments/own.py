"""What users bring from Python: data and a model, on their way to one run or to many."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flamma.errors import ConfigError
from flamma.experiments.config import (
    OWN,
    Config,
    make_config,
    read_config,
    read_data_table,
    with_settings,
)
from flamma.experiments.layers import spelled_out
from flamma.names import quoted

if TYPE_CHECKING:
    from flamma.data.federated import FederatedData
    from flamma.data.own.gathered import GatheredSamples
    from flamma.models.weights import StartWeights
    from flamma.tasks.own import OwnLoss, OwnMetric
    from flamma.training.augmentations import Augment

ConfigSource = Config | Mapping[str, Any] | str | Path | None
"""What a run is configured by: a configuration, tables, the path of a file, or nothing."""


@dataclass(frozen=True, eq=False)
class OwnParts:
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
        from flamma.experiments.own_data import federation_of

        key = repr((config.data, config.seed, config.model.name))
        if key not in self.known:
            built = federation_of(config, self.data)
            if not built.sha256:
                built = replace(built, sha256=content_sha256(built))
            self.known.clear()
            self.known[key] = built
        return self.known[key]


NOTHING_OWN = OwnParts()


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
    settings: Mapping[str, Any],
    data: Any = None,
    group: Any = None,
    own: OwnParts = NOTHING_OWN,
) -> tuple[Config, OwnParts]:
    """Return what to run, with settings put over it, and what of it is the user's own.

    ``data`` are in any form that :func:`~flamma.data.own.federated_from` takes, or the path of a
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
    from flamma.experiments.own_data import completed

    chosen = make_config(completed(tables, gathered, own.model is not None))
    return chosen, replace(own, data=gathered, known={})


def gathered_for(tables: Mapping[str, Any], data: Any = None, group: Any = None) -> Any:
    """Return the user's own data, given or in the file that tables name, or None."""
    named = tables.get("data", {})
    source = data if data is not None else named.get("file") if isinstance(named, Mapping) else None
    if source is None:
        return None
    read_data_table(named)
    from flamma.experiments.own_data import gathered_by

    return gathered_by(source, named, group)


def tables_of(config: ConfigSource, has_data: bool = False) -> dict[str, Any]:
    """Return the tables of a configuration; with own data, without what these decide."""
    if isinstance(config, Config):
        from flamma.experiments.own_data import asked_for

        return asked_for(config) if has_data else config.as_tables()
    if isinstance(config, str | Path):
        return spelled_out(read_config(Path(config)))
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config must be a configuration, tables or the path of a TOML file, not "
            f"{quoted(config)}."
        )
    return spelled_out(config or {})

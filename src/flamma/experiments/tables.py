"""The tables of a configuration file: their keys, types and defaults.

What has a name (split, model, strategy, costs, engine) owns the further keys of its table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from flamma.clients.clock import ClockConfig
from flamma.clients.costs import COSTS
from flamma.clients.faults import Faults
from flamma.data.build import DEFAULT_SPLIT, VALIDATION_SAMPLES
from flamma.data.partition import HELD_OUT
from flamma.data.splits import SPLITS
from flamma.errors import ConfigError
from flamma.experiments.engine import ENGINES
from flamma.experiments.evaluation import EvaluationConfig
from flamma.experiments.ledger import LedgerConfig
from flamma.models.registry import MODELS
from flamma.options import options_of
from flamma.privacy.table import PrivacyConfig
from flamma.registry import Choice
from flamma.strategies import STRATEGIES
from flamma.training.table import TrainingConfig

OWN = "own"
"""What a configuration calls data or a model that were given from Python, or that sites bring."""

MOST_TITLE = 40
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
    clients: int = 10
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

    def as_table(self) -> dict[str, Any]:
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

    def as_table(self) -> dict[str, Any]:
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

    rounds: int = 30
    per_round: int = 3
    seed: int = 0
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
    return re.sub(r"[^\w.-]+", "-", path.stem)[:MOST_TITLE].strip("-. ") or "own"


def in_our_spelling(tables: Mapping[str, Any]) -> Mapping[str, Any]:
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

"""Names of settings: the key of a file, a flag of the command line, and a keyword argument.

One table has all three of each common setting. It is light, so that ``flamma --help`` is fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CONFIG_TABLES = (
    *("data", "model", "training", "strategy", "costs", "engine", "faults", "evaluation"),
    *("behaviours", "ledger", "privacy", "clock"),
)
"""The tables of a configuration."""


@dataclass(frozen=True)
class CommonSetting:
    """A setting with a short name: its key, and the type and help of its flag.

    Without a type there is no flag: the value is an object from Python, or a list.
    """

    key: str
    kind: type | None = None
    help: str = ""


SETTINGS = {
    "strategy": CommonSetting("strategy.name", str, "the federated algorithm (default flamma)"),
    "dataset": CommonSetting(
        "data.dataset", str, "the data (default digits, which needs no download)"
    ),
    "data": CommonSetting("data.file", str, "your own CSV or parquet file, or folder of pictures"),
    "target": CommonSetting("data.target", str, "the column of your own file that is predicted"),
    "group": CommonSetting(
        "data.group", str, "the column of your own file that names the client of a row"
    ),
    "task": CommonSetting("data.task"),
    "split": CommonSetting("data.split", str, "how data are dealt to clients (default shards)"),
    "clients": CommonSetting("data.clients", int, "how many clients there are (default 10)"),
    "per_round": CommonSetting("per_round", int, "how many are selected in a round (default 3)"),
    "rounds": CommonSetting("rounds", int, "how many rounds (default 30)"),
    "seed": CommonSetting("seed", int, "the seed of everything random (default 0)"),
    "model": CommonSetting("model.name", str, "the model (default lenet5, or what fits the data)"),
    "start": CommonSetting(
        "model.start", Path, "a file of weights to begin with (drawn by the seed)"
    ),
    "freeze": CommonSetting("model.freeze"),
    "epochs": CommonSetting(
        "training.epochs", int, "local epochs of strategies that fix them (default 5)"
    ),
    "batch_size": CommonSetting("training.batch_size", int, "samples in a mini-batch (default 32)"),
    "learning_rate": CommonSetting("training.learning_rate", float, "step size (default 0.05)"),
    "momentum": CommonSetting("training.momentum"),
    "loss": CommonSetting("training.loss"),
    "augment": CommonSetting("training.augmentation"),
    "train_samples": CommonSetting(
        "data.train_samples", int, "train on so many samples in all (default all)"
    ),
    "engine": CommonSetting("engine.name", str, "where clients run (default local)"),
    "processes": CommonSetting(
        "engine.processes", int, "worker processes; the results are the same (1)"
    ),
    "trainer": CommonSetting("training.trainer", str, "how a client trains (default auto)"),
    "device": CommonSetting(
        "training.device", str, "where torch trains (default auto; cuda:1 is a second)"
    ),
    "metric": CommonSetting("evaluation.metric"),
    "dropout": CommonSetting(
        "faults.dropout", float, "probability that a client is away in a round (0)"
    ),
    "stragglers": CommonSetting(
        "faults.stragglers", float, "probability that a selected one is late (0)"
    ),
    "failures": CommonSetting(
        "faults.failures", float, "probability that a selected one fails (0)"
    ),
}
"""The common settings by keyword; a flag has hyphens for its underscores."""

_BY_KEY = {setting.key: name for name, setting in SETTINGS.items()}

_ARGUMENTS = ("seeds", "first_seed")
"""What errors may name beside settings: arguments of functions, flags of their commands."""


def key_of(keyword: str) -> str:
    """Return the key that a keyword argument stands for, with underscores for dots if need be.

    Examples
    --------
    >>> key_of("learning_rate"), key_of("strategy__mu"), key_of("costs.value"), key_of("strategy")
    ('training.learning_rate', 'strategy.mu', 'costs.value', 'strategy')
    """
    if keyword in SETTINGS:  # a name may also be given as a table with options
        return SETTINGS[keyword].key.removesuffix(".name")
    return keyword.replace("__", ".")


def keyword_of(key: str, taken: tuple[str, ...] = ()) -> str:
    """Return the keyword argument of a setting; ``taken`` ones mean something else.

    Examples
    --------
    >>> keyword_of("training.learning_rate"), keyword_of("strategy.mu"), keyword_of("model")
    ('learning_rate=', 'strategy__mu=', 'model=')
    >>> keyword_of("data.clients", taken=("clients",)), keyword_of("suite.seeds")
    ('data__clients=', 'suite.seeds')
    """
    name = _BY_KEY.get(key, key if key in SETTINGS or key in _ARGUMENTS else "")
    if name and name not in taken:
        return f"{name}="
    table, *rest = key.split(".")
    if table not in CONFIG_TABLES:
        return key
    called = f"{'__'.join([table, *rest[:1]])}="
    return f"{'.'.join(rest[1:])} in {called}" if rest[1:] else called


def flag_of(key: str) -> str:
    """Return the flag of a setting, or its key, which ``--set`` takes, if it has none.

    Examples
    --------
    >>> flag_of("training.learning_rate"), flag_of("strategy.mu"), flag_of("first_seed")
    ('--learning-rate', 'strategy.mu', '--first-seed')
    """
    name = _BY_KEY.get(key, "")
    has_flag = key in _ARGUMENTS or (name and SETTINGS[name].kind is not None)
    return f"--{(name or key).replace('_', '-')}" if has_flag else key

"""What is asked for from Python: keyword arguments as settings, and errors in the same words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flamma.errors import ConfigError, FlammaError
from flamma.experiments.layers import spelled_out
from flamma.experiments.tables import ConfigTables, keys_of_tables
from flamma.names import nearest
from flamma.options import options_of

COMMON_SETTINGS: Mapping[str, str] = {
    "strategy": "strategy",
    "dataset": "data.dataset",
    "split": "data.split",
    "clients": "data.clients",
    "rounds": "rounds",
    "per_round": "per_round",
    "seed": "seed",
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "learning_rate": "training.learning_rate",
    "momentum": "training.momentum",
    "device": "training.device",
    "processes": "engine.processes",
}
"""Keyword arguments of :func:`flamma.run` and the like, and the settings that they stand for."""

OF_DATA = {"target": "data.target", "group": "data.group", "task": "data.task"}
"""The same for the columns of one's own data; ``group`` may also be an array, which is none."""

OTHER_ARGUMENTS = (
    *("out", "data", "model", "seeds", "first_seed"),
    *("strategies", "datasets", "splits", "trials"),
)
"""Further arguments that messages may name."""

FLAG = re.compile(r"--([a-z][a-z-]*)")
SETTING = re.compile(r"\b([a-z]+)\.([a-z_]+)\b")
LEADING = re.compile(r"^(rounds|seed|seeds)(?= must)|\bper_round\b(?!=)")
UNKNOWN_KEY = re.compile(r"unknown key in (\w+) '(\w+)'(: did you mean (\w+)\?)?")


def asked_settings(given: Mapping[str, Any], leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the dotted settings that a function was called with, given its local variables.

    Common settings are arguments of their own; the others are in ``settings``, with two
    underscores for a dot. What is None was not given.

    Raises
    ------
    ConfigError
        If there is no such setting; the nearest argument is named.

    Examples
    --------
    >>> asked_settings({"learning_rate": 0.1, "rounds": None, "settings": {"strategy__mu": 1}})
    {'training.learning_rate': 0.1, 'strategy.mu': 1}
    """
    common = {**COMMON_SETTINGS, **OF_DATA}
    asked: dict[str, Any] = {}
    for name, setting in common.items():
        value = given.get(name)
        if value is None or name in leave_out or (name in OF_DATA and not isinstance(value, str)):
            continue
        asked |= spelled_out({setting: dict(value) if isinstance(value, Mapping) else value})
    for name, value in given["settings"].items():
        setting = setting_of(name)
        if setting.partition(".")[0] not in options_of(ConfigTables):
            raise ConfigError(_unknown_argument(name))
        asked |= spelled_out({setting: value})
    return asked


def argument_of(setting: str, taken: tuple[str, ...] = ()) -> str:
    """Return what a dotted setting is called as a keyword argument.

    Names that are ``taken`` mean something else to the function that was called.

    Examples
    --------
    >>> argument_of("training.learning_rate"), argument_of("strategy.mu")
    ('learning_rate=', 'strategy__mu=')
    """
    common = {**COMMON_SETTINGS, **OF_DATA}
    named = {setting: name for name, setting in common.items() if name not in taken}
    own = named.get(setting.removesuffix(".name"), setting.replace(".", "__"))
    return f"{'model' if setting == 'model.name' else own}="


def setting_of(argument: str) -> str:
    """Return the dotted setting that an argument stands for, its own name where it is none.

    Examples
    --------
    >>> setting_of("learning_rate"), setting_of("strategy__mu"), setting_of("costs.value")
    ('training.learning_rate', 'strategy.mu', 'costs.value')
    """
    return COMMON_SETTINGS.get(argument, argument.replace("__", "."))


@contextmanager
def in_python_terms(*taken: str) -> Iterator[None]:
    """Let errors name keyword arguments, not flags of the command line or keys of a file.

    Names of common settings that are ``taken`` mean something else to the function.
    """
    try:
        yield
    except FlammaError as error:
        error.args = (python_terms(str(error), taken), *error.args[1:])
        raise


def python_terms(text: str, taken: tuple[str, ...] = ()) -> str:
    """Return a message in which flags and settings are called as Python calls them.

    Examples
    --------
    >>> python_terms("lower per_round or raise data.clients, or name another --out.")
    'lower per_round= or raise clients=, or name another out=.'
    """
    known = set(keys_of_tables().values()) | {"model.name", "strategy.name", "engine.name"}
    arguments = {*COMMON_SETTINGS, *OF_DATA, *OTHER_ARGUMENTS}

    def flag(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return f"{name}=" if name in arguments else found[0]

    def setting(found: re.Match[str]) -> str:
        return argument_of(found[0], taken) if found[0] in known else found[0]

    def key(found: re.Match[str]) -> str:
        if found[1] not in options_of(ConfigTables):
            return found[0]
        guess = (
            f": did you mean {argument_of(f'{found[1]}.{found[4]}', taken)}?" if found[4] else ""
        )
        return f"unknown argument {found[1]}__{found[2]}={guess}"

    text = UNKNOWN_KEY.sub(key, text)
    return LEADING.sub(r"\g<0>=", SETTING.sub(setting, FLAG.sub(flag, text)))


def _unknown_argument(name: str) -> str:
    plain = {
        argument: f"{argument}=" for argument in (*COMMON_SETTINGS, *OF_DATA, *OTHER_ARGUMENTS)
    }
    called = {key: argument_of(setting) for key, setting in keys_of_tables().items()} | plain
    guess = called.get(nearest(name.rpartition("__")[2], called))
    hint = f": did you mean {guess}?" if guess else ""
    return (
        f"unknown argument {name}={hint} (an option of a table has two underscores, such as "
        f"strategy__mu=; docs/reference/configuration.md names all)."
    )

"""What is asked for from Python: keyword arguments as settings, and errors in the same words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from flamma.errors import ConfigError, FlammaError
from flamma.experiments.layers import spelled_out
from flamma.experiments.tables import ConfigTables, keys_of_tables
from flamma.names import nearest, quoted
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

OF_OBJECTS = {
    "start": "model.start",
    "freeze": "model.freeze",
    "loss": "training.loss",
    "metric": "evaluation.metric",
    "augment": "training.augmentation",
}
"""Arguments that also take an object of the user's, and the settings that name one."""

OTHER_ARGUMENTS = (
    *("out", "data", "model", "seeds", "first_seed"),
    *("strategies", "datasets", "splits", "trials"),
)
"""Further arguments that messages may name."""

FLAG = re.compile(r"--([a-z][a-z-]*)")
SETTING = re.compile(r"\b([a-z]+\.[a-z_]+)\b(?:\.([a-z_]+)\b)?")
LEADING = re.compile(r"^(rounds|seed|seeds)(?= must)|\bper_round\b(?!=)")
UNKNOWN_KEY = re.compile(r"unknown key in (\w+) '(\w+)'(: did you mean (\w+)\?)?")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _is_path(value: Any) -> bool:
    return isinstance(value, str | Path) and str(value) != ""


_WHOLE = (_is_whole, "a whole number")
_TEXT = (lambda value: _is_text(value) and value != "", "a text")
_PATH = (_is_path, "a path")
_FUNCTION = (callable, "a function")

_OBJECTIVES = ("fair", "mean", "accuracy")

_ACCEPTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "seeds": (_is_whole, "a whole number, how many seeds there are: each follows the last"),
    "first_seed": _WHOLE,
    "trials": _WHOLE,
    "grid": (lambda value: isinstance(value, Mapping), "options, each with a list of values"),
    "objective": (lambda value: value in _OBJECTIVES if _is_text(value) else False, "fair or mean"),
    "target": (_is_text, "a text, the name of a column"),
    "task": _TEXT,
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


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments of a wrong type, given the local variables of the function called.

    Raises
    ------
    ConfigError
        With the argument and what it accepts.
    """
    for name, value in given.items():
        if value is None and name not in ("trials", "objective"):
            continue
        accepts, words = _ACCEPTED.get(name, (None, ""))
        if accepts is not None and not accepts(value):
            raise ConfigError(f"{name}= must be {words}, not {quoted(value)}.")


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
    if listed and all(_is_text(name) or (numbers and _is_whole(name)) for name in listed):
        return listed
    kinds = "names and numbers" if numbers else "names"
    raise ConfigError(f"{argument}= must be a list of {kinds}, or one text, not {quoted(value)}.")


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
        asked |= spelled_out({setting: plain_value(value)})
    for name, value in given["settings"].items():
        setting = setting_of(name)
        if setting.partition(".")[0] not in options_of(ConfigTables):
            raise ConfigError(_unknown_argument(name, [*given], leave_out))
        asked |= spelled_out({setting: plain_value(value)})
    return asked


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
        if found[1] not in known:
            return found[0]
        called = argument_of(found[1], taken)
        return f"{found[2]} in {called}" if found[2] else called

    def key(found: re.Match[str]) -> str:
        if found[1] not in options_of(ConfigTables):
            return found[0]
        guess = (
            f": did you mean {argument_of(f'{found[1]}.{found[4]}', taken)}?" if found[4] else ""
        )
        return f"unknown argument {found[1]}__{found[2]}={guess}"

    text = UNKNOWN_KEY.sub(key, text)
    return LEADING.sub(r"\g<0>=", SETTING.sub(setting, FLAG.sub(flag, text)))


def _unknown_argument(name: str, arguments: Sequence[str], taken: tuple[str, ...]) -> str:
    objects = {setting: f"{argument}=" for argument, setting in OF_OBJECTS.items()}
    called = {
        key: objects.get(setting, argument_of(setting, taken))
        for key, setting in keys_of_tables().items()
    }
    called |= {argument: f"{argument}=" for argument in arguments if argument != "settings"}
    typed = name.rpartition("__")[2]
    other_number = next((n for n in (f"{typed}s", typed.removesuffix("s")) if n in arguments), "")
    guess = called.get(typed if typed in called else other_number or nearest(typed, called))
    hint = f": did you mean {guess}?" if guess else ""
    return (
        f"unknown argument {name}={hint} (an option of a table has two underscores, such as "
        f"strategy__mu=; docs/reference/configuration.md names all)."
    )

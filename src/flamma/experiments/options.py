"""From TOML values to typed options and back, with errors that name what was meant."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flamma.errors import ConfigError
from flamma.names import unknown


def from_table(
    kind: type, table: Any, where: str, known: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return the options of a dataclass that a table gives, each converted to its type."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, not {table!r}.")
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind) if known is None or f.name in known]
    options = {}
    for key, value in table.items():
        if key not in names:
            raise ConfigError(unknown(f"key in {where}" if where else "key", key, names))
        options[key] = convert(value, hints[key], f"{where}.{key}" if where else key)
    return options


def convert(value: Any, annotation: Any, where: str) -> Any:
    """Return a TOML value as the annotated type, or say what was expected."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return annotation(**from_table(annotation, value, where))
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _one_of(value, arguments, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{where} must be {_alternatives(arguments)}, not {value!r}.")
    if origin is tuple:
        return _sequence(value, arguments, where)
    if annotation is float and isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value):
            return float(value)
        raise ConfigError(f"{where} must be a finite number, not {value!r}.")
    if annotation is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if annotation in (str, bool) and isinstance(value, annotation):
        return value
    if origin is not None and isinstance(value, Mapping):
        return value
    raise ConfigError(f"{where} must be {_name(annotation)}, not {value!r}.")


def parse_value(text: str) -> Any:
    """Return what a value on the command line means: TOML, or else the text itself.

    Examples
    --------
    >>> [parse_value(text) for text in ("0.5", "[1, 5]", "top", "true")]
    [0.5, [1, 5], 'top', True]
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(tables: Mapping[str, Any]) -> str:
    """Return nested tables as TOML; None is left out, since TOML has no such value.

    Examples
    --------
    >>> print(to_toml({"rounds": 3, "strategy": {"name": "flamma", "price": None}}))
    rounds = 3
    <BLANKLINE>
    [strategy]
    name = "flamma"
    """
    plain = {k: v for k, v in tables.items() if not isinstance(v, Mapping)}
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items() if value is not None]
    for name, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(v)}" for key, v in table.items() if v is not None]
    return "\n".join(lines)


def _one_of(value: Any, arguments: tuple[Any, ...], where: str) -> Any:
    for argument in arguments:
        if argument is type(None) and value is None:
            return None
        try:
            return convert(value, argument, where)
        except ConfigError:
            continue
    wanted = " or ".join(_name(a) for a in arguments if a is not type(None))
    raise ConfigError(f"{where} must be {wanted}, not {value!r}.")


def _sequence(value: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where} must be a list, not {value!r}.")
    if arguments[-1] is Ellipsis:
        arguments = arguments[:1] * len(value)
    if len(value) != len(arguments):
        raise ConfigError(f"{where} must have {len(arguments)} entries, not {len(value)}.")
    return tuple(convert(v, a, where) for v, a in zip(value, arguments, strict=True))


def _alternatives(values: tuple[Any, ...]) -> str:
    names = [str(value) for value in values]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _name(annotation: Any) -> str:
    plain = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if get_origin(annotation) is Literal:
        return _alternatives(get_args(annotation))
    if get_origin(annotation) is tuple:
        return "a list"
    return plain.get(annotation, "a table")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a TOML basic string
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    return repr(value)

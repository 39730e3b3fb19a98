"""The lines of ``rounds.jsonl``: a typed record as JSON with a checksum, and back."""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from flamma.errors import RecordError
from flamma.game import Certificate

R = TypeVar("R")

RECORD_VERSION = 2
"""The form of the lines that are written now."""


def line_of(record: Any) -> str:
    """Return a record as one line of JSON with its version and its checksum."""
    table = {"version": RECORD_VERSION, **_encode(record)}
    text = json.dumps(table, allow_nan=False, separators=(",", ":"))
    return f'{text[:-1]},"checksum":"{_checksum(text)}"}}'


def read_line(line: str | bytes, kind: type[R]) -> R:
    """Return the record of a kind that a line holds.

    Raises
    ------
    RecordError
        If the line is damaged, or was written by a newer version of FLamma.
    """
    try:
        text = line if isinstance(line, str) else line.decode()
        table = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RecordError("it is not JSON") from error
    if not isinstance(table, dict):
        raise RecordError("it is not a JSON object")
    version = _version(table.pop("version", 1))
    signed = table.pop("checksum", None) is not None or version > 1
    content, found, told = text.rpartition(',"checksum":"')
    if signed and (not found or told != f'{_checksum(content + "}")}"}}'):
        raise RecordError("it does not match its checksum")
    try:
        record: R = _decode(_from_version_1(table, kind) if version == 1 else table, kind)
    except RecordError:
        raise
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RecordError("a part of it is missing or damaged") from error
    return record


def rows_checksum(rows: Sequence[str]) -> str | None:
    """Return the checksum of a round's lines in ``clients.csv``, None if there are none."""
    return _checksum("\n".join(rows)) if rows else None


def _version(told: Any) -> int:
    """Return the version that a line tells, if it is one that can be read."""
    if not isinstance(told, int) or isinstance(told, bool) or told < 1:
        raise RecordError(f"its version is {told!r}")
    if told > RECORD_VERSION:
        raise RecordError(
            f"it is of version {told}, which this FLamma does not know: install a newer one",
            newer=True,
        )
    return told


def _from_version_1(table: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Return the table of a flat record of version 1 in the form of today's."""
    if "accuracy" not in table:  # which every line of version 1 has
        raise RecordError("it has no version")
    own = {f.name for f in fields(kind)}
    new = {key: value for key, value in table.items() if key in own}
    if "clients_scored" in table:
        flat = (*own, *(f.name for f in fields(Certificate)), "price", "unscored")
        metrics = tuple(key for key in table if key not in flat)
        unscored = table.get("unscored", {})
        new["evaluation"] = {"metrics": {m: table[m] for m in metrics}, "unscored": unscored}
    if table.get("price") is not None:
        new["game"] = {"price": table["price"]}
    if table.get("follower_gap") is not None:
        new["certificate"] = {f.name: table.get(f.name) for f in fields(Certificate)}
    return new


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _encode(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        if {*map(type, value)} <= {int}:
            return list(value)  # a list of a thousand clients in one go
        return [_encode(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _decode(value: Any, kind: Any) -> Any:
    """Return a JSON value as the annotated type; a float that is null is NaN.

    Raises
    ------
    TypeError
        If it is anything else.
    """
    if kind is float and (value is None or type(value) in (int, float)):
        if value is not None and not math.isfinite(value):
            raise TypeError("it is larger than any number")
        return math.nan if value is None else float(value)
    if kind in (int, str, bool):
        if type(value) is kind:
            return value
    elif isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)
        known = {key: entry for key, entry in value.items() if key in hints}
        return kind(**{key: _decode(entry, hints[key]) for key, entry in known.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType) and type(None) in arguments:
        [inner] = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _decode(value, inner)
    if origin is tuple and isinstance(value, list):
        if arguments[-1] is Ellipsis:
            if arguments[0] is int and {*map(type, value)} <= {int}:
                return tuple(value)  # a list of a thousand clients in one go
            return tuple(_decode(entry, arguments[0]) for entry in value)
        return tuple(_decode(v, a) for v, a in zip(value, arguments, strict=True))
    if origin is Mapping and isinstance(value, dict):
        keys, entries = arguments
        return {
            (int(key) if keys is int else key): _decode(entry, entries)
            for key, entry in value.items()
        }
    raise TypeError(f"{value!r} is no {kind}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")

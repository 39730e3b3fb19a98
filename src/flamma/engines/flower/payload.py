"""Parts of messages that both our runs and other people's Flower apps use.

Nothing that arrives is trusted: names, types, shapes, sizes and ranges are checked before use.
"""

from __future__ import annotations

import io
import math
import tomllib
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from flamma.engines.flower.messages import MessageError
from flamma.experiments.config import Config, make_config
from flamma.strategies.base import MOST_EPOCHS
from flamma.types import Terms

TERMS_RECORD = "flamma.terms"
"""The record of a message that holds a client's terms."""

MAX_TEXT_LENGTH = 200
"""Characters of a name or a reason that are read."""

MAX_ARRAY_HEADER = 512
"""Bytes by which an array may be longer than its numbers."""

PROCESS_DIED, NODE_UNAVAILABLE = 8, (3, 4, 5)
"""Flower's error codes: the client's process died; the node or its answer is not available."""

Plain = TypeVar("Plain", int, float, str, bool)


def pack_terms(terms: Terms) -> ConfigRecord:
    """Return the record of a client's terms."""
    return as_record(terms)


def read_terms(record: ConfigRecord) -> Terms:
    """Return the terms that a client was sent.

    Raises
    ------
    MessageError
        If a number is missing or out of its range.
    """
    terms = Terms(
        client=take(record, "client", int),
        round=take(record, "round", int),
        decay_factor=take(record, "decay_factor", float),
        contribution=take(record, "contribution", float),
        step_scale=take(record, "step_scale", float),
        proximal=take(record, "proximal", float),
        epochs=take(record, "epochs", int) if "epochs" in record else None,
        iterations=take(record, "iterations", int) if "iterations" in record else None,
        wants_loss=take(record, "wants_loss", bool),
    )
    counts = (terms.round, terms.epochs or 0, terms.iterations or 0)
    rates = (terms.decay_factor, terms.step_scale, terms.proximal)
    if not all(0 <= count <= MOST_EPOCHS for count in counts):
        raise MessageError(f"the terms count {counts}")
    if not all(0 <= rate < math.inf for rate in rates):
        raise MessageError(f"the terms have the rates {rates}")
    return terms


def unpack_array(
    array: Array, dtype: np.dtype[Any], shape: tuple[int, ...] | None, what: str
) -> NDArray[Any]:
    """Return an array that arrived, if it has this type and shape (None: any vector).

    The header is checked first, so that no memory is allocated for a size it only claims.

    Raises
    ------
    MessageError
        If it has another type or shape, or cannot be read.
    """
    if array.stype != "numpy.ndarray":
        raise MessageError(f"{what} are written as {array.stype[:50]!r}")
    content = array.data
    if shape is not None and len(content) > dtype.itemsize * math.prod(shape) + MAX_ARRAY_HEADER:
        wanted = dtype.itemsize * math.prod(shape)
        raise MessageError(f"{what} take {len(content)} bytes instead of {wanted}")
    file = io.BytesIO(content)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("a header of another version")
        found, fortran, kind = np.lib.format.read_array_header_1_0(file)
    except ValueError as error:
        raise MessageError(f"{what} cannot be read") from error
    if kind != dtype:
        raise MessageError(f"{what} are of the type {kind.name}, not {dtype.name}")
    if found != shape and (shape is not None or len(found) != 1):
        raise MessageError(f"{what} have the shape {found}")
    body = memoryview(content)[file.tell() :]
    if len(body) != dtype.itemsize * math.prod(found):
        size = dtype.itemsize * math.prod(found)
        raise MessageError(f"{what} take {len(body)} bytes instead of {size}")
    values = np.frombuffer(body, dtype=dtype)
    ordered = values.reshape(found[::-1]).T if fortran else values.reshape(found)
    return np.array(ordered)


@lru_cache(maxsize=1)
def read_configuration(text: str) -> Config:
    """Return the configuration that a client was sent, checked like any other.

    Raises
    ------
    FlammaError
        If it is not a valid configuration.
    """
    try:
        return make_config(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise MessageError(f"the configuration that was sent is not TOML: {error}.") from error


def content_of(reply: Message) -> RecordDict:
    """Return the content of a reply.

    Raises
    ------
    MessageError
        If it is an error instead: the client raised, died, or is not there.
    """
    if reply.has_error():
        raise MessageError(why_failed(reply), from_client=True)
    return reply.content


def why_failed(reply: Message) -> str:
    """Return, in one line, why Flower replies with an error."""
    code, reason = reply.error.code, reply.error.reason or ""
    if code == PROCESS_DIED or "ActorDied" in reason or "ActorUnavailable" in reason:
        return "the client's process died"
    if code in NODE_UNAVAILABLE:
        return "the client is not there"
    lines = [line for line in reason.splitlines() if line.strip(" '>")]
    told = lines[-1].strip(" '>") if lines else ""
    for before in ("Message: ", ":<'"):  # Flower's own words
        told = told.rpartition(before)[2]
    return f"it raised: {one_line_of(told)}" if told else f"error {code}"


def one_line_of(text: str) -> str:
    """Return text of another party as one short line of printable characters."""
    plain = "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_TEXT_LENGTH])
    return " ".join(plain.split())[:MAX_TEXT_LENGTH]


def as_record(values: Any, **more: Any) -> ConfigRecord:
    """Return the fields of a dataclass; None is left out, and a tuple becomes a list."""
    named = {f.name: getattr(values, f.name) for f in fields(values)} | more
    return ConfigRecord(
        {k: list(v) if isinstance(v, tuple) else v for k, v in named.items() if v is not None}
    )


def take(
    record: ConfigRecord, key: str, kind: type[Plain], longest: int = MAX_TEXT_LENGTH
) -> Plain:
    """Return a value of exactly this type; an int will do for a float.

    Raises
    ------
    MessageError
        If it is missing, of another type, or a text that is too long.
    """
    value: Any = record.get(key)
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not kind:
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise MessageError(f"{key} is {found}")
    if isinstance(value, str) and len(value) > longest:
        raise MessageError(f"{key} is a text of {len(value)} characters")
    return value

"""Parts of messages that both our runs and other people's Flower apps use.

Nothing that arrives is trusted: names, types, shapes, sizes and ranges are checked before use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar, get_args

from flwr.app import ConfigRecord, Message, RecordDict

from flamma.engines.flower.error_replies import REPLY_REFUSED
from flamma.engines.flower.messages import MessageError
from flamma.experiments.config import Config, make_config
from flamma.io import parse_toml
from flamma.strategies.base import MAX_EPOCHS
from flamma.types import Objective, ReportedLoss, Terms

TERMS_RECORD = "flamma.terms"
"""The record of a message that holds a client's terms."""

MAX_TEXT_LENGTH = 200
"""Characters of a name or a reason that are read."""

_PROCESS_DIED, NODE_IS_GONE, NODE_UNAVAILABLE = 8, 5, (3, 4, 5)
"""Flower's error codes: the client's process died; its node is offline; that, or it is too late."""

_Plain = TypeVar("_Plain", int, float, str, bool)
_ReadValue = TypeVar("_ReadValue")


def pack_terms(terms: Terms) -> ConfigRecord:
    """Return the record of a client's terms."""
    numbers = vars(terms) | vars(terms.objective)
    del numbers["objective"]
    return ConfigRecord({key: value for key, value in numbers.items() if value is not None})


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
        epochs=take(record, "epochs", int) if "epochs" in record else None,
        batches=take(record, "batches", int) if "batches" in record else None,
        objective=Objective(
            proximal=take(record, "proximal", float),
            bound=take(record, "bound", float),
            tilt=take(record, "tilt", float),
        ),
        report_loss=_reported_loss(take(record, "report_loss", str)),
        train=take(record, "train", bool),
    )
    wanted = terms.objective
    counts = (terms.round, terms.epochs or 0, terms.batches or 0)
    rates = (terms.decay_factor, terms.step_scale, wanted.proximal)
    if not all(0 <= count <= MAX_EPOCHS for count in counts):
        raise MessageError(f"the terms count {counts}")
    if not all(0 <= rate < math.inf for rate in rates):
        raise MessageError(f"the terms have the rates {rates}")
    if not (wanted.bound > 0 and math.isfinite(wanted.tilt)):
        raise MessageError(
            f"the terms bound the loss by {wanted.bound} and tilt it by {wanted.tilt}"
        )
    return terms


def _reported_loss(said: str) -> ReportedLoss:
    for known in get_args(ReportedLoss):
        if said == known:
            return known  # type: ignore[no-any-return]
    raise MessageError(f"the terms ask for the loss {one_line_of(said)!r}")


@lru_cache(maxsize=1)
def read_configuration(text: str) -> Config:
    """Return the configuration that a client was sent, checked like any other.

    Raises
    ------
    FlammaError
        If it is not a valid configuration.
    """
    return make_config(parse_toml(text, "the configuration that was sent"))


def read_reply(reply: Message, read: Callable[[RecordDict], _ReadValue]) -> _ReadValue:
    """Return what ``read`` makes of a reply's content.

    Nothing that a client sends may end the server's run, so every exception is a MessageError.

    Raises
    ------
    MessageError
        If the client raised, died or is not there, or if its reply was refused or cannot be read.
    """
    try:
        if reply.has_error():
            refused = reply.error.code == REPLY_REFUSED
            raise MessageError(_why_failed(reply), from_client=not refused)
        return read(reply.content)
    except MessageError:
        raise
    except Exception as error:
        raise MessageError(f"it cannot be read ({type(error).__name__})") from error


def _why_failed(reply: Message) -> str:
    """Return, in one line, why Flower replies with an error."""
    code, reason = reply.error.code, reply.error.reason or ""
    if code == _PROCESS_DIED or "ActorDied" in reason or "ActorUnavailable" in reason:
        return "the client's process died"
    if code in NODE_UNAVAILABLE:
        return "the client is not there"
    if code == REPLY_REFUSED:
        return one_line_of(reason)
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


def real_number(value: Any) -> Any:
    """Return a whole number that a float can hold as a float, everything else as it is."""
    return float(value) if type(value) is int and abs(value) < 2**53 else value


def take(
    record: ConfigRecord, key: str, kind: type[_Plain], longest: int = MAX_TEXT_LENGTH
) -> _Plain:
    """Return a value of exactly this type; an int will do for a float.

    Raises
    ------
    MessageError
        If it is missing, of another type, or a text that is too long.
    """
    value: Any = record.get(key)
    if kind is float:
        value = real_number(value)
    if type(value) is not kind:
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise MessageError(f"{key} is {found}")
    if isinstance(value, str) and len(value) > longest:
        raise MessageError(f"{key} is a text of {len(value)} characters")
    return value

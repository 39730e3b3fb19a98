"""Messages as Flower's records: packed before they are sent, and checked when they arrive.

Weights travel as the bytes of one float32 vector, without a header that would have to be parsed;
everything else travels as small records. Nothing that arrives is trusted: names, types, shapes,
sizes and ranges are checked before use.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flamma.engines.flower.messages import (
    MessageError,
    Order,
    OrderContent,
    Score,
    SiteProfile,
)
from flamma.engines.flower.payload import (
    MAX_TEXT_LENGTH,
    TERMS_RECORD,
    as_record,
    one_line_of,
    pack_terms,
    read_terms,
    take,
)
from flamma.engines.flower.site_agreement import read_labels
from flamma.game.model import LARGEST_COST, MAX_EPOCHS, SMALLEST_COST
from flamma.tasks import TASKS
from flamma.tasks.base import MAX_CLASSES, ClientMetric
from flamma.tasks.supervised import ACCURACY
from flamma.types import MOST_SAMPLES, Params, Terms, Update

_PROTOCOL_VERSION = 7
_ORDER_RECORD, _WEIGHTS_RECORD, _EXTRA_RECORD = "flamma.order", "flamma.weights", "flamma.extra"
_PROFILE_RECORD, _REPORT_RECORD, _SCORE_RECORD = "flamma.profile", "flamma.report", "flamma.score"
_FAILURE_RECORD = "flamma.failure"

_MAX_CONFIG_LENGTH = 100_000
"""Characters of a configuration that are read."""

_RUN_DIGITS = re.compile(r"[0-9a-f]{0,64}")
"""What a run can be called, so that a folder can have the name."""

_MAX_FEATURES = 2**26
"""Numbers of one sample: a picture of three channels with sides of 4096 has fewer."""

LARGEST_LOSS = 1e12
"""A loss above this is refused, unless it is infinite: powers of it would overflow."""

_FLOAT32 = np.dtype("<f4")
_RAW_FLOAT32 = "flamma.float32"
"""How weights are written: little-endian float32 numbers, one after the other."""


def pack_order(asked: OrderContent) -> RecordDict:
    """Return the content of a message to a client."""
    content = RecordDict({_ORDER_RECORD: as_record(asked.order, version=_PROTOCOL_VERSION)})
    if asked.terms is not None:
        content[TERMS_RECORD] = pack_terms(asked.terms)
    if asked.params is not None:
        content[_WEIGHTS_RECORD] = _pack_params(asked.params)
    if asked.extra is not None:
        content[_EXTRA_RECORD] = _pack_params(asked.extra)
    return content


def read_order(content: RecordDict) -> OrderContent:
    """Return what a client is asked to do.

    Raises
    ------
    MessageError
        If it is not a valid order.
    """
    record = config_record(content, _ORDER_RECORD)
    if take(record, "version", int) != _PROTOCOL_VERSION:
        raise MessageError("server and client have different versions of flamma: install the same.")
    order = Order(
        config=take(record, "config", str, _MAX_CONFIG_LENGTH),
        client=take(record, "client", int),
        name=take(record, "name", str),
        trainer=take(record, "trainer", str),
        evaluate=take(record, "evaluate", bool),
        wants_cost=take(record, "wants_cost", bool),
        cost=take(record, "cost", float),
        classes=take(record, "classes", int),
        run=take(record, "run", str),
        round=take(record, "round", int),
        earliest=take(record, "earliest", int),
        trainable_size=take(record, "trainable_size", int),
        evaluates_kept=take(record, "evaluates_kept", bool),
    )
    _check_order(order)
    terms = read_terms(config_record(content, TERMS_RECORD)) if TERMS_RECORD in content else None
    params = _read_params(content) if _WEIGHTS_RECORD in content else None
    if params is not None and not 0 <= order.trainable_size <= params.size:
        raise MessageError(
            f"the order is for {order.trainable_size} trained weights of {params.size}"
        )
    extra = None
    if _EXTRA_RECORD in content:
        extra = _read_params(content, order.trainable_size, _EXTRA_RECORD)
    return OrderContent(order, terms, params, extra)


def _check_order(order: Order) -> None:
    if not 0 <= order.classes <= MAX_CLASSES:
        raise MessageError(f"the order is for {order.classes} classes")
    if not _RUN_DIGITS.fullmatch(order.run):
        raise MessageError("the order is of a run that is not named by hexadecimal digits")
    if not -1 <= order.earliest <= order.round <= MAX_EPOCHS:
        raise MessageError(
            f"the order is of round {order.round} in a run that may go back to {order.earliest}"
        )


def pack_profile(profile: SiteProfile) -> RecordDict:
    """Return a client's answer to the question who it is."""
    return RecordDict({_PROFILE_RECORD: as_record(profile)})


def read_profile(content: RecordDict) -> SiteProfile:
    """Return who a client says it is.

    Raises
    ------
    MessageError
        If no client that can take part would say so.
    """
    record = config_record(content, _PROFILE_RECORD)
    shape = record.get("shape")
    if not isinstance(shape, list) or not _is_sample_shape(shape):
        raise MessageError("its samples have no usable shape")
    profile = SiteProfile(
        name=take(record, "name", str),
        samples=take(record, "samples", int),
        held_out=take(record, "held_out", int),
        cost=take(record, "cost", float),
        own_cost=take(record, "own_cost", bool),
        shape=tuple(int(n) for n in shape),
        classes=take(record, "classes", int),
        lanes=take(record, "lanes", bool),
        task=take(record, "task", str),
        labels=read_labels(record),
        columns_sha256=take(record, "columns_sha256", str),
    )
    for name, value, least, most in (
        ("samples", profile.samples, 1, MOST_SAMPLES),
        ("held-out samples", profile.held_out, 0, MOST_SAMPLES),
        ("classes", profile.classes, 1, MAX_CLASSES),
    ):
        if not least <= value <= most:
            raise MessageError(f"it says that it has {value} {name}")
    if profile.task not in TASKS:
        raise MessageError(f"it has data of the task {one_line_of(profile.task)!r}")
    if not (math.isnan(profile.cost) or SMALLEST_COST <= profile.cost <= LARGEST_COST):
        raise MessageError(f"it says that its cost is {profile.cost:g}")
    return profile


def pack_answer(
    name: str, report: Update | None = None, score: Score | None = None, failure: str = ""
) -> RecordDict:
    """Return a client's answer to an order; ``failure`` says why a part of it is missing."""
    content = RecordDict()
    if failure:
        content[_FAILURE_RECORD] = ConfigRecord({"reason": failure[:MAX_TEXT_LENGTH]})
    if report is not None:
        numbers = {f.name: getattr(report, f.name) for f in fields(report) if f.name != "params"}
        content[_REPORT_RECORD] = ConfigRecord(numbers | {"name": name})
        if report.params is not None:
            content[_WEIGHTS_RECORD] = _pack_params(report.params)
    if score is not None:
        content[_SCORE_RECORD] = as_record(score, name=name)
    return content


def read_report(content: RecordDict, name: str, terms: Terms, samples: int, size: int) -> Update:
    """Return what a client reports on its training.

    Whether its epochs and samples are allowed is up to the strategy.

    Parameters
    ----------
    content : RecordDict
        What arrived.
    name, terms, size
        What the report must agree with: the client that was asked, its terms, and the number of
        weights.
    samples : int
        How many training samples the client said it has, for a report of a failure.

    Raises
    ------
    MessageError
        If the report does not agree with them, or makes no sense.
    """
    record = config_record(content, _REPORT_RECORD)
    _check_sender(record, name, terms.client)
    failure = take(record, "failure", str)
    seconds, loss = take(record, "seconds", float), take(record, "loss", float)
    epochs, own = take(record, "epochs", int), take(record, "samples", int)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise MessageError(f"it says that it took {seconds:g} s")
    if failure:
        reason = one_line_of(failure) or "it failed"
        return Update(terms.client, None, samples, 0, seconds=seconds, failure=reason)
    if not 0 <= own <= MOST_SAMPLES:
        raise MessageError(f"it says that it has {own} samples")
    if abs(epochs) > 2**31:
        raise MessageError("it says that it did more epochs than there are numbers for")
    if LARGEST_LOSS < loss < math.inf:
        raise MessageError(f"it says that the loss is {loss:g}")
    restarted = take(record, "restarted", bool)
    if not terms.train and _WEIGHTS_RECORD in content:
        raise MessageError("it was asked for a loss, and sent weights")
    params = _read_params(content, size) if _WEIGHTS_RECORD in content else None
    if params is None and epochs != 0:
        raise MessageError(f"it says that it did {epochs} epochs, but sent no weights")
    return Update(terms.client, params, own, epochs, loss, seconds, restarted=restarted)


def read_score(
    content: RecordDict, name: str, held_out: int, metric: ClientMetric = ACCURACY
) -> Score:
    """Return how a client scores the weights that it was sent, by the run's metric.

    Raises
    ------
    MessageError
        If it is not a valid score, or not from the client that was asked.
    """
    record = config_record(content, _SCORE_RECORD)
    _check_sender(record, name)
    score = Score(
        accuracy=take(record, "accuracy", float),
        loss=take(record, "loss", float),
        held_out=take(record, "held_out", int),
    )
    if score.held_out != held_out:
        raise MessageError(f"it evaluated on {score.held_out} samples, before it had {held_out}")
    if held_out and not metric.could_be(score.accuracy):
        raise MessageError(
            f"it says that the {metric.title} is {score.accuracy:g}{metric.kind.unit}"
        )
    if score.loss < 0:
        raise MessageError(f"it says that the loss is {score.loss:g}")
    return score


def _pack_params(params: Params) -> ArrayRecord:
    """Return the record of a flat vector of weights."""
    data = np.ascontiguousarray(params, dtype=_FLOAT32).tobytes()
    return ArrayRecord({"params": Array("float32", (params.size,), _RAW_FLOAT32, data)})


def _read_params(
    content: RecordDict, size: int | None = None, name: str = _WEIGHTS_RECORD
) -> Params:
    """Return the weights that arrived; any number of them if ``size`` is None.

    ``name`` is that of another record that travels as weights do.

    Raises
    ------
    MessageError
        If they are anything but one float32 vector of that size.
    """
    record = content.get(name)
    if not isinstance(record, ArrayRecord) or list(record) != ["params"]:
        raise MessageError("the weights are not one array named params")
    array = record["params"]
    if not isinstance(array, Array) or array.stype != _RAW_FLOAT32:
        raise MessageError("the weights are not written as float32 numbers")
    length = len(array.data)
    if size is None:
        size = length // _FLOAT32.itemsize
    if length != size * _FLOAT32.itemsize:
        raise MessageError(f"the weights take {length} bytes instead of {size * _FLOAT32.itemsize}")
    if array.dtype != "float32" or array.shape != (size,):
        raise MessageError("the weights are not one vector of float32 numbers")
    return np.frombuffer(array.data, dtype=_FLOAT32).astype(np.float32)


def _is_sample_shape(shape: list[Any]) -> bool:
    if not 1 <= len(shape) <= 3 or not all(type(n) is int and n > 0 for n in shape):
        return False
    return bool(math.prod(shape) <= _MAX_FEATURES)


def _check_sender(record: ConfigRecord, name: str, client: int | None = None) -> None:
    said = take(record, "name", str)
    if said != name or (client is not None and take(record, "client", int) != client):
        raise MessageError(f"it answers under the name {one_line_of(said)!r}")


def config_record(content: RecordDict, name: str) -> ConfigRecord:
    """Return a record of an answer.

    Raises
    ------
    MessageError
        If it is not there; the text is the client's own reason if it gave one.
    """
    record = content.get(name)
    if isinstance(record, ConfigRecord):
        return record
    failure = content.get(_FAILURE_RECORD)
    if isinstance(failure, ConfigRecord):
        raise MessageError(one_line_of(take(failure, "reason", str)), from_client=True)
    raise MessageError(f"there is no {name.rpartition('.')[2]} in it")

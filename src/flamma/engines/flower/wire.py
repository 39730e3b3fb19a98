"""What travels between server and clients: packed here, and checked here when it arrives.

Weights travel as one array, everything else as small records. Whatever arrives is taken for what
a stranger may have sent: names, types, shapes, sizes and ranges are checked before use.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flamma.engines.flower.arrays import WireError as WireError
from flamma.engines.flower.arrays import unpack
from flamma.engines.flower.letters import ClientError as ClientError
from flamma.engines.flower.letters import Order as Order
from flamma.engines.flower.letters import Score as Score
from flamma.engines.flower.letters import SiteProfile as SiteProfile
from flamma.strategies.base import MOST_EPOCHS
from flamma.types import Params, Report, Terms

VERSION = 1
ORDER, TERMS, WEIGHTS = "flamma.order", "flamma.terms", "flamma.weights"
PROFILE, REPORT, SCORE = "flamma.profile", "flamma.report", "flamma.score"
FAILURE = "flamma.failure"
LONGEST = 200
"""Characters of a name or a reason that are read."""

LARGEST_CONFIG = 100_000
FLOAT32 = np.dtype("<f4")
Kind = TypeVar("Kind", int, float, str, bool)


def pack_order(order: Order, terms: Terms | None, params: Params | None) -> RecordDict:
    """Return the content of a message to a client."""
    content = RecordDict({ORDER: _record(order, version=VERSION)})
    if terms is not None:
        content[TERMS] = _record(terms)
    if params is not None:
        content[WEIGHTS] = pack_params(params)
    return content


def read_order(content: RecordDict) -> tuple[Order, Terms | None, Params | None]:
    """Return what a client is asked to do.

    Raises
    ------
    WireError
        If it cannot be understood.
    """
    record = _config_record(content, ORDER)
    if _take(record, "version", int) != VERSION:
        raise WireError("server and client have different versions of flamma: install the same.")
    order = Order(
        config=_take(record, "config", str, LARGEST_CONFIG),
        client=_take(record, "client", int),
        name=_take(record, "name", str),
        trainer=_take(record, "trainer", str),
        judge=_take(record, "judge", bool),
        wants_cost=_take(record, "wants_cost", bool),
        cost=_take(record, "cost", float),
        classes=_take(record, "classes", int),
    )
    if not 0 <= order.classes < 2**20:
        raise WireError(f"the order is of {order.classes} classes")
    terms = read_terms(_config_record(content, TERMS)) if TERMS in content else None
    params = read_params(content) if WEIGHTS in content else None
    return order, terms, params


def pack_profile(profile: SiteProfile) -> RecordDict:
    """Return a client's answer to who it is."""
    return RecordDict({PROFILE: _record(profile)})


def read_profile(content: RecordDict) -> SiteProfile:
    """Return who a client says it is.

    Raises
    ------
    WireError
        If it is not a client that can take part.
    """
    record = _config_record(content, PROFILE)
    shape = record.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and 0 < n < 2**20 for n in shape):
        raise WireError("its samples have no usable shape")
    profile = SiteProfile(
        name=_take(record, "name", str),
        samples=_take(record, "samples", int),
        held_out=_take(record, "held_out", int),
        cost=_take(record, "cost", float),
        own_cost=_take(record, "own_cost", bool),
        shape=tuple(int(n) for n in shape),
        classes=_take(record, "classes", int),
        lanes=_take(record, "lanes", bool),
    )
    for name, value, least in (
        ("samples", profile.samples, 1),
        ("held-out samples", profile.held_out, 0),
        ("classes", profile.classes, 1),
    ):
        if not least <= value < 2**40:
            raise WireError(f"it says that it has {value} {name}")
    if not (math.isnan(profile.cost) or 0 < profile.cost < math.inf):
        raise WireError(f"it says that its cost is {profile.cost:g}")
    return profile


def pack_answer(
    name: str, report: Report | None = None, score: Score | None = None, failure: str = ""
) -> RecordDict:
    """Return a client's answer to an order, under its own name, with why a part is missing."""
    content = RecordDict()
    if failure:
        content[FAILURE] = ConfigRecord({"reason": failure[:LONGEST]})
    if report is not None:
        numbers = {f.name: getattr(report, f.name) for f in fields(report) if f.name != "params"}
        content[REPORT] = ConfigRecord(numbers | {"name": name})
        if report.params is not None:
            content[WEIGHTS] = pack_params(report.params)
    if score is not None:
        content[SCORE] = _record(score, name=name)
    return content


def read_report(content: RecordDict, name: str, terms: Terms, samples: int, size: int) -> Report:
    """Return what a client reports on its training.

    Parameters
    ----------
    content : RecordDict
        What arrived.
    name, terms, samples, size
        What it must agree with: who was asked, on which terms, how many training samples it has,
        and how many numbers the weights are. Whether its epochs are allowed is the strategy's
        business.

    Raises
    ------
    WireError
        If it does not.
    """
    record = _config_record(content, REPORT)
    _check_sender(record, name, terms.client)
    failure = _take(record, "failure", str)
    seconds, loss = _take(record, "seconds", float), _take(record, "loss", float)
    epochs, own = _take(record, "epochs", int), _take(record, "samples", int)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise WireError(f"it says that it took {seconds:g} s")
    if failure:
        reason = one_line_of(failure) or "it failed"
        return Report(terms.client, None, samples, 0, seconds=seconds, failure=reason)
    if own != samples:
        raise WireError(f"it says that it has {own} samples, before it had {samples}")
    if abs(epochs) > 2**31:
        raise WireError("it says that it did more epochs than there are numbers for")
    params = read_params(content, size) if WEIGHTS in content else None
    if params is None and epochs != 0:
        raise WireError(f"it says that it did {epochs} epochs, but sent no weights")
    return Report(terms.client, params, samples, epochs, loss, seconds)


def read_score(content: RecordDict, name: str, held_out: int) -> Score:
    """Return how a client judges the weights it was sent.

    Raises
    ------
    WireError
        If that is not a score of the client that was asked.
    """
    record = _config_record(content, SCORE)
    _check_sender(record, name)
    score = Score(
        accuracy=_take(record, "accuracy", float),
        loss=_take(record, "loss", float),
        held_out=_take(record, "held_out", int),
    )
    if score.held_out != held_out:
        raise WireError(f"it judged on {score.held_out} samples, before it had {held_out}")
    if held_out and not 0 <= score.accuracy <= 100:
        raise WireError(f"it says that the accuracy is {score.accuracy:g}%")
    if score.loss < 0:
        raise WireError(f"it says that the loss is {score.loss:g}")
    return score


def pack_params(params: Params) -> ArrayRecord:
    """Return weights as they travel."""
    return ArrayRecord({"params": Array(np.ascontiguousarray(params))})


def read_params(content: RecordDict, size: int | None = None) -> Params:
    """Return the weights that arrived, of so many numbers.

    Raises
    ------
    WireError
        If they are anything else.
    """
    record = content.get(WEIGHTS)
    if not isinstance(record, ArrayRecord) or list(record) != ["params"]:
        raise WireError("the weights are not one array named params")
    shape = None if size is None else (size,)
    params: Params = unpack(record["params"], FLOAT32, shape, "the weights")
    return params


def read_terms(record: ConfigRecord) -> Terms:
    """Return the terms that a client was sent, every number in its range."""
    terms = Terms(
        client=_take(record, "client", int),
        round=_take(record, "round", int),
        decay_factor=_take(record, "decay_factor", float),
        contribution=_take(record, "contribution", float),
        step_scale=_take(record, "step_scale", float),
        proximal=_take(record, "proximal", float),
        epochs=_take(record, "epochs", int) if "epochs" in record else None,
        iterations=_take(record, "iterations", int) if "iterations" in record else None,
        wants_loss=_take(record, "wants_loss", bool),
    )
    counts = (terms.round, terms.epochs or 0, terms.iterations or 0)
    rates = (terms.decay_factor, terms.step_scale, terms.proximal)
    if not all(0 <= count <= MOST_EPOCHS for count in counts):
        raise WireError(f"the terms count {counts}")
    if not all(0 <= rate < math.inf for rate in rates):
        raise WireError(f"the terms have the rates {rates}")
    return terms


def _check_sender(record: ConfigRecord, name: str, client: int | None = None) -> None:
    said = _take(record, "name", str)
    if said != name or (client is not None and _take(record, "client", int) != client):
        raise WireError(f"it answers under the name {one_line_of(said)!r}")


def _record(values: Any, **more: Any) -> ConfigRecord:
    """Return the fields of a dataclass; what is None is left out, and a tuple is a list."""
    named = {f.name: getattr(values, f.name) for f in fields(values)} | more
    return ConfigRecord(
        {k: list(v) if isinstance(v, tuple) else v for k, v in named.items() if v is not None}
    )


def _config_record(content: RecordDict, name: str) -> ConfigRecord:
    record = content.get(name)
    if isinstance(record, ConfigRecord):
        return record
    failure = content.get(FAILURE)
    if isinstance(failure, ConfigRecord):
        raise ClientError(one_line_of(_take(failure, "reason", str)))
    raise WireError(f"there is no {name.rpartition('.')[2]} in it")


def one_line_of(text: str) -> str:
    """Return what somebody else wrote as one line of printable text that is not too long."""
    plain = "".join(c if c.isprintable() else " " for c in text[: 4 * LONGEST])
    return " ".join(plain.split())[:LONGEST]


def _take(record: ConfigRecord, key: str, kind: type[Kind], longest: int = LONGEST) -> Kind:
    """Return a value of exactly this type; a whole number does for a real one."""
    value: Any = record.get(key)
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not kind:
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise WireError(f"{key} is {found}")
    if isinstance(value, str) and len(value) > longest:
        raise WireError(f"{key} is a text of {len(value)} characters")
    return value

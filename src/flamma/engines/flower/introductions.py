"""Who the clients of somebody's own Flower app are, and what their answers say."""

from __future__ import annotations

import math
from logging import WARNING
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log
from numpy.typing import NDArray

from flamma.engines.flower.arrays import NamedArrays, WireError
from flamma.engines.flower.letters import ClientError
from flamma.engines.flower.own import EPOCHS, LOSS, OWN, SAMPLES
from flamma.engines.flower.roster import why_failed
from flamma.types import Floats, Ints, Report

Kind = TypeVar("Kind", ArrayRecord, MetricRecord)


def introductions(
    grid: Grid, nodes: list[int], timeout: float
) -> tuple[list[int], list[str], Ints, Floats | None]:
    """Return nodes in the order of their names, the names, and their samples and costs.

    The cost of a client that does not tell one is NaN; there are none if nobody does. Where
    clients do not answer, or two say the same, they are taken by Flower's numbers, and a warning
    says that the next run may have them in another order.
    """
    messages = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
    told: dict[int, tuple[str, int, float]] = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        record = None if reply.has_error() else reply.content.get(OWN)
        name = record.get("name") if isinstance(record, ConfigRecord) else None
        samples = record.get("samples") if isinstance(record, ConfigRecord) else None
        if isinstance(record, ConfigRecord) and isinstance(name, str) and type(samples) is int:
            cost = record.get("cost", math.nan)
            if not (isinstance(cost, int | float) and 0 < cost < math.inf):
                cost = math.nan
            if name and 0 < samples < 2**40:
                told[reply.metadata.src_node_id] = (name, samples, float(cost))
    names = {name for name, _, _ in told.values()}
    if len(names) < len(nodes):
        log(WARNING, "clients did not say who they are (@app.query()): the order may change")
        return nodes, [str(n) for n in nodes], np.ones(len(nodes), dtype=np.int64), None
    order = sorted(nodes, key=lambda node: (len(told[node][0]), told[node][0]))
    costs = np.array([told[node][2] for node in order])
    return (
        order,
        [told[node][0] for node in order],
        np.array([told[node][1] for node in order], dtype=np.int64),
        costs if np.isfinite(costs).any() else None,
    )


def only(content: RecordDict, kind: type[Kind]) -> Kind:
    """Return the one record of this kind."""
    found = [record for record in content.values() if isinstance(record, kind)]
    if len(found) != 1:
        raise WireError(f"it has {len(found)} records of the kind {kind.__name__} instead of one")
    return found[0]


def whole_number(record: MetricRecord, name: str) -> int:
    """Return a number that must be whole."""
    value = record.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or abs(value) > 2**40:
        raise WireError(f"{name} is {'missing' if value is None else 'no whole number'}")
    return value


def read_update(
    client: int, reply: Message, form: NamedArrays, epochs_on_offer: tuple[int, int]
) -> tuple[Report, dict[str, NDArray[Any]]]:
    """Return what a client answers to its terms, and those of its arrays that are no weights."""
    told = only(reply.content, MetricRecord)
    samples = whole_number(told, SAMPLES)
    said = told.get(LOSS)
    loss = float(said) if isinstance(said, int | float) else math.nan
    fixed, most = epochs_on_offer
    # A client that knows nothing of us does as many epochs as it was told, where it was told.
    epochs = fixed if fixed == most and EPOCHS not in told else whole_number(told, EPOCHS)
    if not any(isinstance(part, ArrayRecord) for part in reply.content.values()):
        if epochs:
            raise WireError(f"it says that it did {epochs} epochs, but sent no arrays")
        return Report(client, None, samples, 0), {}
    params, whole = form.flatten(only(reply.content, ArrayRecord))
    return Report(client, params, samples, epochs, loss), whole


def read_score(reply: Message, accuracy: str, loss: str) -> tuple[float, float, int]:
    """Return accuracy in percent, loss and samples of an answer that has them by these names."""
    if reply.has_error():
        raise ClientError(why_failed(reply))
    told = only(reply.content, MetricRecord)
    share, lost = told.get(accuracy), told.get(loss, math.nan)
    if not isinstance(share, int | float) or not isinstance(lost, int | float):
        raise WireError(f"there is no {accuracy} in it")
    if not 0 <= share <= 1:
        raise WireError(f"it says that the accuracy is {share:g}, which is no share")
    return 100.0 * share, float(lost), whole_number(told, SAMPLES)

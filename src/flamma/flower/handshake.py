"""The handshake with the clients of a Flower app: who they are, before the first round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from logging import WARNING

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from flamma.flower.client import INTRODUCTION_RECORD
from flamma.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class Introductions:
    """The clients in the order of their names: node ids, names, training samples and costs.

    A cost is NaN where a client does not tell it; ``costs`` is None if none of them does.
    """

    nodes: tuple[int, ...]
    names: tuple[str, ...]
    samples: Ints
    costs: Floats | None

    def client(self, node: int) -> int:
        """Return a node's client, -1 if it is not one of them."""
        return self.nodes.index(node) if node in self.nodes else -1


def shake_hands(grid: Grid, nodes: list[int], timeout: float) -> Introductions:
    """Ask all nodes who they are.

    If some do not answer, or two give the same name, the clients are taken in the order of
    Flower's node ids, and a warning says that the next run may have another order.
    """
    messages = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
    told: dict[int, tuple[str, int, float]] = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        found = None if reply.has_error() else _read(reply.content.get(INTRODUCTION_RECORD))
        if found is not None:
            told[reply.metadata.src_node_id] = found
    names = {name for name, _, _ in told.values()}
    if len(names) < len(nodes):
        log(WARNING, "clients did not say who they are (@app.query()): the order may change")
        equal = np.ones(len(nodes), dtype=np.int64)
        return Introductions(tuple(nodes), tuple(map(str, nodes)), equal, None)
    order = sorted(nodes, key=lambda node: (len(told[node][0]), told[node][0]))
    costs = np.array([told[node][2] for node in order])
    return Introductions(
        tuple(order),
        tuple(told[node][0] for node in order),
        np.array([told[node][1] for node in order], dtype=np.int64),
        costs if np.isfinite(costs).any() else None,
    )


def _read(record: object) -> tuple[str, int, float] | None:
    """Return the name, samples and cost of an introduction, None if it is not a usable one."""
    if not isinstance(record, ConfigRecord):
        return None
    name, samples, cost = record.get("name"), record.get("samples"), record.get("cost", math.nan)
    if not isinstance(name, str) or not name or type(samples) is not int:
        return None
    if not 0 < samples < 2**40:
        return None
    usable = isinstance(cost, int | float) and 0 < cost < math.inf
    return name, samples, float(cost) if usable else math.nan  # type: ignore[arg-type]

"""The handshake with the clients of a Flower app: who they are, before the first round."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from logging import WARNING

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from flamma.clients.trust import Trust, TrustLimits
from flamma.engines.flower.messages import MessageError
from flamma.engines.flower.payload import one_line_of, read_reply, real_number, take
from flamma.errors import FlammaError
from flamma.flower.client import INTRODUCTION_RECORD
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.types import MOST_SAMPLES, Floats, Ints

NODE_POLL_SECONDS = 0.5
"""Seconds between two checks for nodes before the first round."""


@dataclass(frozen=True, eq=False)
class ConnectedClients:
    """The clients in the order of their names: node ids, names, training samples and costs.

    A cost is NaN where a client does not tell it; ``costs`` is None if none of them does.
    ``introduced`` is whether they said who they are; if not, the samples are not known.
    """

    nodes: tuple[int, ...]
    names: tuple[str, ...]
    samples: Ints
    costs: Floats | None
    introduced: bool = True

    def client(self, node: int) -> int:
        """Return a node's client, -1 if it is not one of them."""
        return self.nodes.index(node) if node in self.nodes else -1


def wait_for_nodes(grid: Grid, expected: int, timeout: float) -> list[int]:
    """Return the connected nodes in order once there are as many as expected.

    Raises
    ------
    FlammaError
        If there are fewer when the time is up.
    """
    end = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < expected:
        if time.monotonic() > end:
            raise FlammaError(f"only {len(nodes)} of {expected} clients came.")
        time.sleep(NODE_POLL_SECONDS)
    return nodes


def shake_hands(grid: Grid, nodes: list[int], timeout: float) -> ConnectedClients:
    """Ask all nodes who they are.

    If some do not answer, or two give the same name, the clients are taken in the order of
    Flower's node ids, and a warning says that the next run may have another order.
    """
    messages = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
    told: dict[int, tuple[str, int, float]] = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        try:
            told[reply.metadata.src_node_id] = read_reply(reply, read_introduction)
        except MessageError as error:
            log(WARNING, "node %s did not say who it is: %s", reply.metadata.src_node_id, error)
    names = {name for name, _, _ in told.values()}
    if len(names) < len(nodes):
        log(WARNING, "clients did not say who they are (@app.query()): the order may change")
        equal = np.ones(len(nodes), dtype=np.int64)
        return ConnectedClients(tuple(nodes), tuple(map(str, nodes)), equal, None, False)
    order = sorted(nodes, key=lambda node: (len(told[node][0]), told[node][0]))
    costs = np.array([told[node][2] for node in order])
    return ConnectedClients(
        tuple(order),
        tuple(told[node][0] for node in order),
        np.array([told[node][1] for node in order], dtype=np.int64),
        costs if np.isfinite(costs).any() else None,
    )


def believed(clients: ConnectedClients, limits: TrustLimits) -> tuple[ConnectedClients, Trust]:
    """Return the clients with the samples that they count for, and what looks at their answers."""
    if not clients.introduced:
        return clients, Trust(limits)
    most = limits.most_samples(clients.names, clients.samples)
    for place in np.flatnonzero(clients.samples > most):
        who = (clients.names[place], clients.samples[place], most[place])
        log(WARNING, "client %s says that it has %s samples, and counts for %s", *who)
    return replace(clients, samples=np.minimum(clients.samples, most)), Trust(limits, most)


def read_introduction(content: RecordDict) -> tuple[str, int, float]:
    """Return the name, samples and cost that a client gives; the cost is NaN if it is not usable.

    Raises
    ------
    MessageError
        If it is not an introduction with a name and a number of samples.
    """
    record = content.get(INTRODUCTION_RECORD)
    if not isinstance(record, ConfigRecord):
        raise MessageError("there is no introduction in it")
    name, samples = take(record, "name", str), take(record, "samples", int)
    if not name or name != one_line_of(name):
        raise MessageError(f"{one_line_of(name)!r} is not a name")
    if not 0 < samples <= MOST_SAMPLES:
        raise MessageError(f"it says that it has {samples} samples")
    cost = real_number(record.get("cost"))
    return (
        name,
        samples,
        cost if isinstance(cost, float) and SMALLEST_COST <= cost <= LARGEST_COST else math.nan,
    )

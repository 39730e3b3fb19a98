"""Which of Flower's nodes, whose numbers are random, is which client."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flamma.engines.flower.codec import pack_order, read_profile
from flamma.engines.flower.inflation import SMALL_REPLY_BYTES, guarded
from flamma.engines.flower.messages import MessageError, Order, OrderContent, SiteProfile
from flamma.engines.flower.payload import one_line_of, read_reply
from flamma.engines.flower.site_agreement import Agreement
from flamma.engines.flower.told_events import Attendance
from flamma.errors import RunError

NODE_CHECK_SECONDS = 1.0
"""Seconds between two checks for new nodes while a run waits for its clients."""

_FASTEST_POLL_SECONDS, _SLOWEST_POLL_SECONDS = 0.2, 1.0
"""Seconds between two requests for replies: the first ones, and those after a long wait."""

_EXTRA_LIFETIME_SECONDS = 10.0
"""Seconds that a message outlives the wait for its reply, so that it is late and not lost."""

_PROFILE_SECONDS = 60.0
"""Seconds that a node has to say who it is."""

_PROFILE_ATTEMPTS = 3
"""How often a node is asked who it is; anew if it was away in between."""

_SILENT = "it does not say who it is"


class Request(NamedTuple):
    """A message to be sent to a node."""

    node: int
    kind: str
    content: RecordDict


def exchange(
    grid: Grid, requests: Sequence[Request], wait: float, weights_bytes: int = 0
) -> dict[int, Message]:
    """Send requests and return the replies that come in time, by node.

    ``weights_bytes`` is how large the weights of a reply may be. An error that Flower sends in
    place of a node that is gone counts as the node's reply. Otherwise a reply counts only if it
    comes from the node that was asked.
    """
    messages = [
        Message(request.content, request.node, request.kind, ttl=wait + _EXTRA_LIFETIME_SECONDS)
        for request in requests
    ]
    replies: dict[int, Message] = {}
    if not messages:
        return replies
    numbers = list(grid.push_messages(messages))
    asked = {n: request.node for n, request in zip(numbers, requests, strict=False) if n}
    with guarded(weights_bytes + SMALL_REPLY_BYTES):
        for reply in _pull(grid, set(asked), wait):
            node = asked.get(reply.metadata.reply_to_message_id)
            if node is not None and (reply.has_error() or reply.metadata.src_node_id == node):
                replies.setdefault(node, reply)
    return replies


def _pull(grid: Grid, waiting: set[str], wait: float) -> Iterator[Message]:
    """Yield replies as they come; ``Grid.send_and_receive`` only polls every three seconds."""
    begun = time.monotonic()
    while waiting:
        found = list(grid.pull_messages(waiting))
        yield from found
        waiting -= {reply.metadata.reply_to_message_id for reply in found}
        waited = time.monotonic() - begun
        if waited > wait:
            return
        if waiting:  # polling is work for the SuperLink: the longer it takes, the less often
            time.sleep(min(max(_FASTEST_POLL_SECONDS, waited / 10), _SLOWEST_POLL_SECONDS))


class Roster:
    """The clients by number, each with its node, for as long as that is connected.

    A client whose node is gone may come back at another one, as a site with a new key does.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the nodes.
    names : sequence of str
        The clients' names; a client's number is its index here.
    query : Order
        The first order to every node.
    wait : float
        Seconds that a reply may take.
    agreed : Agreement, optional
        What the classes and columns of all clients must be, if that is known.

    Attributes
    ----------
    check : callable
        Raises a MessageError if a client cannot take part, by what it tells about itself.
    """

    def __init__(
        self,
        grid: Grid,
        names: Sequence[str],
        query: Order,
        wait: float,
        agreed: Agreement | None = None,
    ) -> None:
        self.grid = grid
        self.names = tuple(names)
        self.query = query
        self.wait = wait
        self.agreed = agreed or Agreement()
        self.profiles: dict[int, SiteProfile] = {}
        self.refused: dict[str, str] = {}
        self.check: Callable[[SiteProfile], None] = lambda profile: None
        self._nodes: dict[int, int] = {}
        self._present: dict[int, str] = {}
        self._asked: Counter[int] = Counter()
        self._attendance = Attendance()

    def node(self, client: int) -> int | None:
        """Return a client's node, None if it is not connected."""
        node = self._nodes.get(client)
        return node if node in self._present else None

    def refresh(self) -> None:
        """See which nodes are connected, and ask new ones who they are."""
        registered = {info.node_id: info.name for info in self.grid.get_nodes()}
        self._present = registered
        self._asked = Counter({n: k for n, k in self._asked.items() if n in registered})
        known = set(self._nodes.values())
        new = [
            n for n in sorted(registered) if n not in known and self._asked[n] < _PROFILE_ATTEMPTS
        ]
        self._asked.update(new)
        content = pack_order(OrderContent(self.query))
        requests = [Request(node, MessageType.QUERY, content) for node in new]
        replies = exchange(self.grid, requests, min(self.wait, _PROFILE_SECONDS))
        # By name, since node numbers are random: the first one is what others must agree with.
        for node in sorted(replies, key=lambda node: (registered[node], node)):
            try:
                self._admit(node, read_reply(replies[node], read_profile), registered[node])
            except MessageError as error:
                self.refused[registered[node] or f"node {node}"] = str(error)
                if not error.from_client:
                    self._asked[node] = _PROFILE_ATTEMPTS
        self._attendance = self._attendance.updated(self)

    def gather(self, needed: Iterable[int], limit: float) -> None:
        """Wait until these clients are connected, or the time limit is over."""
        end = time.monotonic() + limit
        needed = set(needed)
        while True:
            self.refresh()
            if needed <= self.profiles.keys() or time.monotonic() > end:
                return
            time.sleep(NODE_CHECK_SECONDS)

    def refusing(self) -> dict[str, str]:
        """Return why clients that are connected do not take part, by name."""
        known = set(self._nodes.values())
        names = (
            name or f"node {node}"
            for node, name in self._present.items()
            if node not in known and self._asked[node] >= _PROFILE_ATTEMPTS
        )
        return {name: self.refused.get(name, _SILENT) for name in names}

    def missing(self) -> list[str]:
        """Return the names of the clients that have not been seen yet."""
        return [name for k, name in enumerate(self.names) if k not in self.profiles]

    def check_all(self) -> None:
        """Refuse to begin while a client is missing.

        Raises
        ------
        RunError
            If a client has not been seen.
        """
        if missing := self.missing():
            reasons = "".join(f"; {who}: {why}" for who, why in list(self.refused.items())[:3])
            some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise RunError(f"these clients did not come: {some}{reasons}.")

    def _admit(self, node: int, profile: SiteProfile, registered: str) -> None:
        name = one_line_of(profile.name)
        if profile.name not in self.names:
            raise MessageError(f"no client of this run has the name {name!r}")
        if registered and registered != profile.name:
            raise MessageError(
                f"it says that it is {name!r}, but its key is that of {registered!r}"
            )
        client = self.names.index(profile.name)
        # A site that is gone may be back with a new key, by which Flower knows its name.
        if client in self._nodes and (not registered or self.node(client) is not None):
            raise MessageError(f"the name {name!r} is taken by another node")
        self.check(profile)
        self.agreed = self.agreed.joined_by(profile)
        self._nodes[client] = node
        self.profiles.setdefault(client, profile)
        self.refused.pop(registered or f"node {node}", None)

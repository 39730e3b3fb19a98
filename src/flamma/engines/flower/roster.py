"""Who is who: which of Flower's nodes, whose numbers are random, is which client."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flamma.engines.flower.wire import (
    ClientError,
    Order,
    SiteProfile,
    WireError,
    one_line_of,
    pack_order,
    read_profile,
)
from flamma.errors import RunError

LOOK = 1.0
"""Seconds between two looks whether somebody new is there."""

GRACE = 10.0
"""Seconds that a message outlives the wait for its answer, so that it is late and not lost."""

QUICK = 0.2
"""Seconds between two looks for answers."""

ANSWER = 60.0
"""Seconds that a node has to say who it is."""

ATTEMPTS = 3
"""How often a node is asked who it is."""

CRASHED, AWAY = 8, (3, 4, 5)
"""Flower's codes of errors: the client's process died; the node or its answer is not there."""


class Letter(NamedTuple):
    """Something for a node."""

    node: int
    kind: str
    content: RecordDict


def exchange(grid: Grid, letters: Sequence[Letter], wait: float) -> dict[int, Message]:
    """Return what the nodes answer, by node, if they do so in time.

    What Flower answers in place of a node that is gone belongs to that node too; other than that
    an answer counts only if it comes from the node that was asked.
    """
    messages = [
        Message(letter.content, letter.node, letter.kind, ttl=wait + GRACE) for letter in letters
    ]
    answers: dict[int, Message] = {}
    if not messages:
        return answers
    numbers = list(grid.push_messages(messages))
    asked = {n: letter.node for n, letter in zip(numbers, letters, strict=False) if n}
    for reply in _replies(grid, set(asked), wait):
        node = asked.get(reply.metadata.reply_to_message_id)
        if node is not None and (reply.has_error() or reply.metadata.src_node_id == node):
            answers.setdefault(node, reply)
    return answers


def _replies(grid: Grid, waiting: set[str], wait: float) -> Iterator[Message]:
    """Yield replies as they come; ``Grid.send_and_receive`` looks every three seconds only."""
    begun = time.monotonic()
    while waiting:
        found = list(grid.pull_messages(waiting))
        yield from found
        waiting -= {reply.metadata.reply_to_message_id for reply in found}
        waited = time.monotonic() - begun
        if waited > wait:
            return
        if waiting:  # a look is work for the SuperLink: the longer it takes, the fewer
            time.sleep(min(max(QUICK, waited / 10), LOOK))


def why_failed(reply: Message) -> str:
    """Return in one line why Flower has an error instead of an answer."""
    code, reason = reply.error.code, reply.error.reason or ""
    if code == CRASHED or "ActorDied" in reason or "ActorUnavailable" in reason:
        return "the client's process died"
    if code in AWAY:
        return "the client is not there"
    lines = [line for line in reason.splitlines() if line.strip(" '>")]
    told = lines[-1].strip(" '>") if lines else ""
    for before in ("Message: ", ":<'"):  # Flower's own words
        told = told.rpartition(before)[2]
    return f"it raised: {one_line_of(told)}" if told else f"error {code}"


class Roster:
    """The clients by number, each at the node that it was first seen at.

    Parameters
    ----------
    grid : Grid
        Flower's way to the nodes.
    names : sequence of str
        The clients' names; a client's number is its place here.
    query : Order
        What everybody is asked first.
    wait : float
        Seconds that an answer may take.
    """

    def __init__(self, grid: Grid, names: Sequence[str], query: Order, wait: float) -> None:
        self.grid = grid
        self.names = tuple(names)
        self.query = query
        self.wait = wait
        self.profiles: dict[int, SiteProfile] = {}
        self.refused: dict[str, str] = {}
        self._nodes: dict[int, int] = {}
        self._present: set[int] = set()
        self._asked: Counter[int] = Counter()

    def node(self, client: int) -> int | None:
        """Return where a client is, None if it is not there."""
        node = self._nodes.get(client)
        return node if node in self._present else None

    def look(self) -> None:
        """See who is there, and ask whoever is new who it is."""
        registered = {info.node_id: info.name for info in self.grid.get_nodes()}
        self._present = set(registered)
        known = set(self._nodes.values())
        new = [n for n in sorted(registered) if n not in known and self._asked[n] < ATTEMPTS]
        self._asked.update(new)
        content = pack_order(self.query, None, None)
        letters = [Letter(node, MessageType.QUERY, content) for node in new]
        for node, reply in sorted(exchange(self.grid, letters, min(self.wait, ANSWER)).items()):
            try:
                if reply.has_error():
                    raise ClientError(why_failed(reply))
                self._admit(node, read_profile(reply.content), registered[node])
            except WireError as error:
                self.refused[registered[node] or f"node {node}"] = str(error)
                if not isinstance(error, ClientError):
                    self._asked[node] = ATTEMPTS

    def gather(self, needed: Iterable[int], limit: float) -> None:
        """Wait until these clients are there, or the time is over."""
        end = time.monotonic() + limit
        needed = set(needed)
        while True:
            self.look()
            if needed <= self.profiles.keys() or time.monotonic() > end:
                return
            time.sleep(LOOK)

    def missing(self) -> list[str]:
        """Return the names of those who have not been seen."""
        return [name for k, name in enumerate(self.names) if k not in self.profiles]

    def check_all(self) -> None:
        """Refuse to begin without somebody.

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
            raise WireError(f"nobody of the name {name!r} belongs to this run")
        if registered and registered != profile.name:
            raise WireError(f"it says that it is {name!r}, but its key is that of {registered!r}")
        client = self.names.index(profile.name)
        if client in self._nodes:
            raise WireError(f"the name {name!r} is taken by another node")
        self._nodes[client] = node
        self.profiles[client] = profile
        self.refused.pop(registered or f"node {node}", None)

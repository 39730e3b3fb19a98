"""Replies that Flower cannot put together do not end the run.

A reply arrives as many small objects, which Flower's grid puts together ("inflates"). If that
fails for one reply, the grid raises, and the replies of all other clients are lost with it. An
array may also name the same piece of 5 MiB any number of times, and so ask for any amount of
memory. Inside :func:`guarded`, such a reply becomes an error reply of its client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from flwr.app import Array, Message
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.superlink.grid import http_grid

from flamma.engines.flower.error_replies import error_reply
from flamma.engines.flower.messages import MessageError

SMALL_REPLY_BYTES = 2**20
"""Bytes of a reply without its weights."""


@contextmanager
def guarded(most_bytes: int) -> Iterator[None]:
    """Let the grid turn replies that are damaged or larger than this into error replies."""
    grid: Any = http_grid  # Flower has no setting for this, so the grid's function is replaced
    inflate = grid.inflate_object_from_contents
    grid.inflate_object_from_contents = partial(_inflate_reply, inflate, most_bytes)
    try:
        yield
    finally:
        grid.inflate_object_from_contents = inflate


def _inflate_reply(
    inflate: Callable[[str, dict[str, bytes]], object],
    most_bytes: int,
    number: str,
    contents: dict[str, bytes],
) -> Message:
    """Return the reply of this number, or an error reply if it cannot be put together."""
    head = contents.get(number, b"")
    try:
        size = max(sum(map(len, contents.values())), _array_bytes(contents))
        if size > most_bytes:
            raise MessageError(f"it takes {size} bytes, more than {most_bytes}")
        reply = inflate(number, contents)
        if not isinstance(reply, Message):
            raise MessageError("it is not a message")
        return reply
    except Exception as error:
        why = str(error) if isinstance(error, MessageError) else type(error).__name__
        try:
            sent = ProtoMessage.FromString(get_object_body(head, Message)).metadata
        except Exception:  # an error that does not say what it answers is ignored
            sent = ProtoMessage().metadata
        return error_reply(sent, f"a reply that cannot be read: {why}")


def _array_bytes(contents: dict[str, bytes]) -> int:
    """Return how many bytes the arrays take once they are put together."""
    total = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == "Array":
            pieces = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(contents[children[piece]]) for piece in pieces)
    return total

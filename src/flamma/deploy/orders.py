"""What the proxy knows of orders: whose each one is, and how large an answer to it may be.

The SuperLink hands an order out once. If the connection to the site breaks just then, the site does
not get it, asks for a message again, and the run would wait for its answer until ``engine.wait``.
So the proxy hands such an order out once more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

_ANSWER_RATIO = 4
"""An answer may have this many times the bytes of its order, which are mostly the model's."""
_SPARE_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes that an answer may have besides."""
_MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Bytes of an answer to an order that the proxy does not know, as after it was restarted."""
_MAX_ORDERS = 10_000
"""How many orders are remembered; the oldest are forgotten first."""


@dataclass
class _SentOrder:
    """An order that a site was sent.

    Attributes
    ----------
    site : str
        Whose it is.
    left : set of str
        Its objects that the site has not fetched yet.
    size : int
        Bytes of those that it has fetched.
    """

    site: str
    left: set[str] = field(default_factory=set)
    size: int = 0


class SentOrders:
    """The orders that went through the proxy.

    Parameters
    ----------
    most_bytes : int
        The most bytes of an answer, if the operator says so; 0 to go by the order's size.
    """

    def __init__(self, most_bytes: int = 0) -> None:
        self.most_bytes = most_bytes
        self._orders: OrderedDict[str, _SentOrder] = OrderedDict()
        self._last: dict[str, tuple[str, bytes]] = {}

    def sent(self, site: str, content: bytes) -> None:
        """Remember the messages of an answer to a request for messages."""
        from flwr.proto.fleet_pb2 import PullMessagesResponse
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from google.protobuf.message import DecodeError

        try:
            answer = PullMessagesResponse.FromString(content)
        except DecodeError:  # let the SuperNode report what it cannot read
            return
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=False):
            objects = {part.object_id for part in iterate_object_tree(tree)}
            self._orders[message.metadata.message_id] = _SentOrder(site, objects)
            self._last[site] = message.metadata.message_id, content
        while len(self._orders) > _MAX_ORDERS:
            self._orders.popitem(last=False)

    def not_fetched(self, site: str) -> bytes | None:
        """Return, once, the last answer with an order if the site has fetched nothing of it.

        A SuperNode that asks for a message has fetched, and answered, the one before.
        """
        number, content = self._last.pop(site, ("", b""))
        return content if number in self._orders and number in self._orders[number].left else None

    def forget_last(self, site: str) -> None:
        """Hand nothing out once more to a site, which is gone or has another key."""
        self._last.pop(site, None)

    def fetched(self, site: str, number: str, content: bytes) -> None:
        """Count an object that a site has fetched, from the answer to its request."""
        from flwr.proto.message_pb2 import PullObjectResponse

        for order in reversed(self._orders.values()):
            if order.site == site and number in order.left:
                if size := len(PullObjectResponse.FromString(content).object_content):
                    order.left.discard(number)
                    order.size += size
                return

    def belongs_to_other_site(self, site: str, message: str) -> bool:
        """Return whether an order is known to be that of another site."""
        return message in self._orders and self._orders[message].site != site

    def limit(self, message: str) -> int:
        """Return how many bytes an answer to an order may have."""
        if self.most_bytes:
            return self.most_bytes
        if message not in self._orders:
            return _MAX_ANSWER_BYTES
        return _ANSWER_RATIO * self._orders[message].size + _SPARE_ANSWER_BYTES

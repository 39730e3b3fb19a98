"""Error replies in place of replies that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import Message, Metadata
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.inflatable.inflatable_object import get_object_tree

if TYPE_CHECKING:
    from flwr.proto.fleet_pb2 import PushMessagesRequest

REPLY_REFUSED = 1001
"""The code of these errors: no client has reported them. Flower's own codes are below 100."""


def error_reply(sent: ProtoMetadata, reason: str) -> Message:
    """Return an error that answers what a reply with this metadata would have answered."""
    metadata = Metadata(
        run_id=sent.run_id,
        message_id="",
        src_node_id=sent.src_node_id,
        dst_node_id=sent.dst_node_id,
        message_type=SYSTEM_MESSAGE_TYPE,
        group_id="",
        ttl=sent.ttl,
        reply_to_message_id=sent.reply_to_message_id,
        created_at=sent.created_at,
    )
    return make_message(metadata, error=Error(code=REPLY_REFUSED, reason=reason))


def error_in_place(request: PushMessagesRequest, reason: str) -> tuple[PushMessagesRequest, bytes]:
    """Return the announcement of an error in place of an answer, and its only object."""
    reply = error_reply(request.messages_list[0].metadata, reason)
    reply.metadata.__dict__["_message_id"] = reply.object_id  # as Flower itself does
    announced = type(request)(
        node=request.node,
        messages_list=[message_to_proto(reply)],
        message_object_trees=[get_object_tree(reply)],
    )
    return announced, reply.deflate()

"""Error replies in place of replies that cannot be used."""

from __future__ import annotations

from flwr.app import Message, Metadata
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE


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
    error = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
    return make_message(metadata, error=error)

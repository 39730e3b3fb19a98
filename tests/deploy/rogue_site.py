"""A site that signs its requests as a SuperNode does, trains honestly, and uploads as it likes.

It stands in for the processes of a site that was stopped with ``flamma deploy stop``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from functools import partial

import httpx
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import heartbeat_pb2 as heartbeat
from flwr.proto import message_pb2 as messages
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from deploy.signing import load_key, public_bytes, signed
from flamma.deploy.hosts import read_server
from flamma.engines.flower import client_app, codec
from flamma.engines.flower.payload import TERMS_RECORD

FLEET = "/v1/fleet/"


@dataclass
class RogueSite:
    """A site of a deployment; ``upload`` sends its answers with weights.

    Attributes
    ----------
    statuses : list of int
        What the proxy answered to the parts of those answers.
    sent : int
        Bytes of them.
    """

    folder: object
    name: str
    upload: object
    sent: int = 0
    statuses: list[int] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self):
        self.server = read_server(self.folder)
        self.place = self.folder / "sites" / self.name
        self.key = load_key(self.place / "site.key")
        self.number = json.loads((self.server.state / "nodes.json").read_text())[self.name]
        self.node = Node(node_id=self.number)
        self.trusted = ssl.create_default_context(cafile=str(self.server.authority))
        self.address = f"https://127.0.0.1:{self.server.port}"
        limits = httpx.Limits(keepalive_expiry=20)  # the proxy closes idle connections, too
        self.client = httpx.Client(verify=self.trusted, trust_env=False, timeout=90, limits=limits)
        self.over = threading.Event()

    def post(self, name, message, kind=None):
        content = message if isinstance(message, bytes) else message.SerializeToString()
        address = self.address + FLEET + name
        reply = self.client.post(address, content=content, headers=self.signed())
        return reply if kind is None else kind.FromString(reply.raise_for_status().content)

    def signed(self):
        return {"content-type": "application/protobuf", **signed(self.key)}

    @contextlib.contextmanager
    def taking_part(self):
        leaving = fleet.DeactivateNodeRequest(node_id=self.number)
        self.post("deactivate-node", leaving)  # it may be thought to be there still
        asked = fleet.ActivateNodeRequest(public_key=public_bytes(self.key), heartbeat_interval=30)
        self.post("activate-node", asked, fleet.ActivateNodeResponse)
        work = (self.beat, self.work)
        threads = [threading.Thread(target=partial(self.guarded, do)) for do in work]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.over.set()
            for thread in threads:
                thread.join(120)
            self.post("deactivate-node", leaving)

    def guarded(self, do):
        while not self.over.is_set():
            try:
                do()
            except Exception as error:  # one that ends no thread, and fails the test at its end
                self.errors.append(error)
                time.sleep(1)

    def beat(self):
        sign = heartbeat.SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=30)
        with httpx.Client(verify=self.trusted, trust_env=False, timeout=90) as client:
            address = f"{self.address}{FLEET}send-node-heartbeat"
            client.post(address, content=sign.SerializeToString(), headers=self.signed())
        self.over.wait(5)

    def work(self):
        """Take one message, and answer it."""
        found = self.post(
            "pull-messages", fleet.PullMessagesRequest(node=self.node), fleet.PullMessagesResponse
        )
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            self.answer(self.message(head.metadata, tree))

    def message(self, metadata, tree):
        contents = {}
        for part in iterate_object_tree(tree):
            asked = messages.PullObjectRequest(
                node=self.node, run_id=metadata.run_id, object_id=part.object_id
            )
            contents[part.object_id] = self.pulled(asked)
        self.post(
            "confirm-message-received",
            messages.ConfirmMessageReceivedRequest(
                node=self.node, run_id=metadata.run_id, message_object_id=metadata.message_id
            ),
        )
        message = inflate_object_from_contents(metadata.message_id, contents)
        message.metadata.__dict__["_message_id"] = metadata.message_id
        return message

    def pulled(self, asked):
        found = self.post("pull-object", asked, messages.PullObjectResponse)
        while found.object_found and not found.object_available:  # the server app is uploading it
            time.sleep(0.2)
            found = self.post("pull-object", asked, messages.PullObjectResponse)
        return found.object_content

    def answer(self, message):
        where = {"site": str(self.place / "site.toml")}
        context = Context(message.metadata.run_id, self.number, where, RecordDict(), {})
        content = client_app.answer(message.content, context)
        upload = self.upload if codec._WEIGHTS_RECORD in content else Upload.whole
        upload(Upload(self, message, content))


class Upload:
    """One answer: what is announced, and its parts."""

    def __init__(self, site, message, content):
        self.site, self.order, self.content = site, message, content

    @property
    def number(self):
        """The round, 0 for the warm-up."""
        return self.order.content[TERMS_RECORD]["round"]

    def announce(self):
        reply = Message(self.content, reply_to=self.order)
        reply.metadata.__dict__["_src_node_id"] = self.site.number
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.parts = get_all_nested_objects(reply)
        announced = message_to_proto(reply)
        announced.content.Clear()  # it comes in parts
        announced.content.SetInParent()
        request = fleet.PushMessagesRequest(
            node=self.site.node,
            messages_list=[announced],
            message_object_trees=[get_object_tree(reply)],
        )
        told = self.site.post("push-messages", request, fleet.PushMessagesResponse)
        self.session = told.session_id

    def part(self, number):
        return messages.PushObjectRequest(
            node=self.site.node,
            run_id=self.order.metadata.run_id,
            session_id=self.session,
            object_id=number,
            object_content=self.parts[number].deflate(),
        ).SerializeToString()

    def stall(self, number):
        """Send half of the bytes of a part, and nothing more."""
        content = self.part(number)
        lines = [f"POST {FLEET}push-object HTTP/1.1", "host: x", f"content-length: {len(content)}"]
        lines += [f"{key}: {value}" for key, value in self.site.signed().items()]
        plain = socket.create_connection(("127.0.0.1", self.site.server.port), 10)
        with self.site.trusted.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            connection.sendall(content[: len(content) // 2])
            connection.settimeout(300)
            self.site.statuses.append(int(connection.recv(100).split()[1]))

    def push(self, number):
        content = self.part(number)
        try:
            self.site.statuses.append(self.site.post("push-object", content).status_code)
        except httpx.TransportError:
            self.site.statuses.append(0)
        self.site.sent += len(content)

    def whole(self):
        self.announce()
        for number in self.parts:
            self.push(number)

    def fill(self, size):
        """Let the weights be so many random bytes."""
        kind = self.content[codec._WEIGHTS_RECORD]["params"].stype
        array = Array("float32", (size // 4,), kind, os.urandom(size))
        self.content[codec._WEIGHTS_RECORD] = ArrayRecord({"params": array})

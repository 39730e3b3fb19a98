"""A Grid without a network: every message goes to a real ClientApp in this process.

All that travels is packed, turned into Flower's own bytes, and read again, as it would be over a
network; only the network and the processes are left out.
"""

from __future__ import annotations

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from flamma.engines.flower import client_app
from flamma.strategies import STRATEGIES

SERVER = 1

OVER_MESSAGES = [
    name
    for name, strategy in ((name, STRATEGIES[name]) for name in STRATEGIES)
    if not strategy.needs.pooled_data and not strategy.needs.clock
]
"""The strategies whose clients may be behind a network."""


def identify():
    """Messages can only be made by a task, of which there is none in a test."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SERVER


class LoopGrid(Grid):
    """Nodes by their number, each with its configuration; all may be changed between rounds.

    ``interfere(node, content)`` may change what a node answers, return None for no answer, or raise
    for a client that does. ``names`` are those that keys were registered under.
    """

    def __init__(self, nodes, answer=client_app.app, interfere=None, names=None):
        identify()
        self.nodes = {
            node: Context(1, node, config, RecordDict(), {}) for node, config in nodes.items()
        }
        self.away = set()
        self.answer = answer
        self.interfere = interfere or (lambda node, content: content)
        self.names = names or {}
        self.sent = []
        self.replies = []

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            node = message.metadata.dst_node_id
            number = f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent.append((node, message.metadata.message_type))
            numbers.append(number)
            if node not in self.away:
                self._answer(node, message)
        return numbers

    def pull_messages(self, message_ids):
        wanted = set(message_ids)
        found = [r for r in self.replies if r.metadata.reply_to_message_id in wanted]
        self.replies = [r for r in self.replies if r not in found]
        return found[::-1]  # in an order that means nothing

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, node, message):
        try:
            reply = self.answer(message=travel(message), context=self.nodes[node])
            changed = self.interfere(node, reply.content)
            if changed is None:
                return
            reply = Message(changed, reply_to=message)
        except Exception as error:
            reason = f"<class 'ClientAppException'>:<'{error}'>"
            reply = Message(Error(code=2, reason=reason), reply_to=message)
        self.replies.append(travel(reply))

    def get_node_ids(self):
        return [node for node in self.nodes if node not in self.away]

    def get_nodes(self):
        return [NodeInfo(node_id=n, name=self.names.get(n, "")) for n in self.get_node_ids()]


def travel(message: Message) -> Message:
    """Return a message as it arrives."""
    return message_from_proto(message_to_proto(message))


def partitions(count: int, first: int = 100) -> dict:
    """Nodes of a simulation, in an order that has nothing to do with the clients'."""
    return {
        first + (7 * k) % 101: {"partition-id": k, "num-partitions": count} for k in range(count)
    }

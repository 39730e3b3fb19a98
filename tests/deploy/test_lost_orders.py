"""Orders that the SuperLink has marked as delivered and no site has: in Flower's own database."""

from __future__ import annotations

import asyncio
import sqlite3
import time

import httpx
import pytest
from flwr.app import Message, Metadata, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.servicer.fleet.fleet_handlers import (
    confirm_message_received,
    pull_messages,
)

from flamma.deploy.http_messages import RequestError
from flamma.deploy.lost_orders import LostOrders, give_back

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")


class SuperLink:
    """Flower's state and its handlers of requests, on a database of its own."""

    def __init__(self, database):
        self.database = database
        factory = ObjectStoreFactory(str(database))
        self.store = factory.store()
        self.state = LinkStateFactory(str(database), NoOpFederationManager(), factory).state()
        self.run = self.state.create_run(
            *("app", "1", "hash", {}, NOOP_FEDERATION_ID, None, "owner", TaskType.SERVER_APP)
        )
        self.dies_after_the_next = False
        self.join(b"")

    def join(self, key):
        """Let a new node come, of which the orders and questions are from now on."""
        self.node = self.state.create_node("owner", "owner", key, 60.0)
        self.state.activate_node(self.node, 60.0)

    @property
    def body(self):
        return fleet.PullMessagesRequest(node=Node(node_id=self.node)).SerializeToString()

    def order(self):
        """Put an order for the node there, and return its number."""
        about = Metadata(
            self.run, "", SUPERLINK_NODE_ID, self.node, "", "", time.time(), 60.0, "train"
        )
        message = Message(metadata=about, content=RecordDict())
        message.metadata.__dict__["_message_id"] = message.object_id
        self.store.preregister(self.run, get_object_tree(message))
        assert self.state.store_message_ins(message) == message.object_id
        return message.object_id

    async def answer(self, site, body, headers):
        reply = pull_messages(
            fleet.PullMessagesRequest.FromString(body), self.state, self.store
        ).SerializeToString()
        if self.dies_after_the_next:
            self.dies_after_the_next = False
            raise RequestError(503)
        return httpx.Response(200, content=reply)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    return SuperLink(tmp_path_factory.mktemp("superlink") / "link.db")


@pytest.fixture
def superlink(running, request):
    running.join(request.node.name.encode())
    return running


def pulled(orders, superlink):
    reply = asyncio.run(orders.ask("site0", superlink.body, ()))
    return [
        message.metadata.message_id
        for message in fleet.PullMessagesResponse.FromString(reply.content).messages_list
    ]


def test_an_order_that_a_killed_proxy_had_taken_is_handed_out_again(superlink):
    number = superlink.order()
    assert pulled(LostOrders(superlink.answer), superlink) == [number]
    after = LostOrders(superlink.answer, superlink.database)  # of the proxy's next process
    assert pulled(after, superlink) == [number]
    assert pulled(after, superlink) == []


def test_a_proxy_that_has_lost_nothing_leaves_orders_alone(superlink):
    orders = LostOrders(superlink.answer, superlink.database)
    assert pulled(orders, superlink) == []
    number = superlink.order()
    assert pulled(orders, superlink) == [number]
    assert pulled(orders, superlink) == []


def test_an_order_that_died_with_the_superlink_is_handed_out_again(superlink):
    orders = LostOrders(superlink.answer, superlink.database)
    assert pulled(orders, superlink) == []
    number = superlink.order()
    superlink.dies_after_the_next = True
    with pytest.raises(RequestError):
        pulled(orders, superlink)
    assert pulled(orders, superlink) == [number]


def test_an_order_that_the_site_has_confirmed_is_not_handed_out_again(superlink, monkeypatch):
    number = superlink.order()
    assert pulled(LostOrders(superlink.answer), superlink) == [number]
    monkeypatch.setattr("flwr.superlink.servicer.fleet.fleet_handlers.check_abort", lambda *_: None)
    told = ConfirmMessageReceivedRequest(
        node=Node(node_id=superlink.node), run_id=superlink.run, message_object_id=number
    )
    confirm_message_received(told, superlink.state, superlink.store)
    assert give_back(superlink.database, superlink.node) == 0
    assert pulled(LostOrders(superlink.answer, superlink.database), superlink) == []


def test_another_node_s_orders_are_left_alone(superlink):
    superlink.order()
    pulled(LostOrders(superlink.answer), superlink)
    assert give_back(superlink.database, superlink.node ^ 1) == 0
    assert give_back(superlink.database, superlink.node) == 1


def test_a_database_that_cannot_be_written_holds_nobody_up(superlink, tmp_path, capsys):
    orders = LostOrders(superlink.answer, tmp_path / "missing.db")
    assert pulled(orders, superlink) == []
    assert "site0: unable to open database file" in capsys.readouterr().err
    assert not (tmp_path / "missing.db").exists()
    with pytest.raises(sqlite3.OperationalError):
        give_back(tmp_path / "missing.db", 1)

"""Answers at the proxy: passed on when they are whole, refused when they are not or too large."""

from __future__ import annotations

import asyncio
import hashlib
import time

import httpx
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import message_pb2 as messages
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from deploy.signing import make_keys, signed
from flamma.deploy import answers as module
from flamma.deploy import http_messages
from flamma.deploy import orders as orders_module
from flamma.deploy.admission import Connections
from flamma.deploy.answers import PUSH_MESSAGES, PUSH_OBJECT
from flamma.deploy.orders import SentOrders
from flamma.deploy.proxy import _CONFIRM, _FLEET, _PULL_MESSAGES, _PULL_OBJECT, Proxy
from flamma.engines.flower.messages import MessageError
from flamma.engines.flower.payload import read_reply

NODE, OTHER = 7, 8
ORDER = "a" * 64


class SuperLink:
    """Stands for the SuperLink: keeps what it is sent, and asks for all objects of an answer."""

    def __init__(self, fails=0, status=200):
        self.fails, self.status = fails, status
        self.announced, self.objects, self.asked = [], {}, []

    def __call__(self, request):
        self.asked.append(request.url.path)
        assert int(request.headers["content-length"]) == len(request.content)
        if self.fails:
            self.fails -= 1
            raise httpx.ConnectError("being started")
        if request.url.path == PUSH_MESSAGES:
            found = fleet.PushMessagesRequest.FromString(request.content)
            self.announced.append(found)
            wanted = sorted(objects_in(found.message_object_trees[0]))
            reply = fleet.PushMessagesResponse(objects_to_push=wanted, session_id="real")
        elif request.url.path == PUSH_OBJECT:
            piece = messages.PushObjectRequest.FromString(request.content)
            assert piece.session_id == "real"
            self.objects[piece.object_id] = piece.object_content
            reply = messages.PushObjectResponse(stored=True)
        elif request.url.path == _PULL_MESSAGES:
            order = messages.Message(metadata=messages.Metadata(message_id=ORDER))
            tree = messages.ObjectTree(object_id=ORDER)
            reply = fleet.PullMessagesResponse(messages_list=[order], message_object_trees=[tree])
        else:
            reply = messages.PullObjectResponse(
                object_found=True, object_available=True, object_content=b"x" * 1000
            )
        return httpx.Response(self.status, content=reply.SerializeToString())


def objects_in(tree):
    found = {tree.object_id}
    for child in tree.children:
        found |= objects_in(child)
    return found


def make_answer(size=100, node=NODE, claims=NODE):
    """Return an announcement of an answer to the order, and the objects of the answer."""
    metadata = Metadata(1, "", claims, 1, ORDER, "", time.time(), 100.0, "train")
    reply = make_message(metadata, content=RecordDict({"c": ConfigRecord({"w": "x" * size})}))
    reply.metadata.__dict__["_message_id"] = reply.object_id
    request = fleet.PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=[message_to_proto(reply)],
        message_object_trees=[get_object_tree(reply)],
    )
    return request, {k: v.deflate() for k, v in get_all_nested_objects(reply).items()}


class Site:
    """A site's requests to a proxy in front of a SuperLink."""

    def __init__(self, private, proxy):
        self.private, self.proxy = private, proxy

    async def send(self, path, message):
        return await self.post(path, message.SerializeToString())

    async def post(self, path, content):
        outer = httpx.ASGITransport(self.proxy)
        async with httpx.AsyncClient(transport=outer, base_url="https://proxy") as client:
            return await client.post(path, content=content, headers=signed(self.private))

    async def announce(self, request):
        reply = await self.send(PUSH_MESSAGES, request)
        assert reply.status_code == 200
        return fleet.PushMessagesResponse.FromString(reply.content)

    async def push(self, session, number, content):
        return await self.send(
            PUSH_OBJECT,
            messages.PushObjectRequest(
                node=Node(node_id=NODE),
                run_id=1,
                session_id=session,
                object_id=number,
                object_content=content,
            ),
        )


def stored(reply):
    return messages.PushObjectResponse.FromString(reply.content).stored


@pytest.fixture
def play(tmp_path):
    """Run what a site does against a proxy; returns what that returns."""

    def playing(link, does, answer_bytes=0):
        async def whole():
            transport = httpx.MockTransport(link)
            async with httpx.AsyncClient(transport=transport, base_url="https://link") as inner:
                private, keys = make_keys(tmp_path / "keys")
                proxy = Proxy(inner, keys, Connections(), tmp_path / "answers", answer_bytes)
                return await does(Site(private, proxy))

        return asyncio.run(whole())

    return playing


def test_an_answer_is_passed_on_once_its_last_object_has_come(play, tmp_path):
    link = SuperLink()
    request, objects = make_answer()

    async def upload(site):
        told = await site.announce(request)
        assert sorted(told.objects_to_push) == sorted(objects)
        for number, content in objects.items():
            assert link.asked == []
            assert stored(await site.push(told.session_id, number, content))
        # The reply to the last one may be lost: the SuperNode sends it again.
        assert stored(await site.push(told.session_id, number, content))

    play(link, upload)
    assert link.announced == [request]
    assert link.objects == objects
    assert [path for path in (tmp_path / "answers").rglob("*") if path.is_file()] == []


def test_a_superlink_that_is_restarted_gets_the_answer_later(play):
    link = SuperLink(fails=1)
    request, objects = make_answer()

    async def upload(site):
        told = await site.announce(request)
        replies = [await site.push(told.session_id, *item) for item in objects.items()]
        assert replies[-1].status_code == 503
        assert stored(await site.push(told.session_id, *list(objects.items())[-1]))

    play(link, upload)
    assert link.objects == objects


def test_a_whole_answer_is_passed_on_when_the_superlink_is_back(play, monkeypatch):
    monkeypatch.setattr(module, "_UPLOAD_IDLE_SECONDS", 0.0)
    link = SuperLink(fails=2)
    request, objects = make_answer()

    async def upload(site):
        told = await site.announce(request)
        for item in objects.items():
            await site.push(told.session_id, *item)
        for _ in range(3):  # the site does not try again meanwhile
            await site.proxy.answers.expire()
        assert stored(await site.push(told.session_id, *item))

    play(link, upload)
    assert link.announced == [request]
    assert link.objects == objects


def test_a_refusal_of_the_superlink_reaches_the_site(play):
    link = SuperLink(status=403)  # the run is over
    request, objects = make_answer()

    async def upload(site):
        told = await site.announce(request)
        return [(await site.push(told.session_id, *item)).status_code for item in objects.items()]

    assert play(link, upload)[-1] == 403


def the_error(link):
    [announced] = link.announced
    [message] = announced.messages_list
    assert message.metadata.reply_to_message_id == ORDER
    assert message.metadata.src_node_id == announced.node.node_id == NODE
    assert list(link.objects) == [message.metadata.message_id]
    assert announced.message_object_trees[0].object_id == message.metadata.message_id
    [content] = link.objects.values()
    assert hashlib.sha256(content).hexdigest() == message.metadata.message_id
    with pytest.raises(MessageError) as raised:
        read_reply(message_from_proto(message), lambda content: content)
    assert raised.value.reason == f"refused: {message.error.reason}", "the client did not raise"
    return message.error.reason


def test_an_answer_that_is_too_large_becomes_an_error(play):
    link = SuperLink()
    request, objects = make_answer(size=5000)

    async def upload(site):
        told = await site.announce(request)
        return [(await site.push(told.session_id, *item)).status_code for item in objects.items()]

    assert 413 in play(link, upload, answer_bytes=2000)
    assert the_error(link) == "its answer has more than 2000 bytes"


async def begin_answer(site):
    """Announce an answer and push the first of its objects; return its session and objects."""
    request, objects = make_answer()
    told = await site.announce(request)
    pieces = list(objects.items())
    assert stored(await site.push(told.session_id, *pieces[0]))
    return told.session_id, pieces


def test_an_answer_that_stops_half_way_becomes_an_error(play, monkeypatch):
    monkeypatch.setattr(module, "_UPLOAD_IDLE_SECONDS", 3600.0)
    link = SuperLink()

    async def upload(site):
        session, objects = await begin_answer(site)
        await site.proxy.answers.expire()
        assert link.asked == []
        monkeypatch.setattr(module, "_UPLOAD_IDLE_SECONDS", 0.0)
        async with site.proxy.answers.receiving("site0", PUSH_OBJECT):  # an object is on its way
            await site.proxy.answers.expire()
        assert link.asked == []
        await asyncio.sleep(0.01)
        await site.proxy.answers.expire()
        late = await site.push(session, *objects[-1])
        assert late.status_code == 413, "it is not one that the proxy has lost"
        return len(objects[0][1])

    pushed = play(link, upload)
    assert the_error(link) == f"its answer stopped after {pushed} bytes"


async def stalling(content):
    yield content
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("path", "part", "status", "reason"),
    [
        (PUSH_OBJECT, stalling(b"x"), 408, "its answer stopped after {} bytes"),
        (PUSH_OBJECT, bytes(5000), 413, "a part of its answer, after {} bytes, is too large"),
        (_FLEET + "get-run", stalling(b"x"), 408, ""),
    ],
)
def test_a_part_that_stalls_or_is_too_large_ends_its_answer(
    play, monkeypatch, path, part, status, reason
):
    monkeypatch.setattr(http_messages, "_BODY_IDLE_SECONDS", 0.05)
    monkeypatch.setattr(http_messages, "_MAX_REQUEST_BYTES", 4096)
    link = SuperLink()

    async def upload(site):
        _, objects = await begin_answer(site)
        return (await site.post(path, part)).status_code, len(objects[0][1])

    answered, pushed = play(link, upload)
    assert answered == status
    assert (the_error(link) if link.announced else "") == reason.format(pushed)


def test_a_site_cannot_answer_for_another(play):
    link = SuperLink()

    async def forge(site):
        first = await site.send(PUSH_MESSAGES, make_answer(claims=OTHER)[0])
        site.proxy.orders._orders[ORDER] = orders_module._SentOrder("site1")
        second = await site.send(PUSH_MESSAGES, make_answer()[0])
        order = messages.ConfirmMessageReceivedRequest(message_object_id=ORDER)
        third = await site.send(_CONFIRM, order)
        return [reply.status_code for reply in (first, second, third)]

    assert play(link, forge) == [403, 403, 403]
    assert link.asked == []


def broken(request, change):
    found = type(request)()
    found.CopyFrom(request)
    change(found)
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda request: request.ClearField("messages_list"),
        lambda request: request.messages_list.add(),
        lambda request: request.ClearField("message_object_trees"),
        lambda request: request.message_object_trees[0].children.add(object_id="../../x"),
        lambda request: setattr(request.message_object_trees[0], "object_id", "b" * 64),
    ],
)
def test_announcements_that_make_no_sense_are_refused(play, change):
    link = SuperLink()
    request = broken(make_answer()[0], change)
    assert play(link, lambda site: site.send(PUSH_MESSAGES, request)).status_code == 400
    assert link.asked == []


def test_objects_that_do_not_belong_to_the_answer_are_not_kept(play, tmp_path):
    link = SuperLink()
    request, objects = make_answer()
    number = next(iter(objects))

    async def upload(site):
        assert not stored(await site.push("nobody's", number, objects[number]))
        told = await site.announce(request)
        assert not stored(await site.push(told.session_id, "c" * 64, b"other"))
        damaged = await site.push(told.session_id, number, objects[number] + b"x")
        assert damaged.status_code == 400

    play(link, upload)
    assert [path for path in (tmp_path / "answers").rglob("*") if path.is_file()] == []


def test_an_answer_may_be_as_large_as_its_order_allows(play, monkeypatch):
    monkeypatch.setattr(orders_module, "_SPARE_ANSWER_BYTES", 10)

    async def order(site):
        await site.send(_PULL_MESSAGES, fleet.PullMessagesRequest(node=Node(node_id=NODE)))
        for _ in range(2):  # fetched twice, counted once
            await site.send(_PULL_OBJECT, messages.PullObjectRequest(object_id=ORDER))
        return site.proxy.orders.limit(ORDER), site.proxy.orders.limit("unknown")

    assert play(SuperLink(), order) == (4 * 1000 + 10, orders_module._MAX_ANSWER_BYTES)


def test_an_order_that_did_not_reach_its_site_is_handed_out_once_more(play):
    link = SuperLink()

    async def ask(site):
        ask = fleet.PullMessagesRequest(node=Node(node_id=NODE))
        replies = [(await site.send(_PULL_MESSAGES, ask)).content for _ in range(3)]
        asked = link.asked.count(_PULL_MESSAGES)
        await site.send(_PULL_OBJECT, messages.PullObjectRequest(object_id=ORDER))
        await site.send(_PULL_MESSAGES, ask)
        return replies, asked, link.asked.count(_PULL_MESSAGES)

    replies, asked, in_all = play(link, ask)
    assert replies[0] == replies[1], "nothing of it was fetched"
    assert asked == 2, "only once more"
    assert in_all == 3, "one that was fetched is not handed out again"


def test_a_site_with_another_key_gets_no_order_of_the_one_before():
    found = SentOrders()
    order = messages.Message(metadata=messages.Metadata(message_id=ORDER))
    tree = messages.ObjectTree(object_id=ORDER)
    content = fleet.PullMessagesResponse(messages_list=[order], message_object_trees=[tree])
    found.sent("site0", content.SerializeToString())
    found.forget_last("site0")
    assert found.not_fetched("site0") is None


def test_the_oldest_orders_are_forgotten(monkeypatch):
    monkeypatch.setattr(orders_module, "_MAX_ORDERS", 2)
    found = SentOrders()
    for number in ("1", "2", "3"):
        order = messages.Message(metadata=messages.Metadata(message_id=number))
        content = fleet.PullMessagesResponse(
            messages_list=[order], message_object_trees=[messages.ObjectTree()]
        )
        found.sent("site0", content.SerializeToString())
    assert [found.belongs_to_other_site("site1", number) for number in ("1", "2", "3")] == [
        False,
        True,
        True,
    ]

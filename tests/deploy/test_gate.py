"""The gate by itself: what it lets through, what it holds, and what it gives up."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import message_pb2 as messages

from flamma.deploy import gate as module
from flamma.deploy.gate import LARGEST, PULL, Gate

NOTHING = fleet.PullMessagesResponse().SerializeToString()
SOMETHING = fleet.PullMessagesResponse(messages_list=[messages.Message()]).SerializeToString()


class Upstream:
    """Stands for the SuperLink: has a message from the nth question on."""

    def __init__(self, after=0, status=200, fails=False):
        self.after, self.status, self.fails = after, status, fails
        self.asked = []

    def __call__(self, request):
        self.asked.append(request)
        if self.fails:
            raise httpx.ConnectError("being started")
        content = SOMETHING if len(self.asked) > self.after else NOTHING
        return httpx.Response(self.status, content=content, headers={"x-kept": "yes"})


def ask(upstream, path, content=b"question", method="POST", timeout=5.0):
    async def asking():
        transport = httpx.MockTransport(upstream)
        async with httpx.AsyncClient(transport=transport, base_url="https://superlink") as inner:
            outer = httpx.ASGITransport(Gate(inner))
            async with httpx.AsyncClient(transport=outer, base_url="https://gate") as client:
                return await client.request(method, path, content=content, timeout=timeout)

    return asyncio.run(asking())


def test_a_site_s_request_goes_through_and_its_answer_comes_back():
    upstream = Upstream()
    reply = ask(upstream, "/v1/fleet/push-object")
    assert (reply.status_code, reply.content) == (200, SOMETHING)
    assert reply.headers["x-kept"] == "yes"
    [request] = upstream.asked
    assert request.url == "https://superlink/v1/fleet/push-object"
    assert request.content == b"question"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/fleet/register-node"),
        ("POST", "/v1/fleet/unregister-node"),
        ("POST", "/v1/fleet/"),
        ("POST", "/v1/fleet/pull-messages/"),
        ("POST", "/v1//control/start-run"),
        ("GET", "/v1/fleet/pull-messages"),
        ("GET", "/openapi.json"),
    ],
)
def test_nothing_else_goes_through(method, path):
    upstream = Upstream()
    assert ask(upstream, path, method=method).status_code == 404
    assert upstream.asked == []


def test_what_is_too_large_is_not_passed_on():
    upstream = Upstream()
    assert ask(upstream, "/v1/fleet/push-object", bytes(LARGEST + 1)).status_code == 413
    assert upstream.asked == []


def test_a_superlink_that_is_being_started_is_a_reason_to_try_again():
    assert ask(Upstream(fails=True), "/v1/fleet/push-object").status_code == 503


def test_a_question_for_a_message_is_held_until_there_is_one(monkeypatch):
    monkeypatch.setattr(module, "SLOW", 0.05)
    monkeypatch.setattr(module, "QUICK", 0.01)
    upstream = Upstream(after=3)
    reply = ask(upstream, PULL)
    assert reply.content == SOMETHING
    assert len(upstream.asked) == 4
    assert {request.content for request in upstream.asked} == {b"question"}


def test_after_a_while_the_answer_is_that_there_is_none(monkeypatch):
    monkeypatch.setattr(module, "SLOW", 0.05)
    monkeypatch.setattr(module, "QUICK", 0.01)
    monkeypatch.setattr(module, "HOLD", 0.3)
    began = time.monotonic()
    assert ask(Upstream(after=1000), PULL).content == NOTHING
    assert 0.2 < time.monotonic() - began < 2


def test_a_refusal_is_not_held():
    upstream = Upstream(after=1000, status=401)
    assert ask(upstream, PULL).status_code == 401
    assert len(upstream.asked) == 1


def test_nothing_is_asked_for_one_who_has_hung_up(monkeypatch):
    """A message that is fetched for nobody would be lost."""
    monkeypatch.setattr(module, "QUICK", 0.1)
    upstream = Upstream(after=1)

    async def hanging_up():
        transport = httpx.MockTransport(upstream)
        async with httpx.AsyncClient(transport=transport, base_url="https://superlink") as inner:
            events = [{"type": "http.request", "body": b""}, {"type": "http.disconnect"}]
            sent = []

            async def receive():
                return events.pop(0)

            async def send(event):
                sent.append(event)

            scope = {"type": "http", "method": "POST", "path": PULL, "headers": []}
            await Gate(inner)(scope, receive, send)
            return sent

    assert asyncio.run(hanging_up()) == []
    assert len(upstream.asked) == 1

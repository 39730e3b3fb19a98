"""The proxy by itself: what it passes on, what it keeps open, and what it gives up."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import message_pb2 as messages

from flamma.deploy import proxy as module
from flamma.deploy.proxy import MAX_REQUEST_BYTES, PULL_MESSAGES, Proxy

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
            outer = httpx.ASGITransport(Proxy(inner))
            async with httpx.AsyncClient(transport=outer, base_url="https://proxy") as client:
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
def test_no_other_request_goes_through(method, path):
    upstream = Upstream()
    assert ask(upstream, path, method=method).status_code == 404
    assert upstream.asked == []


def test_what_is_too_large_is_not_passed_on():
    upstream = Upstream()
    assert ask(upstream, "/v1/fleet/push-object", bytes(MAX_REQUEST_BYTES + 1)).status_code == 413
    assert upstream.asked == []


def test_a_superlink_that_is_being_started_is_a_reason_to_try_again():
    assert ask(Upstream(fails=True), "/v1/fleet/push-object").status_code == 503


def test_a_request_for_a_message_is_kept_open_until_there_is_one(monkeypatch):
    monkeypatch.setattr(module, "MAX_POLL_SECONDS", 0.05)
    monkeypatch.setattr(module, "MIN_POLL_SECONDS", 0.01)
    upstream = Upstream(after=3)
    reply = ask(upstream, PULL_MESSAGES)
    assert reply.content == SOMETHING
    assert len(upstream.asked) == 4
    assert {request.content for request in upstream.asked} == {b"question"}


def test_a_request_that_was_open_for_long_is_answered_without_a_message(monkeypatch):
    monkeypatch.setattr(module, "MAX_POLL_SECONDS", 0.05)
    monkeypatch.setattr(module, "MIN_POLL_SECONDS", 0.01)
    monkeypatch.setattr(module, "LONG_POLL_SECONDS", 0.3)
    upstream = Upstream(after=1000)
    assert ask(upstream, PULL_MESSAGES).content == NOTHING
    assert 1 < len(upstream.asked) < 1000


def test_a_refusal_is_passed_on_at_once():
    upstream = Upstream(after=1000, status=401)
    assert ask(upstream, PULL_MESSAGES).status_code == 401
    assert len(upstream.asked) == 1


def test_no_message_is_pulled_for_a_site_that_has_disconnected(monkeypatch):
    """Such a message would be lost."""
    monkeypatch.setattr(module, "MIN_POLL_SECONDS", 0.1)
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

            scope = {"type": "http", "method": "POST", "path": PULL_MESSAGES, "headers": []}
            await Proxy(inner)(scope, receive, send)
            return sent

    assert asyncio.run(hanging_up()) == []
    assert len(upstream.asked) == 1

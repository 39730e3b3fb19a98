"""The proxy by itself: what it passes on, what it keeps open, and what it gives up."""

from __future__ import annotations

import asyncio
import datetime

import httpx
import pytest
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import message_pb2 as messages

from deploy.signing import make_keys, signed
from flamma.deploy import admission
from flamma.deploy import polling as module
from flamma.deploy.admission import Budget, BusyError, Connections, SiteKeys
from flamma.deploy.http_messages import _MAX_REQUEST_BYTES
from flamma.deploy.proxy import _PULL_MESSAGES, Proxy
from flamma.errors import DeployError

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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site's private key, and the keys that the proxy knows."""
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def ask(site, tmp_path):
    """Send a request to the proxy that is signed by a site unless it says otherwise."""
    private, keys = site

    def asking(upstream, path, content=b"question", method="POST", headers=None):
        headers = signed(private) if headers is None else headers

        async def sending():
            transport = httpx.MockTransport(upstream)
            async with httpx.AsyncClient(transport=transport, base_url="https://link") as inner:
                outer = httpx.ASGITransport(Proxy(inner, keys, Connections(), tmp_path))
                async with httpx.AsyncClient(transport=outer, base_url="https://proxy") as client:
                    return await client.request(
                        method, path, content=content, headers=headers, timeout=5.0
                    )

        return asyncio.run(sending())

    return asking


def test_a_site_s_request_goes_through_and_its_answer_comes_back(ask):
    upstream = Upstream()
    reply = ask(upstream, "/v1/fleet/get-run")
    assert (reply.status_code, reply.content) == (200, SOMETHING)
    assert reply.headers["x-kept"] == "yes"
    [request] = upstream.asked
    assert request.url == "https://link/v1/fleet/get-run"
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
def test_no_other_request_goes_through(method, path, ask):
    upstream = Upstream()
    assert ask(upstream, path, method=method).status_code == 404
    assert upstream.asked == []


def test_what_is_too_large_is_not_passed_on(ask):
    upstream = Upstream()
    assert ask(upstream, "/v1/fleet/get-run", bytes(_MAX_REQUEST_BYTES + 1)).status_code == 413
    assert upstream.asked == []


def test_a_superlink_that_is_being_started_is_a_reason_to_try_again(ask):
    assert ask(Upstream(fails=True), "/v1/fleet/get-run").status_code == 503


def test_an_error_of_the_superlink_is_a_reason_to_try_again(ask):
    """A SuperNode that is told of it would end."""
    assert ask(Upstream(status=500), "/v1/fleet/get-run").status_code == 503


def test_a_request_for_a_message_is_kept_open_until_there_is_one(monkeypatch, ask):
    monkeypatch.setattr(module, "_MAX_POLL_SECONDS", 0.05)
    monkeypatch.setattr(module, "_MIN_POLL_SECONDS", 0.01)
    upstream = Upstream(after=3)
    reply = ask(upstream, _PULL_MESSAGES)
    assert reply.content == SOMETHING
    assert len(upstream.asked) == 4
    assert {request.content for request in upstream.asked} == {b"question"}


def test_a_request_that_was_open_for_long_is_answered_without_a_message(monkeypatch, ask):
    monkeypatch.setattr(module, "_MAX_POLL_SECONDS", 0.05)
    monkeypatch.setattr(module, "_MIN_POLL_SECONDS", 0.01)
    monkeypatch.setattr(module, "_LONG_POLL_SECONDS", 0.3)
    upstream = Upstream(after=1000)
    assert ask(upstream, _PULL_MESSAGES).content == NOTHING
    assert 1 < len(upstream.asked) < 1000


def test_a_refusal_is_passed_on_at_once(ask):
    upstream = Upstream(after=1000, status=401)
    assert ask(upstream, _PULL_MESSAGES).status_code == 401
    assert len(upstream.asked) == 1


def without(name):
    return lambda headers: {k: v for k, v in headers.items() if k != name}


@pytest.mark.parametrize(
    "change",
    [
        lambda headers: {},
        without("flwr-public-key"),
        without("flwr-signature"),
        without("flwr-timestamp"),
        lambda headers: headers | {"flwr-signature": "AAAA"},
        lambda headers: headers | {"flwr-signature": "no base64"},
        lambda headers: headers | {"flwr-timestamp": "9" * 99},
        lambda headers: headers | {"flwr-timestamp": headers["flwr-timestamp"][:-1]},
        lambda headers: [*headers.items(), ("flwr-timestamp", "2000-01-01T00:00:00+00:00")],
    ],
)
def test_a_request_that_no_site_has_signed_is_refused(ask, site, change):
    upstream = Upstream()
    headers = change(signed(site[0]))
    assert ask(upstream, _PULL_MESSAGES, headers=headers).status_code == 401
    assert upstream.asked == []


@pytest.mark.parametrize(("seconds", "zone"), [(-400, datetime.UTC), (60, datetime.UTC), (0, None)])
def test_a_signature_of_another_time_is_refused(ask, site, seconds, zone):
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    headers = signed(site[0], when.replace(tzinfo=zone))
    assert ask(Upstream(), _PULL_MESSAGES, headers=headers).status_code == 401


def test_a_key_that_is_not_registered_is_refused(ask, tmp_path):
    stranger, _ = make_keys(tmp_path)
    assert ask(Upstream(), _PULL_MESSAGES, headers=signed(stranger)).status_code == 401


def test_the_headers_are_those_that_flower_signs(site):
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    class Call:
        request = httpx.Request("POST", "https://proxy/")

    private, keys = site
    NodeAuthHttpInterceptor(private, private.public_key()).intercept(Call, lambda call: call)
    headers = [(key.lower(), value) for key, value in Call.request.headers.raw]
    assert keys.site_of(headers) == "site0"
    assert keys.site_of(headers[:-1]) is None


def test_a_file_that_is_no_key_is_named(tmp_path):
    (tmp_path / "a.pub").write_text("ssh-rsa AAAA")
    with pytest.raises(DeployError, match=r"a\.pub is not the public key of a site"):
        SiteKeys({"a": tmp_path / "a.pub"})


def test_the_bytes_that_are_held_are_bounded_for_one_site_and_for_all(monkeypatch):
    monkeypatch.setattr(admission, "_MAX_SITE_BYTES", 100)
    monkeypatch.setattr(admission, "_MAX_TOTAL_BYTES", 150)
    budget = Budget()
    with budget.account("a") as first:
        first.take(60)
        with budget.account("a") as second:
            second.take(40)
            with pytest.raises(BusyError):
                second.take(1)
        with budget.account("b") as other:
            other.take(90)
            with pytest.raises(BusyError):
                other.take(1)
    assert budget.total == 0


def test_there_is_no_room_for_more_than_the_budget(monkeypatch, ask):
    monkeypatch.setattr(admission, "_MAX_SITE_BYTES", 5)
    upstream = Upstream()
    assert ask(upstream, "/v1/fleet/get-run").status_code == 503
    assert upstream.asked == []


def test_no_message_is_pulled_for_a_site_that_has_disconnected(monkeypatch, site, tmp_path):
    """Such a message would be lost."""
    monkeypatch.setattr(module, "_MIN_POLL_SECONDS", 0.1)
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

            headers = [(key.encode(), value.encode()) for key, value in signed(site[0]).items()]
            scope = {"type": "http", "method": "POST", "path": _PULL_MESSAGES, "headers": headers}
            scope["client"] = ("127.0.0.1", 1)
            await Proxy(inner, site[1], Connections(), tmp_path)(scope, receive, send)
            return sent

    assert asyncio.run(hanging_up()) == []
    assert len(upstream.asked) == 1

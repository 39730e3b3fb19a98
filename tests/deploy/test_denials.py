"""Why a site does not get in: what the server writes down, and what the site itself is told."""

from __future__ import annotations

import datetime
import http.client
import json
import re
import ssl
import time

import pytest

from deploy.signing import load_key, signed
from flamma.deploy import connection, denials
from flamma.deploy.admission import SiteKeys
from flamma.deploy.denials import Denials, _fresh_denials, site_reasons
from flamma.deploy.hosts import read_host, read_server
from flamma.deploy.init import init
from flamma.deploy.keys import make_site_key
from flamma.errors import DeployError
from flamma.experiments.config import make_config


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("denials") / "fed"
    init(folder, ["a", "b", "c"], make_config({"data": {"dataset": "own"}}).data.as_table())
    server = read_server(folder)
    server.state.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def server(fed):
    found = read_server(fed)
    (found.state / denials._DENIALS_FILE).unlink(missing_ok=True)
    return found


def headers(key, behind=0.0):
    when = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=behind)
    return [(name.encode(), value.encode()) for name, value in signed(key, when).items()]


@pytest.mark.parametrize(
    ("behind", "said"),
    [(400, "its clock is 400 s behind the server's"), (-60, "its clock is 60 s ahead of")],
)
def test_a_site_with_another_clock_is_told_by_name_and_by_how_much(fed, server, behind, said):
    key = load_key(fed / "sites/b/site.key")
    Denials(server).note_headers(headers(key, behind), "10.0.0.7")
    assert _fresh_denials(server)["b"].startswith(said)


def test_another_key_and_another_signature_are_told(fed, server, tmp_path):
    make_site_key(tmp_path / "site.key", tmp_path / "x.pub", "x")
    Denials(server).note_headers(headers(load_key(tmp_path / "site.key")), "10.0.0.7")
    told = "a host at 10.0.0.7 tried to connect with a key that is not registered"
    assert _fresh_denials(server) == {"": told}
    forged = dict(headers(load_key(fed / "sites/a/site.key")))
    forged[b"flwr-signature"] = b"AAAA"
    Denials(server).note_headers(list(forged.items()), "10.0.0.7")
    assert _fresh_denials(server)["a"] == "its requests are not signed by its key"


def test_strangers_leave_no_trace_and_a_flood_is_written_once(fed, server, monkeypatch):
    found = Denials(server)
    found.note_headers([(b"host", b"x")], "10.0.0.7")
    assert _fresh_denials(server) == {}
    key = load_key(fed / "sites/a/site.key")
    written = []
    real = denials.write_atomically
    monkeypatch.setattr(
        denials, "write_atomically", lambda *a, **k: written.append(1) or real(*a, **k)
    )
    for _ in range(20):
        found.note_headers(headers(key, 900), "10.0.0.7")
    assert len(written) == 1


def test_what_the_superlink_refuses_is_told_and_old_reasons_are_not(server, monkeypatch):
    error = json.dumps({"message": "Runtime version mismatch:\n1.40 and 1.41"}).encode()
    Denials(server).note_answer("c", "/v1/fleet/activate-node", 412, error)
    Denials(server).note_answer("a", "/v1/fleet/pull-messages", 412, error)
    said = "the SuperLink refuses it (412: Runtime version mismatch: 1.40 and 1.41)"
    assert _fresh_denials(server) == {"c": said}
    now = time.time()
    monkeypatch.setattr(denials.time, "time", lambda: now + denials._FRESH_SECONDS + 1)
    assert _fresh_denials(server) == {}


class Node:
    def __init__(self, node_id, status):
        self.node_id, self.status = node_id, status


def test_every_site_that_is_not_online_has_a_reason(fed, server, monkeypatch):
    class Control:
        def __init__(self, host):
            pass

        def offline(self):
            return ("b", "c")

        def nodes(self):
            return [Node(1, "online"), Node(2, "offline"), Node(3, "registered")]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(denials, "Control", Control)
    server.nodes.write_text(json.dumps({"a": 1, "b": 2, "c": 3}))
    expected = {"b": "it is offline", "c": "it has not connected since it was registered"}
    assert site_reasons(server) == expected
    Denials(server)._note("", "a host at 10.0.0.7 tried")
    assert site_reasons(server)["c"] == f"{expected['c']}; a host at 10.0.0.7 tried"
    Denials(server)._note("b", "its clock is wrong")
    assert site_reasons(server)["b"] == "its clock is wrong"

    def silent(host):
        raise DeployError("no answer")

    monkeypatch.setattr(denials, "Control", silent)
    assert site_reasons(server)["b"] == "its clock is wrong"


class Answer:
    """An answer of a server whose clock is so many seconds ahead of this one."""

    def __init__(self, status, ahead=0.0):
        self.status, self.ahead = status, ahead

    @property
    def headers(self):
        then = time.gmtime(time.time() + self.ahead)
        return {"Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", then)}


def answering(monkeypatch, answer):
    """Let the server answer so; return the headers of the requests it gets."""
    asked = []

    class Connection:
        def __init__(self, *_, **__):
            pass

        def request(self, method, path, headers):
            asked.append(headers)

        def getresponse(self):
            if isinstance(answer, Exception):
                raise answer
            return answer

        def close(self):
            pass

    monkeypatch.setattr(http.client, "HTTPSConnection", Connection)
    return asked


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(401, 400), "this host's clock is (400|399) s behind the server's"),
        (Answer(401, -60), "this host's clock is (59|60) s ahead of the server's"),
        (Answer(401), "it has another key of b, or none"),
        (
            ConnectionRefusedError(111, "Connection refused"),
            r"does not answer \(Connection refused",
        ),
        (
            ssl.SSLCertVerificationError(1, "self-signed"),
            "the certificate of .* cannot be verified",
        ),
    ],
)
def test_a_site_says_in_one_sentence_why_it_cannot_connect(fed, monkeypatch, answer, said):
    answering(monkeypatch, answer)
    if isinstance(answer, ssl.SSLCertVerificationError):
        answer.verify_message = "self-signed"
    told = connection._why_not_connected(read_host(fed / "sites/b"), "127.0.0.1:8443")
    assert re.search(said, told), told


def test_a_site_that_could_connect_says_nothing_and_signs_as_flower_does(fed, monkeypatch, server):
    asked = answering(monkeypatch, Answer(200))
    assert connection._why_not_connected(read_host(fed / "sites/b"), "127.0.0.1:8443") == ""
    [sent] = asked
    raw = [(name.encode(), value.encode()) for name, value in sent.items()]
    assert SiteKeys({"b": server.public_key("b")}).site_of(raw) == "b"

"""A SuperNode answers messages once, gives signs of life, ends with its work, and is restarted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.proto import fleet_pb2 as fleet
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from deployment import FLAMMA, flamma, wait_for
from engines.flower.loopback import identify
from flamma.deploy import supervisor
from flamma.deploy.commands import Command, commands_of
from flamma.deploy.hosts import read_hosts
from flamma.deploy.init import free_ports, init
from flamma.deploy.liveness import SignGiver, Signs
from flamma.deploy.supernode import _ANSWER_MISSING, _give_signs, _MessageLoop, _patch_message_loop
from flamma.deploy.supervisor import _Child
from flamma.io import stamp

RUN = 1
"""The run of the messages; ``identify`` says so."""


@pytest.fixture
def node(monkeypatch):
    """A real SuperNode's state and loop; the server's side is what a test makes of it."""
    identify()
    store = ObjectStoreFactory()
    state = NodeStateFactory(store).state()
    state.set_node_id(7)
    monkeypatch.setattr(flower.time, "sleep", lambda seconds: None)
    loop = _MessageLoop(
        flower._pull_and_store_message, flower._push_messages, flower._insert_message
    )
    state.store_run(SimpleNamespace(run_id=RUN, fab_hash="", primary_task_type="", series_id=1))
    return SimpleNamespace(state=state, store=store.store(), loop=loop, sent=[])


def message(number):
    made = Message(RecordDict(), 7, MessageType.TRAIN)
    made.metadata.__dict__["_message_id"] = name_of(number)
    return made


def name_of(number):
    """Return the name of a message as Flower's are: the SHA-256 of its content."""
    return hashlib.sha256(message_content(number)).hexdigest()


def message_content(number):
    return b"RecordDict  1\x00%d" % number


def found_content(run, name):
    return next(message_content(n) for n in (1, 2) if name_of(n) == name)


def pull(node, found, pull_object=found_content):
    return node.loop.pull(
        state=node.state,
        object_store=node.store,
        receive=lambda: (found, flower.ObjectTree(object_id=found.metadata.message_id)),
        node_config={},
        get_run=None,
        get_fab=None,
        pull_object=pull_object,
        confirm_message_received=lambda *_: None,
        trusted_entities=None,
    )


def push(node):
    def send(reply, tree, seconds):
        node.sent.append(reply)
        return set(), ""

    node.loop.push(
        state=node.state, object_store=node.store, send=send, push_object=lambda *_: None
    )


def answer(node, to):
    flower._insert_message(Message(RecordDict(), reply_to=to), node.state, node.store)


def test_a_message_that_never_comes_whole_is_forgotten_and_its_task_is_over(node):
    def ended(run, name):
        raise flower.RunNotRunningException

    assert pull(node, message(1), ended) is None
    assert node.state.get_messages_legacy() == []
    [task] = node.state.get_tasks()
    assert task.status.status == "finished"


def test_an_answer_to_an_earlier_message_is_not_taken_for_the_one_to_this(node):
    first, second = message(1), message(2)
    assert pull(node, first) == RUN
    answer(node, first)
    push(node)
    answer(node, first)  # once more, as for a task that was given up
    assert pull(node, second) == RUN
    real, late = node.state.get_messages_legacy, iter([lambda: answer(node, second)])

    def get(**filters):
        found = real(**filters)
        if not found and filters.get("is_reply"):
            next(late)()
        return found

    node.state.get_messages_legacy = get
    push(node)
    replied = [reply.metadata.reply_to_message_id for reply in node.sent]
    assert replied == [name_of(1), name_of(1), name_of(2)]


def test_a_task_that_ends_without_an_answer_is_answered_with_an_error(node):
    assert pull(node, message(1)) == RUN
    [task] = node.state.get_tasks()
    node.state.finish_task(task.task_id, sub_status="failed", details="")
    push(node)
    [reply] = node.sent
    assert reply.metadata.reply_to_message_id == name_of(1)
    assert reply.error.reason == _ANSWER_MISSING


def test_an_answer_that_the_server_has_lost_half_way_is_sent_from_its_beginning(node):
    order = message(1)
    assert pull(node, order) == RUN
    records = RecordDict({name: ConfigRecord({name: 1}) for name in ("a", "b", "c")})
    made = Message(records, reply_to=order)
    flower._insert_message(made, node.state, node.store)
    held, sessions = {}, []

    def send(reply, tree, seconds):
        held.clear()
        sessions.append(f"session {len(sessions)}")
        return {part.object_id for part in iterate_object_tree(tree)}, sessions[-1]

    def push_object(run, session, number, content):
        if session == "session 0" and held:
            raise ObjectPushError(number, run, session)
        held[number] = content

    node.loop.push(state=node.state, object_store=node.store, send=send, push_object=push_object)
    assert sessions == ["session 0", "session 1"]
    assert held == {number: part.deflate() for number, part in get_all_nested_objects(made).items()}


def test_flowers_own_loop_has_the_steps_that_are_mended(monkeypatch):
    """It fails if another version of Flower has other steps."""
    steps = {name: getattr(flower, name) for name in ("_pull_and_store_message", "_push_messages")}
    for name, step in steps.items():
        monkeypatch.setattr(flower, name, step)  # put back at the end
    _patch_message_loop(flower)
    assert all(getattr(flower, name) != step for name, step in steps.items())


@pytest.fixture
def fed(tmp_path):
    init(tmp_path / "fed", ["site0"], {"dataset": "own", "held_out": 0.2}, port=free_ports(1)[0])
    return tmp_path / "fed"


def test_requests_are_noted_as_signs(tmp_path):
    class Client:
        def _unary_unary(self, *, path, request):
            if request is None:
                raise OSError("no network")
            return request

    _give_signs(Client, SignGiver(tmp_path / "signs.json"))
    assert Client()._unary_unary(path="/v1/fleet/pull-messages", request=5) == 5
    first = Signs.read(tmp_path / "signs.json")
    assert first.answered == pytest.approx(time.time(), abs=60)
    with pytest.raises(OSError, match="no network"):
        Client()._unary_unary(path="/v1/fleet/send-node-heartbeat", request=None)
    second = Signs.read(tmp_path / "signs.json")
    assert second.asked > first.asked, "an attempt is a sign, whether the server answers or not"
    assert second.answered == first.answered


def test_a_process_is_restarted_when_it_is_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "_MAX_SILENCE_SECONDS", 50.0)
    child = _Child(Command("supernode", ("x",), signs=tmp_path / "signs.json"), started=1000.0)
    assert child.reason_to_restart(1040.0) == "", "it has just begun"
    assert child.reason_to_restart(1060.0) == "gave no sign of life for 60 s"
    (tmp_path / "signs.json").write_text(json.dumps({"asked": 1030.0, "answered": None}))
    assert child.reason_to_restart(1060.0) == ""
    assert child.reason_to_restart(1081.0) == "gave no sign of life for 51 s"


def test_a_process_is_restarted_when_it_must_read_new_keys(fed):
    _, site = read_hosts(fed)
    supernode, worker = (_Child(c, read=stamp(*c.reads)) for c in commands_of(site, True, 1))
    supernode.started = time.monotonic()
    assert [c.reason_to_restart(time.monotonic()) for c in (supernode, worker)] == ["", ""]
    assert flamma("deploy", "rotate", fed, "site0").returncode == 0
    assert "changed keys" in supernode.reason_to_restart(time.monotonic())
    assert worker.reason_to_restart(time.monotonic()) == ""


@dataclasses.dataclass
class Seen:
    """What a stand-in for the server was asked for, and how often it fails still."""

    paths: list[str] = dataclasses.field(default_factory=list)
    errors: int = 0


@pytest.fixture
def server(fed):
    """A stand-in for proxy and SuperLink: its answers to requests for messages may fail."""
    seen = Seen()
    replies = {
        "activate-node": fleet.ActivateNodeResponse(node_id=7),
        "send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
        "pull-messages": fleet.PullMessagesResponse(),
        "deactivate-node": fleet.DeactivateNodeResponse(),
    }

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            name = self.path.rpartition("/")[2]
            seen.paths.append(name)
            fails = name == "pull-messages" and seen.errors > 0
            seen.errors -= fails
            content = b"" if fails else replies[name].SerializeToString()
            self.send_response(500 if fails else 200)
            self.send_header("content-type", "application/protobuf")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    host = read_hosts(fed)[0]
    running = ThreadingHTTPServer(("127.0.0.1", host.port), Server)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(host.certificate, host.certificate_key)
    running.socket = context.wrap_socket(running.socket, server_side=True)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield seen
    running.shutdown()
    running.server_close()


@pytest.mark.slow
def test_a_real_supernode_comes_back_after_one_error_of_the_server(fed, server):
    server.errors = 1
    folder = fed / "sites" / "site0"
    with subprocess.Popen([*FLAMMA, "deploy", "start", str(folder)], env=os.environ) as host:
        try:
            wait_for(lambda: server.paths.count("activate-node") >= 2, 240, "a second SuperNode")
            table = json.loads((folder / "state/processes.json").read_text())
            assert table["processes"]["supernode"]["restarts"] == 1
            wait_for(lambda: server.paths.count("send-node-heartbeat") >= 2, 60, "a heartbeat")
            found = json.loads(flamma("deploy", "status", folder, "--json").stdout)
            assert found["seen"]["site0"] is not None
            assert found["hosts"]["site0"]["running"]
        finally:
            host.terminate()
            host.wait(60)
    assert "the SuperNode has ended its work" in (folder / "logs/supernode.log").read_text()


@pytest.mark.slow
def test_a_real_supernode_that_stands_still_is_restarted(fed, server):
    """As one does whose thread for heartbeats has died: nothing exits."""
    import signal

    folder = fed / "sites" / "site0"
    start = f"""
from flamma.deploy import supervisor
from flamma.deploy.hosts import read_host
from pathlib import Path
supervisor._MAX_SILENCE_SECONDS = 40.0
supervisor.Supervisor(read_host(Path({str(folder)!r}))).run()
"""
    with subprocess.Popen([sys.executable, "-c", start]) as host:
        try:
            wait_for(lambda: "send-node-heartbeat" in server.paths, 240, "a SuperNode")
            table = json.loads((folder / "state/processes.json").read_text())
            os.kill(table["processes"]["supernode"]["pid"], signal.SIGSTOP)
            wait_for(lambda: server.paths.count("activate-node") >= 2, 240, "a second SuperNode")
        finally:
            host.terminate()
            host.wait(60)

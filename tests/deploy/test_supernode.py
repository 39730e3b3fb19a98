"""The loop of a SuperNode: every message is answered once, and none is left behind."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from engines.flower.loopback import identify
from flamma.deploy.supernode import ANSWER_MISSING, MessageLoop, mended

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
    loop = MessageLoop(
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
    assert reply.error.reason == ANSWER_MISSING


def test_flowers_own_loop_has_the_steps_that_are_mended(monkeypatch):
    """It fails if another version of Flower has other steps."""
    steps = {name: getattr(flower, name) for name in ("_pull_and_store_message", "_push_messages")}
    for name, step in steps.items():
        monkeypatch.setattr(flower, name, step)  # put back at the end
    mended(flower)
    assert all(getattr(flower, name) != step for name, step in steps.items())

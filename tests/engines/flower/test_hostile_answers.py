"""Whatever one client answers, it is recorded as failed and the run goes on."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid import http_grid

from engines.flower.loopback import OVER_MESSAGES, LoopGrid, identify, partitions
from engines.flower.misbehaving import MISCHIEF, spoil
from flamma.engines.flower import clients, codec
from flamma.engines.flower.inflation import guarded
from flamma.engines.flower.server_app import serve
from flamma.experiments.config import make_config
from flamma.experiments.folder import RunFolder
from flamma.experiments.run import Run
from fuzzing.messages import try_objects, try_one

CLIENTS, VILLAIN = 4, 1


def served(folder, interfere, strategy="fedavg", **options):
    config = make_config(
        {
            "rounds": 3,
            "per_round": CLIENTS,
            "data": {"clients": CLIENTS, "train_samples": 120, "split": "iid"},
            "model": {"name": "logistic"},
            "costs": {"value": 0.05},
            "strategy": {"name": strategy, **options},
            "engine": {"name": "flower"},
        }
    )
    grid = LoopGrid(partitions(CLIENTS))
    villain = next(n for n, c in grid.nodes.items() if c.node_config["partition-id"] == VILLAIN)
    grid.interfere = lambda node, content: interfere(content) if node == villain else content
    serve(grid, config, RunFolder(folder))
    return Run.load(folder)


def test_random_answers_are_read_or_refused():
    for number in range(3000):
        try_one((1, number))
    for number in range(500):
        try_objects((2, number))


def test_a_torn_header_does_not_end_the_run(tmp_path):
    done = served(tmp_path / "run", lambda content: spoil(content, "torn header"))
    assert done.finished
    reason = "refused: the weights are not written as float32 numbers"
    assert [record.outcome.failed for record in done.history] == [{VILLAIN: reason}] * 3


@pytest.mark.parametrize("reader", ["read_report", "read_score"])
def test_any_exception_while_an_answer_is_read_is_a_reason(tmp_path, monkeypatch, reader):
    read = getattr(clients, reader)

    def raising(content, name, *known):
        if name == str(VILLAIN):
            raise RecursionError("however this came about")
        return read(content, name, *known)

    monkeypatch.setattr(clients, reader, raising)
    done = served(tmp_path / "run", lambda content: content)
    assert done.finished
    told = "refused: it cannot be read (RecursionError)"
    for record in done.history:
        found = record.outcome.failed if reader == "read_report" else record.evaluation.unscored
        assert found == {VILLAIN: told}


@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 1e-45])
@pytest.mark.parametrize("name", OVER_MESSAGES)
def test_extreme_weights_and_losses_do_not_end_the_run(tmp_path, name, value):
    def extreme(content):
        if codec._REPORT_RECORD in content and codec._WEIGHTS_RECORD in content:
            array = content[codec._WEIGHTS_RECORD]["params"]
            array.data = np.full(len(array.data) // 4, value, "<f4").tobytes()
            content[codec._REPORT_RECORD]["loss"] = codec.LARGEST_LOSS
            content[codec._REPORT_RECORD]["seconds"] = 1e308
        return content

    with np.errstate(all="ignore"):
        assert served(tmp_path / "run", extreme, name).finished


@pytest.mark.parametrize("mischief", sorted(MISCHIEF))
def test_mischief_in_a_profile_or_an_answer_is_recorded(tmp_path, mischief):
    done = served(tmp_path / "run", lambda content: spoil(content, mischief))
    assert done.finished
    for record in done.history:
        said = {**record.outcome.failed, **record.evaluation.unscored}
        assert list(said) == [VILLAIN]
        assert said[VILLAIN].startswith("refused: ")


def objects_of(array):
    """A reply with one array as the objects that it travels as, and its number."""
    identify()
    asked = Message(RecordDict(), 7, "train")
    asked.metadata.__dict__["_message_id"] = "question"
    reply = Message(RecordDict({"a": ArrayRecord({"params": array})}), reply_to=asked)
    contents = {n: part.deflate() for n, part in get_all_nested_objects(reply).items()}
    return reply.object_id, contents


def pulled(number, contents, most=2**20):
    with guarded(most):
        return http_grid.inflate_object_from_contents(number, contents)


def test_an_honest_reply_is_put_together_as_before():
    array = codec._pack_params(np.arange(5, dtype=np.float32))["params"]
    before = http_grid.inflate_object_from_contents
    number, contents = objects_of(array)
    reply = pulled(number, contents)
    assert reply.content["a"]["params"].data == array.data
    assert http_grid.inflate_object_from_contents is before is inflate_object_from_contents


def test_an_array_that_repeats_one_piece_for_ever_takes_no_memory():
    array = Array("float32", (1,), "x", bytes(10**6))
    number, contents = objects_of(array)
    name = next(n for n, part in contents.items() if part.startswith(b"Array "))
    about = {"dtype": "float32", "shape": [1], "stype": "x", "arraychunk_ids": [0] * 10**5}
    contents[name] = add_header_to_object_body(json.dumps(about).encode(), array)
    tracemalloc.start()
    reply = pulled(number, contents, 2**22)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reply.has_error()
    assert reply.metadata.reply_to_message_id == "question"
    assert "bytes, more than 4194304" in reply.error.reason
    assert peak < 10**8  # of the 100 GB that it asks for


def test_a_reply_that_is_no_message_is_an_error():
    _, contents = objects_of(Array("float32", (1,), "x", b"abcd"))
    other = next(n for n, part in contents.items() if part.startswith(b"RecordDict"))
    assert pulled(other, contents).has_error()
    assert pulled("nowhere", {}).has_error()

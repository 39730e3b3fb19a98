"""The events of a deployed run: what changes is told once, at the server and at sites."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

import flamma
from flamma.engines.flower.messages import Order, OrderContent
from flamma.engines.flower.told_events import (
    Attendance,
    RunEvents,
    tell_order,
    tell_orders,
    tell_refusal,
    tell_waiting,
    telling_failure,
)
from flamma.events import FILE_VARIABLE
from flamma.types import Terms, Update


@pytest.fixture
def told(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


def roster(connected, refused=None):
    names = ("a", "b", "c")
    return SimpleNamespace(
        names=names,
        refused=refused or {},
        node=lambda client: 1 if names[client] in connected else None,
    )


def test_sites_that_join_leave_and_are_refused_are_told_once(told):
    seen = Attendance()
    evil = "\x1b[2J" + "x" * 9999
    for connected, refused in (
        ("ab", None),
        ("ab", {"c": evil}),
        ("ab", {"c": evil}),
        ("b", {"c": "another reason"}),
    ):
        seen = seen.updated(roster(connected, refused))
    found = [(e["event"], e["details"]["site"]) for e in told()]
    assert found == [
        ("site joined", "a"),
        ("site joined", "b"),
        ("site refused", "c"),
        ("site left", "a"),
        ("site refused", "c"),
    ]
    assert all("\x1b" not in e["message"] and len(e["message"]) <= 400 for e in told())


def test_a_run_is_told_from_its_beginning_to_its_end(told, tmp_path):
    flamma.run(
        dataset="digits",
        clients=3,
        per_round=3,
        rounds=2,
        model="logistic",
        strategy="fedavg",
        epochs=1,
        processes=1,
        out=tmp_path / "run",
        progress=False,
        callbacks=[RunEvents()],
    )
    began, *rounds, end = told()
    assert (began["event"], end["event"]) == ("run began", "run finished")
    assert began["details"]["strategy"] == "fedavg"
    assert [(e["event"], e["round"]) for e in rounds] == [("round ended", 1), ("round ended", 2)]
    details = rounds[0]["details"]
    assert details["bytes_up"] == 3 * 7850 * 4
    assert details["seconds"] >= details["seconds_train"] > 0
    assert details["failed"] == {}


def test_orders_and_waiting_are_told(told):
    terms = [Terms(client, 4) for client in range(3)]
    tell_orders("abc", [*terms, Terms(3, 4, train=False)])
    tell_orders("abc", [Terms(3, 4, train=False)])  # a survey is no round
    tell_orders("abc", [Terms(0, 0)])
    tell_waiting("round 4 waits", 4, waits=True)
    tell_waiting("round 4: all are there", 4, waits=False)
    found = [(e["event"], e["round"], e["level"]) for e in told()]
    assert found == [
        ("round began", 4, "info"),
        ("warm-up began", 0, "info"),
        ("run waits", 4, "warning"),
        ("run goes on", 4, "info"),
    ]
    assert told()[0]["message"] == "3 clients are asked"


def test_a_site_tells_what_its_orders_came_to(told):
    asked = OrderContent(Order("", run="ab" * 16, round=7), params=np.zeros(5, dtype=np.float32))
    tell_order(asked, Update(0, np.zeros(5, dtype=np.float32), 10, 3), 1.5)
    tell_order(asked, Update(0, None, 10, 0, failure="late"), 1.5)
    tell_order(asked, Update(0, None, 10, 0), 1.5)
    tell_order(asked, None, 1.5)
    tell_refusal(ValueError("not for me"))
    with pytest.raises(ValueError, match="broken"), telling_failure("runs/first"):
        raise ValueError("broken")
    found = [(e["event"], e["message"]) for e in told()]
    assert found == [
        ("order done", "trained 3 epochs in 1.5 s"),
        ("order failed", "late in 1.5 s"),
        ("order done", "abstained in 1.5 s"),
        ("order done", "evaluated in 1.5 s"),
        ("order refused", "ValueError: not for me"),
        ("run failed", "runs/first: ValueError: broken"),
    ]
    assert told()[0]["run"] == "ab" * 6
    assert told()[0]["details"]["bytes"] == 20

"""Outages: a run waits below its quorum, and a round that an outage struck is not counted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from flwr.app import Message
from flwr.app.error import Error

from engines.flower.loopback import LoopGrid
from engines.flower.test_server import SITES, StopError, nodes, served
from engines.flower.test_server import sites as sites
from flamma.data.sites import SiteClasses
from flamma.engines.flower import quorum, roster, server_app
from flamma.engines.flower.payload import NODE_IS_GONE
from flamma.errors import RunError
from flamma.events import FILE_VARIABLE
from flamma.experiments.folder import SiteStates

NAMES = ["a", "b", "c"]
A, B, C = 90, 79, 68
"""The nodes of the sites."""


def config(**engine):
    own = {"name": "deployment", "longest_wait": 5.0, "wait": 9.0, **engine}
    return {**SITES, "per_round": 3, "strategy": {"name": "fedavg"}, "engine": own}


class Flaky(LoopGrid):
    """Sites that are lost while they train, and come back when ``patience`` looks were in vain.

    ``lost_at`` are the nodes that are lost, by the number of the message of the grid at which it
    happens; Flower then answers for them.
    """

    def __init__(self, names="abc", lost_at=None, patience=3):
        named = {90 - 11 * k: name for k, name in enumerate(names)}
        super().__init__(nodes(names), names=named)
        self.gone = set()
        self.lost_at = lost_at or {}
        self.patience = patience
        self.looks = 0

    def _answer(self, node, message):
        if len(self.sent) in self.lost_at:
            self.gone |= self.lost_at.pop(len(self.sent))
        if node in self.gone:
            self.replies.append(Message(Error(NODE_IS_GONE, "gone"), reply_to=message))
        else:
            super()._answer(node, message)

    def get_node_ids(self):
        here = [node for node in self.nodes if node not in self.gone]
        if len(here) < len(self.nodes):
            self.looks += 1
            if self.looks > self.patience:
                self.gone, self.looks = set(), 0
        return here


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(quorum, "NODE_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(server_app, "_BEGIN_SECONDS", 0.0)


@pytest.fixture
def undisturbed(tmp_path, sites):
    return served(tmp_path / "undisturbed", config(), Flaky(), names=NAMES)


def test_a_round_that_an_outage_struck_is_asked_again_and_gives_the_same_weights(
    tmp_path, undisturbed, monkeypatch
):
    events = tmp_path / "events.jsonl"
    monkeypatch.setenv(FILE_VARIABLE, str(events))
    # The first three messages are introductions, the next three the orders of round 1.
    grid = Flaky(lost_at={8: {B, C}})
    done = served(tmp_path / "run", config(), grid, names=NAMES)
    assert [dict(record.outcome.failed) for record in done.history] == [{}, {}, {}]
    assert done.params_sha256 == undisturbed.params_sha256
    asked = [node for node, _ in grid.sent]
    assert asked.count(A) == asked.count(B) - 1 == asked.count(C) - 1  # a had answered
    [wait] = done.about["waits"]
    assert (wait["round"], wait["missing"]) == (2, {"b": "not connected", "c": "not connected"})
    assert SiteStates.read(done.path).missing == {}
    told = [json.loads(line) for line in events.read_text().splitlines()]
    run, told = (
        done.about["instance"],
        [t for t in told if t["event"] in ("run waits", "run goes on")],
    )
    assert [(t["event"], t["round"]) for t in told] == [("run waits", 2), ("run goes on", 2)]
    assert all(run.startswith(t["run"]) and t["run"] for t in told)
    assert "1 of 3 sites is connected" in told[0]["message"]


class Deaf(Flaky):
    """Sites that stay connected, and whose answers to the first ``silences`` of orders are lost."""

    def __init__(self, silences):
        super().__init__()
        self.silences = silences

    def _answer(self, node, message):
        if len(self.sent) <= 3 or len(self.sent) > 3 + 3 * self.silences:
            super()._answer(node, message)


def test_a_round_that_nobody_answers_is_asked_once_more(tmp_path, undisturbed):
    done = served(tmp_path / "run", config(wait=0.5), Deaf(1), names=NAMES)
    assert [dict(record.outcome.failed) for record in done.history] == [{}, {}, {}]
    assert done.params_sha256 == undisturbed.params_sha256


def test_and_not_a_third_time(tmp_path, sites):
    done = served(tmp_path / "run", config(wait=0.5), Deaf(2), names=NAMES)
    silent = dict.fromkeys(range(3), "no answer in 0.5 s")
    assert [dict(record.outcome.failed) for record in done.history] == [silent, {}, {}]


def test_one_lost_site_of_three_costs_its_answer_and_no_wait(tmp_path, sites):
    grid = Flaky(lost_at={6: {C}}, patience=10**9)
    done = served(tmp_path / "run", config(), grid, names=NAMES)
    away = {2: "not connected"}
    assert [dict(r.outcome.failed) for r in done.history] == [
        {2: "the client is not there"},
        away,
        away,
    ]
    assert "waits" not in done.about


def test_sites_that_refuse_are_no_outage(tmp_path, sites):
    grid = Flaky()

    def interfere(node, content):
        if node != A and content.get("flamma.report") is not None:
            raise RuntimeError("no")
        return content

    grid.interfere = interfere
    done = served(tmp_path / "run", config(), grid, names=NAMES)
    assert all(set(record.outcome.failed) == {1, 2} for record in done.history)
    assert "waits" not in done.about


def test_waiting_ends_with_an_error_after_the_longest_wait_and_can_be_resumed(
    tmp_path, undisturbed
):
    grid = Flaky(lost_at={8: {A, B, C}}, patience=10**9)
    said = r"not enough sites in 0.1 s .*: round 2 waits: 0 of 3 sites are connected, 2 are needed"
    with pytest.raises(RunError, match=said):
        served(tmp_path / "run", config(longest_wait=0.1), grid, names=NAMES)
    told = SiteStates.read(tmp_path / "run")
    assert (told.round, sorted(told.missing)) == (2, NAMES)
    assert told.waiting_since > 0
    done = served(tmp_path / "run", config(longest_wait=0.1), Flaky(), names=NAMES)
    assert done.params_sha256 == undisturbed.params_sha256


def test_a_run_begins_with_a_quorum_and_a_late_site_counts_for_the_median(tmp_path, sites):
    sites["b"] = replace(sites["b"], x=sites["b"].x[:20], y=sites["b"].y[:20])
    grid = Flaky(patience=10**9)
    grid.gone = {C}

    def follow(record):
        grid.gone = set()

    done = served(tmp_path / "run", config(), grid, on_round=follow, names=NAMES)
    assert [sorted(record.outcome.failed) for record in done.history] == [[2], [2], []]
    assert done.history[-1].metric("clients_scored") == 3
    table = (tmp_path / "run" / "population.csv").read_text().splitlines()[1:]
    assert [row.split(",")[1:3] for row in table] == [["30", "10"], ["20", "10"], ["20", "0"]]
    assert done.about["late"] == "c"


def test_a_late_site_counts_for_no_more_after_the_run_was_resumed(tmp_path, sites):
    grid = Flaky(patience=10**9)
    grid.gone = {C}

    def interrupt(record):
        raise StopError

    with pytest.raises(StopError):
        served(tmp_path / "run", config(), grid, on_round=interrupt, names=NAMES)
    sites["c"] = replace(
        sites["c"], x=sites["c"].x.repeat(2, axis=0), y=sites["c"].y.repeat(2)
    )  # 60 samples, twice the median
    done = served(tmp_path / "run", config(), Flaky(), names=NAMES)
    assert done.history[-1].outcome.failed == {}
    assert done.history[-1].metric("clients_scored") == 3


def test_a_late_site_with_other_samples_is_refused(tmp_path, sites):
    grid = Flaky(patience=10**9)
    grid.gone = {C}
    sites["c"] = replace(sites["c"], x=sites["c"].x[:, :2], held_x=sites["c"].held_x[:, :2])

    def follow(record):
        grid.gone = set()

    done = served(tmp_path / "run", config(), grid, on_round=follow, names=NAMES)
    assert [sorted(record.outcome.failed) for record in done.history] == [[2], [2], [2]]
    assert (
        "it has samples of the shape (2,) in 3 classes, and the run has"
        in (done.about["refused"]["c"])
    )


def test_too_many_sites_that_refuse_end_a_run_at_once(tmp_path, sites, monkeypatch):
    monkeypatch.setattr(roster, "_PROFILE_ATTEMPTS", 1)
    sites["b"] = replace(sites["b"], agreed=SiteClasses(3, ("x", "y", "z")))
    sites["c"] = replace(sites["c"], agreed=SiteClasses(3, ("z", "y", "x")))
    served(tmp_path / "run", config(), Flaky(), names=NAMES)  # one of three does not matter
    sites["a"] = replace(sites["a"], agreed=SiteClasses(3, ("y", "x", "z")))
    with pytest.raises(RunError, match=r"2 of 3 sites cannot take part, .*b: its classes are"):
        served(tmp_path / "none", config(longest_wait=0.0), Flaky(), names=NAMES)
    assert not (tmp_path / "none" / "config.toml").exists()


def test_a_refused_site_is_asked_again_when_it_has_been_away(tmp_path, sites):
    sites["a"] = replace(sites["a"], agreed=SiteClasses(3, ("x", "y", "z")))
    good, sites["c"] = sites["c"], replace(sites["c"], agreed=SiteClasses(3, ("z", "y", "x")))
    grid = Flaky(patience=10**9)

    def follow(record):
        if record.round == 1:
            grid.gone, sites["c"] = {C}, good
        else:
            grid.gone = set()

    long = {**config(), "rounds": 5}
    done = served(tmp_path / "run", long, grid, on_round=follow, names=NAMES)
    assert sorted(done.history[0].outcome.failed) == [2]
    assert done.history[-1].outcome.failed == {}


def test_a_site_that_is_busy_is_not_taken_for_an_outage():
    late = Message(Error(3, "expired"), reply_to=_message())

    class Known:
        names = ("a", "b")

        def refresh(self):
            pass

        def node(self, client):
            return 1

    watched = quorum.Quorum(Known(), needed=2)
    assert watched.lost({0: late, 1: None}) == []
    gone = Message(Error(NODE_IS_GONE, "gone"), reply_to=_message())
    assert watched.lost({0: gone, 1: None}) == [0]


def _message():
    from flwr.app import MessageType, RecordDict

    LoopGrid({})
    message = Message(RecordDict(), 7, MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = "1"
    return message


def test_what_is_told_of_sites_survives_its_file_and_damage_is_nothing(tmp_path):
    states = SiteStates(3, 4, 3, {"a": "not connected"}, 5.0)
    states.write(tmp_path)
    assert SiteStates.read(tmp_path) == states
    (tmp_path / "sites.json").write_text(json.dumps({"missing": 3}))
    assert SiteStates.read(tmp_path) is None
    assert SiteStates.read(tmp_path / "nowhere") is None

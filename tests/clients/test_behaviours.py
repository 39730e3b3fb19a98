"""Behaviours are assigned to clients by number, share or list, by the seed alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from flamma.clients.behaviours import BEHAVIOURS, Behaviour, assign, read_assignments
from flamma.errors import ConfigError
from flamma.experiments.config import make_config
from flamma.experiments.run import run


@dataclass(frozen=True)
class Lazy(Behaviour):
    """A client that does less."""

    share: float = 0.5


@pytest.fixture(autouse=True)
def lazy():
    BEHAVIOURS.add("lazy", Lazy)
    yield
    BEHAVIOURS.discard("lazy")


def assigned(table, clients=10, seed=0):
    return assign(read_assignments(table), clients, seed)


def test_by_list_by_number_and_by_share():
    assert assigned({"lazy": {"clients": [1, 4]}}) == {1: Lazy(), 4: Lazy()}
    assert len(assigned({"lazy": {"clients": 3}})) == 3
    assert len(assigned({"lazy": {"clients": 0.4, "share": 0.1}})) == 4
    assert set(assigned({"lazy": {"clients": 0.4, "share": 0.1}}).values()) == {Lazy(0.1)}


def test_the_seed_draws_them_and_nobody_has_two():
    table = {"lazy": {"clients": 0.5}, "lazier": {"name": "lazy", "clients": 5, "share": 0.1}}
    first, again = assigned(table), assigned(table)
    assert first == again
    assert sorted(own.share for own in first.values()) == [0.1] * 5 + [0.5] * 5
    draws = {tuple(sorted(assigned({"lazy": {"clients": 3}}, seed=s))) for s in range(5)}
    assert len(draws) > 1


def test_who_is_assigned_honest_is_honest_and_not_drawn_again():
    table = {"honest": {"clients": 7}, "lazy": {"clients": 3}}
    assert len(assigned(table)) == 3
    with pytest.raises(ConfigError, match="4 clients of 3 left"):
        assigned({"honest": {"clients": 7}, "lazy": {"clients": 4}})


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"cost-liar": {"clients": 1, "factor": -1}}, "behaviours.cost-liar: factor must be a p"),
        (
            {"x": {"name": "epoch-faker", "clients": 1, "done": 0}},
            'behaviours.x: done must be "honest" or at least 1',
        ),
        ({"free-rider": {"clients": 1, "claimed": 0}}, 'claimed must be "honest", "most" or at l'),
        ({"free-rider": {"clients": 1, "claimed": "all"}}, "behaviours.free-rider.claimed must be"),
        ({"free-rider": {"clients": 1, "sends": "love"}}, "behaviours.free-rider.sends must be"),
        ({"part-trainer": {"clients": 1, "share": 0}}, "share must lie above 0"),
        ({"dropper": {"clients": 1, "rate": 1.1}}, "rate must lie in [0, 1]"),
        ({"free-ridr": {"clients": 1}}, "did you mean free-rider?"),
        (3, "behaviours must be a table"),
        ({"lazy": 3}, "says which clients"),
        ({"lazy": {}}, "says which clients"),
        ({"lazi": {"clients": 1}}, "did you mean lazy?"),
        ({"lazy": {"clients": 1, "shar": 1}}, "did you mean share?"),
        ({"lazy": {"clients": 1.5}}, "a share from 0 to 1"),
        ({"lazy": {"clients": -1}}, "must not be negative"),
        ({"lazy": {"clients": "all"}}, "behaviours.lazy.clients must be"),
        ({"lazy": {"clients": 11}}, "11 clients of 10"),
        ({"lazy": {"clients": [10]}}, "client 10"),
        ({"lazy": {"clients": [1]}, "honest": {"clients": [1]}}, "client 1"),
    ],
)
def test_what_cannot_be_assigned_is_refused(table, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        assigned(table)


def test_a_configuration_refuses_at_once_what_cannot_be_assigned():
    with pytest.raises(ConfigError, match="11 clients of 10 left"):
        make_config({"data": {"clients": 10}, "behaviours": {"lazy": {"clients": 11}}})
    with pytest.raises(ConfigError, match=r"put behaviour = \{name = \.\.\.\} into the site.toml"):
        make_config({"engine": "deployment", "behaviours": {"lazy": {"clients": 1}}})


def test_a_configuration_with_behaviours_reads_back_the_same():
    config = make_config({"behaviours": {"lazy": {"clients": [2, 3], "share": 0.3}}})
    assert make_config(config.as_tables()) == config


@dataclass(frozen=True)
class Liar(Behaviour):
    """Tells half its cost, does one epoch, and claims three."""

    def tell(self, introduction):
        return replace(introduction.profile, cost=introduction.profile.cost / 2)

    def act(self, encounter):
        return encounter.honest if encounter.warms_up else replace(encounter.honest, epochs=1)

    def send(self, report, encounter, received, notes):
        assert received.size == report.params.size
        return replace(report, epochs=3)


def test_a_client_may_lie_in_what_it_tells_does_and_sends(tmp_path):
    BEHAVIOURS.add("liar", Liar)
    tables = {
        "rounds": 1,
        "per_round": 3,
        "data": {"clients": 3, "train_samples": 90, "validation_samples": 0},
        "model": "logistic",
        "strategy": {"name": "flamma", "warmup_iterations": 0},
        "behaviours": {"liar": {"clients": [1]}},
    }
    try:
        done = run(tables, out=tmp_path / "run")
    finally:
        BEHAVIOURS.discard("liar")
    [record] = done.history
    assert record.game.costs == (0.1, 0.05, 0.1)  # what the server took them for
    assert record.local_epochs[1] == 3
    assert record.certificate.follower_gap > 0.1  # at the true cost three epochs are not best
    assert record.efforts[1] == 1  # what it really did
    assert record.client_utilities[1] == pytest.approx(record.payment(1) - 0.1)
    assert (tmp_path / "run" / "population.csv").read_text().count("0.1,") == 3  # true costs

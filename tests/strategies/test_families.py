"""Families of strategies, and names that stand for all members of one."""

from __future__ import annotations

import pytest

from flamma.strategies import (
    FAMILIES,
    STRATEGIES,
    family_of,
    in_family,
    strategies_named,
    unknown_strategy,
)
from flamma.strategies.fedavg import FedAvg


@pytest.fixture
def foreign():
    """Add strategies as other packages might: of no family, of a strange one, of ours."""
    kinds = {
        "without": type("Without", (), {}),
        "strange": type("Strange", (FedAvg,), {"family": "nonsense"}),
        "ours": type("Ours", (FedAvg,), {"family": "selection"}),
    }
    for name, kind in kinds.items():
        STRATEGIES.add(name, kind)
    yield
    for name in kinds:
        STRATEGIES.discard(name)


def test_every_strategy_of_ours_is_in_a_family_of_its_own_choice():
    members = [name for family in FAMILIES for name in in_family(family)]
    assert sorted(members) == sorted(STRATEGIES)
    assert not in_family("other")
    assert {"fedavg", "central"} <= set(in_family("reference"))


@pytest.mark.usefixtures("foreign")
def test_strategies_of_other_packages_have_a_family_too():
    assert in_family("other") == ["without", "strange"]
    assert family_of("ours") == "selection"
    assert family_of("flama") == "other"


def test_a_family_stands_for_its_members_where_it_is_named():
    expected = ("qffl", *in_family("reference"), *in_family("selection"))
    assert strategies_named(["qffl", "reference", "selection"]) == expected
    assert strategies_named(["family:selection"]) == tuple(in_family("selection"))


def test_a_member_that_is_named_itself_keeps_its_place():
    others = tuple(name for name in in_family("reference") if name != "fedavg")
    assert strategies_named(["reference", "fedavg"]) == (*others, "fedavg")
    assert strategies_named(["fedavg", "family:reference", "reference"]) == ("fedavg", *others)


def test_a_name_given_twice_stays_twice():
    assert strategies_named(["qffl", "qffl"]) == ("qffl", "qffl")


def test_a_strategy_and_a_label_win_over_a_family_of_the_same_name():
    assert strategies_named(["flamma", "incentive"]) == ("flamma", "incentive")
    assert strategies_named(["family:incentive"]) == tuple(in_family("incentive"))
    assert "maxfl" in strategies_named(["family:incentive"])
    assert strategies_named(["selection"], labels={"selection"}) == ("selection",)


def test_what_is_neither_stays_for_others_to_refuse():
    assert strategies_named(["flama", "family:flama"]) == ("flama", "family:flama")


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("flama", "did you mean flamma?"),
        ("fairnes", "did you mean the family fairness?"),
        ("family:fairnes", "did you mean the family fairness?"),
        ("ort", "did you mean oort?"),
        ("xyz", "(known: fedavg"),
    ],
)
def test_an_unknown_name_suggests_the_nearest_of_strategies_and_families(name, guess):
    assert guess in unknown_strategy(name)

"""``flamma list``: everything there is to choose from, and a part of it."""

from __future__ import annotations

import json

from flamma.cli import main
from flamma.experiments.parts import PARTS, own_options
from flamma.strategies import FAMILIES, STRATEGIES, in_family


def call(capsys, *arguments):
    return main(list(arguments)), *capsys.readouterr()


def test_list_names_everything(capsys):
    code, shown, _ = call(capsys, "list", "--json")
    found = json.loads(shown)
    assert code == 0
    for part in PARTS:
        assert list(found[part.name]) == list(part.registry)
    assert all(line for lines in found.values() for line in lines.values())


def test_list_groups_strategies_by_family(capsys):
    _, shown, _ = call(capsys, "list")
    blocks = dict(block.split("\n", 1) for block in shown.split("\n\n"))
    for family, about in FAMILIES.items():
        heading = f"strategies: {family} ({about})"
        named = [line.split()[0] for line in blocks.get(heading, "").splitlines()]
        assert named == in_family(family)
    assert "strategies" not in blocks
    assert blocks["datasets"].split()[0] == "digits"
    _, shown, _ = call(capsys, "list", "--json", "--options")
    detailed = json.loads(shown)["strategies"]
    assert {name: told["family"] for name, told in detailed.items()} == {
        name: STRATEGIES[name].family for name in STRATEGIES
    }


def test_list_shows_the_options_of_each_part(capsys):
    code, shown, _ = call(capsys, "list", "--options")
    assert code == 0
    for part in PARTS:
        for _, entry in part.entries():
            for option in own_options(entry).values():
                assert f"{option.name} = " in shown
                assert option.help.replace("``", "") in shown


def test_list_names_one_kind(capsys):
    everything = json.loads(call(capsys, "list", "--json")[1])
    for kind in everything:
        code, shown, _ = call(capsys, "list", kind, "--json")
        assert (code, json.loads(shown)) == (0, {kind: everything[kind]})
    _, shown, _ = call(capsys, "list", "Contribution")
    assert shown.startswith("contribution measures\n  distance ")
    assert "\n\n" not in shown
    _, shown, _ = call(capsys, "list", "splits", "--options", "--json")
    assert set(json.loads(shown)["splits"]["dirichlet"]["options"]) == {"alpha"}


def test_list_of_no_such_kind_names_the_kinds(capsys):
    code, shown, told = call(capsys, "list", "strategy")
    assert (code, shown) == (2, "")
    assert "unknown kind 'strategy': did you mean strategies? (known: strategies, datasets" in told

"""``flamma doctor``: facts about this machine, and what is amiss."""

from __future__ import annotations

import json
import os
from importlib.metadata import version

import pytest

import flamma
from flamma.cli import main
from flamma.cli.info import _compiler, _problems
from flamma.experiments.parts import PARTS, own_options
from flamma.strategies import FAMILIES, STRATEGIES, in_family


def test_the_facts_are_those_of_this_machine(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FLAMMA_LANES", "portable")
    monkeypatch.setenv("MY_SECRET", "not to be told")
    assert main(["doctor", "--json", "--data-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    told = json.loads(text)
    assert told["flamma"]["version"] == flamma.__version__
    assert told["packages"]["numpy"] == version("numpy")
    assert "pytest" not in told["packages"]
    assert told["processor"]["cores"] == os.cpu_count()
    assert told["environment"]["FLAMMA_LANES"] == "portable"
    assert told["environment"]["MKL_CBWR"] == os.environ["MKL_CBWR"]
    assert told["lanes"]["used"] in ("portable", None)
    assert told["data"]["folder"] == str(tmp_path)
    assert (told["data"]["digits"], told["data"]["mnist"]) == ("built in", "not fetched")
    assert 0 < told["memory"]["free_bytes"] <= told["memory"]["total_bytes"]
    assert "not to be told" not in text
    assert not any("error" in facts for facts in told.values() if isinstance(facts, dict))


def test_text_has_every_topic(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    topics = [line for line in lines if line and line[0].isalpha() and " " not in line]
    assert topics == [
        *("extras", "flamma", "python", "packages", "processor", "compiler", "lanes", "devices"),
        *("memory", "disk", "data", "environment"),
    ]


def test_a_broken_part_does_not_hide_the_others(capsys, monkeypatch):
    def broken():
        raise RuntimeError("torch is broken\nin many lines")

    monkeypatch.setattr("flamma.cli.info._devices", broken)
    monkeypatch.setattr(
        "flamma.training.lanes.library.unavailable_reason", lambda: "it was not compiled."
    )
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["devices"] == {"error": "RuntimeError: torch is broken"}
    assert "devices: RuntimeError: torch is broken." in told["problems"]
    assert "The compiled trainer is not used: it was not compiled." in told["problems"]
    assert told["memory"]["total_bytes"] > 0


@pytest.mark.parametrize(
    ("topic", "fact", "expected"),
    [
        ("disk", {"here_free_bytes": 5_000_000}, "There is little space on this disk left: 5 MB."),
        ("memory", {"shared_free_bytes": 64_000_000}, "shared memory (/dev/shm) left: 64 MB."),
        ("processor", {"open_files": 64}, "Only 64 files may be open at a time"),
    ],
)
def test_what_is_scarce_is_told(topic, fact, expected):
    found = {name: {} for name in ("lanes", "memory", "disk", "processor")}
    assert _problems(found) == []
    [told] = _problems(found | {topic: fact})
    assert expected in told


def test_a_compiler_is_found_by_its_variable(monkeypatch, tmp_path):
    own = tmp_path / "own-cc"
    own.write_text("#!/bin/sh\necho own-cc 1.2\necho more\n")
    own.chmod(0o755)
    monkeypatch.setenv("CXX", f"{own} -O2")
    assert _compiler() == {"path": str(own), "version": "own-cc 1.2"}
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX")
    assert _compiler() == {"path": None, "version": None}


# ``flamma list``: everything there is to choose from, and a part of it.


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

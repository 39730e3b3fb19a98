"""What is added to a registry never takes the place of what is built in or installed."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint

import pytest

from flamma import registry
from flamma.errors import ConfigError
from flamma.experiments.parts import PARTS
from flamma.registry import Registry


@pytest.fixture
def colours(monkeypatch) -> Registry[int]:
    installed = {"green": EntryPoint("green", "sys:maxsize", "flamma.colours")}
    monkeypatch.setattr(registry, "_points", lambda group, path: installed)
    return Registry("colour", "flamma.colours", {"red": 1})


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_no_built_in_name_can_be_taken_or_discarded(part):
    for name in list(part.registry):
        before = part.registry[name]
        with pytest.raises(ConfigError, match=re.escape(f"'{name}' already: use another")):
            part.registry.add(name, object())
        part.registry.discard(name)
        assert part.registry[name] is before


def test_the_name_of_an_installed_package_is_refused(colours):
    with pytest.raises(ConfigError, match="there is a colour 'green' already"):
        colours.add("green", 2)


def test_an_added_entry_can_be_replaced_and_discarded(colours):
    colours.add("blue", 2)
    colours.add("blue", 3)
    assert (list(colours), colours["blue"]) == (["red", "blue", "green"], 3)
    colours.discard("blue")
    colours.discard("blue")
    assert list(colours) == ["red", "green"]

"""docs/reference/configuration.md tells every key of the configuration with its default."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass

import pytest

from documented import ROOT
from flamma.experiments.config import Config, StrategyConfig
from flamma.experiments.options import to_toml
from flamma.experiments.suite import Suite
from flamma.strategies import STRATEGIES

PAGE = ROOT / "docs" / "reference" / "configuration.md"
ROW = re.compile(r"^\| `(\w+)` \| .+? \| (?:`(.+?)`|(none)) \| .+ \|$", re.MULTILINE)
OURS = [n for n in STRATEGIES if STRATEGIES[n].__module__.startswith("flamma.")]


def sections():
    """The rows of each section by its heading: {heading: {key: default}}."""
    parts = re.split(r"^##+ (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        heading.strip("`[]"): {key: value or none for key, value, none in ROW.findall(body)}
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def default(field):
    value = field.default if field.default is not MISSING else field.default_factory()
    if value is None:
        return "none"
    return "{}" if value == {} else to_toml({"x": value}).removeprefix("x = ")


def table(kind):
    """The keys of a dataclass that are not tables of their own, with their defaults."""
    return {
        f.name: default(f)
        for f in fields(kind)
        if f.default_factory is MISSING or not is_dataclass(f.default_factory)
    }


TABLES = {
    "The run itself": table(Config),
    **{f.name: table(f.default_factory) for f in fields(Config) if f.name not in table(Config)},
    "A suite": table(Suite),
}
TABLES["strategy"] = {"name": default(fields(StrategyConfig)[0])}


@pytest.mark.parametrize("name", TABLES)
def test_every_key_of_a_table_is_told_with_its_default(name):
    assert sections()[name] == TABLES[name]


@pytest.mark.parametrize("name", OURS)
def test_every_option_of_a_strategy_is_told_with_its_default(name):
    own, told = STRATEGIES[name], sections()
    options = {f.name: default(f) for f in fields(own) if f.name != "plan"}
    # What a strategy has from another one is told there, unless its default differs.
    parents = [kind.name for kind in own.__mro__[1:] if getattr(kind, "name", "") in OURS]
    inherited = {}
    for parent in reversed(parents):
        inherited |= told[parent]
    assert inherited | told[name] == options
    assert told[name].keys() <= options.keys()

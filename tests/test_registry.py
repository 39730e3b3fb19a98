"""Options are the parameters of a function or the fields of a dataclass, nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Annotated, Literal

import pytest

from flamma import registry
from flamma.errors import ConfigError
from flamma.experiments.parts import PARTS
from flamma.registry import (
    Choice,
    Registry,
    describe_type,
    from_table,
    options_of,
    read_options,
    to_toml,
)


def shape(pool, classes, *, width: float = 1.0, kind: Literal["a", "b"] = "a", needed: int):
    """Return nothing.

    Parameters
    ----------
    pool, classes
        Given by the caller.
    width : float
        How wide,
        in two lines.
    kind, needed : various
        Both of these.

    Returns
    -------
    nothing : None
        At all.
    """


@dataclass(frozen=True)
class Base:
    """A base.

    Parameters
    ----------
    one : int
        The first.
    """

    given: str
    one: int = 1
    many: tuple[int, ...] = ()


@dataclass(frozen=True)
class Derived(Base):
    """Another.

    Parameters
    ----------
    two : float
        The second.
    """

    two: float | None = None
    table: dict[str, int] = field(default_factory=dict)


def test_what_the_caller_gives_is_no_option():
    assert list(options_of(shape)) == ["width", "kind", "needed"]
    assert list(options_of(Derived)) == ["one", "many", "two", "table"]


def test_help_comes_from_the_docstring_and_those_of_bases():
    assert options_of(shape)["width"].help == "How wide, in two lines."
    assert options_of(shape)["kind"].help == options_of(shape)["needed"].help == "Both of these."
    assert options_of(Derived)["one"].help == "The first."
    assert options_of(Derived)["two"].help == "The second."


def test_options_are_converted_and_complete():
    assert read_options(shape, {"width": 2, "needed": 3}) == {
        "width": 2.0,
        "kind": "a",
        "needed": 3,
    }
    assert read_options(Derived, {"many": [1, 2]})["many"] == (1, 2)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"needed": 1, "widht": 2}, "did you mean width?"),
        ({"needed": 1, "kind": "c"}, "model.kind must be a or b, not 'c'."),
        ({"needed": 1.5}, "model.needed must be a whole number"),
        ({}, "model.needed is missing."),
        ({"needed": 1, "width": float("inf")}, "model.width must be a finite number"),
    ],
)
def test_what_is_no_option_is_refused(table, says):
    with pytest.raises(ConfigError) as caught:
        read_options(shape, table, "model.")
    assert says in str(caught.value)


def test_a_function_that_takes_anything_gets_it():
    assert read_options(lambda pool, **options: None, {"x": "y"}) == {"x": "y"}


def test_a_file_is_named_before_its_keys():
    with pytest.raises(ConfigError, match=r"^host.toml: one must be a whole number, not 'x'\.$"):
        from_table(Base, {"one": "x"}, "host.toml: ")
    with pytest.raises(ConfigError, match=r"^unknown key in host.toml 'on': did you mean one"):
        from_table(Base, {"on": 1}, "host.toml: ")


COLOURS = Registry("colour", "flamma.nothing", {"red": lambda: 1, "blue": lambda *, deep=0.5: 2})


@dataclass(frozen=True)
class Painted:
    colour: Annotated[Choice, COLOURS] = Choice("red")


def test_a_field_may_be_a_choice_of_a_registry():
    assert describe_type(options_of(Painted)["colour"].annotation) == "a name or a table"
    made = read_options(Painted, {"colour": {"name": "blue", "deep": 1.0}})
    assert made["colour"] == Choice("blue", {"deep": 1.0})
    assert read_options(Painted, {"colour": "blue"})["colour"] == Choice("blue", {"deep": 0.5})
    with pytest.raises(ConfigError, match="did you mean blue"):
        read_options(Painted, {"colour": "blu"})
    with pytest.raises(ConfigError, match="colour must be a name or a table, not 3"):
        read_options(Painted, {"colour": 3})


def test_a_choice_is_written_as_short_as_it_can_be():
    assert Choice("red").as_value() == "red"
    assert to_toml({"colour": Choice("blue", {"deep": 0.5}).as_value()}) == (
        '\n[colour]\nname = "blue"\ndeep = 0.5'
    )
    assert to_toml({"paint": {"colour": {"name": "blue", "deep": 0.5}}}) == (
        '\n[paint]\ncolour = {name = "blue", deep = 0.5}'
    )


def test_shared_tables_may_have_options_of_other_entries():
    assert COLOURS.choose({"name": "red", "deep": 1.0}, "colour", shared=True) == Choice("red")
    with pytest.raises(ConfigError, match="unknown key in colour 'dep'"):
        COLOURS.choose({"name": "red", "dep": 1.0}, "colour", shared=True)


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**400, 16**9000], ids=int.bit_length)
def test_whole_numbers_are_those_that_arrays_can_hold(number):
    with pytest.raises(ConfigError, match=r"one must be a whole number below 2\^63") as caught:
        from_table(Base, {"one": number})
    assert len(str(caught.value)) < 300
    assert from_table(Base, {"one": 2**63 - 1}) == {"one": 2**63 - 1}


@pytest.mark.parametrize("number", [10**400, float("inf"), float("nan"), "9" * 5000])
def test_numbers_are_finite(number):
    with pytest.raises(ConfigError, match="two must be a number"):
        from_table(Derived, {"two": number})


# What is added to a registry never takes the place of what is built in or installed.


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

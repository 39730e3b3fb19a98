"""What the top level and the guides of version 0.2 name works; old names lead to new ones."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path

import pytest

from flamma._renamed import RENAMED

NAMES = (Path(__file__).parent / "fixtures" / "names-0.2.txt").read_text(encoding="utf-8").split()


def looked_up(name: str) -> tuple[object, list[str]]:
    home, _, attribute = name.rpartition(".")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        value = getattr(import_module(home), attribute)
    return value, [str(w.message) for w in found if "flamma" in str(w.message)]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_version_0_2_works_and_says_what_it_is_called_now(name):
    value, told = looked_up(name)
    home, _, attribute = name.rpartition(".")
    new = RENAMED.get(name) or (f"{RENAMED[home]}.{attribute}" if home in RENAMED else None)
    if new is None:
        assert told == []
    else:
        assert told == [f"{name} is now {new}; the old name goes with version 0.4"]
        now, warned = looked_up(new)
        assert now is value
        assert warned == []


def test_every_new_name_is_one():
    for new in RENAMED.values():
        home, _, attribute = new.rpartition(".")
        module = import_module(home)
        assert hasattr(module, attribute) or import_module(new)


@pytest.mark.parametrize("home", ["flamma", "flamma.game", "flamma.game.budget"])
def test_other_names_are_unknown_as_ever(home):
    with pytest.raises(ImportError):
        import_module(f"{home}.nothing")
    with pytest.raises(ImportError):
        import_module("flamma.game.budget" + ".affordable")  # a function, no module
    for name in ("nothing", "__nothing__"):
        with pytest.raises(AttributeError, match="nothing"):
            getattr(import_module(home), name)

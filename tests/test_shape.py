"""The numbers of ``shape.toml`` only fall; a commit that raises one says why."""

import tomllib

import pytest

from shape import FILE, shape

KEPT = tomllib.loads(FILE.read_text(encoding="utf-8"))
FOUND = shape()


def test_every_number_is_kept():
    assert KEPT.keys() == FOUND.keys()


@pytest.mark.parametrize("name", KEPT)
def test_a_number_does_not_rise(name):
    assert FOUND[name] <= KEPT[name], "python tests/shape.py prints all numbers"

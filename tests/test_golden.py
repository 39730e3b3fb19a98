"""The weights and scores that every strategy comes to are those in ``golden.json``."""

import json

import pytest

from flamma.training import lanes
from golden import FILE, ROWS

KEPT = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_row_is_in_the_golden_file():
    assert KEPT.keys() == ROWS.keys()


@pytest.mark.skipif(not lanes.available(), reason="only lanes give the same bits everywhere")
@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_the_bits_of_the_golden_file(name, tmp_path):
    assert ROWS[name](tmp_path / "run") == KEPT[name], "see the first lines of tests/golden.py"

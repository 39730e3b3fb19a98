"""Columns of a table: cells, whole numbers, categories."""

from __future__ import annotations

import numpy as np
import pytest

from flamma.data.tables import is_tested, one_hot, places_of, text_columns, whole_numbers
from flamma.errors import DataError

TABLE = b'"","a","b"\n"1","x",3\n"2","y",4\n'


def test_cells_come_by_the_name_of_their_column_in_any_order():
    columns = text_columns(TABLE, ["b", "a"], "t.csv")
    assert list(columns) == ["b", "a"]
    assert columns["a"].tolist() == ["x", "y"]
    assert whole_numbers(columns["b"], "b", "t.csv").tolist() == [3, 4]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "no column b"),
        (b"a,c\n1,2\n", "no column b"),
        (b"a,b\n", "no rows"),
        (b"a,b\n1,2\n1\n", "too short"),
    ],
)
def test_another_table_is_refused(content, what):
    with pytest.raises(DataError, match=what):
        text_columns(content, ["b"], "t.csv")


@pytest.mark.parametrize("cell", ["1.5", "x", "", "NA"])
def test_what_is_no_whole_number_is_refused(cell):
    with pytest.raises(DataError, match=r"t\.csv has a cell in a that is no whole number"):
        whole_numbers(np.array(["1", cell]), "a", "t.csv")


@pytest.mark.parametrize("cell", ["A", "BB", "Z", ""])
def test_an_unknown_category_is_refused(cell):
    with pytest.raises(DataError, match=r"t\.csv has an unknown letter"):
        places_of(np.array(["B", cell]), ("B", "C"), "letter", "t.csv")


def test_a_category_beyond_the_last_has_no_column():
    assert one_hot(np.array([0, 2]), 3).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert one_hot(np.array([0, 2]), 3).dtype == np.float32


def test_every_tenth_row_is_tested():
    assert np.flatnonzero(is_tested(25)).tolist() == [9, 19]

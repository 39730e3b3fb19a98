"""CSV files of one's own: types, quotes, delimiters, and a line number for what is wrong."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flamma.data.tables import _NO_VALUE, _NUMBER, _TRUTH, csv_columns, every_tenth
from flamma.errors import InputFileError


def columns(text):
    return {name: array.tolist() for name, array in csv_columns(text.encode(), "t.csv").items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,x\n-2,y\n", {"a": [1, -2], "b": ["x", "y"]}),
        ("a\n1\n2.5\n", {"a": [1.0, 2.5]}),
        ("a\n1e3\n.5\n", {"a": [1000.0, 0.5]}),
        ("a\nTrue\nfalse\n", {"a": [True, False]}),
        ("a\n1\ntrue\n", {"a": ["1", "true"]}),
        ("a\n007\n12\n", {"a": [7, 12]}),
        ("a\n1_000\n2\n", {"a": ["1_000", "2"]}),
        ("\ufeffa;b\r\n1;2\r\n", {"a": [1], "b": [2]}),
        ("a\tb\n1\tx,y\n", {"a": [1], "b": ["x,y"]}),
        ('"a, b",c\n"x ""y""\nz", 3 \n', {"a, b": ['x "y"\nz'], "c": [3]}),
        ("a,b\n\n1,2\n \n3,4", {"a": [1, 3], "b": [2, 4]}),
        ("a,b\nNA,1\nx,2\n", {"a": ["NA", "x"], "b": [1, 2]}),
    ],
)
def test_columns_are_what_all_of_their_cells_are(text, expected):
    assert columns(text) == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "t.csv is empty"),
        (b"\n\n", "t.csv is empty"),
        (b"a,b\n", "has a header, but no rows"),
        (b"a,b\n1,2\n1\n", "t.csv, line 3: there are 1 cells, but the header has 2"),
        (b"a,b\n1,2\n1,2,3\n", "t.csv, line 3: there are 3 cells"),
        (b'a,b\n"x\ny",2\n1\n', "t.csv, line 4: there are 1 cells"),
        (b"a,b\n1,2\n,3\n", "t.csv, line 3: column 'a' has 1 missing values"),
        (b"a,b\n1,2\nNA,3\nnan,3\n", "t.csv, line 3: column 'a' has 2 missing values"),
        (b"a,b\nx,2\n,3\n", "t.csv, line 3: column 'a' has 1 missing values"),
        (b"a,b\nNA,2\n,3\n", "t.csv, line 2: column 'a' has 2 missing values"),
        (b"a,b\n1,2\n\xff,3\n", "t.csv, line 3: this is not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "t.csv, line 1: this is not UTF-8"),
        (b"a,b\n1,\x00\n", "bytes of zero"),
        (b'a,b\n1,"2\n', "t.csv, line 2: "),
        (b'a,b\n1,"2"3\n', "t.csv, line 2: "),
        (b"a,a\n1,2\n", "more than one column 'a'"),
        (b"a,,c\n1,2,3\n", "t.csv, line 1: column 2 has no name"),
        (b"1,2\n3,4\n", "must have the names of the columns"),
        (b"a,b\n1,99999999999999999999\n", "t.csv, line 2: column 'b' .* more than 63 bits"),
        (b"a,b\n1," + b"9" * 5000 + b"\n", "t.csv, line 2: column 'b' .* more than 63 bits"),
        (b"a,b\n1," + b"x" * 200_000 + b"\n", "t.csv, line 2: field larger than"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(content, sentence):
    with pytest.raises(InputFileError, match=sentence) as caught:
        csv_columns(content, "t.csv")
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=300))
@example(b"a,b\n\r1,2\n")
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_table_or_refused(content):
    try:
        found = csv_columns(content, "t.csv")
    except InputFileError:  # any other error fails the test
        return
    assert len({array.size for array in found.values()}) == 1
    assert all(array.dtype.kind in "bifO" for array in found.values())


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).map(str.strip)
TEXTS = CELLS.filter(
    lambda cell: (
        cell and cell.casefold() not in _NO_VALUE | _TRUTH.keys() and not _NUMBER.fullmatch(cell)
    )
)


@given(
    st.lists(
        st.tuples(TEXTS, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)), min_size=1
    )
)
@settings(max_examples=100, deadline=None)
def test_what_the_csv_module_writes_is_read_back(rows):
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerows([("text", "whole", "number"), *((t, w, repr(n)) for t, w, n in rows)])
    found = csv_columns(file.getvalue().encode(), "t.csv")
    assert found["text"].tolist() == [t for t, _, _ in rows]
    assert found["whole"].tolist() == [w for _, w, _ in rows]
    np.testing.assert_array_equal(found["number"], [n for _, _, n in rows])


def test_every_tenth_row_is_tested():
    assert np.flatnonzero(every_tenth(25)).tolist() == [9, 19]

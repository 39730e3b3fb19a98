"""Columns of a table that a dataset is made of: texts, numbers and categories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flamma.data.csv_rows import csv_rows
from flamma.errors import DataError
from flamma.types import Ints

Texts = NDArray[np.str_]

TEST_EVERY = 10
"""Of a dataset without a test set of its own, every so many rows are one."""


def text_columns(content: bytes, names: Sequence[str], file: str) -> dict[str, Texts]:
    r"""Return the cells of some columns of a CSV file.

    Raises
    ------
    DataError
        If the file has no such column, or a row is too short.

    Examples
    --------
    >>> text_columns(b"age,ward,sex\n39,a,1\n50,b,0\n", ["age", "sex"], "people.csv")["sex"]
    array(['1', '0'], dtype='<U1')
    """
    rows = csv_rows(content, file)
    _, header = next(rows, (0, []))
    missing = [name for name in names if name not in header]
    if missing:
        raise DataError(f"{file} has no column {missing[0]}.")
    places = [header.index(name) for name in names]
    try:
        cells = [[row[place] for place in places] for _, row in rows]
    except IndexError:
        raise DataError(f"{file} has a row that is too short.") from None
    if not cells:
        raise DataError(f"{file} has no rows.")
    columns = zip(*cells, strict=True)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}


def whole_numbers(cells: Texts, column: str, file: str) -> Ints:
    """Return the cells of a column as whole numbers."""
    try:
        return cells.astype(np.int64)
    except ValueError:
        raise DataError(f"{file} has a cell in {column} that is no whole number.") from None


def one_hot(places: Ints, categories: int) -> NDArray[np.float32]:
    """Return a column for each category, which is 1 where it is the sample's.

    Examples
    --------
    >>> one_hot(np.array([1, 0]), 2).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    hot: NDArray[np.float32] = (places[:, None] == np.arange(categories)).astype(np.float32)
    return hot


def is_tested(rows: int) -> NDArray[np.bool_]:
    """Return which rows are the test set: every tenth."""
    tested: NDArray[np.bool_] = np.arange(rows) % TEST_EVERY == TEST_EVERY - 1
    return tested


def places_of(cells: Texts, known: Sequence[str], what: str, file: str) -> Ints:
    """Return the place of each cell among those that are known, which are sorted.

    Raises
    ------
    DataError
        If a cell is none of them; ``what`` says what it should be.

    Examples
    --------
    >>> places_of(np.array(["JFK", "EWR"]), ("EWR", "JFK", "LGA"), "airport", "flights.csv")
    array([1, 0])
    """
    names = np.array(known)
    places = np.minimum(np.searchsorted(names, cells), names.size - 1)
    if (names[places] != cells).any():
        raise DataError(f"{file} has an unknown {what}.")
    return places

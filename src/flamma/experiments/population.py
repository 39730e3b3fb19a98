"""``population.csv`` as columns of numbers, for a million clients as for ten."""

from __future__ import annotations

from itertools import islice

import numpy as np

from flamma.io import csv_rows
from flamma.types import Floats, Ints

CLIENTS_AT_ONCE = 50_000
"""Lines that are written at a time."""

_ROWS_AT_ONCE = 1024
"""Lines that are read at a time: more would take far more memory than the numbers in them."""

_FILE, _NAME_COLUMN = "population.csv", "name"
_MOST_COUNT = 2**53
"""A number of samples from here on is taken for damage."""


def read_columns(text: str) -> dict[str, Floats]:
    r"""Return the columns of ``population.csv`` by name, without that of the clients' names.

    Raises
    ------
    ValueError
        If a line has another number of cells than the first, or a cell that is not a number.

    Examples
    --------
    >>> read_columns("client,samples\n0,12\n1,7\n")["samples"]
    array([12.,  7.])
    """
    rows = csv_rows(text, _FILE)
    _, header = next(rows, (0, []))
    wanted = [place for place, column in enumerate(header) if column != _NAME_COLUMN]
    parts = [np.zeros((0, len(wanted)))]
    while some := [
        [float(row[place]) for place in wanted] for _, row in islice(rows, _ROWS_AT_ONCE)
    ]:
        parts.append(np.array(some))
    table = np.concatenate(parts)
    return {header[place]: table[:, k] for k, place in enumerate(wanted)}


def read_names(text: str) -> tuple[str, ...]:
    """Return the clients' names, empty where they have none.

    Raises
    ------
    ValueError
        If a line has another number of cells than the first.
    """
    rows = csv_rows(text, _FILE)
    _, header = next(rows, (0, []))
    if _NAME_COLUMN not in header:
        return ()
    place = header.index(_NAME_COLUMN)
    return tuple(row[place] for _, row in rows)


def csv_cell(text: str) -> str:
    """Return a text as a cell of a CSV file, in quotes where it needs them.

    Examples
    --------
    >>> csv_cell("north"), csv_cell('St. "Anna", east')
    ('north', '"St. ""Anna"", east"')
    """
    special = set(text) & set(',"\r\n')
    return '"' + text.replace('"', '""') + '"' if special else text


def whole(column: Floats) -> Ints:
    """Return a column as whole numbers.

    Raises
    ------
    ValueError
        If one of them is not a number, or too large to be a count.
    """
    if not (np.abs(column) < _MOST_COUNT).all():  # false for NaN
        raise ValueError("a count is not a number, or too large")
    return column.astype(np.int64)

"""``population.csv`` as columns of numbers, for a million clients as for ten."""

from __future__ import annotations

import csv
import io

import numpy as np

from flamma.types import Floats, Ints

CLIENTS_AT_ONCE = 50_000
"""Lines that are read or written at a time."""

_NAME_COLUMN = "name"
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
    columns, body = _parts(text)
    wanted = [k for k, column in enumerate(columns) if column != _NAME_COLUMN]
    if not body.strip():
        return {columns[k]: np.zeros(0) for k in wanted}
    if _NAME_COLUMN in columns:  # a name may have quoted commas, which only csv reads
        rows = list(csv.reader(io.StringIO(body)))
        if any(len(row) != len(columns) for row in rows):
            raise ValueError("a line has another number of cells")
        table = np.array([[float(row[k]) for k in wanted] for row in rows])
    else:
        table = np.loadtxt(io.StringIO(body), delimiter=",", comments=None, ndmin=2)
        if table.shape[1] != len(columns):
            raise ValueError("a line has another number of cells")
    return {columns[k]: table[:, place] for place, k in enumerate(wanted)}


def read_names(text: str) -> tuple[str, ...]:
    """Return the clients' names, empty where they have none."""
    columns, body = _parts(text)
    if _NAME_COLUMN not in columns:
        return ()
    place = columns.index(_NAME_COLUMN)
    return tuple(row[place] for row in csv.reader(io.StringIO(body)))


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


def _parts(text: str) -> tuple[list[str], str]:
    header, _, body = text.partition("\n")
    return header.rstrip("\r").split(","), body

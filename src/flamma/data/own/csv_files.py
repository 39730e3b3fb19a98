r"""Reads CSV files as columns of whole numbers, numbers, truth values or texts.

Examples
--------
>>> columns = parse_csv(b"age,ward\n39,a\n50,b\n", "people.csv")
>>> columns["age"].tolist(), columns["ward"].tolist()
([39, 50], ['a', 'b'])
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.data.cells import WHAT_TO_DO, shown_names
from flamma.data.csv_rows import csv_rows
from flamma.errors import DataError
from flamma.names import quoted

MOST_CSV_CELLS = 50_000_000
"""Cells of a CSV file; each takes about 60 bytes while it is read."""

MOST_COLUMNS = 20_000

NO_VALUE = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""What stands for a missing value in a column of numbers or truth values, in any case."""

TRUTH = {"true": True, "false": False}
WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.I)


def parse_csv(content: bytes, name: str, texts: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    """Return the columns of a CSV file by name; those in ``texts`` as texts whatever they hold.

    The first line has the names. Cells may be in double quotes; blanks around cells and empty
    lines do not count.

    Raises
    ------
    DataError
        With the line, if the file is no such table or a cell is missing.
    """
    rows = csv_rows(content, name)
    header = next(rows, None)
    if header is None:
        raise DataError(f"{name} is empty.")
    names = _names(header[1], name)
    lines: list[int] = []
    cells: list[list[str]] = []
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(
                f"line {line} of {name} has {len(row)} cells, but the header has {len(names)}."
            )
        lines.append(line)
        cells.append(row)
        if len(cells) * len(names) > MOST_CSV_CELLS:
            raise DataError(f"{name} has more than {MOST_CSV_CELLS:,} cells: use a parquet file.")
    if not cells:
        raise DataError(f"{name} has a header, but no rows.")
    columns = zip(*cells, strict=True)
    return {
        column: typed_column([c.strip() for c in values], lines, column, name, column in texts)
        for column, values in zip(names, columns, strict=True)
    }


def typed_column(
    cells: list[str], lines: list[int], column: str, name: str, as_texts: bool = False
) -> NDArray[Any]:
    """Return the cells of a column as what all of them are, or as texts.

    Raises
    ------
    DataError
        With the line of the first cell that is missing.
    """
    gaps = {cell for cell in set(cells) if cell.casefold() in NO_VALUE}
    filled = [cell for cell in cells if cell not in gaps] if gaps else cells
    array = _texts(filled) if as_texts else _converted(filled, column, name)
    numbers = array.dtype != object
    if filled and not numbers:
        gaps &= {""}  # any other word may be a text
    missing = [place for place, cell in enumerate(cells) if cell in gaps] if gaps else []
    if missing:
        raise DataError(
            f"column {quoted(column)} of {name} has {len(missing):,} missing values, the first on "
            f"line {lines[missing[0]]}: {WHAT_TO_DO}."
        )
    return array if numbers else _texts(cells)


def _converted(cells: list[str], column: str, name: str) -> NDArray[Any]:
    distinct = set(cells)
    if all(WHOLE.fullmatch(cell) for cell in distinct):
        try:
            return np.array([int(cell) for cell in cells], dtype=np.int64)
        except (OverflowError, ValueError):  # ValueError: of more than 4300 digits
            raise DataError(
                f"column {quoted(column)} of {name} has a whole number of more than 63 bits: leave "
                f"it out (drop), or put a letter before it."
            ) from None
    if all(NUMBER.fullmatch(cell) for cell in distinct):
        return np.array([float(cell) for cell in cells])
    if all(cell.casefold() in TRUTH for cell in distinct):
        return np.array([TRUTH[cell.casefold()] for cell in cells])
    return _texts(cells)


def _texts(cells: list[str]) -> NDArray[Any]:
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


def _names(header: list[str], name: str) -> list[str]:
    names = [cell.strip() for cell in header]
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{name} has more than {MOST_COLUMNS:,} columns.")
    if not all(names):
        raise DataError(f"column {names.index('') + 1} of {name} has no name in the first line.")
    if all(NUMBER.fullmatch(cell) for cell in names):
        raise DataError(f"the first line of {name} must have the names of the columns.")
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise DataError(f"{name} has more than one column {shown_names(twice)}.")
    return names

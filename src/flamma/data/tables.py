"""The rows of CSV files that are not trusted."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError
from flamma.io import quoted
from flamma.types import Ints

_MOST_CELL_CHARACTERS = 100_000

_DELIMITERS = (",", ";", "\t", "|")
"""What may stand between cells: the first of these that the header has most of."""


def _csv_rows(content: bytes, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, the header too, each with the number of its last line."""
    text = _decoded(content, name)
    first = text.lstrip().partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row) or len(row) > 1:
                if max(map(len, row)) > _MOST_CELL_CHARACTERS:
                    raise DataError(
                        f"line {reader.line_num} of {name} has a cell of more than "
                        f"{_MOST_CELL_CHARACTERS:,} characters."
                    )
                yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {name} cannot be read: {error}.") from None


def _decoded(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"line {line} of {name} is not UTF-8 text: save the file as UTF-8."
        ) from None
    if "\0" in text:
        raise DataError(f"{name} is no text: it has bytes of zero.")
    return text


# Columns of tables, whatever they come from: arrays of numbers, truth values or texts.

Label = str | int | float | bool
"""What a user may call a class."""

LARGEST_TABLE_BYTES = 16 * 1024**3
"""Bytes of all samples of one's own together."""

_NAMES_SHOWN = 8
"""The most names that a message lists."""

_WHAT_TO_DO = "fill the gaps or remove these rows"


def column_array(values: Any, name: str) -> NDArray[Any]:
    """Return a column as an array of numbers, truth values or texts (of dtype object).

    Raises
    ------
    DataError
        If a value is missing or not finite, or the column is of something else.

    Examples
    --------
    >>> column_array(["a", "b"], "ward").dtype, column_array([1, 2], "age").dtype
    (dtype('O'), dtype('int64'))
    """
    called = f"column {quoted(name)}"
    array = _plain_array(values)
    if array.ndim != 1:
        raise DataError(f"{called} must have one value for each row, but its cells are lists.")
    if array.dtype.kind in "biu":
        return array
    if array.dtype.kind == "f":
        return _finite(array, called)
    if array.dtype.kind in "mM":
        raise DataError(f"{called} is of times: make a number of it, or leave it out (drop).")
    return _object_column(array, called)


def shown_names(names: Sequence[Any]) -> str:
    """Return names for a message, the first few of many."""
    listed = ", ".join(quoted(name) for name in names[:_NAMES_SHOWN])
    left = len(names) - _NAMES_SHOWN
    return f"{listed} and {left:,} more" if left > 0 else listed


def _plain_array(values: Any) -> NDArray[Any]:
    """Return an array of a column; one of pandas is of Python's values where numpy has no type."""
    if hasattr(values, "to_numpy"):
        array: NDArray[Any] = values.to_numpy()
    elif hasattr(values, "detach"):
        array = np.asarray(values.detach().cpu())
    elif isinstance(values, np.ndarray):
        array = values
    else:
        listed = list(values)
        try:
            array = np.asarray(listed)
        except (ValueError, OverflowError):
            array = np.empty(0)
        numbers = array.dtype.kind in "biuf" and array.ndim == 1
        mixed = len({type(value) is bool for value in listed}) > 1
        if not numbers or mixed:  # np.asarray turns [1, "a"] into two texts
            array = np.empty(len(listed), dtype=object)
            array[:] = listed
    return array.astype(object) if array.dtype.kind in "US" else array


def _object_column(array: NDArray[Any], called: str) -> NDArray[Any]:
    """Return a column of Python's values as what they all are."""
    listed = array.tolist()
    missing = sum(map(_is_missing, listed))
    if missing:
        raise DataError(f"{called} has {missing:,} missing values: {_WHAT_TO_DO}.")
    kinds = {_kind(value) for value in listed}
    if kinds == {str}:
        return array.astype(object)
    if kinds == {bool}:
        return array.astype(np.bool_)
    if kinds <= {int, float} and kinds:
        try:
            numbers = np.array(listed, dtype=np.int64 if kinds == {int} else np.float64)
        except OverflowError:
            raise DataError(
                f"{called} has a whole number of more than 63 bits: make it a text or smaller."
            ) from None
        return _finite(numbers, called)
    names = sorted(kind.__name__ for kind in kinds)
    raise DataError(
        f"{called} must be all numbers, all truth values or all texts, but has "
        f"{' and '.join(names) or 'no cells'}."
    )


def _finite(array: NDArray[Any], called: str) -> NDArray[Any]:
    missing = int(np.isnan(array).sum())
    if missing:
        raise DataError(f"{called} has {missing:,} missing values: {_WHAT_TO_DO}.")
    if not np.isfinite(array).all():
        raise DataError(f"{called} has an infinite value: {_WHAT_TO_DO}.")
    return array


def _kind(value: Any) -> type:
    if isinstance(value, bool | np.bool_):
        return bool
    for kind, others in ((str, str), (int, np.integer), (float, np.floating)):
        if isinstance(value, kind | others):
            return kind
    return type(value)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


# Columns of a table that a dataset is made of: texts, numbers and categories.

Texts = NDArray[np.str_]

_TEST_EVERY = 10
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
    rows = _csv_rows(content, file)
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
    tested: NDArray[np.bool_] = np.arange(rows) % _TEST_EVERY == _TEST_EVERY - 1
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


# Reads CSV files as columns of whole numbers, numbers, truth values or texts.
#
# Examples
# --------
# >>> columns = parse_csv(b"age,ward\n39,a\n50,b\n", "people.csv")
# >>> columns["age"].tolist(), columns["ward"].tolist()
# ([39, 50], ['a', 'b'])

MOST_CSV_CELLS = 50_000_000
"""Cells of a CSV file; each takes about 60 bytes while it is read."""

_MOST_COLUMNS = 20_000

NO_VALUE = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""What stands for a missing value in a column of numbers or truth values, in any case."""

TRUTH = {"true": True, "false": False}
_WHOLE = re.compile(r"[+-]?[0-9]+")
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
    rows = _csv_rows(content, name)
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
            f"line {lines[missing[0]]}: {_WHAT_TO_DO}."
        )
    return array if numbers else _texts(cells)


def _converted(cells: list[str], column: str, name: str) -> NDArray[Any]:
    distinct = set(cells)
    if all(_WHOLE.fullmatch(cell) for cell in distinct):
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
    if len(names) > _MOST_COLUMNS:
        raise DataError(f"{name} has more than {_MOST_COLUMNS:,} columns.")
    if not all(names):
        raise DataError(f"column {names.index('') + 1} of {name} has no name in the first line.")
    if all(NUMBER.fullmatch(cell) for cell in names):
        raise DataError(f"the first line of {name} must have the names of the columns.")
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise DataError(f"{name} has more than one column {shown_names(twice)}.")
    return names

"""Columns of tables, whatever they come from: arrays of numbers, truth values or texts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError, InputFileError
from flamma.io import CsvTable, nearest, quoted, read_csv

Array = NDArray[Any]
"""Numbers, truth values, texts or Python's values, of any shape."""

Values = Array | Sequence[object]
"""A column of a table, or one value for each sample: an array, a list, a series or a tensor."""

Label = str | int | float | bool
"""What a user may call a class."""

LARGEST_TABLE_BYTES = 16 * 1024**3
"""The most bytes of all samples of a user or a site together."""

_NAMES_SHOWN = 8
"""The most names that a message lists."""

_WHAT_TO_DO = "fill the gaps or remove these rows"


def column_array(values: Values, name: str) -> Array:
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


def shown_names(names: Sequence[object]) -> str:
    """Return names for a message, the first few of many."""
    listed = ", ".join(quoted(name) for name in names[:_NAMES_SHOWN])
    left = len(names) - _NAMES_SHOWN
    return f"{listed} and {left:,} more" if left > 0 else listed


def no_column(wanted: object, known: Sequence[str]) -> str:
    """Return the sentence that a table lacks a column, with the nearest one that it has."""
    guess = nearest(str(wanted), known)
    hint = f": did you mean {quoted(guess)}?" if guess else ""
    return f"there is no column {quoted(wanted)}{hint} (columns: {shown_names(known)})."


def object_array(values: Sequence[object]) -> NDArray[np.object_]:
    """Return values of any kind as an array, none of which is taken for an array itself."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _plain_array(values: Any) -> Array:
    """Return an array of a column; one of pandas is of Python's values where numpy has no type."""
    if hasattr(values, "to_numpy"):
        array: Array = values.to_numpy()
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
            array = object_array(listed)
    return array.astype(object) if array.dtype.kind in "US" else array


def _object_column(array: Array, called: str) -> Array:
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


def _finite(array: Array, called: str) -> Array:
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


def every_tenth(rows: int) -> NDArray[np.bool_]:
    """Return which rows are the test set of a dataset that has none: every tenth."""
    tested: NDArray[np.bool_] = np.arange(rows) % 10 == 9
    return tested


# Columns of CSV files: whole numbers, numbers, truth values or texts.

_NO_VALUE = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""What stands for a missing value in a column of numbers or truth values, in any case."""

_TRUTH = {"true": True, "false": False}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.I)


def csv_columns(content: bytes, file: str, texts: Collection[str] = ()) -> dict[str, Array]:
    r"""Return the columns of a CSV file by name; those in ``texts`` as texts whatever they hold.

    Raises
    ------
    InputFileError
        With the line, if the file is no such table or a cell is missing.

    Examples
    --------
    >>> columns = csv_columns(b"age,ward\n39,a\n50,b\n", "people.csv")
    >>> columns["age"].tolist(), columns["ward"].tolist()
    ([39, 50], ['a', 'b'])
    """
    table = read_csv(content, file)
    names = list(table.columns)
    if not all(names):
        raise InputFileError(f"{file}, line 1: column {names.index('') + 1} has no name.")
    if all(_NUMBER.fullmatch(name) for name in names):
        raise InputFileError(f"{file}, line 1: the first line must have the names of the columns.")
    return {name: _typed_column(table, name, name in texts) for name in names}


def _typed_column(table: CsvTable, name: str, as_texts: bool) -> Array:
    """Return the cells of a column as what all of them are, or as texts."""
    cells = table.columns[name]
    gaps = {cell for cell in set(cells) if cell.casefold() in _NO_VALUE}
    kind = None if as_texts else _kind_of_cells(set(cells) - gaps)
    if kind is None and gaps != set(cells):
        gaps &= {""}  # any other word may be a text
    if gaps:
        missing = [row for row, cell in enumerate(cells) if cell in gaps]
        problem = (
            f"column {quoted(name)} has {len(missing):,} missing values, the first of them here"
        )
        raise table.error(missing[0], f"{problem}: {_WHAT_TO_DO}")
    if kind is None:
        return object_array(cells)
    try:
        return np.array(list(map(kind, cells)), dtype=np.int64 if kind is int else None)
    except (OverflowError, ValueError):  # ValueError: of more than 4300 digits
        row = next(
            k for k, cell in enumerate(cells) if len(cell) > 18 and abs(float(cell)) >= 2**63
        )
        raise table.error(
            row,
            f"column {quoted(name)} has a whole number of more than 63 bits: leave it out (drop), "
            f"or put a letter before it",
        ) from None


def _kind_of_cells(cells: set[str]) -> Callable[[str], int | float | bool] | None:
    """Return what makes values of all these cells, None if they are texts."""
    if all(map(_WHOLE.fullmatch, cells)):
        return int
    if all(map(_NUMBER.fullmatch, cells)):
        return float
    if all(cell.casefold() in _TRUTH for cell in cells):
        return lambda cell: _TRUTH[cell.casefold()]
    return None

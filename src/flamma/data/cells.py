"""Columns of tables, whatever they come from: arrays of numbers, truth values or texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError
from flamma.names import quoted

Label = str | int | float | bool
"""What a user may call a class."""

LARGEST_TABLE_BYTES = 16 * 1024**3
"""Bytes of all samples of one's own together."""

NAMES_SHOWN = 8
"""The most names that a message lists."""

WHAT_TO_DO = "fill the gaps or remove these rows"


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
    listed = ", ".join(quoted(name) for name in names[:NAMES_SHOWN])
    left = len(names) - NAMES_SHOWN
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
        raise DataError(f"{called} has {missing:,} missing values: {WHAT_TO_DO}.")
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
        raise DataError(f"{called} has {missing:,} missing values: {WHAT_TO_DO}.")
    if not np.isfinite(array).all():
        raise DataError(f"{called} has an infinite value: {WHAT_TO_DO}.")
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

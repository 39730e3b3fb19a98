"""Frames of pandas, without importing it."""

from __future__ import annotations

from typing import Any

from flamma.data.cells import shown_names
from flamma.errors import DataError


def is_frame(data: Any) -> bool:
    """Return whether data are a table of pandas."""
    return hasattr(data, "columns") and hasattr(data, "iloc") and hasattr(data, "dtypes")


def frame_columns(frame: Any) -> dict[str, Any]:
    """Return the columns of a frame by name; the index is not one of them.

    Raises
    ------
    DataError
        If two columns have one name.
    """
    names = [str(name) for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"columns must have different names, but these are there twice: {shown_names(twice)}."
        )
    return {name: _values(frame.iloc[:, place]) for place, name in enumerate(names)}


def _values(series: Any) -> Any:
    """Return a column as numpy has it; one with missing values or categories as objects."""
    kind = getattr(series.dtype, "kind", "O")
    if str(series.dtype) == "category" or kind not in "biufmM":
        return series.astype(object).to_numpy()
    if series.isna().any():
        return series.astype(object).to_numpy()
    return series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", None))

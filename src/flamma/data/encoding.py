"""How samples become numbers: kept with a run, so that new samples are treated as the first were.

Tables are one column after the other: numbers and truth values as they are, texts as one indicator
for each category. Statistics that standardise are those of the training samples alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flamma.data.tables import LARGEST_TABLE_BYTES, Array, Label, Values, column_array, shown_names
from flamma.errors import DataError
from flamma.io import quoted
from flamma.numerics import dot, total
from flamma.types import Ints

BYTE_SCALE, SIXTEEN_BIT_SCALE = 255.0, 65535.0
"""What pictures of bytes, and of 16 bits, are divided by."""
_SAMPLES_AT_ONCE = 4096
"""Samples that are scaled and standardised at a time."""


@dataclass(frozen=True)
class FeatureColumn:
    """One column of a table: its name, and its categories if it is of texts."""

    name: str
    categories: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that it becomes."""
        return tuple(f"{self.name}={c}" for c in self.categories) or (self.name,)

    def encoded(self, values: Array) -> NDArray[np.float64]:
        """Return the column as (samples, features).

        Raises
        ------
        DataError
            If it is of another kind than the column that this was made from.
        """
        if not self.categories:
            if values.dtype.kind not in "biuf":
                raise DataError(f"column {quoted(self.name)} must be numbers, as in training.")
            return values.astype(np.float64)[:, None]
        if values.dtype.kind in "biuf":
            raise DataError(f"column {quoted(self.name)} must be texts, as in training.")
        places = {category: place for place, category in enumerate(self.categories)}
        encoded = np.zeros((values.size, len(places)))
        for row, value in enumerate(values.tolist()):
            place = places.get(value)
            if place is None:
                raise DataError(
                    f"column {quoted(self.name)} has the category {quoted(value)}, which was not "
                    f"there in training: replace it by one of {shown_names(self.categories)}."
                )
            encoded[row, place] = 1.0
        return encoded


@dataclass(frozen=True)
class SampleEncoding:
    """What is done to samples before a model sees them.

    Attributes
    ----------
    shape : tuple of int
        The shape of one sample after it.
    dtype : {"float32", "int64"}
        Numbers, or the ids of tokens.
    columns : tuple of FeatureColumn
        The columns of a table, in order; empty for arrays and pictures.
    scale : float
        What samples are divided by first.
    mean, std : tuple of float
        Subtracted then, and what the rest is divided by: one for each feature or channel.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    columns: tuple[FeatureColumn, ...] = ()
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of a table's features, empty for other samples."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def is_applied(self) -> bool:
        """Whether samples are scaled or standardised, and not only converted to their type."""
        return self.dtype != "int64" and bool(self.mean or self.scale != 1)

    @property
    def raw_dtype(self) -> str:
        """The type that holds samples exactly before they are scaled and standardised.

        Pixels fit into single precision; a column such as a time in seconds does not.
        """
        return "float32" if self.scale != 1 else "float64"

    def moments(self, sides: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and deviation, to broadcast over samples with ``sides`` dimensions."""
        axis = (1, -1, *[1] * (sides - 1))
        mean, std = (self.mean, self.std) if self.mean else ((0.0,), (1.0,))
        return np.reshape(mean, axis), np.reshape(std, axis)

    def encode(self, x: Any) -> Array:
        """Return new samples as the model takes them.

        Parameters
        ----------
        x : table, mapping of columns, or array
            A table needs the columns it had in training; others are left aside. An array of a
            table of numbers has its columns in the same order.

        Raises
        ------
        DataError
            If a column is missing, or samples are of another shape or kind.
        """
        raw = self.matrix(x) if self.columns else as_numbers(x, "samples")
        if tuple(raw.shape[1:]) != self.shape:
            raise DataError(f"samples must have the shape {self.shape}, not {raw.shape[1:]}.")
        if self.dtype == "int64" and raw.dtype.kind not in "iu":
            raise DataError(f"samples must be whole numbers as in training, not {raw.dtype}.")
        return self.applied(raw)

    def applied(self, raw: Array) -> Array:
        """Return samples of numbers scaled and standardised, in their type."""
        if self.dtype == "int64":
            return raw.astype(np.int64)
        if not self.is_applied:
            return _single(raw)
        mean, std = self.moments(raw.ndim - 1)
        encoded = np.empty(raw.shape, dtype=np.float32)
        for first in range(0, len(raw), _SAMPLES_AT_ONCE):  # double precision takes much memory
            own = slice(first, first + _SAMPLES_AT_ONCE)
            scaled = raw[own] / np.float64(self.scale)
            encoded[own] = _single((scaled - mean) / std if self.mean else scaled)
        return encoded

    def fitted(self, raw: Array) -> Self:
        """Return the encoding with the mean and standard deviation of these samples.

        Indicators of categories keep their 0 and 1, and a feature that is the same everywhere is
        not divided.
        """
        if self.dtype == "int64" or not raw.size:
            return self
        kept = [bool(column.categories) for column in self.columns for _ in column.features]
        pairs = [
            (0.0, 1.0) if kept and kept[place] else _moments(raw[:, place] / self.scale)
            for place in range(raw.shape[1])
        ]
        return replace(self, mean=tuple(m for m, _ in pairs), std=tuple(s for _, s in pairs))

    def as_json(self) -> dict[str, Any]:
        """Return the encoding as plain values, which :meth:`from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """Return the encoding that a JSON file holds.

        Raises
        ------
        DataError
            If it is not one.
        """
        try:
            columns = tuple(
                FeatureColumn(str(c["name"]), tuple(str(k) for k in c["categories"]))
                for c in table["columns"]
            )
            numbers = {key: tuple(float(v) for v in table[key]) for key in ("mean", "std")}
            shape = tuple(int(side) for side in table["shape"])
            return cls(shape, str(table["dtype"]), columns, float(table["scale"]), **numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the encoding of samples is damaged: {error!r}.") from error

    def matrix(self, x: Any) -> NDArray[np.float64]:
        """Return the features of a table, not standardised yet."""
        if hasattr(x, "keys") or hasattr(x, "columns") or hasattr(x, "column_names"):
            names = getattr(x, "column_names", None) or getattr(x, "columns", None)
            known = [str(name) for name in (x.keys() if names is None else names)]
            for column in self.columns:
                if column.name not in known:
                    raise DataError(f"column {quoted(column.name)} is missing.")
            found = [column_array(x[column.name], column.name) for column in self.columns]
        else:
            array = as_numbers(x, "samples")
            if array.ndim != 2 or array.shape[1] != len(self.columns):
                raise DataError(
                    f"samples must have the {len(self.columns)} columns "
                    f"{shown_names([c.name for c in self.columns])}."
                )
            found = list(array.T)
        return joined_features(self.columns, found)


def joined_features(columns: tuple[FeatureColumn, ...], values: list[Array]) -> NDArray[np.float64]:
    """Return the columns of a table as one matrix of (samples, features)."""
    width, rows = sum(len(c.features) for c in columns), values[0].size
    if 8 * width * rows > LARGEST_TABLE_BYTES:
        raise DataError(
            f"{rows:,} samples of {width:,} features take more than "
            f"{LARGEST_TABLE_BYTES // 1024**3} GiB: leave out columns."
        )
    parts = [c.encoded(v) for c, v in zip(columns, values, strict=True)]
    return np.concatenate(parts, axis=1)


def as_numbers(x: Values, what: str) -> Array:
    """Return samples as an array of finite numbers; truth values become 0 and 1.

    Whole numbers stay whole, as int64 or, if they are bytes, as uint8.

    Raises
    ------
    DataError
        If they are not numbers, ragged, not finite, or too large.
    """
    if hasattr(x, "detach"):  # a torch tensor, perhaps on a GPU
        x = x.detach().cpu()
    try:
        array = np.asarray(x)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{what} make no array, all samples must have one shape: {error}."
        ) from None
    if array.dtype.kind == "b":
        return array.astype(np.float32)
    if array.dtype.kind not in "iuf":
        advice = "turn texts into numbers, or give a table with named columns"
        if array.dtype.kind == "O":
            advice = "all samples must have one shape, and no cell may be None or text"
        raise DataError(f"{what} must be numbers, not {array.dtype}: {advice}.")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise DataError(f"{what} have a value that is not finite: remove or replace it.")
        return array
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{what} have a whole number of more than 63 bits: make it smaller.")
    return array.astype(np.int64)


def as_given(labels: tuple[Label, ...], numbers: Ints) -> Array:
    """Return classes as the user calls them instead of their numbers.

    Examples
    --------
    >>> as_given(("ill", "well"), np.array([1, 0, 1])).tolist()
    ['well', 'ill', 'well']
    """
    return np.asarray(labels)[numbers] if labels else numbers


def _single(array: Array) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    if not np.isfinite(single).all():
        raise DataError("a sample has a number too large for single precision: scale it.")
    return single


def _moments(values: Array) -> tuple[float, float]:
    flat = values.astype(np.float64).reshape(-1)
    mean = total(flat) / flat.size
    centred = flat - mean
    deviation = math.sqrt(dot(centred, centred) / flat.size)
    if not math.isfinite(deviation) or not math.isfinite(mean):
        raise DataError("a feature has numbers too large to standardise: scale it.")
    return mean, deviation or 1.0

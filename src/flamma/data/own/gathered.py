"""What every adapter returns: samples, their targets, and the client of each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.data.cells import LARGEST_TABLE_BYTES, column_array, shown_names
from flamma.data.encoding import (
    BYTE_SCALE,
    SIXTEEN_BIT_SCALE,
    FeatureColumn,
    SampleEncoding,
    as_numbers,
    joined_features,
)
from flamma.data.own.targets import numbered
from flamma.errors import DataError
from flamma.names import printable, quoted
from flamma.types import Ints

MOST_NAME_CHARACTERS = 100
"""Characters of a client's name that are kept."""


@dataclass(frozen=True, eq=False)
class GatheredSamples:
    """Samples of one's own before they are dealt to clients.

    Attributes
    ----------
    x : ndarray
        The samples as numbers, before they are standardised.
    y : ndarray
        The targets as they were given.
    encoding : SampleEncoding
        How ``x`` was made, and what is still to be done to it.
    groups : ndarray, optional
        The number of each sample's client, where the data say.
    client_names : tuple of str
        What these clients are called; empty where they have numbers only.
    name : str
        What the data are called.
    test : GatheredSamples, optional
        A test set that came with the data.
    sha256 : str
        The checksum of the file that they were read from.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    encoding: SampleEncoding
    groups: Ints | None = None
    client_names: tuple[str, ...] = ()
    name: str = "own"
    test: GatheredSamples | None = None
    sha256: str = ""

    def grouped_by(self, group: Any, name: str = "group") -> GatheredSamples:
        """Return the samples with the client that an array names for each of them.

        ``name`` is what the array is called in messages, where it has no name of its own.

        Raises
        ------
        DataError
            If there are not as many, or one is missing.
        """
        _check_column(group, "group must be the name of a column, or one value for each sample")
        clients = column_array(group, _name_of(group, name))
        if clients.shape != (len(self.x),):
            raise DataError(
                f"group must name a client for each of {len(self.x)} samples, but has "
                f"{clients.size}."
            )
        numbers, names = numbered(clients)
        return self.owned_by(numbers, names)

    def owned_by(self, groups: Ints, names: Sequence[Any] = ()) -> GatheredSamples:
        """Return the samples with the numbers of their clients, and what clients are called."""
        return replace(self, groups=groups, client_names=_client_names(names))


def gathered_arrays(x: Any, y: Any, what: str = "samples") -> GatheredSamples:
    """Return samples and targets of arrays, of which there must be equally many."""
    raw = as_numbers(x, what)
    targets = target_array(y, f"targets of {what}" if what != "samples" else "targets")
    if raw.ndim < 1 or len(raw) != len(targets):
        raise DataError(
            f"{what} must be as many as their targets, but the shapes are {raw.shape} and "
            f"{targets.shape}."
        )
    if raw.ndim == 1:
        raise DataError(f"{what} must have features: make x of shape (samples, 1) of one feature.")
    if raw.nbytes > LARGEST_TABLE_BYTES:
        raise DataError(f"{what} take more than {LARGEST_TABLE_BYTES // 1024**3} GiB: take fewer.")
    scale = _picture_scale(x, raw)
    whole = raw.dtype.kind in "iu" and scale is None
    encoding = SampleEncoding(
        tuple(raw.shape[1:]), "int64" if whole else "float32", scale=scale or 1.0
    )
    return GatheredSamples(raw, targets, encoding)


def _picture_scale(x: Any, raw: NDArray[Any]) -> float | None:
    """Return what pictures are divided by, None for samples that are none."""
    if raw.ndim <= 2:
        return None
    if raw.dtype == np.uint8:
        return BYTE_SCALE
    return SIXTEEN_BIT_SCALE if isinstance(x, np.ndarray) and x.dtype == np.uint16 else None


def gathered_table(
    columns: Mapping[str, Any],
    target: str | None,
    group: Any = None,
    drop: Sequence[str] = (),
    name: str = "own",
    encoding: SampleEncoding | None = None,
) -> GatheredSamples:
    """Return the samples of a table by the names of its columns.

    Parameters
    ----------
    columns : mapping of name to values
        All columns.
    target : str
        The column to predict.
    group : str or array, optional
        The column that names the client of each row, or one value for each row.
    drop : sequence of str
        Columns to leave out.
    name : str
        What the data are called.
    encoding : SampleEncoding, optional
        That of a table before, which this one is encoded like.

    Raises
    ------
    DataError
        If a column is missing or cannot be used.
    """
    if target is None:
        raise DataError("a table needs a target: name the column to predict, as target.")
    by_name = isinstance(group, str)
    for wanted in (target, *([group] if by_name else []), *drop):
        if wanted not in columns:
            raise DataError(_no_column(wanted, list(columns)))
    if by_name and group == target:
        raise DataError(f"column {quoted(target)} cannot be both target and group.")
    y = column_array(columns[target], target)
    if not y.size:
        raise DataError("the table has no rows.")
    for column, values in columns.items():
        if hasattr(values, "__len__") and len(values) != y.size:
            raise DataError(
                f"columns must have the same length, but {quoted(column)} has {len(values)} rows "
                f"and {quoted(target)} has {y.size}."
            )
    aside = {target, *([group] if by_name else []), *drop}
    features = {column: values for column, values in columns.items() if column not in aside}
    samples = replace(_features(features, y, encoding), name=name)
    if group is None:
        return samples
    return samples.grouped_by(columns[group], group) if by_name else samples.grouped_by(group)


def joined(parts: Sequence[GatheredSamples], names: Sequence[Any] = ()) -> GatheredSamples:
    """Return the samples of several clients, one after the other."""
    if not parts:
        raise DataError("there are no clients.")
    shapes = {part.x.shape[1:] for part in parts}
    kinds = {part.encoding.dtype for part in parts}
    if len(shapes) > 1 or len(kinds) > 1:
        told = " and ".join(map(str, sorted(shapes) if len(shapes) > 1 else sorted(kinds)))
        raise DataError(f"samples of all clients must be alike, but are {told}.")
    for place, part in enumerate(parts):
        if not len(part.x):
            raise DataError(f"client {quoted(names[place]) if names else place} has no samples.")
    whole = GatheredSamples(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        parts[0].encoding,
    )
    owners = np.repeat(np.arange(len(parts)), [len(part.x) for part in parts])
    return whole.owned_by(owners, names)


def target_array(y: Any, what: str = "targets") -> NDArray[Any]:
    """Return targets as an array: numbers of any shape, or a column of texts or truth values."""
    if hasattr(y, "detach"):
        y = y.detach().cpu().numpy()
    array = np.asarray(y) if isinstance(y, np.ndarray) else None
    if array is not None and array.ndim > 1 and array.dtype.kind in "iuf":
        return as_numbers(array, what)
    _check_column(y, f"{what} must be one for each sample")
    return column_array(y, _name_of(y, "target"))


def _features(
    given: dict[str, Any], y: NDArray[Any], encoding: SampleEncoding | None
) -> GatheredSamples:
    """Return the samples that columns make up: one feature after the other, or one array."""
    if not given:
        raise DataError("the table has no column left for features.")
    arrays = [name for name, values in given.items() if getattr(values, "ndim", 1) > 1]
    if arrays:
        if len(given) > 1:
            others = [name for name in given if name != arrays[0]]
            raise DataError(
                f"column {quoted(arrays[0])} has an array in each cell, which cannot go along with "
                f"other columns: leave out (drop) {shown_names(others)}."
            )
        return gathered_arrays(given[arrays[0]], y)
    if encoding is not None:
        return GatheredSamples(encoding.matrix(given), y, encoding)
    kept = {name: column_array(values, name) for name, values in given.items()}
    columns = tuple(_feature_column(name, values) for name, values in kept.items())
    x = joined_features(columns, list(kept.values()))
    return GatheredSamples(x, y, SampleEncoding((x.shape[1],), columns=columns))


MOST_CATEGORIES = 100
"""Different texts of a column up to which each becomes a feature."""


def _feature_column(name: str, values: NDArray[Any]) -> FeatureColumn:
    if values.dtype.kind in "biuf":
        return FeatureColumn(name)
    categories = tuple(sorted(set(values.tolist())))
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"column {quoted(name)} has {len(categories):,} different texts, and at most "
            f"{MOST_CATEGORIES} become features: leave it out (drop), or make fewer of them."
        )
    return FeatureColumn(name, categories)


def _check_column(values: Any, wanted: str) -> None:
    """Refuse what is no list or array, or has no order."""
    unordered = isinstance(values, str | bytes | Mapping | set | frozenset | type)
    if unordered or not hasattr(values, "__len__"):
        raise DataError(f"{wanted}, not {quoted(values)}.")


def _name_of(values: Any, name: str) -> str:
    """Return the name of a series, such as a column of a frame, or else the given one."""
    own = getattr(values, "name", None)
    return own if isinstance(own, str) and own else name


def _client_names(names: Sequence[Any]) -> tuple[str, ...]:
    return tuple(printable(_text(name), MOST_NAME_CHARACTERS) for name in names)


def _text(name: Any) -> str:
    return f"{name:g}" if isinstance(name, float) else str(name)


def _no_column(wanted: Any, known: list[str]) -> str:
    from flamma.names import nearest

    guess = nearest(str(wanted), known)
    hint = f": did you mean {quoted(guess)}?" if guess else ""
    return f"there is no column {quoted(wanted)}{hint} (columns: {shown_names(known)})."

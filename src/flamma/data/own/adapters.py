"""Chooses the adapter of one's own data by what they can do, not by their type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flamma.data.encoding import SampleEncoding
from flamma.data.own.frames import frame_columns, is_frame
from flamma.data.own.gathered import GatheredSamples, gathered_arrays, gathered_table, joined
from flamma.errors import DataError
from flamma.names import quoted


def gather(
    data: Any,
    *,
    target: Any = None,
    group: Any = None,
    drop: Sequence[str] = (),
    like: GatheredSamples | None = None,
    size: tuple[int, ...] = (),
    channels: int | None = None,
) -> GatheredSamples:
    """Return samples, targets and clients of data in any form.

    ``like`` are samples gathered before, with the same columns and the same encoding; ``size`` and
    ``channels`` are of pictures in files.

    Raises
    ------
    DataError
        If the data are in no form that is known, or cannot be used.
    """
    if isinstance(data, GatheredSamples):
        return data
    encoding = None if like is None else like.encoding
    found = _gathered(data, target, group, tuple(drop), encoding)
    if like is not None and found.x.shape[1:] != like.x.shape[1:]:
        raise DataError(
            f"test samples have the shape {found.x.shape[1:]}, but others {like.x.shape[1:]}."
        )
    return found


def _gathered(
    data: Any, target: Any, group: Any, drop: tuple[str, ...], encoding: SampleEncoding | None
) -> GatheredSamples:
    if is_frame(data):
        return gathered_table(frame_columns(data), target, group, drop, encoding=encoding)
    if isinstance(data, Mapping) and isinstance(target, str):
        return gathered_table(data, target, group, drop, encoding=encoding)
    if _is_pair(data):
        return _by_array(gathered_arrays(*data), group)
    if isinstance(data, Mapping):
        return _of_clients(list(data.values()), target, group, drop, list(data))
    if isinstance(data, Sequence) and not isinstance(data, str):
        return _of_clients(data, target, group, drop)
    raise DataError(
        f"a {type(data).__name__} is no form of data that is known: give (x, y), a frame or a "
        f"torch Dataset, or a list of them with one for each client."
    )


def _of_clients(
    parts: Sequence[Any],
    target: Any,
    group: Any,
    drop: tuple[str, ...],
    names: Sequence[Any] = (),
) -> GatheredSamples:
    if group is not None:
        raise DataError("group has no effect where every client has its own part of the data.")
    if not parts:
        raise DataError("there are no clients in the data.")
    if all(is_frame(part) for part in parts):
        return _of_tables([frame_columns(part) for part in parts], target, drop, names)
    found = []
    for place, part in enumerate(parts):
        client = quoted(names[place]) if names else place
        if _is_pair(part):
            found.append(gathered_arrays(*part, what=f"samples of client {client}"))
        else:
            raise DataError(
                f"client {client} has a {type(part).__name__}, but needs (x, y) or a Dataset."
            )
    return joined(found, names)


def _of_tables(
    tables: Sequence[Mapping[str, Any]], target: Any, drop: tuple[str, ...], names: Sequence[Any]
) -> GatheredSamples:
    """Return the rows of several tables, encoded as those of one table."""
    sizes = [len(next(iter(table.values()), ())) for table in tables]
    for place, table in enumerate(tables):
        if list(table) != list(tables[0]):
            raise DataError(f"the table of client {place} has other columns than that of client 0.")
        if not sizes[place]:
            raise DataError(f"client {quoted(names[place]) if names else place} has no samples.")
    columns = {
        name: np.concatenate([np.asarray(table[name]) for table in tables]) for name in tables[0]
    }
    owners = np.repeat(np.arange(len(tables)), sizes)
    whole = gathered_table(columns, target, drop=drop)
    return whole.owned_by(owners, names)


def _by_array(samples: GatheredSamples, group: Any) -> GatheredSamples:
    if isinstance(group, str):
        raise DataError(
            f"arrays have no column {quoted(group)}: give group= one value for each sample."
        )
    return samples if group is None else samples.grouped_by(group)


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 2 and not isinstance(data[0], tuple)


def path_of(data: Any) -> Path | None:
    """Return the path that data are named by, None if they are no path."""
    return Path(data) if isinstance(data, str | Path) else None

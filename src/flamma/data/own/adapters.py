"""Chooses the adapter of one's own data by what they can do, not by their type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flamma.data.encoding import SampleEncoding
from flamma.data.own.files import gathered_file
from flamma.data.own.frames import frame_columns, is_frame
from flamma.data.own.gathered import (
    GatheredSamples,
    gathered_arrays,
    gathered_table,
    joined,
    target_array,
)
from flamma.data.own.hugging_face import (
    dataset_columns,
    is_dataset_dict,
    is_hugging_face,
    is_partitioner,
    partitions,
    train_and_test,
)
from flamma.data.own.torch_sets import gathered_items, is_torch_set
from flamma.data.pictures import PictureOptions
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
    form = _Form(target, group, tuple(drop), PictureOptions(size, channels), encoding)
    found = form.gathered(data)
    if like is not None and found.x.shape[1:] != like.x.shape[1:]:
        raise DataError(
            f"test samples have the shape {found.x.shape[1:]}, but others {like.x.shape[1:]}."
        )
    return found


@dataclass(frozen=True, eq=False)
class _Form:
    """What is asked for of data, whatever they are: columns, clients, how pictures are read."""

    target: Any
    group: Any
    drop: tuple[str, ...]
    pictures: PictureOptions
    encoding: SampleEncoding | None

    def gathered(self, data: Any) -> GatheredSamples:
        if isinstance(data, str | Path):
            return gathered_file(
                Path(data), self.target, self.group, self.drop, self.pictures, self.encoding
            )
        if is_dataset_dict(data):
            train, test = train_and_test(data)
            found = self.table(train)
            rest = replace(self, group=None, encoding=found.encoding)
            return replace(found, test=None if test is None else rest.table(test))
        if is_partitioner(data):
            return self.of_clients(*partitions(data))
        is_mapping = isinstance(data, Mapping)
        of_tables = is_mapping and all(map(_is_table, data.values()))
        if _is_table(data) or (is_mapping and isinstance(self.target, str) and not of_tables):
            return self.table(data)
        if is_mapping:
            return self.of_clients(list(data.values()), list(data))
        if _is_frame_and_labels(data):
            return self.features_and_labels(*data)
        if isinstance(data, list | tuple) and not _is_pair(data):
            return self.of_clients(data)
        return self.by_array(self.part(data, "samples"))

    def table(self, data: Any) -> GatheredSamples:
        """Return the samples of one table."""
        return gathered_table(
            _columns(data), self.target, self.group, self.drop, encoding=self.encoding
        )

    def features_and_labels(self, features: Any, labels: Any) -> GatheredSamples:
        """Return the samples of a table and of labels that are not one of its columns."""
        if self.target is not None:
            raise DataError("the labels are given beside the table already: leave out target.")
        columns = _columns(features)
        target = str(getattr(labels, "name", None) or "target")
        while target in columns:
            target += "_"
        y = target_array(labels)
        return replace(self, target=target).table({**columns, target: y})

    def part(self, data: Any, what: str) -> GatheredSamples:
        """Return the samples of arrays (x, y), or of a dataset of torch."""
        if _is_pair(data):
            x, y = data
            return gathered_arrays(x, y, what)
        if hasattr(data, "batch_size") and hasattr(data, "dataset"):
            raise DataError("a DataLoader makes batches of its own: give its dataset instead.")
        if is_torch_set(data):
            return gathered_items(data, what)
        raise DataError(
            f"{what} are a {type(data).__name__}, which is no form of data that is known: give "
            f"(x, y), a frame or a torch Dataset with a length, or a list of them, one for each "
            f"client."
        )

    def by_array(self, samples: GatheredSamples) -> GatheredSamples:
        """Return samples with their clients, if an array names them."""
        for key in ("target", "group"):
            if isinstance(getattr(self, key), str):
                raise DataError(
                    f"arrays have no column {quoted(getattr(self, key))}: leave out target, and "
                    f"give group one value for each sample."
                )
        return samples if self.group is None else samples.grouped_by(self.group)

    def of_clients(self, parts: Sequence[Any], names: Sequence[Any] = ()) -> GatheredSamples:
        """Return the samples of clients that each have their own part."""
        if self.group is not None:
            raise DataError("group has no effect where every client has its own part of the data.")
        if not parts:
            raise DataError("there are no clients in the data.")
        if all(map(_is_table, parts)):
            return self.of_tables([_columns(part) for part in parts], names)
        called = [
            f"samples of client {quoted(n) if names else n}" for n in names or range(len(parts))
        ]
        return joined([self.part(p, w) for p, w in zip(parts, called, strict=True)], names)

    def of_tables(
        self, tables: Sequence[Mapping[str, Any]], names: Sequence[Any]
    ) -> GatheredSamples:
        """Return the rows of several tables, encoded as those of one."""
        sizes = [len(next(iter(table.values()), ())) for table in tables]
        for place, table in enumerate(tables):
            client = quoted(names[place]) if names else place
            if set(table) != set(tables[0]):
                raise DataError(f"client {client} has other columns than the first client.")
            if not sizes[place]:
                raise DataError(f"client {client} has no samples.")
        whole = {
            name: np.concatenate([np.asarray(table[name]) for table in tables])
            for name in tables[0]
        }
        owners = np.repeat(np.arange(len(tables)), sizes)
        return self.table(whole).owned_by(owners, names)


def _is_table(data: Any) -> bool:
    return is_frame(data) or is_hugging_face(data)


def _columns(data: Any) -> Mapping[str, Any]:
    if is_frame(data):
        return frame_columns(data)
    if is_hugging_face(data):
        return dataset_columns(data)
    columns: Mapping[str, Any] = data
    return columns


def _is_frame_and_labels(data: Any) -> bool:
    """Return whether data are (table, labels), and not the tables of two clients."""
    is_two = isinstance(data, tuple) and len(data) == 2
    return is_two and _is_table(data[0]) and not _is_table(data[1])


def _is_pair(data: Any) -> bool:
    """Return whether data are (x, y), and not a tuple of two clients."""
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    return not any(isinstance(part, tuple) or _is_table(part) for part in data[:1])

"""Data of users and of sites in any form: arrays, torch datasets, tables, files, Hugging Face.

The form is recognised by what the data can do, so that no optional package is imported. Everything
becomes :class:`GatheredSamples`, from which :func:`from_data` makes a federation.

Examples
--------
>>> import numpy as np
>>> from flamma.data import from_data
>>> x, y = np.eye(6, 2), ["ill", "well", "ill", "well", "ill", "well"]
>>> data = from_data((x, y), group=["north"] * 3 + ["south"] * 3)
>>> data.client_names, data.labels
(('north', 'south'), ('ill', 'well'))
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from flamma._renamed import renamed
from flamma.data.encoding import (
    BYTE_SCALE,
    SIXTEEN_BIT_SCALE,
    FeatureColumn,
    SampleEncoding,
    as_numbers,
    joined_features,
)
from flamma.data.federated import DataDescription, FederatedData
from flamma.data.pictures import PictureOptions, class_folders, is_picture, read_folder, stacked
from flamma.data.splits import HELD_OUT, MIN_SAMPLES, Partition, Pool, partition, pool_size
from flamma.data.tables import (
    LARGEST_TABLE_BYTES,
    Array,
    Label,
    Values,
    column_array,
    csv_columns,
    no_column,
    shown_names,
)
from flamma.errors import DataError
from flamma.extras import require
from flamma.io import MAX_FILE_BYTES, printable, quoted, read_regular
from flamma.registry import Choice
from flamma.tasks import DEFAULT_TASK, TASKS, Task
from flamma.tasks.base import MAX_CLASSES
from flamma.types import Ints, Targets

if TYPE_CHECKING:
    import pyarrow
else:
    __getattr__ = renamed(__name__)

Columns = Mapping[str, Values]
"""The columns of a table by name: arrays, lists, series or tensors."""


# What every adapter returns: samples, their targets, and the client of each sample.


@dataclass(frozen=True, eq=False)
class GatheredSamples:
    """Samples before they are dealt to clients.

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

    x: Array
    y: Array
    encoding: SampleEncoding
    groups: Ints | None = None
    client_names: tuple[str, ...] = ()
    name: str = "own"
    test: GatheredSamples | None = None
    sha256: str = ""

    def grouped_by(self, group: Values, name: str = "group") -> GatheredSamples:
        """Return the samples with the client that an array names for each of them.

        ``name`` is what the array is called in messages, if it has no name itself.

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
        return self.owned_by(*_numbered(clients))

    def owned_by(self, groups: Ints, names: Sequence[object] = ()) -> GatheredSamples:
        """Return the samples with the numbers of their clients, and what clients are called."""
        texts = (f"{name:g}" if isinstance(name, float) else str(name) for name in names)
        return replace(self, groups=groups, client_names=tuple(printable(t, 100) for t in texts))


def gathered_arrays(x: Values, y: Values, what: str = "samples") -> GatheredSamples:
    """Return samples and targets of arrays, of which there must be equally many.

    Raises
    ------
    DataError
        If they are not, or cannot be used.
    """
    raw = as_numbers(x, what)
    targets = _target_array(y, f"targets of {what}" if what != "samples" else "targets")
    if raw.ndim < 1 or len(raw) != len(targets):
        raise DataError(
            f"{what} must be as many as their targets, but the shapes are {raw.shape} and "
            f"{targets.shape}."
        )
    if raw.ndim == 1:
        raise DataError(f"{what} must have features: make x of shape (samples, 1) of one feature.")
    if raw.nbytes > LARGEST_TABLE_BYTES:
        raise DataError(f"{what} take more than {LARGEST_TABLE_BYTES // 1024**3} GiB: take fewer.")
    scale = None  # what pictures are divided by
    if raw.ndim > 2 and raw.dtype == np.uint8:
        scale = BYTE_SCALE
    elif raw.ndim > 2 and isinstance(x, np.ndarray) and x.dtype == np.uint16:
        scale = SIXTEEN_BIT_SCALE
    dtype = "int64" if raw.dtype.kind in "iu" and scale is None else "float32"
    return GatheredSamples(raw, targets, SampleEncoding(raw.shape[1:], dtype, scale=scale or 1.0))


def _gathered_table(
    columns: Columns,
    target: str | None,
    group: str | Values | None = None,
    drop: Sequence[str] = (),
    encoding: SampleEncoding | None = None,
) -> GatheredSamples:
    """Return the samples of a table, of which ``target`` is the column to predict."""
    if target is None:
        raise DataError("a table needs a target: name the column to predict, as target.")
    aside = [target, *([group] if isinstance(group, str) else []), *drop]
    for wanted in aside:
        if wanted not in columns:
            raise DataError(no_column(wanted, list(columns)))
    if isinstance(group, str) and group == target:
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
    samples = _features({c: v for c, v in columns.items() if c not in aside}, y, encoding)
    if isinstance(group, str):
        return samples.grouped_by(columns[group], group)
    return samples if group is None else samples.grouped_by(group)


def _features(given: Columns, y: Array, encoding: SampleEncoding | None) -> GatheredSamples:
    """Return the samples that columns make up: one feature after the other, or one array."""
    if not given:
        raise DataError("the table has no column left for features.")
    arrays = [name for name, values in given.items() if getattr(values, "ndim", 1) > 1]
    if arrays and len(given) > 1:
        others = [name for name in given if name != arrays[0]]
        raise DataError(
            f"column {quoted(arrays[0])} has an array in each cell, which cannot go along with "
            f"other columns: leave out (drop) {shown_names(others)}."
        )
    if arrays:
        return gathered_arrays(given[arrays[0]], y)
    if encoding is not None:
        return GatheredSamples(encoding.matrix(given), y, encoding)
    kept = {name: column_array(values, name) for name, values in given.items()}
    columns = tuple(_feature_column(name, values) for name, values in kept.items())
    x = joined_features(columns, list(kept.values()))
    return GatheredSamples(x, y, SampleEncoding((x.shape[1],), columns=columns))


_MOST_CATEGORIES = 100
"""Different texts of a column up to which each becomes a feature."""


def _feature_column(name: str, values: Array) -> FeatureColumn:
    if values.dtype.kind in "biuf":
        return FeatureColumn(name)
    categories = tuple(sorted(set(values.tolist())))
    if len(categories) > _MOST_CATEGORIES:
        raise DataError(
            f"column {quoted(name)} has {len(categories):,} different texts, and at most "
            f"{_MOST_CATEGORIES} become features: leave it out (drop), or make fewer of them."
        )
    return FeatureColumn(name, categories)


def _joined(parts: Sequence[GatheredSamples], names: Sequence[object] = ()) -> GatheredSamples:
    """Return the samples of several clients, one after the other."""
    shapes = {part.x.shape[1:] for part in parts}
    kinds = {part.encoding.dtype for part in parts}
    if len(shapes) > 1 or len(kinds) > 1:
        found = map(str, sorted(shapes) if len(shapes) > 1 else sorted(kinds))
        raise DataError(f"samples of all clients must be alike, but are {' and '.join(found)}.")
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


def _target_array(y: Values, what: str = "targets") -> Array:
    """Return targets as an array: numbers of any shape, or a column of texts or truth values."""
    if hasattr(y, "detach"):
        y = y.detach().cpu().numpy()
    if isinstance(y, np.ndarray) and y.ndim > 1 and y.dtype.kind in "iuf":
        return as_numbers(y, what)
    _check_column(y, f"{what} must be one for each sample")
    return column_array(y, _name_of(y, "target"))


def _check_column(values: Values, wanted: str) -> None:
    """Refuse what is no list or array, or has no order."""
    unordered = isinstance(values, str | bytes | Mapping | set | frozenset | type)
    if unordered or not hasattr(values, "__len__"):
        raise DataError(f"{wanted}, not {quoted(values)}.")


def _name_of(values: Values, name: str) -> str:
    """Return the name of a series, such as a column of a frame, or else the given one."""
    own = getattr(values, "name", None)
    return own if isinstance(own, str) and own else name


def _numbered(values: Array) -> tuple[Ints, tuple[Label, ...]]:
    """Return the number of each value in sorted order, and the different values.

    Examples
    --------
    >>> _numbered(np.array(["b", "a", "b"], dtype=object))
    (array([1, 0, 1]), ('a', 'b'))
    """
    found, numbers = np.unique(values, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64), tuple(found.tolist())


# Tables of pandas and of Hugging Face, and Flower's partitioners, without importing them.


def _is_frame(data: Any) -> bool:
    return hasattr(data, "columns") and hasattr(data, "iloc") and hasattr(data, "dtypes")


def _is_hugging_face(data: Any) -> bool:
    return isinstance(getattr(data, "column_names", None), list) and hasattr(data, "features")


def _is_table(data: Any) -> bool:
    return _is_frame(data) or _is_hugging_face(data)


def _columns(data: Any) -> Columns:
    """Return the columns of a frame (not its index), a ``datasets.Dataset`` or a mapping."""
    if _is_hugging_face(data):
        plain = data.with_format("numpy")
        return {
            name: _pictures(data[name], name)
            if type(data.features[name]).__name__ == "Image"
            else np.asarray(plain[name][:])
            for name in data.column_names
        }
    if not _is_frame(data):
        columns: Columns = data
        return columns
    names = [str(name) for name in data.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(
            f"columns must have different names, but these are there twice: {shown_names(twice)}."
        )
    return {name: _cells_of_series(data.iloc[:, place]) for place, name in enumerate(names)}


def _cells_of_series(series: Any) -> Array:
    """Return a column as numpy has it; one with missing values or categories as objects."""
    plain = str(series.dtype) != "category" and getattr(series.dtype, "kind", "O") in "biufmM"
    if not plain or series.isna().any():
        series, kind = series.astype(object), None
    else:
        kind = getattr(series.dtype, "numpy_dtype", None)
    cells: Array = series.to_numpy(dtype=kind)
    return cells


def _pictures(cells: Collection[Any], name: str) -> Array:
    """Return a column of pictures as (samples, channels, height, width) of bytes."""
    found: list[Array] = []
    for cell in cells:
        pixels = np.asarray(cell)
        found.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
        if found[-1].shape != found[0].shape:
            raise DataError(
                f"pictures of the column {name!r} must have one shape, but are {found[0].shape} "
                f"and {found[-1].shape}: resize them first (map)."
            )
    return np.stack(found)


def _partitions(data: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Return the datasets of a partitioner's clients, and the clients' names if it has any."""
    partitioner = data
    if hasattr(data, "partitioners"):  # a FederatedDataset has one for each of its parts
        partitioner = data.partitioners.get("train") or next(iter(data.partitioners.values()))
    count = getattr(partitioner, "num_partitions", None)
    if not isinstance(count, int) or not 1 <= count <= 1_000_000:
        raise DataError("the partitioner must tell num_partitions, how many clients there are.")
    found = [data.load_partition(k) for k in range(count)]
    natural = getattr(partitioner, "partition_id_to_natural_id", None) or {}
    names = tuple(str(natural[k]) for k in range(count)) if len(natural) == count else ()
    return found, names


# Datasets of torch, without importing it: anything with a length and numbered items (x, y).

_SECONDS_UNTOLD = 2.0
"""Seconds between two lines on how far the reading of a dataset is."""


def _gathered_items(data: Any, what: str) -> GatheredSamples:
    """Return the samples and targets of a dataset whose items are (x, y)."""
    tensors = _tensors(data)
    if tensors is not None:
        return gathered_arrays(*tensors, what)
    count = len(data)
    if not count:
        raise DataError(f"{what}: the dataset is empty.")
    targets: list[object] = []
    x: Array | None = None
    reported = time.monotonic()
    for place in range(count):
        sample, target = _item(data, place, what)
        if x is None:
            if count * sample.nbytes > LARGEST_TABLE_BYTES:
                raise DataError(
                    f"{what}: {count:,} samples of {sample.nbytes:,} bytes take more than "
                    f"{LARGEST_TABLE_BYTES // 1024**3} GiB: make them smaller or fewer (torch's "
                    f"Subset)."
                )
            x = np.empty((count, *sample.shape), dtype=sample.dtype)
        if sample.shape != x.shape[1:]:
            raise DataError(
                f"{what} must have one shape, but item {place} has {sample.shape} and those before "
                f"it {x.shape[1:]}: resize them in the dataset's transform."
            )
        x[place] = sample
        targets.append(target)
        if time.monotonic() - reported >= _SECONDS_UNTOLD:
            reported = time.monotonic()
            print(f"flamma: read {place + 1:,} of {count:,} samples", file=sys.stderr, flush=True)
    assert x is not None  # there is an item
    if hasattr(targets[0], "shape"):  # tensors and numpy's numbers
        return gathered_arrays(x, np.stack([np.asarray(target) for target in targets]), what)
    return gathered_arrays(x, targets, what)


def _tensors(data: Any) -> tuple[Any, Any] | None:
    """Return (x, y) of a ``TensorDataset`` or of part of one, which need not go item by item."""
    kind = type(data)
    if not kind.__module__.startswith("torch.utils.data"):
        return None
    if kind.__name__ == "TensorDataset" and len(data.tensors) == 2:
        x, y = data.tensors
        return x, y
    if kind.__name__ == "Subset":
        inner = _tensors(data.dataset)
        return None if inner is None else (inner[0][data.indices], inner[1][data.indices])
    return None


def _item(data: Any, place: int, what: str) -> tuple[Array, object]:
    try:
        item = data[place]
    except KeyError as error:  # such as a column of a frame, or what only has names
        raise DataError(
            f"{what} are a {type(data).__name__} without item {place}: give (x, y), a frame or a "
            f"torch Dataset, and the client of each sample as group."
        ) from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(
            f"{what}: item {place} of the dataset must be (x, y), but is a "
            f"{quoted(type(item).__name__)}."
        )
    return as_numbers(item[0], f"{what}, item {place},"), item[1]


# Files: tables as CSV or parquet, arrays of numpy, and folders of pictures.

IMAGE_COLUMN, LABEL_COLUMN = "image", "label"
_CSV_SUFFIXES = (".csv", ".tsv", ".txt")
_PARQUET_SUFFIXES = (".parquet", ".pq")


def table_columns(
    path: Path, options: PictureOptions | None = None, texts: Collection[str] = ()
) -> tuple[Columns, str]:
    """Return the columns of a CSV or parquet file by name, and the file's SHA-256.

    In a CSV file, columns in ``texts`` are texts whatever they hold.

    Raises
    ------
    DataError
        If the file cannot be read, or is of another kind.
    InputFileError
        If it is no such table; the message has the line.
    """
    kind = path.suffix.lower()
    if kind in _CSV_SUFFIXES:
        try:
            content = read_regular(path, MAX_FILE_BYTES)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}.") from error
        return csv_columns(content, path.name, texts), hashlib.sha256(content).hexdigest()
    if kind in _PARQUET_SUFFIXES:
        digest = _sha256_of([path], path.parent)
        return parquet_columns(path, options or PictureOptions()), digest
    raise DataError(
        f"{path} is {'no' if path.exists() else 'not there; data are a'} CSV or parquet file "
        f"({', '.join((*_CSV_SUFFIXES, *_PARQUET_SUFFIXES))}) or a folder of pictures."
    )


def parquet_columns(
    path: Path, options: PictureOptions, needed: Collection[str] = ()
) -> dict[str, Values]:
    """Return the columns of a parquet file, or the needed ones; pictures are decoded.

    Where there are columns ``image`` and ``label``, the first has encoded pictures: bytes, or a
    struct with the field ``bytes``.

    Raises
    ------
    DataError
        If the file is damaged, or a column is missing or there twice.
    """
    require("reading parquet files", "pyarrow")
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            if missing := sorted(set(needed) - set(names)):
                raise DataError(f"{path} has no column {missing[0]}.")
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise DataError(f"{path} has more than one column {shown_names(twice)}.")
            pictures = {IMAGE_COLUMN} if {IMAGE_COLUMN, LABEL_COLUMN} <= set(names) else set()
            plain = [name for name in needed or names if name not in pictures]
            table = file.read(columns=plain)
            columns = {name: _cells(table.column(name)) for name in plain}
            for name in pictures:
                columns[name] = stacked(_encoded_pictures(file, path), len(table), options)
            return columns
    except DataError:
        raise
    except Exception as error:  # damage makes pyarrow raise many kinds of errors
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{path} cannot be read as parquet: {reason}.") from error


def _cells(column: pyarrow.ChunkedArray) -> Values:
    """Return a column of pyarrow's as numpy has it, or as Python's values."""
    from pyarrow import types

    kinds = (types.is_integer, types.is_floating, types.is_boolean)
    plain = not column.null_count and any(is_kind(column.type) for is_kind in kinds)
    cells: Values = column.to_numpy() if plain else column.to_pylist()
    return cells


def _encoded_pictures(file: pyarrow.parquet.ParquetFile, path: Path) -> Iterator[tuple[str, bytes]]:
    row = 0
    for batch in file.iter_batches(batch_size=256, columns=[IMAGE_COLUMN]):
        for cell in batch.column(0).to_pylist():
            content = cell.get("bytes") if isinstance(cell, dict) else cell
            if not isinstance(content, bytes):
                raise DataError(f"row {row} of {path} holds no encoded picture.")
            yield f"row {row} of {path.name}", content
            row += 1


def gathered_npz(path: Path) -> GatheredSamples:
    """Return the arrays ``x`` and ``y`` of a file of numpy; ``held_x`` and ``held_y`` as test set.

    Raises
    ------
    DataError
        If the file is damaged, or has no such arrays without pickles.
    """
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            if damaged := file.zip.testzip():  # reads everything: numpy may not get to a checksum
                raise DataError(f"{path} is damaged: the checksum of {damaged} is wrong.")
            found = {name: file[name] for name in ("x", "y", "held_x", "held_y") if name in file}
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # zipfile, zlib and numpy's parser have errors of many kinds
        raise DataError(f"{path} is damaged, or no npz file without pickles.") from error
    if missing := [name for name in ("x", "y") if name not in found]:
        raise DataError(f"{path} has no array {missing[0]}.")
    if len(found) == 3:
        raise DataError(f"{path} needs both held_x and held_y, or neither.")
    test = None
    if len(found) == 4:
        test = gathered_arrays(found["held_x"], found["held_y"], "held-out samples")
    return replace(gathered_arrays(found["x"], found["y"]), name=path.stem, test=test)


def _gathered_folder(folder: Path, options: PictureOptions) -> GatheredSamples:
    """Return the pictures of a folder with a folder for each class, or client and class in it."""
    inside = class_folders(folder)
    if not inside:
        raise DataError(f"{folder} has no folders of classes with pictures in them.")

    def classes(place: Path, names: Sequence[str]) -> GatheredSamples:
        pixels, numbers, _ = read_folder(place, names, options)
        return gathered_arrays(pixels, np.asarray(names, dtype=object)[numbers])

    if any(is_picture(file) for name in inside for file in (folder / name).iterdir()):
        samples = classes(folder, inside)
    else:
        names = sorted({name for client in inside for name in class_folders(folder / client)})
        samples = _joined([classes(folder / client, names) for client in inside], inside)
    files = [path for path in sorted(folder.rglob("*")) if is_picture(path)]
    return replace(samples, name=folder.name, sha256=_sha256_of(files, folder))


def _sha256_of(files: Sequence[Path], root: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of several."""
    digest = hashlib.sha256()
    try:
        for path in files:
            if len(files) > 1:
                digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
            with path.open("rb") as file:
                while part := file.read(1 << 20):
                    digest.update(part)
    except OSError as error:
        raise DataError(f"cannot read {quoted(str(error.filename))}: {error.strerror}.") from error
    return digest.hexdigest()


# Chooses the adapter by what the data can do, not by their type.


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
            return self.file(Path(data))
        is_mapping = isinstance(data, Mapping)
        if is_mapping and data and all(map(_is_hugging_face, data.values())):
            return self.train_and_test(data)
        if hasattr(data, "load_partition"):  # a partitioner of Flower's, or its FederatedDataset
            return self.of_clients(*_partitions(data))
        of_tables = is_mapping and all(map(_is_table, data.values()))
        if _is_table(data) or (is_mapping and isinstance(self.target, str) and not of_tables):
            return self.table(_columns(data))
        if is_mapping:
            return self.of_clients(list(data.values()), list(data))
        is_two = isinstance(data, tuple) and len(data) == 2
        if is_two and _is_table(data[0]) and not _is_table(data[1]):
            return self.features_and_labels(*data)
        if isinstance(data, list | tuple) and not _is_pair(data):
            return self.of_clients(data)
        return self.arrays(self.part(data, "samples"))

    def file(self, path: Path) -> GatheredSamples:
        """Return the samples of a CSV, parquet or npz file, or of a folder of pictures."""
        if path.is_dir():
            for key in ("target", "group"):
                if getattr(self, key) is not None:
                    raise DataError(
                        f"{path} is a folder of pictures, which has no columns: leave out {key}."
                    )
            return _gathered_folder(path, self.pictures)
        if path.suffix.lower() == ".npz":
            return replace(self.arrays(gathered_npz(path)), sha256=_sha256_of([path], path.parent))
        columns, digest = table_columns(path, self.pictures)
        aim = LABEL_COLUMN if self.target is None and IMAGE_COLUMN in columns else self.target
        return replace(replace(self, target=aim).table(columns), name=path.stem, sha256=digest)

    def train_and_test(self, data: Mapping[str, Any]) -> GatheredSamples:
        """Return the samples of a ``datasets.DatasetDict``."""
        if "train" not in data:
            raise DataError(
                f"a DatasetDict needs a part 'train', but has {shown_names(list(data))}: give one "
                f"of its parts, such as data[{next(iter(data))!r}]."
            )
        found = self.table(_columns(data["train"]))
        if "test" not in data:
            return found
        form = replace(self, group=None, encoding=found.encoding)
        return replace(found, test=form.table(_columns(data["test"])))

    def table(self, columns: Columns) -> GatheredSamples:
        """Return the samples of one table."""
        return _gathered_table(columns, self.target, self.group, self.drop, self.encoding)

    def features_and_labels(self, features: Any, labels: Any) -> GatheredSamples:
        """Return the samples of a table and of labels that are not one of its columns."""
        if self.target is not None:
            raise DataError("the labels are given beside the table already: leave out target.")
        columns = _columns(features)
        target = str(getattr(labels, "name", None) or "target")
        while target in columns:
            target += "_"
        return replace(self, target=target).table({**columns, target: _target_array(labels)})

    def part(self, data: Any, what: str) -> GatheredSamples:
        """Return the samples of arrays (x, y), or of a dataset of torch."""
        if _is_pair(data):
            x, y = data
            return gathered_arrays(x, y, what)
        if hasattr(data, "batch_size") and hasattr(data, "dataset"):
            raise DataError("a DataLoader already makes batches: give its dataset instead.")
        plain = isinstance(data, list | tuple | dict | str | bytes | np.ndarray)
        if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not plain:
            return _gathered_items(data, what)
        raise DataError(
            f"{what} are a {type(data).__name__}, which is no form of data that is known: give "
            f"(x, y), a frame or a torch Dataset with a length, or a list of them, one for each "
            f"client."
        )

    def arrays(self, samples: GatheredSamples) -> GatheredSamples:
        """Return samples without columns with their clients, if an array names them."""
        for key in ("target", "group"):
            if isinstance(getattr(self, key), str):
                raise DataError(
                    f"arrays have no column {quoted(getattr(self, key))}: leave out target, and "
                    f"give group one value for each sample."
                )
        return samples if self.group is None else samples.grouped_by(self.group)

    def of_clients(self, parts: Sequence[Any], names: Sequence[object] = ()) -> GatheredSamples:
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
        return _joined([self.part(p, w) for p, w in zip(parts, called, strict=True)], names)

    def of_tables(self, tables: Sequence[Columns], names: Sequence[object]) -> GatheredSamples:
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
        return self.table(whole).owned_by(np.repeat(np.arange(len(tables)), sizes), names)


def _is_pair(data: Any) -> bool:
    """Return whether data are (x, y), and not a tuple of two clients."""
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    return not (isinstance(data[0], tuple) or _is_table(data[0]))


# From samples to a federation: classes numbered, clients dealt, samples held out.

_MOST_FLOAT_CLASSES = 50
"""Different whole numbers, kept as floating-point ones, up to which they are taken for classes."""


def _class_numbers(y: Array) -> tuple[Ints, tuple[Label, ...]]:
    """Return the class of each sample, numbered in sorted order, and what classes are called.

    Raises
    ------
    DataError
        If targets are quantities, there is one class only, or there are too many.

    Examples
    --------
    >>> _class_numbers(np.array([7, 3, 7]))
    (array([1, 0, 1]), (3, 7))
    """
    if y.ndim != 1:
        raise DataError(f"a class is one value for each sample, but targets have shape {y.shape}.")
    numbers, labels = _numbered(y)
    why = ""
    if y.dtype.kind == "f" and not (y == np.rint(y)).all():
        why = "have fractions"
    elif y.dtype.kind == "f" and len(labels) > _MOST_FLOAT_CLASSES:
        why = f"have {len(labels):,} different values"
    if why:
        raise DataError(
            f'targets {why}, so they are no classes: say task="regression", or turn them into '
            f"whole numbers or texts."
        )
    if len(labels) < 2:
        raise DataError(f"all targets are {labels[0]!r}: a classifier needs at least two classes.")
    if len(labels) > MAX_CLASSES:
        raise DataError(
            f"targets have {len(labels):,} different values, but there may be {MAX_CLASSES:,} "
            f'classes: for quantities say task="regression".'
        )
    return numbers, labels


class Dealing(TypedDict, total=False):
    """How samples are dealt to clients; what is left out has its default.

    Attributes
    ----------
    clients : int, optional
        How many clients; as many as there are groups if not given.
    split : Choice, optional
        How samples are dealt to the clients: whole groups where there are groups, else at random.
    held_out : float
        The share of each client's samples that is held out; a fifth if not given.
    train_samples : int, optional
        How many samples to train on in all, about; all of them if not given.
    validation_samples : int
        The size of the server's own validation set, cut off first; 0 if not given.
    seed : int
        The seed of what is dealt and held out; 0 if not given.
    """

    clients: int | None
    split: Choice | None
    held_out: float
    train_samples: int | None
    validation_samples: int
    seed: int


def from_data(
    data: Any,
    *,
    target: Any = None,
    group: Any = None,
    drop: Sequence[str] = (),
    test: Any = None,
    task: str | None = None,
    standardise: bool | None = None,
    **dealing: Unpack[Dealing],
) -> FederatedData:
    """Return a federation of data in whatever form they are.

    Parameters
    ----------
    data : any
        Arrays ``(x, y)``; a torch ``Dataset``; a pandas frame, a ``datasets.Dataset`` or a mapping
        of columns; a frame and its labels ``(frame, y)``; the path of a CSV, parquet or npz file or
        of a folder of pictures; a partitioner of Flower's; or a list of these, or a mapping by
        name, with one for each client.
    target : str, optional
        The column to predict, of tables.
    group : str or array, optional
        The column that names the client of each sample, or one value for each sample.
    drop : sequence of str
        Columns of a table to leave out.
    test : any, optional
        The common test set in the same form; without it all held-out data together.
    task : {"classification", "regression", "next-token"}, optional
        What is learned; classification if not given.
    standardise : bool, optional
        Whether features are standardised by their mean and standard deviation over the training
        samples of all clients; if not given, tables and pictures are and arrays are not.
    **dealing
        How samples are dealt to clients: see :class:`Dealing`.

    Raises
    ------
    DataError
        With one sentence on what is wrong with the data and what to do.
    """
    if isinstance(data, FederatedData):
        for name, value in (("target", target), ("group", group), ("test", test)):
            if value is not None:
                raise DataError(f"{name} has no effect on a federation that is made already.")
        return data
    kind = TASKS[task or DEFAULT_TASK]
    own = gather(data, target=target, group=group, drop=drop)
    given_test = own.test if test is None else gather(test, target=target, drop=drop, like=own)
    y, labels, classes = _numbered_targets(own, given_test, kind)
    train_y, test_y = np.split(y, [len(own.x)])
    strata = train_y if kind.labels_samples else np.zeros(len(own.x), dtype=np.int64)
    part = _dealt(own, strata, classes if kind.labels_samples else 1, **dealing)
    encoding = own.encoding
    usual = bool(encoding.columns) or encoding.scale != 1  # tables and pictures
    if usual if standardise is None else standardise:
        encoding = replace(encoding, dtype="float32").fitted(own.x[part.train])
    held_x, held_y = encoding.applied(own.x[part.held]), train_y[part.held]
    return FederatedData(
        encoding.applied(own.x[part.train]),
        train_y[part.train],
        part.train_offsets,
        held_x,
        held_y,
        part.held_offsets,
        held_x if given_test is None else encoding.applied(given_test.x),
        held_y if given_test is None else test_y,
        encoding.applied(own.x[part.validation]),
        train_y[part.validation],
        classes,
        DataDescription(
            own.name,
            labels,
            _names(own, part.train, part.train_offsets),
            kind.name,
            encoding,
            own.sha256,
        ),
    )


def _numbered_targets(
    own: GatheredSamples, test: GatheredSamples | None, task: Task
) -> tuple[Targets, tuple[Label, ...], int]:
    """Return the targets of samples and test samples, what classes are called, and how many."""
    parts = [own] if test is None else [own, test]
    if len({part.y.dtype.kind for part in parts}) > 1:
        raise DataError(f"targets of the test set are {parts[1].y.dtype}, others {own.y.dtype}.")
    both = np.concatenate([part.y for part in parts])
    if task.labels_samples:
        numbers, labels = _class_numbers(both)
        return numbers, labels, len(labels)
    targets = task.targets(both, "targets")
    x = np.concatenate([part.x for part in parts]) if task.takes_tokens else own.x
    return targets, (), task.outputs(x, targets)


def _dealt(
    own: GatheredSamples,
    strata: Ints,
    classes: int,
    *,
    clients: int | None = None,
    split: Choice | None = None,
    held_out: float = HELD_OUT,
    train_samples: int | None = None,
    validation_samples: int = 0,
    seed: int = 0,
) -> Partition:
    """Return which sample is whose."""
    if not 0 < held_out < 1:
        raise DataError(f"held_out must lie between 0 and 1, not {held_out:g}.")
    pool = _pool(own, strata, classes, clients, seed)
    # Whole groups where there are groups, else at random and of equal sizes.
    usual = Choice("iid", {"uneven": 0.0}) if own.groups is None else Choice("groups")
    wanted = None if train_samples is None else pool_size(train_samples, held_out)
    return partition(pool, split or usual, wanted, validation_samples, held_out, own.name)


def _pool(own: GatheredSamples, strata: Ints, classes: int, clients: int | None, seed: int) -> Pool:
    """Return the samples to deal; every natural client must have enough of them."""
    if own.groups is None:
        if clients is None:
            raise DataError(
                "the data name no clients: give group=..., a list with one part for each client, "
                "or clients=... to deal the samples."
            )
        return Pool(strata, classes, clients, seed)
    sizes = np.bincount(own.groups)
    natural = int(sizes.size)
    if natural == 1 and clients in (None, 1):
        raise DataError(
            "all samples are of one client, but a federation needs at least two: leave group out "
            "and say how many clients to deal the samples to."
        )
    few = np.flatnonzero(sizes < MIN_SAMPLES)
    if few.size and clients in (None, natural):
        called = [own.client_names[k] if own.client_names else int(k) for k in few]
        raise DataError(
            f"every client needs {MIN_SAMPLES} samples, one to train on and one held out, but "
            f"these have fewer: {shown_names(called)}."
        )
    return Pool(strata, classes, clients or natural, seed, own.groups)


def _names(own: GatheredSamples, train: Ints, offsets: Ints) -> tuple[str, ...]:
    """Return what clients are called: by their group, or by the first of several groups."""
    if own.groups is None or not own.client_names:
        return ()
    names = []
    for start, stop in pairwise(offsets.tolist()):
        groups = np.unique(own.groups[train[start:stop]])
        first = own.client_names[groups[0]]
        names.append(first if groups.size == 1 else f"{first} and {groups.size - 1} more")
    return tuple(names)

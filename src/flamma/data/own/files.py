"""Data of one's own in files: tables as CSV or parquet, and folders of pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flamma.data.cells import shown_names
from flamma.data.encoding import SampleEncoding
from flamma.data.own.csv_files import parse_csv
from flamma.data.own.gathered import GatheredSamples, gathered_arrays, gathered_table, joined
from flamma.data.pictures import (
    IMAGE_COLUMN,
    LABEL_COLUMN,
    PictureOptions,
    class_folders,
    is_picture,
    read_folder,
    read_parquet,
)
from flamma.errors import DataError
from flamma.extras import require
from flamma.names import quoted

LARGEST_FILE_BYTES = 4 * 1024**3
BYTES_AT_ONCE = 2**20
CSV_SUFFIXES = (".csv", ".tsv", ".txt")
PARQUET_SUFFIXES = (".parquet", ".pq")


def gathered_file(
    path: Path,
    target: str | None,
    group: Any,
    drop: Sequence[str] = (),
    pictures: PictureOptions | None = None,
    encoding: SampleEncoding | None = None,
) -> GatheredSamples:
    """Return the samples of a CSV or parquet file, or of a folder of pictures.

    Raises
    ------
    DataError
        If the file cannot be read, is of another kind, or has no such table.
    """
    options = pictures or PictureOptions()
    if path.is_dir():
        _refuse(target, group, f"{path} is a folder of pictures, which has no columns")
        return replace(gathered_pictures(path, options), name=path.name)
    columns, digest = table_columns(path, options)
    aim = LABEL_COLUMN if target is None and IMAGE_COLUMN in columns else target
    found = gathered_table(columns, aim, group, drop, path.stem, encoding)
    return replace(found, sha256=digest)


def table_columns(
    path: Path, options: PictureOptions | None = None, texts: Collection[str] = ()
) -> tuple[dict[str, Any], str]:
    """Return the columns of a CSV or parquet file by name, and the file's SHA-256.

    In a CSV file, columns in ``texts`` are texts whatever they hold.

    Raises
    ------
    DataError
        If the file cannot be read, or is of another kind.
    """
    kind = path.suffix.lower()
    if kind in CSV_SUFFIXES:
        content = _content(path)
        return dict(parse_csv(content, path.name, texts)), hashlib.sha256(content).hexdigest()
    if kind in PARQUET_SUFFIXES:
        digest = _digest([path], path.parent)
        return parquet_columns(path, options or PictureOptions()), digest
    raise DataError(
        f"{path} is {'no' if path.exists() else 'not there; data are a'} CSV or parquet file "
        f"({', '.join((*CSV_SUFFIXES, *PARQUET_SUFFIXES))}) or a folder of pictures."
    )


def gathered_pictures(folder: Path, options: PictureOptions) -> GatheredSamples:
    """Return the pictures of a folder with a folder for each class, or client and class in it."""
    inside = class_folders(folder)
    if not inside:
        raise DataError(f"{folder} has no folders of classes with pictures in them.")
    by_client = {client: class_folders(folder / client) for client in inside}
    if any(_has_pictures(folder / name) for name in inside):
        samples = _classes(folder, inside, options)
    else:
        classes = sorted({name for found in by_client.values() for name in found})
        parts = [_classes(folder / client, classes, options) for client in inside]
        samples = joined(parts, inside)
    files = [p for p in sorted(folder.rglob("*")) if is_picture(p)]
    return replace(samples, sha256=_digest(files, folder))


def parquet_columns(path: Path, options: PictureOptions) -> dict[str, Any]:
    """Return the columns of a parquet file; encoded pictures in ``image`` are decoded."""
    require("reading parquet files", "pyarrow")
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise DataError(f"{path} has more than one column {shown_names(twice)}.")
            has_pictures = {IMAGE_COLUMN, LABEL_COLUMN} <= set(names)
            kept = [n for n in names if not (has_pictures and n in (IMAGE_COLUMN, LABEL_COLUMN))]
            table = file.read(columns=kept)
            columns = {name: _cells(table.column(name)) for name in kept}
    except DataError:
        raise
    except Exception as error:  # damage makes pyarrow raise many kinds of errors
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{path} cannot be read as parquet: {reason}.") from error
    if has_pictures:
        columns[IMAGE_COLUMN], columns[LABEL_COLUMN] = read_parquet(path, options)
    return columns


def _cells(column: Any) -> Any:
    """Return a column of pyarrow's as numpy has it, or as Python's values."""
    from pyarrow import types

    kinds = (types.is_integer, types.is_floating, types.is_boolean)
    plain = not column.null_count and any(is_kind(column.type) for is_kind in kinds)
    return column.to_numpy() if plain else column.to_pylist()


def _classes(folder: Path, names: Sequence[str], options: PictureOptions) -> GatheredSamples:
    pixels, numbers, _ = read_folder(folder, names, options)
    return gathered_arrays(pixels, np.asarray(names, dtype=object)[numbers])


def _has_pictures(folder: Path) -> bool:
    return any(map(is_picture, folder.iterdir()))


def _refuse(target: Any, group: Any, why: str) -> None:
    for key, value in (("target", target), ("group", group)):
        if value is not None:
            raise DataError(f"{why}: leave out {key}.")


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise DataError(
                f"{path} has more than {LARGEST_FILE_BYTES // 1024**3} GiB: use a parquet file."
            )
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error


def _digest(files: Sequence[Path], root: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of several."""
    digest = hashlib.sha256()
    try:
        for path in files:
            if len(files) > 1:
                digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
            with path.open("rb") as file:
                while part := file.read(BYTES_AT_ONCE):
                    digest.update(part)
    except OSError as error:
        raise DataError(f"cannot read {quoted(str(error.filename))}: {error.strerror}.") from error
    return digest.hexdigest()

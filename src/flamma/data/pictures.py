"""A site's own pictures, decoded with care: from a folder per class, or from a parquet file."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError, MissingExtraError
from flamma.types import Ints

Pixels = NDArray[np.uint8]
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
LARGEST_FILE = 64 * 1024 * 1024
LARGEST_SIDE = 4096
LARGEST_ALL = 16 * 1024**3
"""Bytes of all decoded pictures together."""
IMAGE, LABEL = "image", "label"


@dataclass(frozen=True)
class PictureOptions:
    """How pictures become arrays: their height and width, and 1 or 3 channels."""

    size: tuple[int, int] | None = None
    channels: int | None = None


def read_folder(
    folder: Path, class_names: Sequence[str] | None, options: PictureOptions
) -> tuple[Pixels, Ints, int]:
    """Return pictures (samples, channels, height, width), labels and the number of classes.

    Each folder inside is a class; the classes are numbered in the order of ``class_names``, or
    of the folders' sorted names. Links that lead out of the folder are refused.
    """
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}.") from error
    names = list(found if class_names is None else class_names)
    if strangers := sorted(set(found) - set(names)):
        raise DataError(f"{folder / strangers[0]} is none of the class_names.")
    root = folder.resolve()
    files = [
        (path, names.index(name))
        for name in found
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in ENDINGS
    ]
    if not files:
        raise DataError(f"{folder} has no pictures in folders of classes ({', '.join(ENDINGS)}).")
    for path, _ in files:
        if not path.resolve().is_relative_to(root):
            raise DataError(f"{path} leads out of {folder}: copy the file instead of linking it.")
    contents = ((path.name, _content(path)) for path, _ in files)
    labels = np.array([label for _, label in files], dtype=np.int64)
    return stacked(contents, len(files), options), labels, len(names)


def read_parquet(path: Path, options: PictureOptions) -> tuple[Pixels, Ints]:
    """Return pictures and labels of a parquet file with the columns ``image`` and ``label``.

    An image is an encoded picture: bytes, or a struct with the field ``bytes``.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError("reading parquet files", "parquet") from None
    try:
        with parquet.ParquetFile(path) as file:
            missing = {IMAGE, LABEL} - set(file.schema_arrow.names)
            if missing:
                raise DataError(f"{path} has no column {sorted(missing)[0]}.")
            labels = file.read(columns=[LABEL]).column(LABEL)
            if not arrow.types.is_integer(labels.type) or labels.null_count:
                raise DataError(f"labels in {path} must be whole numbers, none of them missing.")
            contents = _cells(file, path)
            count = file.metadata.num_rows
            return stacked(contents, count, options), np.asarray(labels.to_numpy(), dtype=np.int64)
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}.") from error


def stacked(contents: Iterable[tuple[str, bytes]], count: int, options: PictureOptions) -> Pixels:
    """Return decoded pictures as one array; all must have the size and channels of the first."""
    array: Pixels | None = None
    for place, (name, content) in enumerate(contents):
        picture = decode(content, name, options)
        if array is None:
            total = count * picture.size
            if total > LARGEST_ALL:
                raise DataError(
                    f"{count} pictures of {picture.shape} would take {total / 1024**3:.0f} GiB: "
                    f"give a smaller size."
                )
            array = np.empty((count, *picture.shape), dtype=np.uint8)
        if picture.shape != array.shape[1:]:
            raise DataError(
                f"{name} is {_shape(picture.shape)}, but the pictures before it are "
                f"{_shape(array.shape[1:])}: give size = [height, width] and channels."
            )
        array[place] = picture
    if array is None:
        raise DataError("there are no pictures.")
    return array


def decode(content: bytes, name: str, options: PictureOptions) -> Pixels:
    """Return one picture as (channels, height, width), refusing giants before decoding them."""
    from PIL import Image

    if len(content) > LARGEST_FILE:
        raise DataError(f"{name} has more than {LARGEST_FILE // 1024**2} MiB.")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if max(image.size) > LARGEST_SIDE:
                raise DataError(
                    f"{name} is {image.size[0]}x{image.size[1]}; {LARGEST_SIDE} is the longest "
                    f"side."
                )
            channels = options.channels or (1 if image.mode in ("1", "L", "I", "I;16") else 3)
            picture = image.convert("L" if channels == 1 else "RGB")
            if options.size is not None:
                height, width = options.size
                picture = picture.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name} is a damaged picture: {error}.") from error
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _cells(file: Any, path: Path) -> Iterator[tuple[str, bytes]]:
    row = 0
    for batch in file.iter_batches(batch_size=256, columns=[IMAGE]):
        for cell in batch.column(0).to_pylist():
            content = cell.get("bytes") if isinstance(cell, dict) else cell
            if not isinstance(content, bytes):
                raise DataError(f"row {row} of {path} holds no encoded picture.")
            yield f"row {row} of {path.name}", content
            row += 1


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise DataError(f"{path} has more than {LARGEST_FILE // 1024**2} MiB.")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

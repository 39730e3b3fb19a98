"""Reads a site's pictures from a folder per class or from a parquet file."""

from __future__ import annotations

import errno
import io
import os
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError
from flamma.extras import require
from flamma.tasks.base import whole_labels
from flamma.types import Ints

Pixels = NDArray[np.uint8] | NDArray[np.uint16]
"""Pictures of bytes, or grey ones of 16 bits."""
_PICTURE_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
_PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_LARGEST_PICTURE_BYTES = 64 * 1024 * 1024
_LONGEST_PICTURE_SIDE = 4096
_LARGEST_DECODED_BYTES = 16 * 1024**3
"""Bytes of all decoded pictures together."""
IMAGE_COLUMN, LABEL_COLUMN = "image", "label"
_SIXTEEN_BIT_MODES = ("I;16", "I;16B", "I;16L", "I")
"""What Pillow calls grey pictures of 16 bits; ``I`` has room for more."""
_PNG_DEPTH_BYTE = 24
"""Where a PNG file has the number of bits of a channel."""
_LEFT_BEHIND = frozenset({"__macosx", "__pycache__", "@eadir", "lost+found", "$recycle.bin"})
"""Folders in small letters that other programs make among data, besides those with a dot."""


@dataclass(frozen=True)
class PictureOptions:
    """How pictures are decoded.

    Parameters
    ----------
    size : (int, int)
        The height and width that pictures are resized to; empty keeps their size.
    channels : int
        1 for grey, 3 for colour; by default as the pictures are.
    """

    size: tuple[int, ...] = ()
    channels: int | None = None

    def __post_init__(self) -> None:
        sides = all(1 <= side <= _LONGEST_PICTURE_SIDE for side in self.size)
        if self.size and not (len(self.size) == 2 and sides):
            raise DataError(
                f"data.size must be [height, width], each from 1 to {_LONGEST_PICTURE_SIDE}, not "
                f"{list(self.size)}."
            )
        if self.channels not in (None, 1, 3):
            raise DataError(f"data.channels must be 1 or 3, not {self.channels}.")


def class_folders(folder: Path, class_names: Collection[str] = ()) -> list[str]:
    """Return the names of the folders inside, sorted.

    What programs leave behind, such as ``.ipynb_checkpoints`` and ``__MACOSX``, is no class unless
    ``class_names`` has it.

    Raises
    ------
    DataError
        If the folder cannot be read.
    """
    try:
        inside = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}.") from error
    return sorted(name for name in inside if name in class_names or not _is_left_behind(name))


def _is_left_behind(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LEFT_BEHIND


def is_picture(path: Path) -> bool:
    """Return whether a file is a picture by its name; hidden ones, such as ``._a.png``, are not."""
    return path.suffix.lower() in _PICTURE_SUFFIXES and not path.name.startswith(".")


def read_folder(
    folder: Path, class_names: Sequence[str], options: PictureOptions
) -> tuple[Pixels, Ints, tuple[str, ...]]:
    """Return pictures (samples, channels, height, width), labels and the names of the classes.

    Each folder inside is a class. Classes are numbered in the order of ``class_names``, or of the
    sorted names of the folders if there are none. Links that lead out of the folder are refused.
    """
    found = class_folders(folder, class_names)
    names = tuple(class_names or found)
    if strangers := sorted(set(found) - set(names)):
        raise DataError(f"{folder / strangers[0]} is none of the class_names.")
    root = folder.resolve()
    files = [
        (path, names.index(name))
        for name in found
        for path in sorted((folder / name).iterdir())
        if is_picture(path)
    ]
    if not files:
        raise DataError(
            f"{folder} has no pictures in folders of classes ({', '.join(_PICTURE_SUFFIXES)})."
        )
    for path, _ in files:
        if not path.resolve().is_relative_to(root):
            raise DataError(f"{path} leads out of {folder}: copy the file instead of linking it.")
    contents = ((path.name, _content(path)) for path, _ in files)
    labels = np.array([label for _, label in files], dtype=np.int64)
    return stacked(contents, len(files), options), labels, names


def read_parquet(path: Path, options: PictureOptions) -> tuple[Pixels, Ints]:
    """Return pictures and labels of a parquet file with the columns ``image`` and ``label``.

    An image is an encoded picture: bytes, or a struct with the field ``bytes``.
    """
    require("reading parquet files", "pyarrow")
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            missing = {IMAGE_COLUMN, LABEL_COLUMN} - set(file.schema_arrow.names)
            if missing:
                raise DataError(f"{path} has no column {sorted(missing)[0]}.")
            labels = file.read(columns=[LABEL_COLUMN]).column(LABEL_COLUMN)
            if not arrow.types.is_integer(labels.type) or labels.null_count:
                raise DataError(f"labels in {path} must be whole numbers, none of them missing.")
            pictures = stacked(_cells(file, path), len(labels), options)
            return pictures, whole_labels(labels.to_numpy(), f"labels in {path}")
    except DataError:
        raise
    except Exception as error:  # damage makes pyarrow raise many kinds of errors
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{path} cannot be read as parquet: {reason}.") from error


def stacked(contents: Iterable[tuple[str, bytes]], count: int, options: PictureOptions) -> Pixels:
    """Return decoded pictures as one array; all must have the shape of the first one."""
    array: Pixels | None = None
    place = -1
    for place, (name, content) in enumerate(contents):
        if place >= count:
            break
        picture = decode(content, name, options)
        if array is None:
            total = count * picture.nbytes
            if total > _LARGEST_DECODED_BYTES:
                raise DataError(
                    f"{count} pictures of {picture.shape} would take {total / 1024**3:.0f} GiB: "
                    f"give a smaller size."
                )
            array = np.empty((count, *picture.shape), dtype=picture.dtype)
        if picture.shape != array.shape[1:]:
            raise DataError(
                f"{name} is {_shape(picture.shape)}, but the pictures before it are "
                f"{_shape(array.shape[1:])}: give size = [height, width] and channels."
            )
        if picture.dtype != array.dtype:
            raise DataError(
                f"{name} has {8 * picture.itemsize} bits, but the pictures before it "
                f"{8 * array.itemsize}: save all of them with the same depth."
            )
        array[place] = picture
    if array is None:
        raise DataError("there are no pictures.")
    if place != count - 1:
        raise DataError(f"there are not as many pictures as labels, of which there are {count}.")
    return array


def decode(content: bytes, name: str, options: PictureOptions) -> Pixels:
    """Return one picture as (channels, height, width); one that is too large is not decoded.

    Grey pictures of 16 bits keep all of them.
    """
    from PIL import Image

    if len(content) > _LARGEST_PICTURE_BYTES:
        raise DataError(f"{name} has more than {_LARGEST_PICTURE_BYTES // 1024**2} MiB.")
    try:
        with Image.open(io.BytesIO(content), formats=_PICTURE_FORMATS) as image:
            if max(image.size) > _LONGEST_PICTURE_SIDE:
                raise DataError(
                    f"{name} is {image.size[0]}x{image.size[1]}; the longest side may have "
                    f"{_LONGEST_PICTURE_SIDE} pixels."
                )
            if image.mode in _SIXTEEN_BIT_MODES:
                return _sixteen_bits(image, name, options)
            if image.format == "PNG" and content[_PNG_DEPTH_BYTE] == 16:
                raise DataError(
                    f"{name} has colours or transparency of 16 bits, half of which would be lost: "
                    f"save it as grey of 16 bits, or with 8."
                )
            channels = options.channels or (1 if image.mode in ("1", "L") else 3)
            picture = image.convert("L" if channels == 1 else "RGB")
            if options.size:
                height, width = options.size
                picture = picture.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture, dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # damage makes Pillow raise many kinds of errors
        raise DataError(f"{name} is a damaged picture: {error}.") from error
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _sixteen_bits(image: Any, name: str, options: PictureOptions) -> Pixels:
    """Return a grey picture of 16 bits, which Pillow would cut off at 255 as it makes it bytes."""
    from PIL import Image

    grey = np.asarray(image)
    if grey.min() < 0 or grey.max() > np.iinfo(np.uint16).max:
        raise DataError(f"{name} has more than 16 bits: save it with 16.")
    if options.size:  # Pillow interpolates numbers of this depth as floating-point ones only
        height, width = options.size
        exact = Image.fromarray(grey.astype(np.float32))
        grey = np.rint(np.asarray(exact.resize((width, height), Image.Resampling.BILINEAR)))
    return np.repeat(grey[None].astype(np.uint16), options.channels or 1, axis=0)


def _cells(file: Any, path: Path) -> Iterator[tuple[str, bytes]]:
    row = 0
    for batch in file.iter_batches(batch_size=256, columns=[IMAGE_COLUMN]):
        for cell in batch.column(0).to_pylist():
            content = cell.get("bytes") if isinstance(cell, dict) else cell
            if not isinstance(content, bytes):
                raise DataError(f"row {row} of {path} holds no encoded picture.")
            yield f"row {row} of {path.name}", content
            row += 1


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST_PICTURE_BYTES:
            raise DataError(f"{path} has more than {_LARGEST_PICTURE_BYTES // 1024**2} MiB.")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


# Reads a site's arrays from a file of numpy, whose every part is checked.

ZIP_END_BYTES, ZIP64_COUNT = 22, 0xFFFF
"""The size of the last record of a zip, and its count of members if that stands elsewhere."""


def read_npz(
    path: Path,
) -> tuple[NDArray[Any], NDArray[Any], tuple[NDArray[Any], NDArray[Any]] | None]:
    """Return samples and labels, and those that are held out if the file has them.

    Raises
    ------
    DataError
        If the file is damaged, or has no such arrays without pickles.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_directory(archive, path)
            names = set(archive.namelist())
            for name in ("x", "y"):
                if f"{name}.npy" not in names:
                    raise DataError(f"{path} has no array {name}.")
            given = [f"{name}.npy" in names for name in ("held_x", "held_y")]
            if any(given) and not all(given):
                raise DataError(f"{path} needs both held_x and held_y, or neither.")
            x, y = _member(archive, "x"), _member(archive, "y")
            if not any(given):
                return x, y, None
            return x, y, (_member(archive, "held_x"), _member(archive, "held_y"))
    except DataError:
        raise
    except OSError as error:
        if error.errno == errno.EINVAL:  # the directory at its end says where more should be
            raise DataError(f"{path} is damaged: a part of the file is missing.") from error
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # zipfile, zlib and numpy's parser have errors of many kinds
        raise DataError(
            f"{path} cannot be read as npz without pickles or a password: {_reason(error)}."
        ) from error


def _check_directory(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse an archive whose directory is damaged, so that members would be overlooked."""
    with path.open("rb") as file:
        file.seek(-ZIP_END_BYTES - len(archive.comment), os.SEEK_END)
        count = int.from_bytes(file.read(ZIP_END_BYTES)[10:12], "little")
    if count not in (len(archive.infolist()), ZIP64_COUNT):
        raise DataError(f"{path} is damaged: its directory does not list all of its arrays.")
    for member in archive.infolist():
        archive.open(member).close()  # raises if the member itself has another name


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        # Only at the end of a file its checksum is verified, which np.load does not wait for.
        if file.read(1):
            raise DataError(f"the array {name} is longer than its header says.")
    return array


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__

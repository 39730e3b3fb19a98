"""Pictures: decoded, or read from a folder with a folder for each class."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flamma.data.tables import LARGEST_TABLE_BYTES
from flamma.errors import DataError
from flamma.io import read_regular
from flamma.registry import CheckedOptions
from flamma.types import Ints

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8] | NDArray[np.uint16]
"""Pictures of bytes, or grey ones of 16 bits."""
_PICTURE_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
_PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_LARGEST_PICTURE_BYTES = 64 * 1024 * 1024
_LONGEST_PICTURE_SIDE = 4096
_SIXTEEN_BIT_MODES = ("I;16", "I;16B", "I;16L", "I")
"""What Pillow calls grey pictures of 16 bits; ``I`` has room for more."""
_PNG_DEPTH_BYTE = 24
"""Where a PNG file has the number of bits of a channel."""
_LEFT_BEHIND = frozenset({"__macosx", "__pycache__", "@eadir", "lost+found", "$recycle.bin"})
"""Folders in small letters that other programs make among data, besides those with a dot."""


@dataclass(frozen=True)
class PictureOptions(CheckedOptions, within="data.", error=DataError):
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
        super().__post_init__()
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
    return sorted(
        name
        for name in inside
        if name in class_names or not (name.startswith(".") or name.lower() in _LEFT_BEHIND)
    )


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
    contents = ((path.name, read_regular(path, _LARGEST_PICTURE_BYTES)) for path, _ in files)
    try:
        pictures = stacked(contents, len(files), options)
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}.") from error
    return pictures, np.array([label for _, label in files], dtype=np.int64), names


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
            if total > LARGEST_TABLE_BYTES:
                raise DataError(
                    f"{count} pictures of {picture.shape} would take {total / 1024**3:.0f} GiB: "
                    f"give a smaller size."
                )
            array = np.empty((count, *picture.shape), dtype=picture.dtype)
        if picture.shape != array.shape[1:]:
            raise DataError(
                f"{name} is {'x'.join(map(str, picture.shape))}, but the pictures before it are "
                f"{'x'.join(map(str, array.shape[1:]))}: give size = [height, width] and channels."
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


def _sixteen_bits(image: Image.Image, name: str, options: PictureOptions) -> Pixels:
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

"""Parsers of the datasets' file formats; they refuse anything that is not exactly right."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import DataError
from flamma.types import Ints

Bytes = NDArray[np.uint8]

CIFAR_PIXELS = 3 * 32 * 32
CIFAR_ROW = 1 + CIFAR_PIXELS
CIFAR_BATCH = 10_000
CIFAR_CLASSES = 10


def parse_idx(content: bytes, dimensions: int, name: str) -> Bytes:
    """Return the array of unsigned bytes in an idx file with this number of dimensions.

    The format: two zero bytes, the type (8 for unsigned bytes), the number of dimensions, each
    dimension as a big-endian 32-bit number, then the values.

    Examples
    --------
    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), 1, "labels")
    array([7, 8, 9], dtype=uint8)
    """
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{name} is no idx file: it ends inside its header.")
    if content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(
            f"{name} is no idx file of {dimensions} dimensions of bytes: it begins with "
            f"{content[:4].hex()}."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = int(np.prod(shape, dtype=object))
    if len(content) - start != expected:
        raise DataError(
            f"{name} should hold {expected} bytes of data by its header, but has "
            f"{len(content) - start}."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def parse_cifar(content: bytes, name: str) -> tuple[Bytes, Ints]:
    """Return images (samples, 3, 32, 32) and labels of a CIFAR-10 binary batch.

    A batch is rows of one label byte and 3072 pixels: red, green and blue, row by row.
    """
    if not content or len(content) % CIFAR_ROW:
        raise DataError(
            f"{name} is no CIFAR-10 batch: its {len(content)} bytes are not rows of {CIFAR_ROW}."
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, CIFAR_ROW)
    labels = rows[:, 0].astype(np.int64)
    if labels.max() >= CIFAR_CLASSES:
        raise DataError(f"{name} is no CIFAR-10 batch: it has a label {labels.max()}.")
    return rows[:, 1:].reshape(-1, 3, 32, 32), labels


def cifar_batch_from_png(picture: bytes, labels: Sequence[int], name: str) -> bytes:
    """Return the binary batch of a picture with one image per row of 1024 RGB pixels.

    Parameters
    ----------
    picture : bytes
        The PNG file.
    labels : sequence of int
        One per row.
    name : str
        The name of the picture in messages.
    """
    pixels = _decode_png(picture, (32 * 32, len(labels)), name)
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), CIFAR_PIXELS)
    column = np.asarray(labels, dtype=np.uint8).reshape(-1, 1)
    return np.concatenate([column, planes], axis=1).tobytes()


def parse_labels(content: bytes, count: int, name: str) -> list[int]:
    """Return a JSON list of exactly ``count`` CIFAR-10 labels."""
    try:
        labels: Any = json.loads(content)
    except ValueError:
        raise DataError(f"{name} is not JSON.") from None
    if not isinstance(labels, list) or len(labels) != count:
        raise DataError(f"{name} should be a list of {count} labels.")
    if not all(type(label) is int and 0 <= label < CIFAR_CLASSES for label in labels):
        raise DataError(f"{name} has a label that is not a whole number from 0 to 9.")
    return labels


def _decode_png(picture: bytes, size: tuple[int, int], name: str) -> Bytes:
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"decoding {name} needs Pillow: pip install pillow.") from None
    try:
        with Image.open(io.BytesIO(picture), formats=["PNG"]) as image:
            # Both are known before decoding, so a huge picture is refused without decoding it.
            if image.size != size or image.mode != "RGB":
                raise DataError(
                    f"{name} should be {size[0]}x{size[1]} RGB, but is "
                    f"{image.size[0]}x{image.size[1]} {image.mode}."
                )
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name} is a damaged picture: {error}.") from error

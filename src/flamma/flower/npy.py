"""Arrays in numpy's file format from parties that are not trusted.

Flower writes an array as a ``.npy`` file. numpy reads the header of such a file with Python's
parser, which a damaged header can make raise many kinds of errors or work for long. Here the
header must have the exact layout that numpy writes, with the type and shape that are known.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from flamma.engines.flower.messages import MessageError

MAGIC = b"\x93NUMPY\x01\x00"
"""The beginning of a file of version 1.0."""

LONGEST_HEADER = 512
"""Bytes of a header; numpy writes 118 for all but very many dimensions."""

HEADER = re.compile(
    rb"\{'descr': '([<>|][a-z]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18},|\d{1,18}(?:, \d{1,18}){1,31})?)\), \} *\n"
)


def read_npy(array: Array, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
    """Return an array that arrived, if it has this type and shape.

    Raises
    ------
    MessageError
        If it has another type or shape, or cannot be read.
    """
    if not isinstance(array, Array) or array.stype != "numpy.ndarray":
        raise MessageError(f"{what} are not written by numpy")
    content = memoryview(array.data)
    start = len(MAGIC) + 2
    length = int.from_bytes(content[len(MAGIC) : start], "little")
    header = HEADER.fullmatch(content[start : start + min(length, LONGEST_HEADER)])
    if content[: len(MAGIC)] != MAGIC or length > LONGEST_HEADER or header is None:
        raise MessageError(f"{what} cannot be read")
    kind, fortran, sizes = header.groups()
    if kind.decode() != dtype.str:
        raise MessageError(f"{what} are of the type {kind.decode()}, not {dtype.str}")
    found = tuple(int(size) for size in sizes.split(b",") if size)
    if found != shape:
        raise MessageError(f"{what} have the shape {found}")
    body, size = content[start + length :], dtype.itemsize * math.prod(shape)
    if len(body) != size:
        raise MessageError(f"{what} take {len(body)} bytes instead of {size}")
    values = np.frombuffer(body, dtype=dtype)
    ordered = values.reshape(shape[::-1]).T if fortran == b"True" else values.reshape(shape)
    return np.array(ordered)

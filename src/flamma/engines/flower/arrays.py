"""Arrays as they travel, read without trusting what they say of themselves."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flamma.errors import FlammaError
from flamma.types import Params

HEADER = 512
"""Bytes by which an array may be longer than its numbers."""

RUNNING = ("running_mean", "running_var")
"""How PyTorch calls what a batch norm measures and nobody trains."""


class WireError(FlammaError):
    """Something that arrived cannot be used; the message says what."""


def unpack(
    array: Array, dtype: np.dtype[Any], shape: tuple[int, ...] | None, what: str
) -> NDArray[Any]:
    """Return an array that arrived, if it is of this type and shape (None: any vector).

    Its own header is read first, so that no room is made for what it may promise.

    Raises
    ------
    WireError
        If it is anything else.
    """
    if array.stype != "numpy.ndarray":
        raise WireError(f"{what} are written as {array.stype[:50]!r}")
    content = array.data
    if shape is not None and len(content) > dtype.itemsize * math.prod(shape) + HEADER:
        wanted = dtype.itemsize * math.prod(shape)
        raise WireError(f"{what} take {len(content)} bytes instead of {wanted}")
    file = io.BytesIO(content)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise WireError(f"{what} are in an unknown format")
        found, fortran, kind = np.lib.format.read_array_header_1_0(file)
    except ValueError as error:
        raise WireError(f"{what} cannot be read") from error
    if kind != dtype:
        raise WireError(f"{what} are of the type {kind.name}, not {dtype.name}")
    if found != shape and (shape is not None or len(found) != 1):
        raise WireError(f"{what} have the shape {found}")
    body = memoryview(content)[file.tell() :]
    if len(body) != dtype.itemsize * math.prod(found):
        size = dtype.itemsize * math.prod(found)
        raise WireError(f"{what} take {len(body)} bytes instead of {size}")
    values = np.frombuffer(body, dtype=dtype)
    ordered = values.reshape(found[::-1]).T if fortran else values.reshape(found)
    return np.array(ordered)


@dataclass(frozen=True)
class NamedArrays:
    """A model of named arrays as one flat vector, and back.

    The trainable arrays come first, then those of real numbers that are only carried along.
    Whole numbers, such as a batch norm's ``num_batches_tracked``, are not in the vector: nobody
    can take half of one. They are kept beside it.
    """

    names: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, np.dtype[Any]]
    trainable: tuple[str, ...]
    carried: tuple[str, ...]
    whole: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord, trainable: Collection[str] | None = None) -> NamedArrays:
        """Return the form of a model; by default all but running means and variances is trained.

        Raises
        ------
        FlammaError
            If there is nothing to train, or an array is of no kind of number.
        """
        arrays = {name: array.numpy() for name, array in record.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise FlammaError(f"the array {name!r} of {array.dtype} cannot be aggregated.")
        real = [name for name, array in arrays.items() if array.dtype.kind == "f"]
        if trainable is None:
            trainable = [name for name in real if not name.endswith(RUNNING)]
        trained = tuple(name for name in real if name in trainable)
        if not trained:
            raise FlammaError(
                "the initial arrays have nothing to train: name some of real numbers."
            )
        return cls(
            names=tuple(arrays),
            shapes={name: array.shape for name, array in arrays.items()},
            types={name: array.dtype for name, array in arrays.items()},
            trainable=trained,
            carried=tuple(name for name in real if name not in trained),
            whole=tuple(name for name in arrays if name not in real),
        )

    @property
    def trainable_size(self) -> int:
        """How many numbers of the vector are trained."""
        return sum(math.prod(self.shapes[name]) for name in self.trainable)

    def flatten(self, record: ArrayRecord) -> tuple[Params, dict[str, NDArray[Any]]]:
        """Return the vector of a model that arrived, and its whole numbers.

        Raises
        ------
        WireError
            If its arrays are not those of this model.
        """
        if set(record) != set(self.names):
            odd = sorted(set(record) ^ set(self.names))[0]
            raise WireError(f"the arrays have other names, such as {odd[:50]!r}")
        arrays = {
            name: unpack(record[name], self.types[name], self.shapes[name], f"the weights {name}")
            for name in self.names
        }
        real = [arrays[name].astype(np.float32).ravel() for name in self.trainable + self.carried]
        return np.concatenate(real), {name: arrays[name] for name in self.whole}

    def restore(self, params: Params, whole: Mapping[str, NDArray[Any]]) -> ArrayRecord:
        """Return a vector and whole numbers as the model's own arrays."""
        arrays, start = dict(whole), 0
        for name in self.trainable + self.carried:
            size = math.prod(self.shapes[name])
            part = params[start : start + size].reshape(self.shapes[name])
            arrays[name] = np.asarray(part.astype(self.types[name]))
            start += size
        return ArrayRecord({name: Array(arrays[name]) for name in self.names})


def mean_of_whole(
    parts: Sequence[Mapping[str, NDArray[Any]]], weights: Sequence[float]
) -> dict[str, NDArray[Any]]:
    """Return the weighted means of whole numbers, rounded to whole numbers of the same type."""
    total = math.fsum(weights)
    means = {}
    for name, first in parts[0].items():
        mean = sum(
            (weight / total) * part[name].astype(np.float64)
            for part, weight in zip(parts, weights, strict=True)
        )
        means[name] = np.asarray(np.rint(mean)).astype(first.dtype)
    return means

"""Arrays in numpy's file format from parties that are not trusted.

Flower writes an array as a ``.npy`` file. numpy reads the header of such a file with Python's
parser, which a damaged header can make raise many kinds of errors or work for long. Here the
header must have the exact layout that numpy writes, with the type and shape that are known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flamma.engines.flower.messages import MessageError
from flamma.engines.flower.payload import one_line_of
from flamma.errors import FlammaError
from flamma.records import RoundRecord
from flamma.types import Broadcast, Params, Update

Whole = Mapping[str, NDArray[Any]]
"""Integer arrays of a model by name, which no vector of float32 numbers holds."""

_MAGIC = b"\x93NUMPY\x01\x00"
"""The beginning of a file of version 1.0."""

_LONGEST_HEADER = 512
"""Bytes of a header; numpy writes 118 for all but very many dimensions."""

_HEADER = re.compile(
    rb"\{'descr': '([<>|][a-z]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18},|\d{1,18}(?:, \d{1,18}){1,31})?)\), \} *\n"
)


def _read_npy(
    array: Array, dtype: np.dtype[Any], shape: tuple[int, ...], what: str
) -> NDArray[Any]:
    """Return an array that arrived, if it has this type and shape.

    Raises
    ------
    MessageError
        If it has another type or shape, or cannot be read.
    """
    if not isinstance(array, Array) or array.stype != "numpy.ndarray":
        raise MessageError(f"{what} are not written by numpy")
    content = memoryview(array.data)
    start = len(_MAGIC) + 2
    length = int.from_bytes(content[len(_MAGIC) : start], "little")
    header = _HEADER.fullmatch(content[start : start + min(length, _LONGEST_HEADER)])
    if content[: len(_MAGIC)] != _MAGIC or length > _LONGEST_HEADER or header is None:
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


# A model of named arrays, such as a PyTorch state dict, as one flat vector and back.

_RUNNING_STATISTICS = ("running_mean", "running_var")
"""How PyTorch's names of what a batch norm measures, and does not train, end."""


@dataclass(frozen=True)
class NamedArrays:
    """The form of a model of named arrays: which are in its flat vector, and where.

    The trainable arrays come first, then the other floating-point arrays. Integer arrays, such as
    a batch norm's ``num_batches_tracked``, are kept beside the vector, because their mean must be
    rounded.
    """

    names: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, np.dtype[Any]]
    trainable: tuple[str, ...]
    carried: tuple[str, ...]
    whole: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord, trainable: Collection[str] | None = None) -> NamedArrays:
        """Return the form of a model; by default all but running statistics are trainable.

        Raises
        ------
        FlammaError
            If no array can be trained, or one does not hold numbers.
        """
        arrays = {name: array.numpy() for name, array in record.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise FlammaError(f"the array {name!r} of {array.dtype} cannot be aggregated.")
        real = [name for name, array in arrays.items() if array.dtype.kind == "f"]
        if trainable is None:
            trainable = [name for name in real if not name.endswith(_RUNNING_STATISTICS)]
        trained = tuple(name for name in real if name in trainable)
        if not trained:
            raise FlammaError(
                "the initial arrays have nothing to train: name floating-point arrays."
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
    def trainable_sizes(self) -> tuple[int, ...]:
        """How many numbers each array has that is trained."""
        return tuple(math.prod(self.shapes[name]) for name in self.trainable)

    @property
    def trainable_size(self) -> int:
        """How many numbers of the vector are trained."""
        return sum(self.trainable_sizes)

    def flatten(self, record: ArrayRecord) -> tuple[Params, Whole]:
        """Return the vector of a model that arrived, and its integer arrays.

        Raises
        ------
        MessageError
            If its arrays do not have the names, shapes and types of this model.
        """
        if set(record) != set(self.names):
            odd = sorted(set(record) ^ set(self.names))[0]
            raise MessageError(f"the arrays have other names, such as {one_line_of(odd)[:50]!r}")
        arrays = {
            name: _read_npy(
                record[name], self.types[name], self.shapes[name], f"the weights {name}"
            )
            for name in self.names
        }
        with np.errstate(over="ignore"):  # what becomes infinite is refused by the strategy
            real = [
                arrays[name].astype(np.float32).ravel() for name in self.trainable + self.carried
            ]
        return np.concatenate(real), {name: arrays[name] for name in self.whole}

    def restore(self, params: Params, whole: Whole) -> ArrayRecord:
        """Return a vector and integer arrays as the model's named arrays, in their own types."""
        arrays, start = dict(whole), 0
        for name in self.trainable + self.carried:
            size = math.prod(self.shapes[name])
            part = params[start : start + size].reshape(self.shapes[name])
            arrays[name] = np.asarray(part.astype(self.types[name]))
            start += size
        return ArrayRecord({name: Array(arrays[name]) for name in self.names})


def _mean_of_whole(parts: Sequence[Whole], weights: Sequence[float]) -> Whole:
    """Return the weighted means of integer arrays, rounded to integers of the same type."""
    total = math.fsum(weights)
    means = {}
    for name, first in parts[0].items():
        mean = sum(
            (weight / total) * part[name].astype(np.float64)
            for part, weight in zip(parts, weights, strict=True)
        )
        means[name] = np.asarray(np.rint(mean)).astype(first.dtype)
    return means


# The model of a run as the arrays that its clients are sent.


@dataclass(frozen=True, eq=False)
class ModelArrays:
    """The form of the model, and its integer arrays, of which strategies know nothing."""

    form: NamedArrays
    whole: Whole

    def arrays(self, params: Params) -> ArrayRecord:
        """Return a flat vector of weights as named arrays."""
        return self.form.restore(params, self.whole)

    def sender(self, broadcast: Broadcast, common: ArrayRecord) -> Callable[[int], ArrayRecord]:
        """Return what says which arrays a client is sent: those of all, or a model of its own."""
        if broadcast.per_client is None:
            return lambda client: common
        return lambda client: self.arrays(broadcast.model(client))

    def after(
        self,
        record: RoundRecord,
        reports: Iterable[Update],
        whole: Mapping[int, Whole],
    ) -> Self:
        """Return the model with integer arrays averaged over the accepted updates of a round."""
        used = [
            r
            for r in sorted(reports, key=lambda r: r.client)
            if r.params is not None
            and r.client in record.selected
            and r.client not in record.outcome.failed
        ]
        if not used or not self.form.whole:
            return self
        weights = [float(r.samples) for r in used]
        return replace(self, whole=_mean_of_whole([whole[r.client] for r in used], weights))

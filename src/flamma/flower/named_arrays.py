"""A model of named arrays, such as a PyTorch state dict, as one flat vector and back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flamma.engines.flower.messages import MessageError
from flamma.engines.flower.payload import one_line_of
from flamma.errors import FlammaError
from flamma.flower.npy import read_npy
from flamma.types import Params

RUNNING_STATISTICS = ("running_mean", "running_var")
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
            trainable = [name for name in real if not name.endswith(RUNNING_STATISTICS)]
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

    def flatten(self, record: ArrayRecord) -> tuple[Params, dict[str, NDArray[Any]]]:
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
            name: read_npy(record[name], self.types[name], self.shapes[name], f"the weights {name}")
            for name in self.names
        }
        with np.errstate(over="ignore"):  # what becomes infinite is refused by the strategy
            real = [
                arrays[name].astype(np.float32).ravel() for name in self.trainable + self.carried
            ]
        return np.concatenate(real), {name: arrays[name] for name in self.whole}

    def restore(self, params: Params, whole: Mapping[str, NDArray[Any]]) -> ArrayRecord:
        """Return a vector and integer arrays as the model's named arrays, in their own types."""
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

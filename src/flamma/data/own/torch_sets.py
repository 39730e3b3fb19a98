"""Datasets of torch, without importing it: anything with a length and numbered items (x, y)."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.data.cells import LARGEST_TABLE_BYTES
from flamma.data.encoding import as_numbers
from flamma.data.own.gathered import GatheredSamples, gathered_arrays
from flamma.errors import DataError
from flamma.names import quoted

SECONDS_UNTOLD = 2.0
"""Seconds between two lines on how far the reading of a dataset is."""


def is_torch_set(data: Any) -> bool:
    """Return whether data have a length and numbered items, and are no array, list or mapping."""
    plain = isinstance(data, list | tuple | dict | str | bytes | np.ndarray)
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not plain


def gathered_items(data: Any, what: str = "samples") -> GatheredSamples:
    """Return the samples and targets of a dataset whose items are (x, y).

    Raises
    ------
    DataError
        If an item is something else, samples differ in shape, or there are none or too many.
    """
    tensors = _tensors(data)
    if tensors is not None:
        return gathered_arrays(tensors[0], tensors[1], what)
    count = len(data)
    if not count:
        raise DataError(f"{what}: the dataset is empty.")
    targets: list[Any] = []
    x: NDArray[Any] | None = None
    told = time.monotonic()
    for place in range(count):
        sample, target = _item(data, place, what)
        if x is None:
            x = _room(sample, count, what)
        if sample.shape != x.shape[1:]:
            raise DataError(
                f"{what} must have one shape, but item {place} has {sample.shape} and those before "
                f"it {x.shape[1:]}: resize them in the dataset's transform."
            )
        x[place] = sample
        targets.append(target)
        told = _tell(told, place + 1, count)
    return gathered_arrays(x, _targets(targets), what)


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


def _item(data: Any, place: int, what: str) -> tuple[NDArray[Any], Any]:
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


def _room(first: NDArray[Any], count: int, what: str) -> NDArray[Any]:
    if count * first.nbytes > LARGEST_TABLE_BYTES:
        raise DataError(
            f"{what}: {count:,} samples of {first.nbytes:,} bytes take more than "
            f"{LARGEST_TABLE_BYTES // 1024**3} GiB: make them smaller or fewer (torch's Subset)."
        )
    return np.empty((count, *first.shape), dtype=first.dtype)


def _targets(targets: list[Any]) -> Any:
    if hasattr(targets[0], "shape"):  # tensors and numpy's numbers
        return np.stack([np.asarray(target) for target in targets])
    return targets


def _tell(told: float, done: int, count: int) -> float:
    now = time.monotonic()
    if now - told < SECONDS_UNTOLD:
        return told
    print(f"flamma: read {done:,} of {count:,} samples", file=sys.stderr, flush=True)
    return now

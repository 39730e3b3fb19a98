"""Datasets of Hugging Face, and those that Flower's partitioners make of them.

Neither package is imported: a dataset has ``column_names``, and a partitioner ``load_partition``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.data.cells import shown_names
from flamma.errors import DataError

MOST_PARTITIONS = 1_000_000
"""The most clients that a partitioner may have."""


def is_hugging_face(data: Any) -> bool:
    """Return whether data are a ``datasets.Dataset``."""
    return isinstance(getattr(data, "column_names", None), list) and hasattr(data, "features")


def is_dataset_dict(data: Any) -> bool:
    """Return whether data are a ``datasets.DatasetDict``."""
    return isinstance(data, Mapping) and bool(data) and all(map(is_hugging_face, data.values()))


def is_partitioner(data: Any) -> bool:
    """Return whether data are a partitioner of Flower's, or its ``FederatedDataset``."""
    return hasattr(data, "load_partition")


def train_and_test(data: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the part to train on and the test part, None if there is none.

    Raises
    ------
    DataError
        If no part is called ``train``.
    """
    if "train" not in data:
        raise DataError(
            f"a DatasetDict needs a part 'train', but has {shown_names(list(data))}: give one of "
            f"its parts, such as data[{next(iter(data))!r}]."
        )
    return data["train"], data.get("test")


def dataset_columns(data: Any) -> dict[str, Any]:
    """Return the columns of a ``datasets.Dataset`` as numpy has them; pictures as one array."""
    plain = data.with_format("numpy")
    return {name: _column(data, plain, name) for name in data.column_names}


def partitions(data: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Return the datasets of all clients of a partitioner, and the clients' names if it has any.

    Raises
    ------
    DataError
        If it does not tell how many there are.
    """
    partitioner = data
    if hasattr(data, "partitioners"):  # a FederatedDataset has one for each of its parts
        partitioner = data.partitioners.get("train") or next(iter(data.partitioners.values()))
    count = getattr(partitioner, "num_partitions", None)
    if not isinstance(count, int) or not 1 <= count <= MOST_PARTITIONS:
        raise DataError("the partitioner must tell num_partitions, how many clients there are.")
    found = [data.load_partition(k) for k in range(count)]
    natural = getattr(partitioner, "partition_id_to_natural_id", None) or {}
    names = tuple(str(natural[k]) for k in range(count)) if len(natural) == count else ()
    return found, names


def _column(data: Any, plain: Any, name: str) -> Any:
    if type(data.features[name]).__name__ == "Image":
        return _pictures(data, name)
    return np.asarray(plain[name][:])


def _pictures(data: Any, name: str) -> NDArray[Any]:
    """Return a column of pictures as (samples, channels, height, width) of bytes."""
    found = []
    for cell in data[name]:
        pixels = np.asarray(cell)
        found.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
        if found[-1].shape != found[0].shape:
            raise DataError(
                f"pictures of the column {name!r} must have one shape, but are {found[0].shape} "
                f"and {found[-1].shape}: resize them first (map)."
            )
    return np.stack(found)

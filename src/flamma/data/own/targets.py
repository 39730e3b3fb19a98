"""Targets of one's own data: classes of any name become numbers, quantities stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.data.cells import Label
from flamma.errors import DataError
from flamma.tasks.labels import MOST_CLASSES
from flamma.types import Ints

MOST_FLOAT_CLASSES = 50
"""Different whole numbers, kept as floating-point ones, up to which they are taken for classes."""


def class_numbers(y: NDArray[Any]) -> tuple[Ints, tuple[Label, ...]]:
    """Return the class of each sample, numbered in sorted order, and what classes are called.

    Raises
    ------
    DataError
        If targets are quantities, there is one class only, or there are too many.

    Examples
    --------
    >>> class_numbers(np.array([7, 3, 7]))
    (array([1, 0, 1]), (3, 7))
    """
    if y.ndim != 1:
        raise DataError(f"a class is one value for each sample, but targets have shape {y.shape}.")
    if y.dtype.kind == "f" and not (y == np.rint(y)).all():
        raise DataError(_quantities("have fractions"))
    numbers, labels = numbered(y)
    if y.dtype.kind == "f" and len(labels) > MOST_FLOAT_CLASSES:
        raise DataError(_quantities(f"have {len(labels):,} different values"))
    if len(labels) < 2:
        raise DataError(f"all targets are {labels[0]!r}: a classifier needs at least two classes.")
    if len(labels) > MOST_CLASSES:
        raise DataError(
            f"targets have {len(labels):,} different values, but there may be {MOST_CLASSES:,} "
            f'classes: for quantities say task="regression".'
        )
    return numbers, labels


def numbered(values: NDArray[Any]) -> tuple[Ints, tuple[Any, ...]]:
    """Return the number of each value in sorted order, and the different values.

    Examples
    --------
    >>> numbered(np.array(["b", "a", "b"], dtype=object))
    (array([1, 0, 1]), ('a', 'b'))
    """
    found, numbers = np.unique(values, return_inverse=True)
    return numbers.reshape(-1).astype(np.int64), tuple(found.tolist())


def _quantities(why: str) -> str:
    return (
        f'targets {why}, so they are no classes: say task="regression", or turn them into whole '
        f"numbers or texts."
    )

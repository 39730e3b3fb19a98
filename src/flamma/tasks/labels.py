"""Labels of samples: whole numbers from 0 up to a bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from flamma.errors import DataError
from flamma.types import Ints

MOST_CLASSES = 100_000
"""The number of classes of any data: a model has weights for each of them."""


def whole_labels(labels: Any, what: str, remedy: str = "") -> Ints:
    """Return labels as int64; ``what`` names them in messages, and ``remedy`` what else to do.

    Floating-point numbers will do if they are whole, but nothing is rounded.

    Raises
    ------
    DataError
        If they are not numbers, not whole, negative, or not below :data:`MOST_CLASSES`.

    Examples
    --------
    >>> whole_labels([0.0, 2.0], "labels")
    array([0, 2])
    """
    given = np.asarray(labels)
    if given.dtype.kind not in "biuf":
        raise DataError(f"{what} must be whole numbers, not {given.dtype}.")
    if given.dtype.kind == "f" and not (np.isfinite(given) & (given == np.rint(given))).all():
        told = f"{what} must be whole numbers, but one has a fraction or is not finite"
        raise DataError(f"{told}; {remedy}." if remedy else f"{told}.")
    if given.size and given.min() < 0:
        raise DataError(f"{what} must be whole numbers from 0, but one is {given.min():.0f}.")
    if given.size and given.max() >= MOST_CLASSES:
        raise DataError(f"{what} must be below {MOST_CLASSES}, but one is {given.max():.0f}.")
    return given.astype(np.int64)

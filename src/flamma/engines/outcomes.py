"""What every engine says of a client that failed, and how it sums up scores; numpy only."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flamma.types import Floats, Ints


def late(limit: float | None) -> str:
    """Return what a report says of a client that was too slow."""
    return f"late: over {limit:g} s"


def one_line(error: BaseException) -> str:
    """Return an exception as one short line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:200] if lines else type(error).__name__


def means(values: NDArray[np.generic], offsets: Ints) -> Floats:
    """Return the mean of each client's values, NaN for a client without any."""
    counts = np.diff(offsets)
    means = np.full(counts.size, math.nan)
    # reduceat takes an empty part for one of one value, so only the others are cut.
    filled = counts > 0
    if filled.any():
        sums = np.add.reduceat(values.astype(np.float64), offsets[:-1][filled])
        means[filled] = sums / counts[filled]
    return means


def mean(values: NDArray[np.generic]) -> float:
    """Return the mean of all values, NaN if there are none."""
    return float(np.mean(values.astype(np.float64))) if values.size else math.nan

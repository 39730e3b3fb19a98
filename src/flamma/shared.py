"""Memory that a process shares with those it forks."""

from __future__ import annotations

import math
import mmap
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def shared_zeros(shape: int | tuple[int, ...], dtype: type[Number]) -> NDArray[Number]:
    """Return an array that forked processes share; its memory is freed with the last of them.

    A forked process only counts the pages of it that it uses.
    """
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    memory = mmap.mmap(-1, max(1, size * np.dtype(dtype).itemsize))
    return np.frombuffer(memory, dtype=dtype, count=size).reshape(shape)

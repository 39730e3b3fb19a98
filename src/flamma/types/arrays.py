"""The arrays that pass between rooms, and what a flat vector of weights is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Params = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Inputs = NDArray[Any]
"""Samples: float32, or int64 where they may be token ids."""
Targets = NDArray[Any]
"""What is to be predicted: int64 labels or tokens, or float32 numbers; the task says which."""


@dataclass(frozen=True)
class Layout:
    """What the flat vector of a model's weights is made of, the trainable parts first."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    trainable: tuple[bool, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each part has."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """How many numbers there are in all."""
        return sum(self.sizes)

    @property
    def trainable_sizes(self) -> tuple[int, ...]:
        """How many numbers each part has that is trained."""
        return tuple(s for s, learns in zip(self.sizes, self.trainable, strict=True) if learns)

    @property
    def trainable_size(self) -> int:
        """How many of them are trained; they are the first ones."""
        return sum(self.trainable_sizes)

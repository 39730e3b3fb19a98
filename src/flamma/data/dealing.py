"""What splits are made of: sizes of parts, random orders within classes, and classes dealt out."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from flamma.errors import DataError
from flamma.numerics import exp, normal, total
from flamma.types import Floats, Ints


def part_sizes(samples: int, weights: Floats, least: int, what: str = "clients") -> Ints:
    """Return integer sizes with the given sum: ``least`` each, the rest in proportion to weights.

    Examples
    --------
    >>> part_sizes(10, np.array([1.0, 1.0, 2.0]), 1)
    array([3, 3, 4])
    """
    rest = samples - least * weights.size
    if rest < 0:
        raise DataError(
            f"{samples} samples cannot make {weights.size} {what} of at least {least}: take more "
            f"samples or fewer clients."
        )
    ideal = rest * (weights / total(weights))
    sizes: Ints = np.floor(ideal).astype(np.int64)
    short = rest - int(sizes.sum())
    sizes[np.argsort(sizes - ideal, kind="stable")[:short]] += 1
    sizes += least
    return sizes


def uneven_weights(count: int, uneven: float, rng: np.random.Generator) -> Floats:
    """Return random weights whose logarithms have the standard deviation ``uneven``."""
    if not 0 <= uneven <= 5:  # false for NaN too
        raise DataError(f"uneven must lie between 0 and 5, not {uneven:g}.")
    return exp(uneven * normal(rng, count))


def by_label(labels: Ints, rng: np.random.Generator) -> Ints:
    """Return the samples sorted by label, in random order within each."""
    shuffled = rng.permutation(labels.size)
    order: Ints = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return order


def deal_classes(clients: int, each: int, classes: int, rng: np.random.Generator) -> Ints:
    """Return a row of distinct classes per client, with each class used about equally often.

    The clients of a block take consecutive classes of a random circular order of all classes; a
    block has as many clients as it takes to use each class equally often.
    """
    block = Fraction(classes, each).numerator
    circles = rng.permuted(np.tile(np.arange(classes), (-(-clients // block), 1)), axis=1)
    slots = (np.arange(block)[:, None] * each + np.arange(each)) % classes
    dealt = circles[:, slots].reshape(-1, each)[:clients]
    return rng.permutation(dealt, axis=0)

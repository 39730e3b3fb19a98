"""Aggregators: what the server makes of the vectors it has accepted, under any strategy.

An aggregator takes vectors and their weights and returns what Σ w_k v_k comes to. The mean returns
exactly that; a robust one returns Σ w_k times a centre that a few liars cannot move far. Another
package adds one by an entry point of the group ``flamma.aggregators``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flamma.numerics import weighted_sum
from flamma.registry import Registry
from flamma.types import Floats, Params

Vectors = Sequence[Params] | Params
"""Vectors one by one, or the rows of a matrix."""

Aggregator = Callable[..., Floats]
"""``(vectors, weights, **options) -> vector``, in double precision."""


def weighted_mean(vectors: Vectors, weights: Floats) -> Floats:
    """Return the weighted sum, which is the mean where the weights add up to 1."""
    return weighted_sum(vectors, weights)


AGGREGATORS: Registry[Aggregator] = Registry(
    "aggregator", "flamma.aggregators", {"mean": weighted_mean}
)
"""All aggregators by name."""

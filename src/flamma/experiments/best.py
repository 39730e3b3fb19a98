"""Significance of the best strategy: the definition that all tables and pages share.

All strategies run on the same seeds, and a seed decides the split and the first weights, so they
are compared seed by seed. The strategy with the best mean leads. Another one is as good as the
leader where the mean of the paired differences lies within its 95% confidence interval of 0
(Student's t). With a single seed nothing can be tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flamma.numerics import total

CONFIDENCE = 0.95
ROUNDING_DIFFERENCE = 1e-12
"""Differences up to this size are rounding."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of paired differences, and half the width of its confidence interval."""

    mean: float
    half_width: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0, and the difference is more than rounding."""
        return abs(self.mean) > max(self.half_width, ROUNDING_DIFFERENCE)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """Return how much larger the first values are than the second, seed by seed.

    Examples
    --------
    >>> paired_difference([90.0, 91.0, 92.0], [80.0, 81.5, 81.5]).clear
    True
    >>> paired_difference([90.0], [80.0]).clear
    False
    """
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count = differences.size
    mean = total(differences) / count
    if count < 2:
        return PairedDifference(mean, float("inf"))
    from scipy.special import stdtrit

    quantile = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    error = math.sqrt(total(np.square(differences - mean)) / (count - 1) / count)
    return PairedDifference(mean, quantile * error)


def explain_marks(best: str, tied: str) -> str:
    """Return what the marks of a table mean; the leader of several is marked as the others are.

    Examples
    --------
    >>> print(explain_marks("*", "*"))
    * best, or not significantly different from the best (paired over seeds, 95%).
    >>> print(explain_marks("Bold", "Italics"))
    Bold: significantly better than all others (paired over seeds, 95%). Italics: the best and all \
that are not significantly different from it.
    """
    how = f"(paired over seeds, {CONFIDENCE:.0%})"
    if best == tied:
        return f"{best} best, or not significantly different from the best {how}."
    return (
        f"{best}: significantly better than all others {how}. {tied}: the best and all that are "
        f"not significantly different from it."
    )


def best_of(values: dict[str, dict[int, float]], sign: int) -> tuple[str, ...]:
    """Return the leader, then those not clearly worse; empty if there are too few seeds.

    Parameters
    ----------
    values : dict of str to dict of int to float
        Of every strategy, the value on each seed. Those that share fewer than two seeds with the
        leader count as not different.
    sign : {1, -1}
        Whether larger or smaller values are better.
    """
    usable = {name: own for name, own in values.items() if len(own) > 1}
    if len(usable) < 2 or len(usable) < len(values):
        return ()
    means = {name: sign * total(list(own.values())) / len(own) for name, own in usable.items()}
    leader = max(means, key=means.__getitem__)
    tied = []
    for name, own in usable.items():
        seeds = sorted(own.keys() & usable[leader].keys())
        pairs = [own[s] for s in seeds], [usable[leader][s] for s in seeds]
        if name != leader and (not seeds or not paired_difference(*pairs).clear):
            tied.append(name)
    return (leader, *tied)

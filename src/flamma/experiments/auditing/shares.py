"""Gains as shares of the honest utility, as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

NO_GAIN = 5e-4
"""A relative gain up to which people are told that there is none."""

LARGE_SHARE = 2.0
"""From here on a share is written as a multiple rather than in percent."""


def percent(share: float) -> str:
    """Return a share as people read it; a large one as a multiple.

    Examples
    --------
    >>> percent(0.0312), percent(0.831), percent(-0.5), percent(0.0), percent(8.31)
    ('3.1%', '83%', '-50%', '0%', '8.3x')
    """
    value = 100 * share
    if abs(value) < 100 * NO_GAIN:
        return "0%"
    if abs(share) >= LARGE_SHARE:
        return f"{share:.1f}x" if abs(share) < 100 else f"{share:.0f}x"
    return f"{value:.0f}%" if abs(value) >= 9.95 else f"{value:.1f}%"


def mean_share(shares: Sequence[float]) -> str:
    """Return the mean of shares as people read it, with the spread of several.

    Examples
    --------
    >>> mean_share([0.01, 0.03]), mean_share([8.0, 9.0]), mean_share([0.25])
    ('2.0% ± 1.4%', '8.5x ± 0.7x', '25%')
    """
    middle, spread = mean_or_zero(shares), deviation_of(shares)
    if len(shares) < 2 or (abs(middle) < NO_GAIN and spread < NO_GAIN):
        return percent(middle)
    if abs(middle) >= LARGE_SHARE:
        return f"{percent(middle)} ± {spread:.1f}x"
    return f"{percent(middle)} ± {100 * spread:.1f}%"


def deviation_of(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, 0 of a single value."""
    if len(values) < 2:
        return 0.0
    middle = mean_or_zero(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def mean_or_zero(values: Sequence[float]) -> float:
    """Return the mean of values, 0 of none."""
    return math.fsum(values) / len(values) if values else 0.0

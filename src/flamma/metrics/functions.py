"""Accuracy, fairness and participation as functions of arrays, numpy only.

An accuracy is that of the global model on a client's held-out data, in percent; another metric of
the clients, which may have no bounds, can replace it. Clients without held-out data have NaN and
are omitted. Metrics of zero clients are NaN, and a single client is perfectly even. The follower
gap and the leader regret of a round are in :func:`flamma.game.certify`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import FlammaError
from flamma.numerics import dot, log, total
from flamma.types import Floats

UTILITY_ROUNDING = 1e-12
"""A utility or gap whose size is below this is 0 but for rounding."""

_CONSTANT_SPREAD = 1e-9
"""Relative spread below which a vector counts as constant."""

_PERCENT_ROUNDING = 1e-4
"""How many percentage points above 100 an accuracy from single precision may lie."""


def participation(selection_counts: ArrayLike, epochs: ArrayLike) -> dict[str, float]:
    """Return how evenly clients took part: in being selected, and in local epochs done.

    Each of ``jain``, ``gini`` and ``coverage``, without unit, is given for both, as
    ``selection_jain``, ``epochs_jain`` and so on. If no client took part, participation is even
    (Jain 1, Gini 0) with a coverage of 0.

    Examples
    --------
    >>> participation([2, 2, 0, 0], [5, 5, 5, 5])["selection_coverage"]
    0.5
    """
    counts = _amounts("selection counts", selection_counts)
    counts, work = _pairs("selection counts", counts, "epochs", _amounts("epochs", epochs))
    return {
        f"{name}_{metric.__name__}": metric(values)
        for name, values in (("selection", counts), ("epochs", work))
        for metric in (jain, gini, coverage)
    }


def check_percent(accuracy: ArrayLike) -> None:
    """Refuse accuracies that are no percentages."""
    values = _vector(accuracy)
    if ((values < 0) | (values > 100 + _PERCENT_ROUNDING)).any():  # false for NaN
        raise FlammaError("an accuracy must be a percentage from 0 to 100, or NaN if unknown.")


def mean(accuracy: ArrayLike) -> float:
    """Return the mean over clients, each counting alike, in percent."""
    values = _scored(accuracy)
    return total(values) / values.size if values.size else math.nan


def variance(accuracy: ArrayLike) -> float:
    """Return (1/m) Σ (a - mean)², each client counting alike, in percent²."""
    values = _scored(accuracy)
    return _variance(values, np.ones(values.size))


def variance_weighted(accuracy: ArrayLike, samples: ArrayLike) -> float:
    """Return Σ p (a - Σ p a)² with p the share of the held-out samples, in percent².

    NaN if there are no samples at all.
    """
    counts = _amounts("samples", samples)
    return _variance(*_pairs("accuracies", _vector(accuracy), "samples", counts))


def std(accuracy: ArrayLike) -> float:
    """Return the square root of the plain variance, in percent."""
    return math.sqrt(variance(accuracy))


def worst_10(accuracy: ArrayLike) -> float:
    """Return the mean of the worst tenth of the clients, rounded up to at least one, in percent."""
    values = np.sort(_scored(accuracy))
    return mean(values[: math.ceil(values.size / 10)])


def best_10(accuracy: ArrayLike) -> float:
    """Return the mean of the best tenth of the clients, rounded up to at least one, in percent."""
    values = np.sort(_scored(accuracy))[::-1]
    return mean(values[: math.ceil(values.size / 10)])


def lowest(accuracy: ArrayLike) -> float:
    """Return the accuracy of the client served worst, in percent."""
    values = _scored(accuracy)
    return float(values.min()) if values.size else math.nan


def highest(accuracy: ArrayLike) -> float:
    """Return the accuracy of the client served best, in percent."""
    return -lowest(-_vector(accuracy))


def spread(accuracy: ArrayLike) -> float:
    """Return the largest less the smallest accuracy, in percent."""
    values = _scored(accuracy)
    return float(np.ptp(values)) if values.size else math.nan


def jain(amounts: ArrayLike) -> float:
    """Return Jain's index (Σ x)² / (m Σ x²), without unit, from 1/m (one has all) to 1 (even).

    It is the squared cosine of the angle to the even vector. If all are 0 it is 1.
    """
    values = _relative(amounts)
    if not values.size:
        return math.nan
    whole = total(values)
    return min(1.0, whole * whole / (values.size * dot(values, values)))


def gini(amounts: ArrayLike) -> float:
    """Return Gini's coefficient Σ_ij |x_i - x_j| / (2 m Σ x), without unit, in [0, 1 - 1/m].

    It is 0 if all have the same, so also if all are 0.
    """
    values = np.sort(_relative(amounts))
    size = values.size
    if not size:
        return math.nan
    # Over sorted values the double sum is a single one: x_(i) counts 2 i - m - 1 times, i from 1.
    order = 2.0 * np.arange(size) - (size - 1)
    return max(0.0, dot(order, values) / (size * total(values)))


def entropy(amounts: ArrayLike) -> float:
    """Return -Σ s ln s of the shares s = x / Σ x, in nats, from 0 (one has all) to ln m (even).

    If all are 0 the shares count as even.
    """
    values = _scored_amounts(amounts)
    return float(log(values.size)) - kl_uniform(values) if values.size else math.nan


def kl_uniform(amounts: ArrayLike) -> float:
    """Return Σ s ln(m s), the divergence of the shares from even ones, in nats, in [0, ln m].

    It is ln m less the entropy: the same evidence, comparable between numbers of clients.
    """
    values = _relative(amounts)
    if not values.size:
        return math.nan
    shares = values / total(values)
    held = shares[shares > 0]
    divergence = dot(held, log(values.size * held))
    return min(max(0.0, divergence), float(log(values.size)))


def coverage(amounts: ArrayLike) -> float:
    """Return the share of clients that have anything at all, without unit, in [0, 1]."""
    return _share(_scored_amounts(amounts) > 0)


def collaborative_fairness(standalone: ArrayLike, final: ArrayLike) -> float | None:
    """Return Pearson's correlation of the accuracy alone and in the end, without unit, in [-1, 1].

    Near 1, clients that contribute more gain more. ``None`` where it is not defined: fewer than
    two clients with both accuracies, or one of the vectors constant.

    Examples
    --------
    >>> collaborative_fairness([50, 60, 70], [80, 85, 90])
    1.0
    >>> collaborative_fairness([50, 60, 70], [80, 80, 80]) is None
    True
    """
    x, y = _both(standalone, final)
    if x.size < 2 or _constant(x) or _constant(y):
        return None
    x, y = x - mean(x), y - mean(y)
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    correlation = dot(x, y) / math.sqrt(dot(x, x) * dot(y, y))
    return max(-1.0, min(1.0, correlation))


def ir_ratio(utilities: ArrayLike) -> float:
    """Return the share of clients whose utility is at least 0, without unit, in [0, 1].

    Individual rationality: they lose nothing by taking part. A client that was not in the game
    has NaN and is left out; a loss below :data:`UTILITY_ROUNDING` is rounding.
    """
    values = np.asarray(utilities, dtype=np.float64).reshape(-1)
    return _share(values[~np.isnan(values)] >= -UTILITY_ROUNDING)


def better_off(standalone: ArrayLike, final: ArrayLike, ties: bool = False) -> float:
    """Return the share of clients more accurate in the end than alone, without unit, in [0, 1].

    With ``ties`` the equally accurate count too; on small held-out parts they are many.
    """
    alone, together = _both(standalone, final)
    return _share(together >= alone if ties else together > alone)


def _variance(values: Floats, weights: Floats) -> float:
    whole = total(weights)
    if whole == 0:
        return math.nan
    shares = weights / whole
    with np.errstate(invalid="ignore"):  # a metric without bounds may be infinite
        offsets = values - values[0]  # so that equal accuracies give exactly 0
    return dot(shares, np.square(offsets - dot(shares, offsets)))


def _share(flags: NDArray[np.bool_]) -> float:
    return float(flags.mean()) if flags.size else math.nan


def _constant(values: Floats) -> bool:
    return bool(np.ptp(values) <= _CONSTANT_SPREAD * np.abs(values).max())


def _relative(amounts: ArrayLike) -> Floats:
    """Return amounts over the largest, ones if all are 0: no square over- or underflows."""
    values = _scored_amounts(amounts)
    largest = float(values.max(initial=0.0))
    return values / largest if largest > 0 else np.ones(values.size)


def _both(standalone: ArrayLike, final: ArrayLike) -> tuple[Floats, Floats]:
    return _pairs("standalone accuracies", _vector(standalone), "final ones", _vector(final))


def _scored(accuracy: ArrayLike) -> Floats:
    values = _vector(accuracy)
    return values[~np.isnan(values)]


def _scored_amounts(amounts: ArrayLike) -> Floats:
    values = np.asarray(amounts, dtype=np.float64).reshape(-1)
    return _amounts("amounts", values[~np.isnan(values)])


def _vector(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64).reshape(-1)


def _amounts(name: str, amounts: ArrayLike) -> Floats:
    values = np.asarray(amounts, dtype=np.float64).reshape(-1)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise FlammaError(f"{name} must be finite numbers of at least 0.")
    return values


def _pairs(first: str, x: Floats, second: str, y: Floats) -> tuple[Floats, Floats]:
    """Return both vectors without the clients of which either is unknown."""
    if x.size != y.size:
        raise FlammaError(
            f"{first} and {second} must have the same length (got {x.size} and {y.size})."
        )
    known = ~(np.isnan(x) | np.isnan(y))
    return x[known], y[known]

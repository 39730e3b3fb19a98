"""Aggregators that go by the distances between whole vectors."""

from __future__ import annotations

import numpy as np

from flamma.aggregators.contract import Vectors, Weighed, asks
from flamma.aggregators.coordinates import coordinate_median, weighted_median
from flamma.errors import StrategyError
from flamma.numerics import dot, norm, total, totals, weighted_sum
from flamma.types import Floats

MOST_KRUM_VECTORS = 2000
"""Krum compares each vector with each other one; more vectors than this would take hours."""


def _check_weiszfeld(answers: int, *, iterations: int, smoothing: float, weighted: bool) -> None:
    if iterations < 1 or not smoothing > 0:
        raise StrategyError("iterations must be at least 1, and smoothing positive.")


@asks(check=_check_weiszfeld)
def geometric_median(
    vectors: Vectors,
    weights: Floats,
    *,
    iterations: int = 100,
    smoothing: float = 1e-6,
    weighted: bool = True,
) -> Floats:
    """Return the vector whose weighted distances to all vectors have the least sum.

    Pillutla et al., "Robust aggregation for federated learning", IEEE Transactions on Signal
    Processing 2022: the smoothed Weiszfeld algorithm, z ← Σ β_k v_k / Σ β_k with
    β_k = w_k / max(smoothing, ‖z - v_k‖).

    Parameters
    ----------
    iterations : int
        The most steps of the algorithm. It ends before if a step is shorter than ``smoothing``.
    smoothing : float
        Distances below it count as this, so that no weight is infinite.
    weighted : bool
        Whether clients count by their weights, such as their data sizes; else they count alike.
    """
    _check_weiszfeld(len(vectors), iterations=iterations, smoothing=smoothing, weighted=weighted)
    given = Weighed.of(vectors, weights, weighted)
    centre = _near_most(given)
    for _ in range(iterations):
        lengths = np.array([norm(vector - centre) for vector in given.vectors])
        pull = given.weights / np.maximum(lengths, smoothing)
        before, centre = centre, weighted_sum(given.vectors, pull / total(pull))
        if norm(centre - before) <= smoothing:
            break
    return given.scale * centre


def _near_most(given: Weighed) -> Floats:
    """Return a point among most vectors, which is where the search begins.

    The mean would be as far away as an attacker wants. The coordinate-wise median can be one of
    the vectors, which the algorithm leaves but slowly. So it is the median plus the mean of the
    vectors' differences from it, cut off at their median length.
    """
    middle = coordinate_median(given.vectors, given.weights)
    lengths = np.array([norm(vector - middle) for vector in given.vectors])
    radius = weighted_median(lengths, given.weights)
    shares = given.weights * np.minimum(1.0, radius / np.maximum(lengths, np.finfo(float).tiny))
    return weighted_sum([*given.vectors, middle], [*shares, 1.0 - total(shares)])


def attackers_among(answers: int, attackers: int | float) -> int:
    """Return how many attackers Krum can be ready for among so many answers.

    They are as many as asked for, or as their share comes to, rounded down; but never more than
    can be told apart: Krum wants at least 2 f + 3 answers for f attackers.
    """
    wanted = attackers if isinstance(attackers, int) else int(attackers * answers + 1e-9)
    return max(0, min(wanted, (answers - 3) // 2))


def _check_krum(answers: int, *, attackers: int | float) -> None:
    if isinstance(attackers, int):
        if attackers < 0:
            raise StrategyError(f"attackers must not be negative, but it is {attackers}.")
        if attackers and answers < 2 * attackers + 3:
            raise StrategyError(
                f"Krum needs 2 f + 3 = {2 * attackers + 3} clients a round to bear f = {attackers} "
                f"attackers, but per_round is {answers}: lower attackers, or raise per_round."
            )
    elif not 0 <= attackers < 0.5:
        raise StrategyError(
            f"a share of attackers must lie from 0 to below 0.5, not {attackers:g}."
        )


def _check_multi_krum(
    answers: int, *, attackers: int | float, kept: int | None, weighted: bool
) -> None:
    _check_krum(answers, attackers=attackers)
    if kept is not None and kept < 1:
        raise StrategyError(f"at least 1 vector must be kept, not {kept}.")


@asks(check=_check_krum)
def krum(vectors: Vectors, weights: Floats, *, attackers: int | float = 0.2) -> Floats:
    """Return the one vector that is nearest to its n - f - 2 nearest neighbours.

    Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient descent",
    NeurIPS 2017. The score of a vector is the sum of its squared distances to those neighbours.
    If two have the smallest score, it is the one with the larger weight, then the first.

    Parameters
    ----------
    attackers : int or float
        f, how many attackers are borne: a number, or a share of the vectors. A round with fewer
        than 2 f + 3 answers bears as many as can be told apart in it.
    """
    given = Weighed.of(vectors, weights, weighted=True)
    count = len(given.vectors)
    best = _by_score(given, attackers_among(count, attackers))[0]
    return given.scale * given.vectors[best].astype(np.float64)


@asks(check=_check_multi_krum)
def multi_krum(
    vectors: Vectors,
    weights: Floats,
    *,
    attackers: int | float = 0.2,
    kept: int | None = None,
    weighted: bool = True,
) -> Floats:
    """Return the mean of the vectors with the smallest scores of Krum.

    Parameters
    ----------
    attackers : int or float
        f, how many attackers are borne: a number, or a share of the vectors. A round with fewer
        than 2 f + 3 answers bears as many as can be told apart in it.
    kept : int, optional
        How many vectors are averaged; by default all but f.
    weighted : bool
        Whether those that are kept count by their weights, such as their data sizes; else they
        count alike. Scores do not go by weights.
    """
    given = Weighed.of(vectors, weights, weighted)
    count = len(given.vectors)
    borne = attackers_among(count, attackers)
    best = sorted(_by_score(given, borne)[: count - borne if kept is None else kept])
    shares = given.weights[best]
    return given.scale * weighted_sum([given.vectors[k] for k in best], shares / total(shares))


def _by_score(given: Weighed, attackers: int) -> list[int]:
    """Return the places of the vectors in the order of their scores, the smallest first."""
    count = len(given.vectors)
    if count > MOST_KRUM_VECTORS:
        raise StrategyError(
            f"Krum compares all pairs of vectors, which is too much for {count:,} of them: use at "
            f"most {MOST_KRUM_VECTORS:,}, or another aggregator."
        )
    if count == 1:
        return [0]
    apart = np.zeros((count, count))
    for first in range(count):
        one = given.vectors[first].astype(np.float64)
        for second in range(first + 1, count):
            between = one - given.vectors[second]
            apart[first, second] = apart[second, first] = dot(between, between)
    others = np.sort(apart[~np.eye(count, dtype=bool)].reshape(count, count - 1), axis=1)
    scores = totals(others[:, : max(1, count - attackers - 2)])
    order: list[int] = np.lexsort((-given.weights, scores)).tolist()
    return order

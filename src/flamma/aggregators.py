"""Aggregators: how the server combines the vectors it has accepted, under any strategy.

An aggregator takes vectors and their weights. The mean returns Σ w_k v_k; a robust one returns
Σ w_k times a centre that a few attackers cannot move far. One that works on updates rather than on
models takes a :class:`Reference`. Vectors of weight 0 do not count. Another package adds one by an
entry point of the group ``flamma.aggregators``.

Examples
--------
>>> from flamma.aggregators import AGGREGATORS, aggregated
>>> vectors = np.array([[0, 5], [1, 6], [100, -100]], dtype=np.float32)
>>> aggregated(AGGREGATORS.choose("median", "aggregator"), vectors, np.full(3, 1 / 3))
array([1., 5.])
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from flamma.errors import StrategyError
from flamma.numerics import dot, norm, total, totals, weighted_sum
from flamma.numerics.sums import COLUMNS
from flamma.registry import Choice, Registry, read_options
from flamma.types import Floats, Params

__all__ = [
    "AGGREGATORS",
    "SERVER_UPDATE",
    "Aggregator",
    "Reference",
    "aggregated",
    "asks",
    "check_aggregator",
    "coordinate_median",
    "fltrust",
    "geometric_median",
    "krum",
    "multi_krum",
    "norm_clipping",
    "trimmed_mean",
    "weighted_mean",
]

# The contract of aggregators.

_Vectors = Sequence[NDArray[np.floating]] | NDArray[np.floating]
"""Vectors one by one, or the rows of a matrix."""

Aggregator = Callable[..., Floats]
"""``(vectors, weights, **options) -> vector`` in double precision.

One that works on updates rather than on models has a third parameter without a default,
``reference``, and is given a :class:`Reference`.
"""

SERVER_UPDATE = "needs_server_update"
"""The attribute of a component that needs the server to train on its validation set."""

_AnyAggregator = TypeVar("_AnyAggregator", bound=Aggregator)


@dataclass(frozen=True, eq=False)
class Reference:
    """The origin of updates.

    Attributes
    ----------
    received : ndarray
        The model that clients received: the vector of a client that has changed nothing.
    own_update : callable, optional
        Returns the server's own update, which it makes by training the received model on its
        validation set: of the weights that are trained, which are the first ones. It is called
        only by aggregators that need it.
    """

    received: Params | Floats
    own_update: Callable[[], Floats] | None = None

    def server_update(self) -> Floats:
        """Return the server's own update."""
        if self.own_update is None:
            raise StrategyError(
                "the aggregator needs an update of the server's own, but the server cannot train: "
                "give it a validation set, or choose another aggregator."
            )
        return self.own_update()

    def of_trained(self, size: int) -> Reference:
        """Return the reference of the first weights alone, which are trained."""
        return Reference(self.received[:size], self.own_update)


@dataclass(frozen=True, eq=False)
class _Weighed:
    """The vectors that count, their weights with a sum of 1, and the sum of the given weights."""

    vectors: list[NDArray[np.floating]]
    weights: Floats
    scale: float

    @classmethod
    def of(cls, vectors: _Vectors, weights: Floats, weighted: bool) -> _Weighed:
        """Drop vectors of weight 0; use equal weights unless ``weighted``."""
        given = np.asarray(weights, dtype=np.float64)
        counts = np.flatnonzero(given > 0)
        if not counts.size:
            raise StrategyError("at least one vector with a positive weight is needed.")
        own = given[counts] if weighted else np.ones(counts.size)
        return cls([vectors[k] for k in counts.tolist()], own / total(own), total(given))


def asks(
    *,
    check: Callable[..., None] | None = None,
    needs_validation: bool = False,
    needs_server_update: bool = False,
) -> Callable[[_AnyAggregator], _AnyAggregator]:
    """Declare the needs of an aggregator.

    Parameters
    ----------
    check : callable, optional
        ``(answers, **options)``, called when a strategy is made with as many answers as a round
        is planned to have. It raises a :class:`~flamma.errors.StrategyError` if the options
        cannot work.
    needs_validation : bool
        Whether the server must have a validation set.
    needs_server_update : bool
        Whether the server must be able to train on it.
    """

    def mark(entry: _AnyAggregator) -> _AnyAggregator:
        for name, value in {
            "check": check,
            "needs_validation": needs_validation,
            SERVER_UPDATE: needs_server_update,
        }.items():
            setattr(entry, name, value)
        return entry

    return mark


# Aggregators that reduce every coordinate separately.
#
# Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates", ICML
# 2018.

_ROUNDING_SHARE = 1e-10
"""Shares of the weight below this are rounding. A trimmed vector must not keep one: a number of
single precision can be so large that even this part of it would show."""


def coordinate_median(vectors: _Vectors, weights: Floats, *, weighted: bool = True) -> Floats:
    """Return the coordinate-wise median.

    The median of a coordinate has at most half of the weight below it and at most half above. If
    two neighbouring values both do, it is the middle between them.

    Parameters
    ----------
    weighted : bool
        Whether clients count by their weights, such as their data sizes; else they count alike.

    Examples
    --------
    >>> vectors = np.array([[0, 5], [1, 6], [100, -100]], dtype=np.float32)
    >>> coordinate_median(vectors, np.full(3, 1 / 3))
    array([1., 5.])
    """
    given = _Weighed.of(vectors, weights, weighted)
    return given.scale * _by_columns(given, _medians)


def _check_share(answers: int, *, share: float, weighted: bool) -> None:
    if not 0 <= share < 0.5:
        raise StrategyError(f"the share to trim must lie from 0 to below 0.5, not {share:g}.")


@asks(check=_check_share)
def trimmed_mean(
    vectors: _Vectors, weights: Floats, *, share: float = 0.2, weighted: bool = True
) -> Floats:
    """Return the coordinate-wise mean without the largest and the smallest values.

    From both ends of each coordinate a share of the weight is left out. A client at the cut counts
    by what is left of its weight.

    Parameters
    ----------
    share : float
        How much of the weight is left out at each end, from 0 to below 0.5: as many attackers are
        borne.
    weighted : bool
        Whether clients count by their weights, such as their data sizes; else they count alike.

    Examples
    --------
    >>> vectors = np.array([[0], [1], [2], [3], [1000]], dtype=np.float32)
    >>> trimmed_mean(vectors, np.full(5, 0.2), share=0.2)
    array([2.])
    """
    _check_share(len(vectors), share=share, weighted=weighted)
    given = _Weighed.of(vectors, weights, weighted)
    return given.scale * _by_columns(given, lambda values, own: _trimmed_means(values, own, share))


def _weighted_median(values: Floats, weights: Floats) -> float:
    """Return the median of numbers whose weights sum up to 1."""
    return float(_by_columns(_Weighed([*values.reshape(-1, 1)], weights, 1.0), _medians)[0])


def _by_columns(given: _Weighed, reduce: Callable[[Floats, Floats], Floats]) -> Floats:
    """Reduce every coordinate, given its values in order and the weights that go with them."""
    size = given.vectors[0].size
    result = np.empty(size)
    for start in range(0, size, COLUMNS):
        part = slice(start, min(start + COLUMNS, size))
        values = np.stack([vector[part] for vector in given.vectors]).astype(np.float64)
        order = np.argsort(values, axis=0, kind="stable")
        result[part] = reduce(np.take_along_axis(values, order, axis=0), given.weights[order])
    return result


def _medians(values: Floats, weights: Floats) -> Floats:
    below = np.cumsum(weights, axis=0)
    lower = np.argmax(below >= 0.5 - _ROUNDING_SHARE, axis=0)
    upper = np.argmax(below > 0.5 + _ROUNDING_SHARE, axis=0)
    columns = np.arange(values.shape[1])
    middle: Floats = (values[lower, columns] + values[upper, columns]) / 2
    return middle


def _trimmed_means(values: Floats, weights: Floats, share: float) -> Floats:
    below = np.cumsum(weights, axis=0)
    kept = np.minimum(below, 1 - share) - np.maximum(below - weights, share)
    kept[kept < _ROUNDING_SHARE] = 0.0
    sums, counted = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    for value, weight in zip(values, kept, strict=True):  # one by one: the order is fixed
        sums += weight * value
        counted += weight
    return sums / counted


# Aggregators that go by the distances between whole vectors.

_MAX_KRUM_VECTORS = 2000
"""Krum compares all pairs of vectors; more than this would take hours."""


def _check_weiszfeld(answers: int, *, iterations: int, smoothing: float, weighted: bool) -> None:
    if iterations < 1 or not smoothing > 0:
        raise StrategyError("iterations must be at least 1, and smoothing positive.")


@asks(check=_check_weiszfeld)
def geometric_median(
    vectors: _Vectors,
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
    given = _Weighed.of(vectors, weights, weighted)
    # The search begins at a point among most vectors. The mean would be as far away as an attacker
    # wants. The coordinate-wise median can be one of the vectors, which the algorithm leaves but
    # slowly. So it is the median plus the mean of the vectors' differences from it, cut off at
    # their median length.
    middle = coordinate_median(given.vectors, given.weights)
    lengths = np.array([norm(vector - middle) for vector in given.vectors])
    radius = _weighted_median(lengths, given.weights)
    shares = given.weights * np.minimum(1.0, radius / np.maximum(lengths, np.finfo(float).tiny))
    centre = weighted_sum([*given.vectors, middle], [*shares, 1.0 - total(shares)])
    for _ in range(iterations):
        lengths = np.array([norm(vector - centre) for vector in given.vectors])
        pull = given.weights / np.maximum(lengths, smoothing)
        before, centre = centre, weighted_sum(given.vectors, pull / total(pull))
        if norm(centre - before) <= smoothing:
            break
    return given.scale * centre


def _attackers_among(answers: int, attackers: int | float) -> int:
    """Return the number of attackers that Krum tolerates among these answers.

    It is the number or share asked for, rounded down, and at most what can be distinguished: Krum
    wants at least 2 f + 3 answers for f attackers.
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
def krum(vectors: _Vectors, weights: Floats, *, attackers: int | float = 0.2) -> Floats:
    """Return the one vector that is nearest to its n - f - 2 nearest neighbours.

    Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient descent",
    NeurIPS 2017. The score of a vector is the sum of its squared distances to those neighbours.
    If two have the smallest score, it is the one with the larger weight, then the first.

    Parameters
    ----------
    attackers : int or float
        f, how many attackers are borne: a number, or a share of the vectors. A round with fewer
        than 2 f + 3 vectors tolerates as many as can be distinguished.
    """
    given = _Weighed.of(vectors, weights, weighted=True)
    count = len(given.vectors)
    best = _by_score(given, _attackers_among(count, attackers))[0]
    return given.scale * given.vectors[best].astype(np.float64)


@asks(check=_check_multi_krum)
def multi_krum(
    vectors: _Vectors,
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
        than 2 f + 3 vectors tolerates as many as can be distinguished.
    kept : int, optional
        How many vectors are averaged; by default all but f.
    weighted : bool
        Whether those that are kept count by their weights, such as their data sizes; else they
        count alike. Scores do not go by weights.
    """
    given = _Weighed.of(vectors, weights, weighted)
    count = len(given.vectors)
    borne = _attackers_among(count, attackers)
    best = sorted(_by_score(given, borne)[: count - borne if kept is None else kept])
    shares = given.weights[best]
    return given.scale * weighted_sum([given.vectors[k] for k in best], shares / total(shares))


def _by_score(given: _Weighed, attackers: int) -> list[int]:
    """Return the places of the vectors in the order of their scores, the smallest first."""
    count = len(given.vectors)
    if count > _MAX_KRUM_VECTORS:
        raise StrategyError(
            f"Krum compares all pairs of vectors, which is too much for {count:,} of them: use at "
            f"most {_MAX_KRUM_VECTORS:,}, or another aggregator."
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


# Aggregators that go by the clients' updates: how far each moved from the model it received.

ROUNDING_LENGTH = 2.0**-20
"""An update shorter than this part of the model is rounding, which must not be scaled up."""


def _check_radius(answers: int, *, radius: float | None, weighted: bool) -> None:
    if radius is not None and not radius > 0:
        raise StrategyError(f"the radius must be positive, not {radius:g}.")


@asks(check=_check_radius)
def norm_clipping(
    vectors: _Vectors,
    weights: Floats,
    reference: Reference,
    *,
    radius: float | None = None,
    weighted: bool = True,
) -> Floats:
    """Return the mean of the models after updates longer than a radius were cut to it.

    The update u counts as u min(1, radius / ‖u‖).

    Parameters
    ----------
    radius : float, optional
        The longest update that counts in full; by default the median length of those at hand.
    weighted : bool
        Whether clients count by their weights, such as their data sizes; else they count alike.
    """
    given = _Weighed.of(vectors, weights, weighted)
    lengths = np.array([norm(vector - reference.received) for vector in given.vectors])
    most = _weighted_median(lengths, given.weights) if radius is None else radius
    cut = np.minimum(1.0, most / np.maximum(lengths, np.finfo(float).tiny))
    return _moved(given, reference, given.weights * cut)


@asks(needs_validation=True, needs_server_update=True)
def fltrust(
    vectors: _Vectors, weights: Floats, reference: Reference, *, weighted: bool = True
) -> Floats:
    """Return the model moved by updates trusted as far as they agree with the server's own.

    Cao et al., "FLTrust: Byzantine-robust federated learning via trust bootstrapping", NDSS 2021.
    The server trains the received model on its validation set, which gives the update u_0. A
    client's trust is max(0, cos ∠(u, u_0)); its update is scaled to the length of u_0, and the
    step is the mean of these by trust. If none is trusted, the model stays as it is. What is not
    trained, such as a running variance, has no update to compare: it becomes the median by trust.

    Parameters
    ----------
    weighted : bool
        Whether trust is multiplied by the clients' weights, such as their data sizes; the paper
        does not do that.
    """
    given = _Weighed.of(vectors, weights, weighted)
    own = reference.server_update()
    trained, length = slice(own.size), norm(own)
    shortest = ROUNDING_LENGTH * norm(reference.received[trained])
    trust, scales = np.zeros(len(given.vectors)), np.zeros(len(given.vectors))
    for place, vector in enumerate(given.vectors):
        update = vector[trained].astype(np.float64) - reference.received[trained]
        size = norm(update)
        if size > shortest and 0 < length < math.inf:
            trust[place] = max(0.0, dot(update, own) / size / length)
            scales[place] = length / size
    trust *= given.weights
    believed = total(trust)
    if not believed > 0:
        return given.scale * reference.received.astype(np.float64)
    result = _moved(given, reference, trust / believed * scales)
    if own.size < result.size:
        rest = [vector[own.size :] for vector in given.vectors]
        result[own.size :] = given.scale * coordinate_median(rest, trust / believed)
    return result


def _moved(given: _Weighed, reference: Reference, factors: Floats) -> Floats:
    """Return the received model plus the updates times their factors, times the scale."""
    stays = (1.0 - total(factors)) * reference.received.astype(np.float64)
    return given.scale * (stays + weighted_sum(given.vectors, factors))


def weighted_mean(vectors: _Vectors, weights: Floats) -> Floats:
    """Return the weighted sum, which is the mean where the weights add up to 1."""
    return weighted_sum(vectors, weights)


AGGREGATORS: Registry[Aggregator] = Registry(
    "aggregator",
    "flamma.aggregators",
    {
        "mean": weighted_mean,
        "median": coordinate_median,
        "trimmed-mean": trimmed_mean,
        "geometric-median": geometric_median,
        "krum": krum,
        "multi-krum": multi_krum,
        "norm-clipping": norm_clipping,
        "fltrust": fltrust,
    },
)
"""All aggregators by name."""


def aggregated(
    choice: Choice, vectors: _Vectors, weights: Floats, reference: Reference | None = None
) -> Floats:
    """Return the vectors combined by the chosen aggregator, with the reference if it takes one.

    Raises
    ------
    StrategyError
        If it takes a reference and there is none.
    """
    parameter = inspect.signature(AGGREGATORS[choice.name]).parameters.get("reference")
    combine: Aggregator = AGGREGATORS.bind(choice)
    if parameter is None or parameter.default is not parameter.empty:
        return combine(vectors, weights)
    if reference is None:
        raise StrategyError(
            f"the aggregator {choice.name} needs to know the model that clients received: in a "
            f"strategy of your own, call self.average(round, weights)."
        )
    return combine(vectors, weights, reference)


def check_aggregator(choice: Choice, answers: int) -> None:
    """Refuse options that cannot work, or not with this number of updates a round."""
    entry = AGGREGATORS[choice.name]
    check = getattr(entry, "check", None)
    if check is not None:
        check(answers, **read_options(entry, choice.options))

"""Contribution measures: a client's part in the new global model, from 0 to 1.

A measure looks at one client's update, or at all updates of a round, and returns ω. Another package
adds one by an entry point of the group ``flamma.contributions``.

Examples
--------
>>> from flamma.contributions import SingleUpdate, cosine, distance
>>> zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
>>> update = SingleUpdate(local=2 * one, received=zero, aggregate=one)
>>> distance(update), round(cosine(update), 6)
(0.0, 1.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import dot, norm, total, weighted_sum
from flamma.registry import Choice, Registry
from flamma.types import Floats, Ints, Params

__all__ = [
    "CONTRIBUTIONS",
    "RoundUpdates",
    "SingleUpdate",
    "cgsv",
    "cosine",
    "cosine_rescaled",
    "distance",
    "distance_earned",
    "measure_round",
    "relative_to_best",
    "round_measure",
]

# The contract of contribution measures.


@dataclass(frozen=True, eq=False)
class SingleUpdate:
    """One client's update, trainable weights only.

    Attributes
    ----------
    local : ndarray
        The model the client sent.
    received : ndarray
        The global model it started from.
    aggregate : ndarray
        The new global model.
    """

    local: Params
    received: Params
    aggregate: Params


@dataclass(frozen=True, eq=False)
class RoundUpdates:
    """All updates of a round, for measures that compare clients.

    Attributes
    ----------
    clients : ndarray
        The clients whose updates were accepted, in order.
    models : sequence of ndarray
        All weights of the model that each of them sent.
    before, after : ndarray
        All weights of the global model that they received, and of the new one.
    trainable_size : int
        How many of the weights are trained; they are the first ones.
    weights : ndarray
        Each client's share of the mean; the shares add up to 1.
    previous : ndarray
        What each client's contribution was at its last report; NaN if there was none.
    round : int
        The number of the round, with which random draws are keyed.
    last_step : ndarray, optional
        How the global model moved in the round before, all weights; None where it is not known.
        Every client that took part knows it, without any work.
    validate : callable, optional
        Returns loss and accuracy in percent of a whole model on the server's validation set.
    """

    clients: Ints
    models: Sequence[Params]
    before: Params
    after: Params
    trainable_size: int
    weights: Floats
    previous: Floats
    round: int = 0
    last_step: Params | None = None
    validate: Callable[[Params], tuple[float, float]] | None = None

    @property
    def locals(self) -> list[Params]:
        """The trainable weights of the model that each client sent."""
        return [model[: self.trainable_size] for model in self.models]

    @property
    def received(self) -> Params:
        """The trainable weights of the model that the clients started from."""
        return self.before[: self.trainable_size]

    @property
    def aggregate(self) -> Params:
        """The trainable weights of the new global model."""
        return self.after[: self.trainable_size]

    def moves(self) -> Iterator[Floats]:
        """Yield how each client moved the trainable weights, in double precision.

        One by one, because all of them at once can be much larger than the models.
        """
        for local in self.locals:
            yield local.astype(np.float64) - self.received

    def common_move(self) -> Floats:
        """Return how the server moved the trainable weights, in double precision."""
        return self.aggregate.astype(np.float64) - self.received

    def single(self) -> Iterator[SingleUpdate]:
        """Yield the single updates."""
        for local in self.locals:
            yield SingleUpdate(local, self.received, self.aggregate)


_ContributionMeasure = Callable[..., float | Floats]
"""``(update, **options) -> contribution`` of one client, or with :func:`round_measure`
``(updates, **options) -> contributions`` of all clients of a round."""

_MeasureFunction = TypeVar("_MeasureFunction", bound=Callable[..., Floats])


def round_measure(
    *, needs_validation: bool = False
) -> Callable[[_MeasureFunction], _MeasureFunction]:
    """Mark a function as a measure that is given all updates of a round.

    It takes :class:`RoundUpdates` and returns one contribution in [0, 1] for each client. A
    function without this mark takes the :class:`SingleUpdate` of one client and returns one number.

    Parameters
    ----------
    needs_validation : bool
        Whether it scores models on the server's validation set. A strategy that uses the measure
        then needs one.

    Examples
    --------
    >>> @round_measure()
    ... def by_data(updates):
    ...     return updates.weights / updates.weights.max()
    >>> by_data.measures_rounds, by_data.needs_validation
    (True, False)
    """

    def mark(measure: _MeasureFunction) -> _MeasureFunction:
        measure.measures_rounds = True  # type: ignore[attr-defined]
        measure.needs_validation = needs_validation  # type: ignore[attr-defined]
        return measure

    return mark


def relative_to_best(values: Floats, quantile: float, least: float = 0.0) -> Floats:
    """Return positive values divided by a quantile of them, at most 1; all others as 0.

    Absolute values depend on the model, on the step size and on how far the training is; within
    a round they tell clients apart. With a ``quantile`` of 1 the best client has 1, unless even
    its value is below ``least``: it is then divided by that.

    Examples
    --------
    >>> relative_to_best(np.array([1.0, -3.0, 4.0, 2.0]), 1.0)
    array([0.25, 0.  , 1.  , 0.5 ])
    >>> relative_to_best(np.array([1.0, -3.0, 4.0, 2.0]), 0.5)
    array([0.5, 0. , 1. , 1. ])
    """
    if not 0 <= quantile <= 1:
        raise StrategyError(f"quantile must lie in [0, 1], not {quantile:g}.")
    values = np.where(np.isfinite(values), values, 0.0)
    positive = values[values > 0]
    if not positive.size:
        return np.zeros(values.size)
    unit = max(float(np.quantile(positive, quantile, method="higher")), least)
    # A unit that is almost 0 can make the quotient overflow, which is 1 all the same.
    with np.errstate(over="ignore"):
        return np.clip(values / unit, 0.0, 1.0)


# Measures of a single client's update.


def distance(update: SingleUpdate) -> float:
    """Return ω = clip(1 - ‖w_i - w‖ / ‖w‖, 0, 1), the closeness of a model to the aggregate."""
    with np.errstate(over="ignore"):  # beyond float32 a distance is infinite, which is far enough
        size, apart = norm(update.aggregate), norm(update.local - update.aggregate)
    return min(1.0, max(0.0, 1 - apart / size)) if size > 0 else 0.0


def cosine(update: SingleUpdate) -> float:
    """Return ω = clip(cos ∠(w_i - w, w' - w), 0, 1), how far a client's move is the common one.

    Unlike the distance it does not reward doing little.
    """
    move = (update.local - update.received).astype(np.float64)
    common = (update.aggregate - update.received).astype(np.float64)
    size = norm(move) * norm(common)
    return min(1.0, max(0.0, dot(move, common) / size)) if size > 0 else 0.0


# Measures of where the updates of a round point; the server needs no data for them.

_ComparedWith = Literal["aggregate", "others"]
"""What an update is compared with: the server's move, or the mean move of the other clients."""

_LEAST_COSINE = 0.1
"""A round's largest cosine is taken as at least this, or in a round in which no client agrees with
the others the random direction of a little noise would count as 1."""

_LEAST_EARNED = 1 - math.sqrt(1 - _LEAST_COSINE**2)
"""What a client at that cosine earns."""


@round_measure()
def cosine_rescaled(
    updates: RoundUpdates, *, reference: _ComparedWith = "others", quantile: float = 1.0
) -> Floats:
    """Return the cosines of clients' moves with the common one, relative to the round's largest.

    The less clients have in common, the smaller is every cosine: about 1/√n for n clients whose
    moves are orthogonal. Only how they compare says something about clients.

    Parameters
    ----------
    reference : {"others", "aggregate"}
        The mean move of the other clients, which the client cannot steer, or the server's move.
        A client is part of the latter, so that even noise has a positive cosine with it.
    quantile : float
        The quantile of the positive cosines that counts as 1; by default the largest.
    """
    own, common, target = _products(updates, reference)
    sizes = [math.sqrt(a) * math.sqrt(c) for a, c in zip(own, target, strict=True)]
    cosines = np.divide(common, sizes, out=np.zeros(len(sizes)), where=np.array(sizes) > 0)
    return relative_to_best(cosines, quantile, _LEAST_COSINE)


@round_measure()
def distance_earned(
    updates: RoundUpdates, *, reference: _ComparedWith = "others", quantile: float = 1.0
) -> Floats:
    """Return how much nearer to the new model each client got than the received model is.

    The received model r is at a distance from the new one w that every client has for free.
    Client i earns 1 - d_i / ‖w - r‖, where d_i is the distance of w from the nearest point on the
    way from r to w_i. The nearest point, because w is a mean and shorter than each update: the
    end of a long way is further from w than r is, though the client went in the right direction.
    Who works on only makes the way longer and so never earns less. The earnings are then taken
    relative to the round's largest.

    Parameters
    ----------
    reference : {"others", "aggregate"}
        What w is: the mean of the other clients' models, or the server's new model.
    quantile : float
        The quantile of the positive earnings that counts as 1; by default the largest.
    """
    own, common, target = _products(updates, reference)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        part = np.clip(np.nan_to_num(common / own), 0.0, 1.0)
        apart = np.maximum(target - part * (2 * common - part * own), 0.0)
        earned = 1 - np.sqrt(apart / target)
    return relative_to_best(earned, quantile, _LEAST_EARNED)


@round_measure()
def cgsv(updates: RoundUpdates, *, memory: float = 0.8) -> Floats:
    """Return cosine gradient Shapley values: cosines with the sum of normalised updates, averaged.

    Xu et al., "Gradient driven rewards to guarantee fairness in collaborative machine learning",
    NeurIPS 2021. Updates have length 1 in the sum, and clients weigh by their contributions so
    far. Cosines are taken relative to the round's largest before they are averaged.

    Parameters
    ----------
    memory : float
        The weight of a client's contribution so far in the moving average; a client without one
        has this round's.
    """
    if not 0 <= memory <= 1:
        raise StrategyError(f"memory must lie in [0, 1], not {memory:g}.")
    known = np.isfinite(updates.previous)
    importance = updates.previous if known.all() and updates.previous.any() else updates.weights
    lengths = np.array([norm(move) for move in updates.moves()])
    factors = np.divide(importance, lengths, out=np.zeros(lengths.size), where=lengths > 0)
    together = weighted_sum(updates.locals, factors) - total(factors) * updates.received
    size = norm(together)
    cosines = [
        dot(move, together) / (length * size) if length * size > 0 else 0.0
        for move, length in zip(updates.moves(), lengths, strict=True)
    ]
    now = relative_to_best(np.array(cosines), 1.0, _LEAST_COSINE)
    return np.where(known, memory * updates.previous + (1 - memory) * now, now)


def _products(updates: RoundUpdates, reference: _ComparedWith) -> tuple[Floats, Floats, Floats]:
    """Return each client's inner products: move · move, move · reference, reference · reference."""
    alone = len(updates.models) == 1
    if reference == "aggregate" or alone:
        common = updates.common_move()
        own, inner = _inner(updates, common)
        return own, inner, np.full(own.size, dot(common, common))
    mean = weighted_sum(updates.locals, updates.weights) - updates.received
    own, inner = _inner(updates, mean)
    # The others' mean is (u - p u_i) / (1 - p), u being the mean of all and p the client's share.
    share = updates.weights
    rest = np.maximum(1 - share, np.finfo(np.float64).tiny)
    others = dot(mean, mean) - share * (2 * inner - share * own)
    return own, (inner - share * own) / rest, np.maximum(others, 0.0) / (rest * rest)


def _inner(updates: RoundUpdates, common: Floats) -> tuple[Floats, Floats]:
    products = [(dot(move, move), dot(move, common)) for move in updates.moves()]
    own, inner = (np.array(values) for values in zip(*products, strict=True))
    return own, inner


# All contribution measures by name, and how one is applied to a round.

CONTRIBUTIONS: Registry[_ContributionMeasure] = Registry(
    "contribution measure",
    "flamma.contributions",
    {
        "distance": distance,
        "cosine": cosine,
        "cosine-rescaled": cosine_rescaled,
        "distance-earned": distance_earned,
        "cgsv": cgsv,
        "leave-one-out": "flamma.contributions.shapley:leave_one_out",
        "shapley": "flamma.contributions.shapley:shapley",
        "gradient-shapley": "flamma.contributions.shapley:gradient_shapley",
    },
)
"""All contribution measures by name."""


def measure_round(choice: Choice, updates: RoundUpdates) -> Floats:
    """Return the contribution of every client of a round, by the chosen measure.

    Raises
    ------
    StrategyError
        If the measure needs a validation set and there is none, or if what it returns is not one
        number in [0, 1] for each client.
    """
    entry, measure = CONTRIBUTIONS[choice.name], CONTRIBUTIONS.bind(choice)
    if not getattr(entry, "measures_rounds", False):
        return np.array([measure(update) for update in updates.single()], dtype=np.float64)
    if getattr(entry, "needs_validation", False) and updates.validate is None:
        raise StrategyError(
            f"the contribution measure {choice.name} needs a validation set: set "
            f"data.validation_samples."
        )
    found = np.asarray(measure(updates), dtype=np.float64)
    if found.shape != (len(updates.models),) or not np.all((found >= 0) & (found <= 1)):
        raise StrategyError(
            f"the contribution measure {choice.name} must return a number in [0, 1] for each of "
            f"{len(updates.models)} clients."
        )
    return found

"""Measures of where the updates of a round point; the server needs no data for them."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from flamma.contributions.contract import RoundUpdates, relative_to_best, round_measure
from flamma.errors import StrategyError
from flamma.numerics import dot, norm, total, weighted_sum
from flamma.types import Floats

ComparedWith = Literal["aggregate", "others"]
"""What an update is compared with: the server's move, or the mean move of the other clients."""

LEAST_COSINE = 0.1
"""A round's largest cosine is taken as at least this, or in a round in which no client agrees with
the others the random direction of a little noise would count as 1."""

LEAST_EARNED = 1 - math.sqrt(1 - LEAST_COSINE**2)
"""What a client at that cosine earns."""


class _Products(NamedTuple):
    """Inner products of each client's move with itself and with its reference."""

    own: Floats
    common: Floats
    reference: Floats


@round_measure()
def cosine_rescaled(
    updates: RoundUpdates, *, reference: ComparedWith = "others", quantile: float = 1.0
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
    found = _products(updates, reference)
    return relative_to_best(_cosines(found), quantile, LEAST_COSINE)


@round_measure()
def distance_earned(
    updates: RoundUpdates, *, reference: ComparedWith = "others", quantile: float = 1.0
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
    return relative_to_best(earned, quantile, LEAST_EARNED)


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
    now = relative_to_best(np.array(cosines), 1.0, LEAST_COSINE)
    return np.where(known, memory * updates.previous + (1 - memory) * now, now)


def _products(updates: RoundUpdates, reference: ComparedWith) -> _Products:
    """Return the inner products that cosines and distances are made of, one client at a time."""
    alone = len(updates.models) == 1
    if reference == "aggregate" or alone:
        common = updates.common_move()
        own, inner = _inner(updates, common)
        return _Products(own, inner, np.full(own.size, dot(common, common)))
    mean = weighted_sum(updates.locals, updates.weights) - updates.received
    own, inner = _inner(updates, mean)
    # The others' mean is (u - p u_i) / (1 - p), u being the mean of all and p the client's share.
    share = updates.weights
    rest = np.maximum(1 - share, np.finfo(np.float64).tiny)
    others = dot(mean, mean) - share * (2 * inner - share * own)
    return _Products(own, (inner - share * own) / rest, np.maximum(others, 0.0) / (rest * rest))


def _inner(updates: RoundUpdates, common: Floats) -> tuple[Floats, Floats]:
    products = [(dot(move, move), dot(move, common)) for move in updates.moves()]
    own, inner = (np.array(values) for values in zip(*products, strict=True))
    return own, inner


def _cosines(found: _Products) -> Floats:
    sizes = [math.sqrt(a) * math.sqrt(c) for a, c in zip(found.own, found.reference, strict=True)]
    return np.divide(found.common, sizes, out=np.zeros(len(sizes)), where=np.array(sizes) > 0)

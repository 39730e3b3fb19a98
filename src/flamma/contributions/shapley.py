"""Measures by coalitions: the worth of a round's model without some of its clients.

A coalition's model is made of the updates that the server has anyway, and scored on its validation
set; nothing is trained again. A coalition is a whole number whose bit i says whether the round's
client i belongs to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flamma.contributions import RoundUpdates, relative_to_best, round_measure
from flamma.errors import StrategyError
from flamma.numerics import dot, total, weighted_sum
from flamma.seeding import stream
from flamma.types import Floats

_Worth = Literal["loss", "accuracy"]
"""The worth of a model: less loss, or more accuracy, on the validation set."""

_Absent = Literal["idle", "gone"]
"""The share of a client outside a coalition stays with the received model, as if the client had
done nothing, or goes to the coalition's members."""

_MAX_LOSS = 100.0
"""A larger validation loss, or one that is not finite, counts as this one."""


def exact_shapley(values: Floats) -> Floats:
    """Return the Shapley values of a game from the values of all of its coalitions.

    Parameters
    ----------
    values : ndarray
        The value of coalition S at place S, for all 2^n of them; bit i of S is player i.

    Examples
    --------
    Player 0 alone is worth 1; players 1 and 2 are worth 2 together.

    >>> exact_shapley(np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 2.0, 3.0]))
    array([1., 1., 1.])
    """
    players = values.size.bit_length() - 1
    if values.size != 1 << players or players > 20:  # more have too many coalitions
        raise ValueError(f"a game has a power of two of coalitions, not {values.size}.")
    coalitions = np.arange(values.size)
    sizes = np.array([int(coalition).bit_count() for coalition in coalitions])
    # |S|! (n - |S| - 1)! / n! of each coalition without the player.
    shares = np.array([1 / (players * math.comb(players - 1, size)) for size in range(players)])
    found = np.empty(players)
    for player in range(players):
        without = coalitions[coalitions & (1 << player) == 0]
        gains = values[without | (1 << player)] - values[without]
        found[player] = total(shares[sizes[without]] * gains)
    return found


@dataclass(frozen=True, eq=False)
class _CoalitionGame:
    """The game of a round's clients: the worth of the mean of a coalition's models.

    Without clients it is the received model. ``known`` caches scores.
    """

    updates: RoundUpdates
    worth: _Worth = "loss"
    absent: _Absent = "idle"
    known: dict[int, float] = field(default_factory=dict)

    @property
    def players(self) -> int:
        """The number of clients."""
        return len(self.updates.models)

    @property
    def everyone(self) -> int:
        """The coalition of all clients."""
        return (1 << self.players) - 1

    def value(self, coalition: int) -> float:
        """Return the worth of the mean of a coalition's models."""
        if coalition not in self.known:
            inside = np.array([bool(coalition >> i & 1) for i in range(self.players)])
            factors = np.where(inside, self.updates.weights, 0.0)
            shared = total(factors)
            if self.absent == "gone" and shared > 0:
                factors /= shared
            self.known[coalition] = self.score(factors)
        return self.known[coalition]

    def score(self, factors: Floats) -> float:
        """Return the worth of the received model plus each client's move times its factor."""
        used = np.flatnonzero(factors).tolist()
        models = [self.updates.before, *(self.updates.models[i] for i in used)]
        return _worth_of(
            self.updates, weighted_sum(models, [1 - total(factors), *factors[used]]), self.worth
        )


def _worth_of(updates: RoundUpdates, model: Floats, worth: _Worth) -> float:
    """Return the worth of a model on the validation set."""
    if updates.validate is None:
        raise StrategyError(
            "this contribution measure needs a validation set: set data.validation_samples."
        )
    with np.errstate(over="ignore"):
        loss, accuracy = updates.validate(model.astype(np.float32))
    if worth == "accuracy":
        return accuracy if math.isfinite(accuracy) else 0.0
    return -loss if abs(loss) < _MAX_LOSS else -_MAX_LOSS  # NaN is not below it


@round_measure(needs_validation=True)
def leave_one_out(
    updates: RoundUpdates,
    *,
    absent: _Absent = "idle",
    worth: _Worth = "loss",
    quantile: float = 1.0,
) -> Floats:
    """Return what the round's mean loses without each client, relative to the largest loss.

    Of two clients that send the same neither is missed, so both can have 0.

    Parameters
    ----------
    absent : {"idle", "gone"}
        Whether a client that is left out counts as one that did nothing, or its share goes to
        the others.
    worth : {"loss", "accuracy"}
        What counts on the validation set.
    quantile : float
        The quantile of the positive values that counts as 1; by default the largest.
    """
    game = _CoalitionGame(updates, worth, absent)
    full = game.value(game.everyone)
    without = [game.value(game.everyone & ~(1 << i)) for i in range(game.players)]
    return relative_to_best(full - np.array(without), quantile)


@round_measure(needs_validation=True)
def shapley(
    updates: RoundUpdates,
    *,
    samples: int = 10,
    tolerance: float = 0.01,
    absent: _Absent = "idle",
    worth: _Worth = "loss",
    quantile: float = 1.0,
) -> Floats:
    """Return the Shapley values of the round's clients, relative to the largest.

    Clients join one after the other in random orders, and each is credited with what the mean of
    the models gains by it. Once the gain left is negligible, the rest of an order is not scored.
    Orders come in groups in which every client has every place once. As in Liu et al.,
    "GTG-Shapley", ACM TIST 2022. If there are no more coalitions than the orders would score,
    the values are exact instead.

    Parameters
    ----------
    samples : int
        How many orders.
    tolerance : float
        The share of the round's whole gain that is negligible.
    absent : {"idle", "gone"}
        Whether a client outside a coalition counts as one that did nothing, or, as in GTG-Shapley,
        its share goes to the members. Then who does nothing is paid for diluting models that are
        worse than the received one, as those of few clients with few classes are.
    worth : {"loss", "accuracy"}
        What counts on the validation set.
    quantile : float
        The quantile of the positive values that counts as 1; by default the largest.
    """
    if samples < 1 or not 0 <= tolerance <= 1:
        raise StrategyError("samples must be at least 1, and tolerance must lie in [0, 1].")
    game = _CoalitionGame(updates, worth, absent)
    if 1 << game.players <= samples * game.players:
        values = np.array([game.value(coalition) for coalition in range(game.everyone + 1)])
        return relative_to_best(exact_shapley(values), quantile)
    found = _sampled_shapley(game.value, game.players, samples, tolerance, updates.round)
    return relative_to_best(found, quantile)


def _sampled_shapley(
    value: Callable[[int], float], players: int, samples: int, tolerance: float, key: int
) -> Floats:
    """Return estimated Shapley values, from orders that depend on the key alone."""
    everyone = (1 << players) - 1
    start, end = value(0), value(everyone)
    negligible = tolerance * abs(end - start)
    gains = np.zeros(players)
    for sample in range(samples):
        group, shift = divmod(sample, players)
        order = stream(group, "shapley-order", key).permutation(players)
        coalition, before = 0, start
        for player in np.roll(order, shift).tolist():
            if coalition and abs(end - before) <= negligible:
                break
            coalition |= 1 << player
            after = end if coalition == everyone else value(coalition)
            gains[player] += after - before
            before = after
    return gains / samples


@round_measure(needs_validation=True)
def gradient_shapley(
    updates: RoundUpdates, *, only_new: bool = True, worth: _Worth = "loss", quantile: float = 1.0
) -> Floats:
    """Return Shapley values to second order, from two scores for each client.

    Let a coalition's model be r + Σ p_k u_k over its clients, p_k being shares of the mean of all
    and u_k moves. Where the loss is quadratic, client i's Shapley value is the derivative of the
    loss along p_i u_i half-way to the mean of all, and the difference quotient
    L(r + (u - p_i u_i) / 2) - L(r + (u + p_i u_i) / 2) is that derivative exactly. Values are
    then taken relative to the largest.

    Parameters
    ----------
    only_new : bool
        Whether only that counts which every client could not have sent without work: the part
        of a move along the last step of the global model, where that is known, is taken out.
    worth : {"loss", "accuracy"}
        What counts on the validation set.
    quantile : float
        The quantile of the positive values that counts as 1; by default the largest.
    """
    half = updates.weights / 2
    free = _free_parts(updates) if only_new else np.zeros(half.size)
    start = updates.before.astype(np.float64)
    step = np.zeros(1) if updates.last_step is None else updates.last_step.astype(np.float64)
    middle = weighted_sum([updates.before, *updates.models], [1 - total(half), *half])
    middle -= total(half * free) * step
    found = []
    for model, share, known in zip(updates.models, half, free, strict=True):
        own = share * (model - start - known * step)
        gain = _worth_of(updates, middle + own, worth) - _worth_of(updates, middle - own, worth)
        found.append(gain)
    return relative_to_best(np.array(found), quantile)


def _free_parts(updates: RoundUpdates) -> Floats:
    """Return how many times the last step of the global model is in each client's move."""
    parts = np.zeros(len(updates.models))
    if updates.last_step is None:
        return parts
    step = updates.last_step[: updates.trainable_size].astype(np.float64)
    size = dot(step, step)
    if size > 0:
        parts[:] = [max(0.0, dot(move, step) / size) for move in updates.moves()]
    return parts

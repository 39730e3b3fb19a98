"""A menu of contracts for clients whose cost only they know.

The server offers items (τ, R): so many local epochs for so much pay. A client of cost c that takes
an item earns R - c τ², and may take none. The server knows a few cost types and how frequent each
is, not who has which. It wants the menu with the largest expected profit under which every type
loses nothing by its own item (individual rationality) and gains nothing by another's (incentive
compatibility).

Ding, Fang and Huang, "Optimal contract design for efficient federated learning with
multi-dimensional private information", IEEE JSAC 2021 (first at WiOpt 2020); Kang et al.,
"Incentive mechanism for reliable federated learning: a joint optimization approach to combining
reputation and contract theory", IEEE Internet of Things Journal 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flamma.errors import GameError
from flamma.game.model import FOLLOWER_TIE, LARGEST_COST, SMALLEST_COST, Vector, check_epoch_bounds
from flamma.numerics import log, total

HALVINGS = 60
"""How often the range is halved in which a menu that can be paid for is looked for."""


@dataclass(frozen=True)
class ContractMenu:
    """The items of a menu, that of the cheapest type first.

    Parameters
    ----------
    epochs : tuple of int
        τ of each type; 0 for a type that is not to work.
    payments : tuple of float
        R of each type.
    """

    epochs: tuple[int, ...]
    payments: tuple[float, ...]

    def payment(self, epochs: int) -> float | None:
        """Return what so many epochs are paid, None if no item has them."""
        return dict(zip(self.epochs, self.payments, strict=True)).get(epochs)

    def choice(self, cost: float) -> int:
        """Return the epochs that are best for a client of this cost; 0 if no item pays.

        Of items that are equally good it takes the one with more work.

        Raises
        ------
        GameError
            If the cost is not a positive number.
        """
        if not SMALLEST_COST <= cost <= LARGEST_COST:
            raise GameError(f"a client needs a positive cost to choose a contract, not {cost:g}.")
        best, taken = 0.0, 0
        for epochs, payment in sorted(zip(self.epochs, self.payments, strict=True)):
            utility = payment - cost * epochs**2
            if utility >= best - FOLLOWER_TIE * payment:
                best, taken = max(best, utility), epochs
        return taken


@dataclass(frozen=True)
class MenuCertificate:
    """How far a menu is from what it promises; both by comparing every type with every item.

    Attributes
    ----------
    rationality_slack : float
        The smallest utility of a type with its own item; below 0 it would rather not take part.
    envy : float
        The most that a type would gain by the item of another.
    """

    rationality_slack: float
    envy: float


def optimal_menu(
    costs: ArrayLike,
    shares: ArrayLike,
    *,
    value: float,
    epoch_bounds: tuple[int, int] = (1, 10),
    most_payment: float = math.inf,
) -> ContractMenu:
    """Return the menu of the largest expected profit Σ p_j (v ln(1 + τ_j) - R_j).

    Sorted by cost, a menu can be made incentive-compatible if and only if the work does not
    increase with cost. The cheapest payments then make the dearest type just willing, and every
    other just indifferent to the item of the next dearer one:
    R_j = c_j τ_j² + Σ_(i > j) (c_i - c_(i-1)) τ_i². Put into the profit, a unit of the work of type
    j costs ψ_j = c_j + (c_j - c_(j-1)) (p_1 + .. + p_(j-1)) / p_j. Where ψ does not increase,
    several types get one item. All non-increasing choices of whole epochs are searched, by dynamic
    programming, so the result is the best one.

    Parameters
    ----------
    costs : array_like
        c of each type, increasing.
    shares : array_like
        p, how frequent each type is; in any unit.
    value : float
        v, what the server gains by work.
    epoch_bounds : (int, int)
        The fewest and the most epochs of an item that is not to do nothing.
    most_payment : float
        If some payment is larger, v is lowered until none is.

    Raises
    ------
    GameError
        If the numbers do not describe types.

    Examples
    --------
    >>> menu = optimal_menu([0.05, 0.1, 0.2], [1, 1, 1], value=6.0)
    >>> menu.epochs
    (7, 4, 2)
    >>> [round(payment, 2) for payment in menu.payments]
    [3.65, 2.0, 0.8]
    >>> certify_menu(menu, [0.05, 0.1, 0.2]).envy < 1e-12
    True
    """
    cost, weight = _types(costs, shares)
    low, high = check_epoch_bounds(epoch_bounds, whole_epochs=True)
    if not math.isfinite(high) or low < 1:
        raise GameError("a menu needs epoch_bounds from 1 on with an upper one.")
    if not (math.isfinite(value) and value >= 0 and most_payment >= 0):
        raise GameError("the value of work and the largest payment must be at least 0.")
    levels = np.concatenate(([0.0], np.arange(low, high + 1)))
    menu = _solved(cost, weight, value, levels)
    if max(menu.payments) <= most_payment:
        return menu
    fits, fails = 0.0, value
    for _ in range(HALVINGS):
        middle = (fits + fails) / 2
        too_much = max(_solved(cost, weight, middle, levels).payments) > most_payment
        fits, fails = (fits, middle) if too_much else (middle, fails)
    return _solved(cost, weight, fits, levels)


def certify_menu(menu: ContractMenu, costs: ArrayLike) -> MenuCertificate:
    """Return how a menu serves types of these costs, one for each item in the same order."""
    cost = np.asarray(costs, dtype=np.float64)
    work = np.square(np.array(menu.epochs, dtype=np.float64))
    utility = np.array(menu.payments) - cost[:, np.newaxis] * work
    own = np.diagonal(utility)
    return MenuCertificate(float(own.min()), float((utility - own[:, np.newaxis]).max()))


def _types(costs: ArrayLike, shares: ArrayLike) -> tuple[Vector, Vector]:
    try:
        cost = np.asarray(costs, dtype=np.float64)
        share = np.asarray(shares, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise GameError("types need a list of costs and one of shares.") from None
    if cost.ndim != 1 or cost.shape != share.shape or not cost.size:
        raise GameError("there must be at least one type, and as many shares as costs.")
    inside = (cost >= SMALLEST_COST) & (cost <= LARGEST_COST)
    if not (inside.all() and (np.diff(cost) > 0).all()):
        raise GameError("the costs of types must be positive and increase.")
    if not ((share > 0).all() and np.isfinite(share).all()):
        raise GameError("the shares of types must be positive.")
    return cost, share / total(share)


def _solved(cost: Vector, share: Vector, value: float, levels: Vector) -> ContractMenu:
    before = np.concatenate(([0.0], np.cumsum(share)[:-1]))
    virtual = cost + np.diff(cost, prepend=cost[0]) * before / share
    gain, work = value * log(1 + levels), np.square(levels)
    profits = share[:, np.newaxis] * (gain - virtual[:, np.newaxis] * work)
    chosen = _non_increasing(profits)
    epochs = tuple(int(levels[place]) for place in chosen)
    return ContractMenu(epochs, _payments(cost, epochs))


def _non_increasing(profits: Vector) -> list[int]:
    """Return the column of each row with the largest sum, none to the right of the row before.

    Of equally good ones it takes those further to the right.
    """
    columns = np.arange(profits.shape[1])
    best_places, best = [], np.zeros(columns.size)
    for own in profits[::-1]:
        sums = own + best
        best = np.maximum.accumulate(sums)
        best_places.append(np.maximum.accumulate(np.where(sums == best, columns, 0)))
    chosen, last = [], columns.size - 1
    for places in reversed(best_places):
        last = int(places[last])
        chosen.append(last)
    return chosen


def _payments(cost: Vector, epochs: tuple[int, ...]) -> tuple[float, ...]:
    """Return the smallest payments under which each type prefers its own item, dearest last."""
    payments: list[float] = []
    for own, dearer, c in zip(epochs[::-1], (0, *epochs[:0:-1]), cost[::-1].tolist(), strict=True):
        payments.append((payments[-1] if payments else 0.0) + c * (own**2 - dearer**2))
    return tuple(payments[::-1])

"""Contract menus for clients with private costs, and prices of participation.

The server offers items (τ, R): τ local epochs for the payment R. A client of cost c that takes
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
from numpy.typing import ArrayLike, NDArray

from flamma.errors import GameError
from flamma.game.model import FOLLOWER_TIE, LARGEST_COST, SMALLEST_COST, check_epoch_bounds
from flamma.numerics import log, power, total
from flamma.types import Floats


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
        """Return the payment for this number of epochs, None if no item has it."""
        return dict(zip(self.epochs, self.payments, strict=True)).get(epochs)

    def choice(self, cost: float) -> int:
        """Return the epochs that are best for a client of this cost; 0 if no item pays.

        Of items that are equally good it takes the one with more work.
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
class _MenuCertificate:
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
    increase with cost. The cheapest payments then make the highest type just willing, and every
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
    for _ in range(60):
        middle = (fits + fails) / 2
        too_much = max(_solved(cost, weight, middle, levels).payments) > most_payment
        fits, fails = (fits, middle) if too_much else (middle, fails)
    return _solved(cost, weight, fits, levels)


def certify_menu(menu: ContractMenu, costs: ArrayLike) -> _MenuCertificate:
    """Return how a menu serves types of these costs, one for each item in the same order."""
    cost = np.asarray(costs, dtype=np.float64)
    work = np.square(np.array(menu.epochs, dtype=np.float64))
    utility = np.array(menu.payments) - cost[:, np.newaxis] * work
    own = np.diagonal(utility)
    return _MenuCertificate(float(own.min()), float((utility - own[:, np.newaxis]).max()))


def _types(costs: ArrayLike, shares: ArrayLike) -> tuple[Floats, Floats]:
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


def _solved(cost: Floats, share: Floats, value: float, levels: Floats) -> ContractMenu:
    before = np.concatenate(([0.0], np.cumsum(share)[:-1]))
    virtual = cost + np.diff(cost, prepend=cost[0]) * before / share
    gain, work = value * log(1 + levels), np.square(levels)
    profits = share[:, np.newaxis] * (gain - virtual[:, np.newaxis] * work)
    chosen = _non_increasing(profits)
    epochs = tuple(int(levels[place]) for place in chosen)
    # The smallest payments under which each type prefers its item, from the highest cost down.
    payments: list[float] = []
    for own, higher, c in zip(epochs[::-1], (0, *epochs[:0:-1]), cost[::-1].tolist(), strict=True):
        payments.append((payments[-1] if payments else 0.0) + c * (own**2 - higher**2))
    return ContractMenu(epochs, tuple(payments[::-1]))


def _non_increasing(profits: Floats) -> list[int]:
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


# Prices for which clients choose how likely they take part in a round.
#
# Client n chooses a probability q_n and earns
#
# P_n q_n - c_n q_n² - κ_n Σ_m d_m (1 - q_m) / q_m,
#
# the pay P_n for taking part, less its cost, and less what the model is worth to it times the
# noise of random participation, with d_m = a_m² G_m² from the data share and the size of the
# gradients. The server wants the least noise Σ d_m (1 - q_m) / q_m that a budget B ≥ Σ P_n q_n
# allows.
#
# Luo et al., "Incentive mechanism design for unbiased federated learning with randomized client
# participation", ICDCS 2023; their v_n α/R is κ_n here.


@dataclass(frozen=True, eq=False)
class ParticipationGame:
    """The clients of the game, checked on construction.

    Parameters
    ----------
    costs : array_like
        c, one per client, each positive.
    noises : array_like
        d, one per client, each positive.
    value : float or array_like
        κ, at least 0: what less noise is worth to every client, or to each.
    least : float
        The smallest probability, above 0 and at most 1.
    """

    costs: Floats
    noises: Floats
    value: NDArray[np.float64]
    least: float

    def __init__(
        self, costs: ArrayLike, noises: ArrayLike, value: ArrayLike = 0.0, least: float = 0.05
    ) -> None:
        cost, noise, kappa = (np.array(v, dtype=np.float64) for v in (costs, noises, value))
        if cost.ndim != 1 or cost.shape != noise.shape or kappa.shape not in ((), cost.shape):
            raise GameError("costs and noises must be two lists with one number for each client.")
        for name, values in (("costs", cost), ("noises", noise)):
            if not ((values >= SMALLEST_COST) & (values <= LARGEST_COST)).all():
                raise GameError(f"{name} must lie in {SMALLEST_COST:g}..{LARGEST_COST:g}.")
        if not ((kappa >= 0) & (kappa <= LARGEST_COST)).all():
            raise GameError("the value of less noise must be at least 0.")
        if not 0 < least <= 1:
            raise GameError(f"the least probability must lie in (0, 1], not {least:g}.")
        for field, own in (("costs", cost), ("noises", noise), ("value", kappa), ("least", least)):
            object.__setattr__(self, field, own)

    def noise(self, probabilities: Floats) -> float:
        """Return Σ d (1 - q) / q, which the server wants to be small."""
        return total(self.noises * (1 - probabilities) / probabilities)

    def prices(self, probabilities: Floats) -> Floats:
        """Return P = 2 c q - κ d / q², for which clients choose just these probabilities."""
        taken: Floats = 2 * self.costs * probabilities - self.value * self.noises / np.square(
            probabilities
        )
        return taken

    def spending(self, probabilities: Floats) -> float:
        """Return Σ P q at the prices of these probabilities."""
        return total(self.prices(probabilities) * probabilities)


@dataclass(frozen=True, eq=False)
class Participation:
    """The prices of the server and the probabilities that clients choose for them.

    ``exchange`` is what a unit of money would take off the noise, inverted: 1/λ of the budget.
    """

    probabilities: Floats
    prices: Floats
    exchange: float


@dataclass(frozen=True)
class _ParticipationCertificate:
    """How far prices and probabilities are from an equilibrium.

    Attributes
    ----------
    follower_gap : float
        The most that a client would gain by another probability.
    leader_gap : float
        How much less noise there could be at most within the same spending, as a share of
        that at even odds, Σ d; by the Lagrange dual, which no solution can beat.
    overspent : float
        What is spent beyond the budget; at most 0 where it is kept.
    """

    follower_gap: float
    leader_gap: float
    overspent: float


def solve_participation(
    game: ParticipationGame, *, budget: float | None = None, expected: float | None = None
) -> Participation:
    """Return the prices with the least noise for a budget, or for an expected number of clients.

    In x = 1/q the noise is linear and the spending Σ 2 c / x² - κ d x is convex, so the optimum is
    where 4 c q³ / d + κ is the same number, 1/λ, for all clients that are not at a bound. Spending
    and probabilities grow with it, and it is found by bisection.

    Parameters
    ----------
    game : ParticipationGame
    budget : float, optional
        B, the most that Σ P q may be.
    expected : float, optional
        The most that Σ q may be, if there is no budget: the prices are then those of the budget
        that it takes.

    Examples
    --------
    >>> game = ParticipationGame(costs=[1.0, 8.0], noises=[1.0, 1.0])
    >>> found = solve_participation(game, budget=0.25 * (2 * 1 + 2 * 8 / 4))
    >>> found.probabilities.round(6), found.prices.round(6)
    (array([0.5 , 0.25]), array([1., 4.]))
    """
    if budget is None and expected is None:
        raise GameError("prices need a budget, or an expected number of clients.")
    curve = _Curve.of(game)

    def fits(root: float) -> bool:
        q = curve.probabilities(root)
        return total(q) <= (expected or 0.0) if budget is None else game.spending(q) <= budget

    low, high = 0.0, curve.most
    if not fits(low):
        if budget is None:
            return curve.at(low)
        raise GameError(
            f"the budget must be at least {game.spending(curve.probabilities(low)):.4g}, which the "
            f"least probability of {game.least:g} costs: raise it, or lower that."
        )
    if fits(high):
        return curve.at(high)
    for _ in range(1200):  # at most, until no double lies between the ends
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return curve.at(low)


@dataclass(frozen=True, eq=False)
class _Curve:
    """The optima of all budgets, by s with 1/λ = min κ + s³: then q = (d / 4c)^⅓ (1/λ - κ)^⅓."""

    game: ParticipationGame
    base: float
    roots: Floats

    @classmethod
    def of(cls, game: ParticipationGame) -> _Curve:
        return cls(game, float(np.min(game.value)), power(game.noises / game.costs / 4, 1 / 3))

    @property
    def most(self) -> float:
        """From here on all clients take part with certainty."""
        game = self.game
        cube = float(np.max(4 * game.costs / game.noises + game.value)) - self.base
        return float(power(cube, 1 / 3)) * (1 + 1e-9)

    def probabilities(self, root: float) -> Floats:
        """Return q; where all have the same κ no further root need be taken."""
        pull: float | Floats = root
        if self.game.value.ndim:
            gap = root * root * root + self.base - self.game.value
            pull = power(np.maximum(gap, 0.0), 1 / 3)
        return np.clip(self.roots * pull, self.game.least, 1.0)

    def at(self, root: float) -> Participation:
        """Return the optimum with its prices."""
        q = self.probabilities(root)
        return Participation(q, self.game.prices(q), self.base + root * root * root)


def best_participation(game: ParticipationGame, prices: ArrayLike) -> Floats:
    """Return the probability that is best for each client at these prices.

    P - 2 c q + κ d / q² decreases in q, so the best is where it is 0, by bisection, or at a bound.
    """
    price = np.asarray(prices, dtype=np.float64)
    pull = game.value * game.noises
    low, high = np.full(price.shape, game.least), np.ones(price.shape)
    for _ in range(64):
        middle = (low + high) / 2
        more = price - 2 * game.costs * middle + pull / np.square(middle) >= 0
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    # Of the two ends, and of what the bisection found, the best: a bound is never just missed.
    candidates = np.stack([np.full(price.shape, game.least), np.ones(price.shape), high])
    utilities = _utility(game, price, candidates)
    best: Floats = candidates[np.argmax(utilities, axis=0), np.arange(price.size)]
    return best


def certify_participation(
    game: ParticipationGame, found: Participation, budget: float | None = None
) -> _ParticipationCertificate:
    """Return how far prices are from an equilibrium, by an independent method."""
    q, prices = found.probabilities, found.prices
    best = _utility(game, prices, best_participation(game, prices))
    spent = total(prices * q)
    noise = game.noise(q)
    bound = _dual(game, 1 / found.exchange, spent) if found.exchange > 0 else noise
    return _ParticipationCertificate(
        follower_gap=float(np.max(best - _utility(game, prices, q), initial=0.0)),
        leader_gap=(noise - bound) / total(game.noises),
        overspent=-math.inf if budget is None else spent - budget,
    )


def _utility(game: ParticipationGame, prices: Floats, probabilities: Floats) -> Floats:
    """Return P q - c q² - κ d (1 - q) / q, the part of the utility that is a client's own."""
    q = probabilities
    own: Floats = prices * q - game.costs * np.square(q) - game.value * game.noises * (1 - q) / q
    return own


def _dual(game: ParticipationGame, multiplier: float, budget: float) -> float:
    """Return min_x Σ d (x - 1) + λ (Σ 2 c / x² - κ d x - B), below any noise within the budget."""
    slope = game.noises * (1 - multiplier * game.value)
    with np.errstate(divide="ignore", invalid="ignore"):
        cube = np.where(slope > 0, 4 * multiplier * game.costs / slope, np.inf)
    x = np.clip(power(cube, 1 / 3), 1.0, 1 / game.least)
    ends = np.stack([np.ones(x.shape), np.full(x.shape, 1 / game.least), x])
    values = slope * ends + 2 * multiplier * game.costs / np.square(ends)
    return total(np.min(values, axis=0) - game.noises) - multiplier * budget

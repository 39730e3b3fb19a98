"""The game of one round: its clients, their costs, and the rules."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import GameError
from flamma.io import quoted
from flamma.numerics import totals
from flamma.types import Floats

Epochs = NDArray[np.int64] | NDArray[np.float64]
"""Local epochs: integers where epochs are whole numbers."""

FOLLOWER_TIE = 1e-12
"""Relative distance below which a client counts as exactly indifferent.

Decimal inputs such as a contribution of 0.3 and a cost of 0.1 are not exact in binary; without
this margin the rule "ties go upward" would depend on the last bit of a product.
"""

MAX_EPOCHS = 1_000_000
"""Upper bound of local epochs in a round; larger claims and bounds are refused."""

SMALLEST_COST, LARGEST_COST = 1e-100, 1e100
"""The bounds of a cost, so that no utility leaves the range of double precision."""

_LARGEST_PRICE = 1e100
"""Upper bound of price times round, for the same reason."""


@dataclass(frozen=True, eq=False)
class Game:
    """One round of the game, checked on construction and immutable afterwards.

    Parameters
    ----------
    contributions : array_like
        ω, one per client, each in [0, 1].
    costs : array_like
        c, one per client, each positive: τ local epochs cost c τ².
    round : int
        t ≥ 1; the server's price of influence grows with it.
    price : float
        λ ≥ 0, the weight of that price. The paper has 1.
    epoch_bounds : (float, float)
        The fewest and the most local epochs of a client that takes part. The upper one may be
        infinite.
    whole_epochs : bool
        Whether epochs are whole numbers.
    decay_bounds : (float, float)
        The range of the decay factor γ, inside [0, 1].

    Raises
    ------
    GameError
        If the numbers do not describe a game.

    Examples
    --------
    >>> Game(contributions=[0.9, 0.5], costs=[0.1, 0.2], round=3).clients
    2
    >>> Game(contributions=[0.9], costs=[-1.0])
    Traceback (most recent call last):
    ...
    flamma.errors.GameError: costs must be positive, but client 0 has -1.
    """

    contributions: Floats
    costs: Floats
    round: int
    price: float
    epoch_bounds: tuple[float, float]
    whole_epochs: bool
    decay_bounds: tuple[float, float]

    def __init__(
        self,
        contributions: ArrayLike,
        costs: ArrayLike,
        round: int = 1,
        price: float = 1.0,
        epoch_bounds: tuple[float, float] = (1, 10),
        whole_epochs: bool = True,
        decay_bounds: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        omega = _vector("contributions", contributions)
        cost = _vector("costs", costs)
        if omega.size != cost.size:
            raise GameError(
                f"contributions and costs must have the same length "
                f"(got {omega.size} and {cost.size})."
            )
        if omega.size == 0:
            raise GameError("a game needs at least one client, but none was given.")
        _require_each("contributions must lie in [0, 1]", omega, (omega >= 0) & (omega <= 1))
        _require_each("costs must be positive", cost, cost > 0)
        inside = (cost >= SMALLEST_COST) & (cost <= LARGEST_COST)
        _require_each(f"costs must lie in {SMALLEST_COST:g}..{LARGEST_COST:g}", cost, inside)
        bounds = check_epoch_bounds(epoch_bounds, whole_epochs)
        if whole_epochs and min(bounds[1], float(np.max(omega / cost)) / 2) > 2**53:
            raise GameError(
                "some cost is too small to count whole epochs: set an upper epoch bound "
                "or play with continuous epochs."
            )
        if not check_price(price) * check_round(round) <= _LARGEST_PRICE:
            raise GameError(
                f"price times round must be at most {_LARGEST_PRICE:g}: use a smaller price."
            )
        low, high = _pair("decay_bounds", decay_bounds)
        if not 0 <= low <= high <= 1:
            raise GameError(
                f"decay_bounds must satisfy 0 <= lower <= upper <= 1, "
                f"but they are {low:g} and {high:g}."
            )
        checked = (omega, cost, check_round(round), check_price(price), bounds)
        values = (*checked, bool(whole_epochs), (low, high))
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.contributions.size)

    @property
    def influence_price(self) -> float:
        """λ t, the server's cost of one unit of squared influence this round."""
        return self.price * self.round

    def replace(self, **changes: Any) -> Game:
        """Return this game with some of its fields changed, checked again."""
        unknown = sorted(changes.keys() - {field.name for field in fields(self)})
        if unknown:
            raise GameError(f"a game has no {unknown[0]!r} to change.")
        return replace(self, **changes)


def check_epoch_bounds(bounds: tuple[float, float], whole_epochs: bool) -> tuple[float, float]:
    """Return the epoch bounds as two floats, or raise a GameError."""
    low, high = _pair("epoch_bounds", bounds)
    if math.isnan(low) or math.isnan(high) or math.isinf(low):
        raise GameError(f"epoch_bounds must be two numbers, not {low:g} and {high:g}.")
    if low < 0 or high <= 0 or low > high:
        raise GameError(
            f"epoch_bounds must satisfy 0 <= lower <= upper and upper > 0, "
            f"but they are {low:g} and {high:g}."
        )
    if low > MAX_EPOCHS or MAX_EPOCHS < high < math.inf:
        raise GameError(
            f"epoch_bounds must be at most {MAX_EPOCHS:,}, but they are {low:g} and {high:g}; "
            f"the upper one may also be infinite."
        )
    if whole_epochs and not (low.is_integer() and (high.is_integer() or math.isinf(high))):
        raise GameError(
            f"whole epochs need whole bounds, but epoch_bounds are {low:g} and {high:g}; "
            f"round them or play with continuous epochs."
        )
    return low, high


def check_price(price: float) -> float:
    """Return the price as a float, or raise a GameError."""
    value = check_number("price", price)
    if not (math.isfinite(value) and value >= 0):
        raise GameError(f"price must be a finite number of at least 0, not {value:g}.")
    return value


def check_decay_factor(decay_factor: ArrayLike) -> Floats:
    """Return decay factors as an array, or raise a GameError."""
    try:
        gamma = np.asarray(decay_factor, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        gamma = np.array(np.nan)
    if not np.all((gamma >= 0) & (gamma <= 1)):  # false for NaN too
        raise GameError("a decay factor must be a number in [0, 1].")
    return gamma


def check_epochs(game: Game, local_epochs: ArrayLike) -> Floats:
    """Return local epochs as an array with one column per client, or raise a GameError."""
    try:
        tau = np.asarray(local_epochs, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise GameError("local epochs must be numbers, one per client.") from None
    if tau.shape[-1:] != game.costs.shape:
        raise GameError(f"there must be one number of epochs per client ({game.clients}).")
    return tau


def check_round(number: int, name: str = "round") -> int:
    """Return the round as an int, or raise a GameError."""
    try:
        value = operator.index(number)
    except TypeError:
        raise GameError(f"{name} must be a whole number, not {quoted(number)}.") from None
    if value < 1:
        raise GameError(f"{name} must be at least 1, not {quoted(value)}.")
    if value >= 2**53:
        raise GameError(f"{name} must be below 2^53, not {quoted(value)}.")
    return value


def _pair(name: str, bounds: Iterable[float]) -> tuple[float, float]:
    try:
        low, high = bounds
    except (TypeError, ValueError, OverflowError):
        raise GameError(f"{name} must be a pair (lower, upper), not {quoted(bounds)}.") from None
    return check_number(name, low), check_number(name, high)


def check_number(name: str, value: float) -> float:
    """Return a number as a float, or raise a GameError."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise GameError(f"{name} must be a number, not {quoted(value)}.") from None


def _vector(name: str, values: ArrayLike) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise GameError(f"{name} must be a list of numbers, one per client.") from None
    if array.ndim != 1:
        raise GameError(f"{name} must be one list of numbers, not {array.ndim}-dimensional.")
    _require_each(f"{name} must be finite numbers", array, np.isfinite(array))
    array.setflags(write=False)
    return array


def _require_each(rule: str, values: Floats, holds: NDArray[np.bool_]) -> None:
    if not holds.all():
        first = int(np.argmin(holds))
        raise GameError(f"{rule}, but client {first} has {values[first]:g}.")


# The utilities of the server and the clients (section IV-B).


def client_utility(
    game: Game, decay_factor: ArrayLike, local_epochs: ArrayLike, *, one_each: bool = False
) -> Floats:
    """Return the utility of each client, U_i = γ ω_i τ_i - c_i τ_i² (Eq. 1).

    Parameters
    ----------
    game : Game
    decay_factor : float or array_like of shape (...,)
        γ; several at once give one row of utilities each.
    local_epochs : array_like of shape (..., clients)
        τ. An abstaining client has 0 epochs and so a utility of 0.
    one_each : bool
        Whether there is one decay factor per client, in the last dimension.

    Examples
    --------
    >>> client_utility(Game([0.8, 0.5], [0.1, 0.1]), 1.0, [4, 2])
    array([1.6, 0.6])
    """
    gamma = _decay_columns(game, decay_factor, one_each)
    tau = check_epochs(game, local_epochs)
    utility: Floats = tau * (gamma * game.contributions - game.costs * tau)
    return utility


def server_utility(
    game: Game, decay_factor: ArrayLike, local_epochs: ArrayLike, *, one_each: bool = False
) -> np.float64 | Floats:
    """Return the utility of the server, U_s = Σ γ (ω_i + τ_i) - λ t γ² over the participants.

    With one decay factor each it is Σ γ_i (ω_i + τ_i) - λ t mean(γ_i²): every client bears an
    equal part of the price, so equal decay factors give the same as a common one.

    Parameters
    ----------
    game : Game
    decay_factor : float or array_like of shape (...,)
        γ; several at once give one utility each.
    local_epochs : array_like of shape (..., clients)
        τ. Where the lower epoch bound is positive, 0 epochs mean that a client abstains.
    one_each : bool
        Whether there is one decay factor per client, in the last dimension.

    Examples
    --------
    >>> float(server_utility(Game([0.8, 0.5], [0.1, 0.1], round=2), 0.5, [4, 0]))
    1.9
    """
    tau = check_epochs(game, local_epochs)
    if one_each:
        gammas = _decay_columns(game, decay_factor, one_each)
        gain = np.where(takes_part(game, tau), gammas * (game.contributions + tau), 0.0)
        influence = totals(np.square(gammas)) / game.clients
        each: np.float64 | Floats = totals(gain) - game.influence_price * influence
        return each
    gamma = check_decay_factor(decay_factor)
    work = totals(np.where(takes_part(game, tau), game.contributions + tau, 0.0))
    utility: np.float64 | Floats = gamma * work - game.influence_price * np.square(gamma)
    return utility


def _decay_columns(game: Game, decay_factor: ArrayLike, one_each: bool) -> Floats:
    """Return decay factors with one column per client, or one column for all clients."""
    gamma = check_decay_factor(decay_factor)
    if not one_each:
        return gamma[..., None]
    if gamma.shape[-1:] != game.costs.shape:
        raise GameError(f"there must be one decay factor per client ({game.clients}).")
    return gamma


def takes_part(game: Game, local_epochs: Epochs) -> NDArray[np.bool_]:
    """Return which clients take part: all, or with a positive lower bound those that work."""
    return np.asarray((local_epochs > 0) | (game.epoch_bounds[0] == 0))


# The clients' best responses: the local epochs that are best for each of them (section IV-C).


def best_response(game: Game, decay_factor: ArrayLike, *, one_each: bool = False) -> Epochs:
    """Return the local epochs that maximise each client's utility.

    Without bounds that is τ* = γ ω / (2 c). The utility is a parabola in τ, so within bounds the
    best is τ* clipped to them, and among whole numbers the nearest one, ties upward. A client
    whose best utility is negative abstains with 0 epochs; that takes a positive lower bound
    τ_min with γ ω < c τ_min. A client that is exactly indifferent takes part.

    Parameters
    ----------
    game : Game
    decay_factor : float or array_like of shape (...,)
        γ; several at once give one row of epochs each.
    one_each : bool
        Whether there is one decay factor per client, in the last dimension.

    Returns
    -------
    ndarray of shape (..., clients)
        Integers if the game has whole epochs, else floats.

    Examples
    --------
    >>> game = Game(contributions=[0.9, 0.3, 0.1], costs=[0.1, 0.1, 0.2])
    >>> best_response(game, 1.0)  # 4.5 and 1.5 are ties; the third would lose by one epoch
    array([5, 2, 0])
    >>> best_response(game.replace(whole_epochs=False), 1.0)
    array([4.5, 1.5, 0. ])
    """
    low, high = game.epoch_bounds
    pull = _decay_columns(game, decay_factor, one_each) * game.contributions
    epochs = pull / (2 * game.costs)
    if game.whole_epochs:
        epochs = np.floor(epochs * (1 + FOLLOWER_TIE) + 0.5)
    epochs = np.clip(epochs, low, high)
    if low > 0:
        epochs = np.where(pull * (1 + FOLLOWER_TIE) >= game.costs * low, epochs, 0.0)
    return epochs.astype(np.int64) if game.whole_epochs else epochs

"""The decay factor over the rounds: the price that sets when it falls, and two fixed rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from flamma.errors import GameError
from flamma.game.equilibrium import solve
from flamma.game.model import (
    FOLLOWER_TIE,
    Game,
    check_decay_factor,
    check_number,
    check_price,
    check_round,
)
from flamma.game.pieces import pieces
from flamma.game.response import best_response
from flamma.game.utilities import server_utility


def price_for(
    decay_start: float,
    rounds: int,
    contributions: ArrayLike | Game,
    costs: ArrayLike | None = None,
    epoch_bounds: tuple[float, float] = (0, math.inf),
    whole_epochs: bool = False,
    decay_bounds: tuple[float, float] = (0.0, 1.0),
) -> float:
    """Return the price λ at which γ stays at its upper bound until round t0 and falls after it.

    With continuous epochs and no epoch bounds, the default, that is λ = (A + B) / (2 t0). With
    bounds or whole epochs it is found exactly too: γ_max stays optimal as long as
    λ t ≤ min over γ of (γ_max S(γ_max) - γ S(γ)) / (γ_max² - γ²), where S is what the clients
    offer, Σ (ω_i + τ_i*). The minimum of this ratio is found by Dinkelbach's iteration, each
    step of which is one exact :func:`solve`.

    Parameters
    ----------
    decay_start : float
        t0 as a share of the rounds, in (0, 1].
    rounds : int
        How many rounds there are; t0 = decay_start · rounds.
    contributions : Game or array_like
        A game, whose clients and rules are taken (its round and price are not), or ω.
    costs, epoch_bounds, whole_epochs, decay_bounds
        As of :class:`Game`, where no game is given; the default rules are the closed form's.

    Examples
    --------
    >>> price_for(0.5, 100, [0.8, 0.4], [0.1, 0.1])
    0.132
    >>> game = Game([0.8, 0.4], [0.1, 0.1])  # whole epochs, 1 to 10
    >>> game = game.replace(price=price_for(0.5, 100, game))
    >>> [solve(game.replace(round=t)).decay_factor < 1 for t in (49, 50, 51)]
    [False, False, True]
    """
    share = check_number("decay_start", decay_start)
    if not 0 < share <= 1:
        raise GameError(f"decay_start must lie in (0, 1], not {share:g}.")
    if isinstance(contributions, Game):
        game = contributions.replace(round=1, price=0.0)
    elif costs is None:
        raise GameError("price_for needs a game, or contributions and costs.")
    else:
        game = Game(contributions, costs, 1, 0.0, epoch_bounds, whole_epochs, decay_bounds)
    return largest_price(_FreeGame(game)) / (share * check_round(rounds, "rounds"))


def constant_decay(decay_factor: float) -> float:
    """Return the decay factor that is given, checked: the simplest schedule.

    Examples
    --------
    >>> constant_decay(0.9)
    0.9
    """
    return float(check_decay_factor(check_number("decay_factor", decay_factor)))


def harmonic_decay(round: int, mean_epochs: float, price: float = 1.0) -> float:  # noqa: A002
    """Return γ = 1 / (1 + λ (t + τ̄)), which falls with the rounds and with the work done.

    Parameters
    ----------
    round : int
        t ≥ 1.
    mean_epochs : float
        τ̄, the mean local epochs of the clients that took part last.
    price : float
        λ ≥ 0.

    Examples
    --------
    >>> harmonic_decay(round=4, mean_epochs=5.0, price=1.0)
    0.1
    """
    number = check_round(round)
    epochs = check_number("mean_epochs", mean_epochs)
    if not (math.isfinite(epochs) and epochs >= 0):
        raise GameError(f"mean_epochs must be a finite number of at least 0, not {epochs:g}.")
    return 1 / (1 + check_price(price) * (number + epochs))


class Offers(Protocol):
    """What the clients offer, S(γ) = Σ (ω_i + τ_i*), as the search for a price needs it."""

    @property
    def decay_bounds(self) -> tuple[float, float]:
        """The range of γ."""

    def value(self, gamma: float) -> float:
        """Return γ S(γ)."""

    def slope_below_top(self, top: float) -> float:
        """Return the slope of γ S(γ) just below γ_max; infinite if it jumps there to ``top``."""

    def best(self, influence_price: float) -> float:
        """Return the γ that maximises γ S(γ) - λ t γ²."""


def largest_price(offers: Offers) -> float:
    """Return the largest λ (at t = 1) at which the upper decay bound is optimal."""
    gamma_min, gamma_max = offers.decay_bounds
    if gamma_min == gamma_max:
        raise GameError("decay_bounds leave the decay factor no room: there is no price to find.")
    top = offers.value(gamma_max)
    if top == 0:
        raise GameError("no client takes part at any decay factor: there is no price to find.")

    def ratio(gamma: float) -> float:
        return (top - offers.value(gamma)) / (gamma_max * gamma_max - gamma * gamma)

    price = min(offers.slope_below_top(top) / (2 * gamma_max), ratio(gamma_min))
    steps = 0
    while (gamma := offers.best(price)) < gamma_max:
        # Slightly lower, so that rounding does not make another γ better at t0 itself. It takes a
        # few steps, unless contributions are below 1e-300: then steps must grow to have an effect.
        slightly = min(1.0, 1e-13 * 2.0 ** max(0, steps - 100))
        price = min(ratio(gamma), price * (1 - slightly))
        steps += 1
    return price


@dataclass(frozen=True)
class _FreeGame:
    """A game at price 0 and round 1, in which the server's utility is γ S(γ)."""

    game: Game

    @property
    def decay_bounds(self) -> tuple[float, float]:
        return self.game.decay_bounds

    def value(self, gamma: float) -> float:
        return float(server_utility(self.game, gamma, best_response(self.game, gamma)))

    def slope_below_top(self, top: float) -> float:
        gamma_max = self.game.decay_bounds[1]
        piece = pieces(self.game)
        below = np.flatnonzero(piece.start < gamma_max * (1 - 2 * FOLLOWER_TIE))
        if not below.size:  # the lower bound is that close
            return math.inf
        last = int(below[-1])
        return slope_at_top(float(piece.linear[last]), float(piece.quadratic[last]), gamma_max, top)

    def best(self, influence_price: float) -> float:
        return solve(self.game.replace(price=influence_price)).decay_factor


def slope_at_top(linear: float, quadratic: float, gamma_max: float, top: float) -> float:
    """Return the slope at γ_max of the last piece; infinite if γ S(γ) jumps from it to ``top``."""
    jumps = top > gamma_max * (linear + quadratic * gamma_max) * (1 + 1e-9)
    return math.inf if jumps else linear + 2 * quadratic * gamma_max

"""Inspections: how often, and with which fine, so that cheating does not pay."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from flamma.errors import GameError
from flamma.game.model import Game, Vector
from flamma.game.response import best_response
from flamma.game.utilities import client_utility


def smallest_inspection_rate(gain: ArrayLike, fine: ArrayLike) -> Vector:
    """Return the smallest probability of an inspection at which cheating does not pay.

    A client that cheats gains g if nobody looks, and loses f if somebody does. With inspections
    of probability a it expects (1 - a) g - a f, which is at most 0 from a = g / (f + g) on.

    Parameters
    ----------
    gain : array_like
        g, what cheating is worth against being honest; where that is 0 or less, the rate is 0.
    fine : array_like
        f ≥ 0, what a client that is caught loses against being honest. With 0, only certain
        inspection (a rate of 1) deters.

    Raises
    ------
    GameError
        If a fine is negative, or something is not a number.

    Examples
    --------
    >>> smallest_inspection_rate([0.0, 1.0, 1.0, 3.0], [1.0, 1.0, 0.0, 1.0])
    array([0.  , 0.5 , 1.  , 0.75])
    """
    gained, lost = np.broadcast_arrays(_numbers(gain, "a gain"), _numbers(fine, "a fine"))
    if (lost < 0).any():
        raise GameError("a fine must not be negative.")
    if (np.isinf(gained) & (gained > 0) & np.isinf(lost)).any():
        raise GameError("no rate follows from a gain and a fine that are both infinite.")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # Not g / (f + g), whose sum may leave the range of floats.
        rate = 1 / (1 + lost / gained)
    found: Vector = np.where(gained > 0, rate, 0.0)
    return found


def deterring_fine(gain: ArrayLike, rate: ArrayLike) -> Vector:
    """Return the smallest loss on being caught at which cheating does not pay, g (1 - a) / a.

    Parameters
    ----------
    gain : array_like
        g, what cheating is worth against being honest; where that is 0 or less, no fine is needed.
    rate : array_like
        a, the probability of an inspection. No fine deters where it is 0, so that is infinite.

    Raises
    ------
    GameError
        If a rate is not a probability, or something is not a number.

    Examples
    --------
    >>> deterring_fine([1.0, 1.0, 1.0, -1.0], [0.5, 0.0, 1.0, 0.0])
    array([ 1., inf,  0.,  0.])
    """
    gained, looked = np.broadcast_arrays(_numbers(gain, "a gain"), _numbers(rate, "a rate"))
    if ((looked < 0) | (looked > 1)).any():
        raise GameError("a rate of inspection must lie in [0, 1].")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        fine = gained * ((1 - looked) / looked)
    found: Vector = np.where((gained > 0) & (looked < 1), fine, 0.0)
    return found


def free_riding(game: Game, decay_factors: ArrayLike) -> tuple[Vector, Vector]:
    """Return what each client gains by claiming the most epochs without any work, and its utility.

    Whoever is believed is paid γ ω τ for what it claims, so the best claim is the upper bound of
    the epochs. The utility is that of honest play, the client's best response; the gain is the
    payment less that utility. It contains the cost that is saved, c τ² for τ epochs, and the
    payment for epochs that nobody would do.

    Parameters
    ----------
    game : Game
        With the clients' true costs.
    decay_factors : array_like
        γ, one for all clients or one for each.

    Returns
    -------
    gain, honest : ndarray of shape (clients,)
        Both in units of utility. The gain is infinite where the epochs have no upper bound.

    Examples
    --------
    >>> gain, honest = free_riding(Game([0.8], [0.1]), 1.0)
    >>> gain, honest  # 10 epochs are paid 8; honest are 4 epochs, paid 3.2 at a cost of 1.6
    (array([6.4]), array([1.6]))
    """
    pull = np.asarray(decay_factors, dtype=np.float64) * game.contributions
    own = game.replace(contributions=pull)  # a rate of pay is all that a client sees
    honest: Vector = client_utility(own, 1.0, best_response(own, 1.0))
    with np.errstate(invalid="ignore"):
        most = np.where(pull > 0, pull * game.epoch_bounds[1], 0.0)
    gain: Vector = most - honest
    return gain, honest


def _numbers(values: ArrayLike, what: str) -> Vector:
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GameError(f"{what} must be a number.") from error
    if np.isnan(found).any():
        raise GameError(f"{what} must be a number, not NaN.")
    return found

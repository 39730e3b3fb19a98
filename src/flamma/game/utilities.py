"""The utilities of the server and the clients (section IV-B)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.errors import GameError
from flamma.game.model import Game, Vector, check_decay_factor, check_epochs
from flamma.numerics import totals


def client_utility(
    game: Game, decay_factor: ArrayLike, local_epochs: ArrayLike, *, one_each: bool = False
) -> Vector:
    """Return the utility of each client, U_i = γ ω_i τ_i - c_i τ_i² (Eq. 1).

    Parameters
    ----------
    game : Game
    decay_factor : float or array_like of shape (...,)
        γ; several at once give one row of utilities each.
    local_epochs : array_like of shape (..., clients)
        τ. An abstaining client has 0 epochs and so a utility of 0.
    one_each : bool
        Whether the decay factors are one per client, in the last dimension, instead of one for
        all.

    Examples
    --------
    >>> client_utility(Game([0.8, 0.5], [0.1, 0.1]), 1.0, [4, 2])
    array([1.6, 0.6])
    """
    gamma = decay_columns(game, decay_factor, one_each)
    tau = check_epochs(game, local_epochs)
    utility: Vector = tau * (gamma * game.contributions - game.costs * tau)
    return utility


def server_utility(
    game: Game, decay_factor: ArrayLike, local_epochs: ArrayLike, *, one_each: bool = False
) -> np.float64 | Vector:
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
        Whether the decay factors are one per client, in the last dimension, instead of one for
        all.

    Examples
    --------
    >>> float(server_utility(Game([0.8, 0.5], [0.1, 0.1], round=2), 0.5, [4, 0]))
    1.9
    """
    tau = check_epochs(game, local_epochs)
    if one_each:
        gammas = decay_columns(game, decay_factor, one_each)
        gain = np.where(takes_part(game, tau), gammas * (game.contributions + tau), 0.0)
        influence = totals(np.square(gammas)) / game.clients
        each: np.float64 | Vector = totals(gain) - game.influence_price * influence
        return each
    gamma = check_decay_factor(decay_factor)
    work = totals(np.where(takes_part(game, tau), game.contributions + tau, 0.0))
    utility: np.float64 | Vector = gamma * work - game.influence_price * np.square(gamma)
    return utility


def decay_columns(game: Game, decay_factor: ArrayLike, one_each: bool) -> Vector:
    """Return decay factors with one column per client, or one column for all clients."""
    gamma = check_decay_factor(decay_factor)
    if not one_each:
        return gamma[..., None]
    if gamma.shape[-1:] != game.costs.shape:
        raise GameError(f"there must be one decay factor per client ({game.clients}).")
    return gamma


def takes_part(game: Game, local_epochs: Vector) -> NDArray[np.bool_]:
    """Return which clients take part: with a positive lower bound those that work, else all."""
    return np.asarray((local_epochs > 0) | (game.epoch_bounds[0] == 0))

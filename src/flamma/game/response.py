"""The clients' best responses: the local epochs that are best for each of them (section IV-C)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flamma.game.model import FOLLOWER_TIE, Game
from flamma.game.utilities import decay_columns


def best_response(game: Game, decay_factor: ArrayLike, *, one_each: bool = False) -> NDArray[Any]:
    """Return the local epochs that maximise each client's own utility.

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
        Whether the decay factors are one per client, in the last dimension, instead of one for
        all.

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
    pull = decay_columns(game, decay_factor, one_each) * game.contributions
    epochs = pull / (2 * game.costs)
    if game.whole_epochs:
        epochs = np.floor(epochs * (1 + FOLLOWER_TIE) + 0.5)
    epochs = np.clip(epochs, low, high)
    if low > 0:
        epochs = np.where(pull * (1 + FOLLOWER_TIE) >= game.costs * low, epochs, 0.0)
    return epochs.astype(np.int64) if game.whole_epochs else epochs

"""The exact Stackelberg equilibrium: the leader's best decay factor over all pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.game.model import Game, Vector
from flamma.game.pieces import Pieces, pieces
from flamma.game.response import best_response
from flamma.game.utilities import client_utility, server_utility, takes_part

LEADER_TIE = 1e-14
"""Relative difference below which two decay factors count as equally good for the leader."""


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """The moves of the server and of the clients, and their utilities.

    Attributes
    ----------
    decay_factor : float
        γ*, the leader's move.
    local_epochs : ndarray
        τ*(γ*), the clients' best responses; 0 for a client that abstains.
    abstains : ndarray of bool
        Which clients abstain, because every allowed number of epochs costs more than it brings.
    client_utilities : ndarray
        U_i of every client.
    server_utility : float
        U_s.
    """

    decay_factor: float
    local_epochs: NDArray[Any]
    abstains: NDArray[np.bool_]
    client_utilities: Vector
    server_utility: float


@np.errstate(over="ignore")  # a ratio may be infinite; it is clipped to the bounds
def solve(game: Game) -> Equilibrium:
    """Return the strong Stackelberg equilibrium: ties go the leader's way, then to the larger γ.

    The leader's utility is piecewise quadratic in γ and jumps only upward, so its maximum is the
    vertex or an end point of some piece. Sorting the breakpoints gives all pieces at once:
    O(n log n), no iteration, no tolerance on γ.

    Parameters
    ----------
    game : Game

    Returns
    -------
    Equilibrium

    Examples
    --------
    >>> game = Game([0.8], [0.1], round=10, epoch_bounds=(0, 100), whole_epochs=False)
    >>> round(solve(game).decay_factor, 12)  # ω c / (2 t c - ω), the printed one-client formula
    0.066666666667
    """
    gamma = _best_decay_factor(game)
    return play(game, gamma)


def play(game: Game, decay_factor: float) -> Equilibrium:
    """Return the play in which the leader plays this decay factor and the clients respond."""
    epochs = best_response(game, decay_factor)
    return Equilibrium(
        decay_factor=decay_factor,
        local_epochs=epochs,
        abstains=~takes_part(game, epochs),
        client_utilities=client_utility(game, decay_factor, epochs),
        server_utility=float(server_utility(game, decay_factor, epochs)),
    )


def _best_decay_factor(game: Game) -> float:
    return best_of_pieces(pieces(game), game.decay_bounds[1])


def best_of_pieces(piece: Pieces, gamma_max: float) -> float:
    """Return the decay factor of the largest value; the last piece ends at γ_max."""
    # A piece that is not strictly concave rises: its coefficients are then both at least zero.
    gamma = piece.end.copy()
    np.divide(piece.linear, -2 * piece.quadratic, out=gamma, where=piece.quadratic < 0)
    np.clip(gamma, piece.start, piece.end, out=gamma)
    value = gamma * (piece.linear + piece.quadratic * gamma)
    best = int(np.argmax(value))
    scale = gamma[best] * (piece.linear[best] + abs(piece.quadratic[best]) * gamma[best])
    enough = value[best] - LEADER_TIE * scale
    if gamma_max * (piece.linear[-1] + piece.quadratic[-1] * gamma_max) >= enough:
        return gamma_max
    return float(np.max(gamma[value >= enough]))

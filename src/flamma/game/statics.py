"""Comparative statics: how the equilibrium changes with one parameter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flamma.errors import GameError
from flamma.game.equilibrium import solve
from flamma.game.model import Game, Vector

GAME_PARAMETERS = ("round", "price")
COST_SCALE = "cost_scale"
"""The parameter that multiplies the costs of all clients."""
CLIENT_PARAMETERS = {"cost": "costs", "contribution": "contributions"}


@dataclass(frozen=True, eq=False)
class Statics:
    """The equilibria, one row per value of the parameter.

    Attributes
    ----------
    parameter : str
        The name of the parameter.
    values : ndarray of shape (values,)
    decay_factors, server_utilities : ndarray of shape (values,)
    local_epochs, abstains, client_utilities : ndarray of shape (values, clients)
    """

    parameter: str
    values: Vector
    decay_factors: Vector
    server_utilities: Vector
    local_epochs: NDArray[Any]
    abstains: NDArray[np.bool_]
    client_utilities: Vector


def comparative_statics(
    game: Game, parameter: str, values: Iterable[float], client: int | None = None
) -> Statics:
    """Solve the game once for every value of one parameter.

    Parameters
    ----------
    game : Game
    parameter : {"round", "price", "cost_scale", "cost", "contribution"}
        ``cost_scale`` is what the costs of all clients are multiplied by.
    values : iterable
        The values of the parameter.
    client : int, optional
        Whose cost or contribution it is.

    Examples
    --------
    >>> game = Game([0.9, 0.8], [0.1, 0.1], round=4)
    >>> comparative_statics(game, "cost", [0.05, 0.1, 0.2], client=0).local_epochs
    array([[9, 4],
           [5, 4],
           [2, 4]])
    """
    chosen = list(values)
    equilibria = [solve(_varied(game, parameter, value, client)) for value in chosen]
    if not equilibria:
        raise GameError("comparative statics need at least one value to vary over.")
    return Statics(
        parameter=parameter,
        values=np.array(chosen, dtype=np.float64),
        decay_factors=np.array([e.decay_factor for e in equilibria]),
        server_utilities=np.array([e.server_utility for e in equilibria]),
        local_epochs=np.stack([e.local_epochs for e in equilibria]),
        abstains=np.stack([e.abstains for e in equilibria]),
        client_utilities=np.stack([e.client_utilities for e in equilibria]),
    )


def _varied(game: Game, parameter: str, value: float, client: int | None) -> Game:
    if parameter in GAME_PARAMETERS:
        return game.replace(**{parameter: value})
    if parameter == COST_SCALE:
        return game.replace(costs=game.costs * value)
    if parameter not in CLIENT_PARAMETERS:
        known = ", ".join((*GAME_PARAMETERS, COST_SCALE, *CLIENT_PARAMETERS))
        raise GameError(f"cannot vary {parameter!r}: choose one of {known}.")
    if client is None or not 0 <= client < game.clients:
        raise GameError(f"say whose {parameter} varies: client=0..{game.clients - 1}.")
    field = CLIENT_PARAMETERS[parameter]
    changed = getattr(game, field).copy()
    changed[client] = value
    return game.replace(**{field: changed})

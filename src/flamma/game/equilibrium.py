"""The exact Stackelberg equilibrium: the leader's best decay factor over all pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flamma.errors import GameError
from flamma.game.model import (
    FOLLOWER_TIE,
    Epochs,
    Game,
    best_response,
    client_utility,
    server_utility,
    takes_part,
)
from flamma.numerics import total
from flamma.types import Floats

# The leader's utility as a function of the decay factor: piecewise quadratic, with jumps.
#
# With τ*(γ) put in, U_s(γ) = linear·γ + quadratic·γ² between two neighbouring breakpoints. A
# breakpoint is a decay factor at which some client enters the game, leaves its lower epoch bound,
# reaches its upper one, or takes one whole epoch more. All of them are multiples of c_i / ω_i, so
# the clients are sorted by that ratio once, and the rest is a merge of sorted runs.


@dataclass(frozen=True)
class Pieces:
    """U_s(γ) = linear γ + quadratic γ² for start ≤ γ < end (the last piece includes its end).

    Where the utility jumps it jumps upward, and the value at the jump belongs to the piece that
    starts there. Pieces are ordered; some may have no length.
    """

    start: Floats
    end: Floats
    linear: Floats
    quadratic: Floats


@np.errstate(over="ignore")  # a ratio may be infinite; it is clipped to the bounds
def utility_pieces(game: Game) -> Pieces:
    """Return the pieces of the leader's utility over the game's range of decay factors."""
    gamma_min, gamma_max = game.decay_bounds
    # A client with contribution 0 never works and adds nothing to the server's sum.
    active = game.contributions > 0
    omega = game.contributions[active]
    ratio = game.costs[active] / omega
    order = _stable_order(ratio)
    ratio, omega = ratio[order], omega[order]

    changes = _whole_changes if game.whole_epochs else _continuous_changes
    position, linear_step, quadratic_step, linear, quadratic = changes(game, ratio, omega)

    order = np.argsort(position, kind="stable")  # merges sorted runs
    position = np.clip(position[order], gamma_min, gamma_max)
    # The linear part is summed from the bottom, where it is zero until a client enters. The
    # quadratic part is summed from the top: at γ only clients with c/ω >= γ/(2 τ_max) have been
    # added, so the huge 1/c of a nearly free client does not cancel where it does not matter.
    upward = np.cumsum(np.concatenate(([linear], linear_step[order])))
    downward = np.cumsum(np.concatenate(([quadratic], -quadratic_step[order][::-1])))[::-1]
    return Pieces(
        start=np.concatenate(([gamma_min], position)),
        end=np.concatenate((position, [gamma_max])),
        linear=upward,
        quadratic=downward - game.influence_price,
    )


_Changes = tuple[Floats, Floats, Floats, float, float]
"""Breakpoints, steps of both coefficients, the linear one at γ_min, the quadratic at γ_max."""


def _continuous_changes(game: Game, ratio: Floats, omega: Floats) -> _Changes:
    low, high = game.epoch_bounds
    enters = _reached(game, ratio, low)
    leaves_low = _reached(game, ratio, 2 * low)
    reaches_high = _reached(game, ratio, 2 * high)
    slope = 0.5 / ratio  # of τ* in γ
    runs = (
        (low * ratio[enters], omega[enters] + low, np.zeros(_length(enters))),
        (2 * low * ratio[leaves_low], np.full(_length(leaves_low), -low), slope[leaves_low]),
        (
            2 * high * ratio[reaches_high],
            np.full(_length(reaches_high), high),
            -slope[reaches_high],
        ),
    )
    position, linear_step, quadratic_step = (
        np.concatenate([run[part] for run in runs]) for part in range(3)
    )
    linear = total(omega[: enters.start]) + low * (enters.start - leaves_low.start)
    if reaches_high.start:
        linear += high * reaches_high.start
    quadratic = total(slope[reaches_high.stop : leaves_low.stop])
    return position, linear_step, quadratic_step, linear, quadratic


def _whole_changes(game: Game, ratio: Floats, omega: Floats) -> _Changes:
    low, high = game.epoch_bounds
    enters = _reached(game, ratio, low)
    players = ratio[: enters.stop]
    first, last = (
        np.clip(np.floor(gamma / (2 * players) * (1 + FOLLOWER_TIE) + 0.5), low, high)
        for gamma in game.decay_bounds
    )
    steps = (last - first).astype(np.int64)
    count = int(np.sum(steps))
    if count > 100_000_000:  # which bounds the memory
        raise GameError(
            f"the clients' responses have {count} steps, too many to list: "
            f"lower the upper epoch bound or play with continuous epochs."
        )
    # From τ to τ+1 epochs at γ = (2τ + 1) c/ω, for τ = first .. last - 1 of every client.
    epoch = np.arange(count) - np.repeat(np.cumsum(steps) - steps, steps) + np.repeat(first, steps)
    position = (2 * epoch + 1) * np.repeat(players, steps)
    return (
        np.concatenate((low * ratio[enters], position)),
        np.concatenate((omega[enters] + low, np.ones(count))),
        np.zeros(_length(enters) + count),
        total(omega[: enters.start]) + total(first[: enters.start]),
        0.0,
    )


def _stable_order(values: Floats) -> NDArray[np.int64]:
    """Return the stable sorting order; without ties by the unstable sort, which is much faster."""
    order = np.argsort(values)
    ordered = values[order]
    tied = bool((ordered[1:] == ordered[:-1]).any())
    return np.argsort(values, kind="stable") if tied else order


def _reached(game: Game, ratio: Floats, multiple: float) -> slice:
    """Return the clients that pass ``multiple · c/ω`` within the range of decay factors.

    Those before the slice have passed it at its lower end, those up to its stop at its upper end.
    """
    if multiple == 0:
        return slice(ratio.size, ratio.size)
    first, stop = (
        int(np.searchsorted(ratio, gamma / multiple * (1 + FOLLOWER_TIE), side="right"))
        for gamma in game.decay_bounds
    )
    return slice(first, stop)


def _length(part: slice) -> int:
    return int(part.stop - part.start)


_LEADER_TIE = 1e-14
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
    local_epochs: Epochs
    abstains: NDArray[np.bool_]
    client_utilities: Floats
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
    gamma = best_of_pieces(utility_pieces(game), game.decay_bounds[1])
    epochs = best_response(game, gamma)
    return Equilibrium(
        decay_factor=gamma,
        local_epochs=epochs,
        abstains=~takes_part(game, epochs),
        client_utilities=client_utility(game, gamma, epochs),
        server_utility=float(server_utility(game, gamma, epochs)),
    )


def best_of_pieces(piece: Pieces, gamma_max: float) -> float:
    """Return the decay factor of the largest value; the last piece ends at γ_max."""
    # A piece that is not strictly concave rises: its coefficients are then both at least zero.
    gamma = piece.end.copy()
    np.divide(piece.linear, -2 * piece.quadratic, out=gamma, where=piece.quadratic < 0)
    np.clip(gamma, piece.start, piece.end, out=gamma)
    value = gamma * (piece.linear + piece.quadratic * gamma)
    best = int(np.argmax(value))
    scale = gamma[best] * (piece.linear[best] + abs(piece.quadratic[best]) * gamma[best])
    enough = value[best] - _LEADER_TIE * scale
    if gamma_max * (piece.linear[-1] + piece.quadratic[-1] * gamma_max) >= enough:
        return gamma_max
    return float(np.max(gamma[value >= enough]))


# Comparative statics: how the equilibrium changes with one parameter.

_GAME_PARAMETERS = ("round", "price")
_COST_SCALE = "cost_scale"
"""The parameter that multiplies the costs of all clients."""
_CLIENT_PARAMETERS = {"cost": "costs", "contribution": "contributions"}


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
    values: Floats
    decay_factors: Floats
    server_utilities: Floats
    local_epochs: Epochs
    abstains: NDArray[np.bool_]
    client_utilities: Floats


def comparative_statics(
    game: Game, parameter: str, values: Iterable[float], client: int | None = None
) -> Statics:
    """Solve the game once for every value of one parameter.

    Parameters
    ----------
    game : Game
    parameter : {"round", "price", "cost_scale", "cost", "contribution"}
        ``cost_scale`` multiplies the costs of all clients.
    values : iterable
        The values of the parameter.
    client : int, optional
        The client with that cost or contribution.

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
        local_epochs=np.asarray([e.local_epochs for e in equilibria]),
        abstains=np.stack([e.abstains for e in equilibria]),
        client_utilities=np.stack([e.client_utilities for e in equilibria]),
    )


def _varied(game: Game, parameter: str, value: float, client: int | None) -> Game:
    if parameter in _GAME_PARAMETERS:
        return game.replace(**{parameter: value})
    if parameter == _COST_SCALE:
        return game.replace(costs=game.costs * value)
    if parameter not in _CLIENT_PARAMETERS:
        known = ", ".join((*_GAME_PARAMETERS, _COST_SCALE, *_CLIENT_PARAMETERS))
        raise GameError(f"cannot vary {parameter!r}: choose one of {known}.")
    if client is None or not 0 <= client < game.clients:
        raise GameError(
            f"varying a {parameter} needs the client: set client=0..{game.clients - 1}."
        )
    field = _CLIENT_PARAMETERS[parameter]
    changed = getattr(game, field).copy()
    changed[client] = value
    return game.replace(**{field: changed})

"""The leader's utility as a function of the decay factor: piecewise quadratic, with jumps.

With τ*(γ) put in, U_s(γ) = linear·γ + quadratic·γ² between two neighbouring breakpoints. A
breakpoint is a decay factor at which some client enters the game, leaves its lower epoch bound,
reaches its upper one, or takes one whole epoch more. All of them are multiples of c_i / ω_i,
so the clients are sorted by that ratio once, and the rest is a merge of sorted runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flamma.errors import GameError
from flamma.game.model import FOLLOWER_TIE, Game, Vector
from flamma.numerics import total

MOST_STEPS = 100_000_000
"""The most steps of all clients together that are listed, which bounds the memory."""


@dataclass(frozen=True)
class Pieces:
    """U_s(γ) = linear γ + quadratic γ² for start ≤ γ < end (the last piece includes its end).

    Where the utility jumps it jumps upward, and the value at the jump belongs to the piece that
    starts there. Pieces are ordered; some may have no length.
    """

    start: Vector
    end: Vector
    linear: Vector
    quadratic: Vector


@np.errstate(over="ignore")  # a ratio may be infinite; it is clipped to the bounds
def pieces(game: Game) -> Pieces:
    """Return the pieces of the leader's utility over the game's range of decay factors."""
    gamma_min, gamma_max = game.decay_bounds
    # A client with contribution 0 never works and adds nothing to the server's sum.
    active = game.contributions > 0
    omega = game.contributions[active]
    ratio = game.costs[active] / omega
    order = _order(ratio)
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


Changes = tuple[Vector, Vector, Vector, float, float]
"""Breakpoints, steps of both coefficients, the linear one at γ_min, the quadratic at γ_max."""


def _continuous_changes(game: Game, ratio: Vector, omega: Vector) -> Changes:
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


def _whole_changes(game: Game, ratio: Vector, omega: Vector) -> Changes:
    low, high = game.epoch_bounds
    enters = _reached(game, ratio, low)
    players = ratio[: enters.stop]
    first, last = (
        np.clip(np.floor(gamma / (2 * players) * (1 + FOLLOWER_TIE) + 0.5), low, high)
        for gamma in game.decay_bounds
    )
    steps = (last - first).astype(np.int64)
    count = int(np.sum(steps))
    if count > MOST_STEPS:
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


def _order(values: Vector) -> NDArray[np.int64]:
    """Return what sorts the values, with ties in the order they have.

    Without ties there is one order only, and the sort that is not stable is several times faster.
    """
    order = np.argsort(values)
    ordered = values[order]
    tied = bool((ordered[1:] == ordered[:-1]).any())
    return np.argsort(values, kind="stable") if tied else order


def _reached(game: Game, ratio: Vector, multiple: float) -> slice:
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

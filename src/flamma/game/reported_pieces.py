"""The server's utility after many different reports of one client's cost.

All of a report that the server's utility depends on is x = ω / c. Many reports are laid out at
once: one row per report, one column per piece of the server's utility.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flamma.game.model import FOLLOWER_TIE, Game, Vector
from flamma.game.pieces import pieces

SEARCHED_EPOCHS = 64
"""Where whole epochs may be more than this, reports are searched up to those of a client that
does this many at γ_max; more steps are not listed."""


SMALLEST_REPORT = float(np.finfo(np.float64).tiny)
"""A client that reports less than this, ω / c, seems to do nothing, whatever γ is."""


@dataclass(frozen=True)
class Situation:
    """What a client's report cannot change.

    Attributes
    ----------
    game : Game
        All clients at their true costs, at price 0 and round 1.
    client : int
        Whose report it is.
    influence_price : float
        λ t, unless it follows from the reports.
    derived : float, optional
        t / t0 where the price is derived from the reports so that γ leaves 1 after round t0.
    """

    game: Game
    client: int
    influence_price: float
    derived: float | None


@dataclass(frozen=True)
class ReportRows:
    """Pieces of the server's utility at price 0, one row per report.

    ``passed`` counts the client's own steps up to a piece, ``rest`` is the piece of the other
    clients, and ``event`` what happens at the start: a piece of theirs, or a step of its own.
    """

    start: Vector
    end: Vector
    linear: Vector
    quadratic: Vector
    passed: NDArray[np.int64]
    rest: NDArray[np.int64]
    event: NDArray[np.int64]


class ReportedPieces:
    """The pieces of all others, and the steps that a report adds to them."""

    def __init__(self, situation: Situation) -> None:
        game = situation.game
        self.situation = situation
        self.gamma_min, self.gamma_max = game.decay_bounds
        self.omega = float(game.contributions[situation.client])
        self.honest = max(SMALLEST_REPORT, self.omega / float(game.costs[situation.client]))
        others = np.arange(game.clients) != situation.client
        if others.any():
            rest = game.replace(contributions=game.contributions[others], costs=game.costs[others])
            found = pieces(rest)
            self.start, self.linear, self.quadratic = found.start, found.linear, found.quadratic
        else:
            self.start, self.linear, self.quadratic = np.array([self.gamma_min]), *np.zeros((2, 1))
        self._list_steps()

    def _list_steps(self) -> None:
        """List at which multiples of 1 / x the client's own coefficients change, and by how much.

        The quadratic steps are shares of x.
        """
        game, omega = self.situation.game, self.omega
        low, high = game.epoch_bounds
        enters = [(low, omega + low, 0.0)] if low > 0 else []
        if game.whole_epochs:
            more = [
                (2.0 * k + 1, 1.0, 0.0) for k in range(int(low), int(min(high, SEARCHED_EPOCHS)))
            ]
        else:
            more = [(2 * low, -low, 0.5)] if low > 0 else []
            more += [(2 * high, high, -0.5)] if high < math.inf else []
        table = np.array([*enters, *more], dtype=float).reshape(-1, 3)
        self.multiple, self.linear_step, self.quadratic_step = table.T
        offer = self.linear + self.quadratic * self.start
        before = self.linear[:-1] + self.quadratic[:-1] * self.start[1:]
        others_jump = np.concatenate(([True], offer[1:] > before * (1 + 1e-13)))
        own_jump = np.isin(np.arange(self.multiple.size), [0] if low > 0 else [])
        self.jumps = np.concatenate((others_jump, own_jump, own_jump))  # by event
        self.first_linear = omega if low == 0 else 0.0
        self.first_quadratic = 0.5 if low == 0 and not game.whole_epochs else 0.0

    def rows(self, *reports: Vector) -> list[ReportRows]:
        """Return the pieces for these reports, cut alike for all of them."""
        known = np.broadcast_to(self.start, (reports[0].size, self.start.size))
        at = [self.multiple / x[:, None] for x in reports]
        reached = [position <= self.gamma_max * (1 + FOLLOWER_TIE) for position in at]
        positions = np.clip(np.concatenate((known, *at), axis=1), self.gamma_min, self.gamma_max)
        order = np.argsort(positions, axis=1, kind="stable")
        start = np.take_along_axis(positions, order, axis=1)
        end = np.concatenate((start[:, 1:], np.full((start.shape[0], 1), self.gamma_max)), axis=1)
        rest = np.cumsum(order < self.start.size, axis=1) - 1
        # Steps below γ_min have all been taken there; the pieces between them do not exist.
        exists = (start > self.gamma_min) | (end > start)
        rows = []
        for k, x in enumerate(reports):
            place = order - self.start.size - k * self.multiple.size
            own = (place >= 0) & (place < self.multiple.size)
            place = np.where(own, place, 0)
            own &= np.take_along_axis(reached[k], place, axis=1) if self.multiple.size else False
            linear, quadratic = (
                np.cumsum(np.where(own, step[place] if step.size else 0.0, 0.0), axis=1)
                for step in (self.linear_step, self.quadratic_step)
            )
            rows.append(
                ReportRows(
                    start,
                    end,
                    exists * (self.linear[rest] + self.first_linear + linear),
                    exists
                    * (self.quadratic[rest] + (self.first_quadratic + quadratic) * x[:, None]),
                    np.cumsum(own, axis=1),
                    rest,
                    order,
                )
            )
        return rows

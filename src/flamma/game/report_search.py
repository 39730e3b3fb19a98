"""The search for the report that makes the announced decay factor largest, with certified bounds.

The game of a report is that of :mod:`flamma.game.reported_pieces`. Intervals of reports are halved
until none could hold a larger decay factor than the one found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flamma.game.model import FOLLOWER_TIE, LARGEST_COST, SMALLEST_COST, Vector
from flamma.game.reported_pieces import (
    SEARCHED_EPOCHS,
    SMALLEST_REPORT,
    ReportedPieces,
    ReportRows,
)

DECAY_TOLERANCE = 1e-11
"""A decay factor that is larger by less than this is not searched for."""

NARROWEST = 1e-12
"""Relative width of an interval of reports that is not divided further."""

MOST_CELLS = 1_000_000
"""How many reports times pieces are held in memory at once."""

FIRST_REPORTS = 1000
"""How many reports (each with two neighbours) are evaluated before intervals of them are."""

INTERVALS_AT_ONCE = 128

MOST_BATCHES = 200
"""So often intervals are halved; where that does not do, the rest is stated as uncertainty."""


class ReportSearch(ReportedPieces):
    """All reports of one client in one situation."""

    upper = 0.0
    """No report leads to a larger γ than this, after :meth:`best`."""

    def best(self) -> list[tuple[float, float]]:
        """Return the best reports x with the γ of each: the best first, near the truth first."""
        tried = self._first_reports()
        gammas = self._in_parts(self._gammas, tried)
        best = float(np.max(gammas))
        cells = self._cells()
        low, high = cells[:-1], cells[1:] * (1 - 2 * FOLLOWER_TIE)
        low, high = low[low < high], high[low < high]
        bound = self._in_parts(self._bounds, low, high)
        edges, narrow_bound = [], 0.0
        for _ in range(MOST_BATCHES):
            if not low.size:
                break
            open_ = bound > best + DECAY_TOLERANCE
            narrow = open_ & (high <= low * (1 + NARROWEST))
            edges += [*low[narrow], *high[narrow]]
            narrow_bound = max(narrow_bound, float(np.max(bound[narrow], initial=0.0)))
            open_ &= ~narrow
            low, high, bound = low[open_], high[open_], bound[open_]
            order = np.argsort(-bound, kind="stable")
            now, later = order[:INTERVALS_AT_ONCE], order[INTERVALS_AT_ONCE:]
            middle = np.sqrt(low[now]) * np.sqrt(high[now])
            found = self._in_parts(self._gammas, middle)
            tried, gammas = np.concatenate((tried, middle)), np.concatenate((gammas, found))
            best = max(best, float(np.max(found, initial=0.0)))
            new = np.concatenate((low[now], middle)), np.concatenate((middle, high[now]))
            new_bound = self._in_parts(self._bounds, *new)
            low, high = np.concatenate((low[later], new[0])), np.concatenate((high[later], new[1]))
            bound = np.concatenate((bound[later], new_bound))
        self.upper = max(best, narrow_bound, float(np.max(bound, initial=0.0)))
        if self.is_cut:
            self.upper = self.gamma_max
        return self._ranked(tried, gammas, best, np.array(edges))

    def _ranked(
        self, tried: Vector, gammas: Vector, best: float, edges: Vector
    ) -> list[tuple[float, float]]:
        # The largest cost at which the client seems to do as many epochs at this γ: where the
        # price is given, that report does as well as any smaller one that leads to the same γ.
        same = self._inside(np.concatenate((self.multiple / best, edges))) if best else edges
        tried = np.concatenate((tried, same))
        gammas = np.concatenate((gammas, self._in_parts(self._gammas, same)))
        good = gammas >= best - DECAY_TOLERANCE
        distance = np.abs(np.log(tried[good]) - np.log(self.honest))
        order = np.argsort(distance, kind="stable")[:3]
        chosen = [(float(x), best) for x in tried[good][order]]
        return [*chosen, *((float(x), self.gamma_max) for x in edges[:8])]

    @property
    def is_cut(self) -> bool:
        """Whether reports of very low costs are not searched, as they have too many steps."""
        game = self.situation.game
        return game.whole_epochs and game.epoch_bounds[1] > SEARCHED_EPOCHS

    def _inside(self, reports: Vector) -> Vector:
        smallest, largest = self._range()
        return np.clip(reports[np.isfinite(reports)], smallest, largest)

    def _range(self) -> tuple[float, float]:
        smallest = max(SMALLEST_REPORT, self.omega / LARGEST_COST)
        largest = self.omega / SMALLEST_COST
        if self.is_cut:
            largest = min(largest, 2 * SEARCHED_EPOCHS / self.gamma_max)
        return smallest, largest

    def _cells(self) -> Vector:
        """Return reports between which the client does not seem to do other epochs at γ_max."""
        smallest, largest = self._range()
        inner = self.multiple / self.gamma_max
        inner = inner[(inner > smallest) & (inner < largest)]
        beyond = self.multiple[-1:] / self.gamma_max * 2  # so that intervals halve evenly
        beyond = beyond[(beyond > smallest) & (beyond < largest)]
        return np.unique(np.concatenate(([smallest], inner, beyond, [largest])))

    def _first_reports(self) -> Vector:
        """Return reports at which the client's steps meet those of others, and the truth."""
        met = self.start[self.start > 0]
        every = max(1, met.size * self.multiple.size // FIRST_REPORTS)
        met = np.concatenate((met[::every], [self.gamma_max]))
        reports = (self.multiple / met[:, None]).ravel()
        reports = np.concatenate((reports, reports * (1 + 3e-12), reports * (1 - 3e-12)))
        return self._inside(np.concatenate((reports, [self.honest], self._range())))

    def _in_parts(self, function: Callable[..., Vector], *reports: Vector) -> Vector:
        columns = self.start.size + 2 * self.multiple.size + 1
        rows = max(1, MOST_CELLS // columns)
        parts = range(0, reports[0].size, rows)
        found = [function(*(r[i : i + rows] for r in reports)) for i in parts]
        return np.concatenate(found) if found else np.zeros(0)

    def _gammas(self, reports: Vector) -> Vector:
        """Return the decay factor that is announced after each report."""
        (rows,) = self.rows(reports)
        price = self._price(rows, rows.linear[:, -1] + rows.quadratic[:, -1])
        gamma = _peak(rows, price)
        value = gamma * (rows.linear + (rows.quadratic - price) * gamma)
        best = np.max(value, axis=1, keepdims=True)
        enough = value >= best - 1e-14 * (np.abs(best) + price)
        found: Vector = np.max(np.where(enough, gamma, 0.0), axis=1)
        return found

    def _bounds(self, low: Vector, high: Vector) -> Vector:
        """Return an upper bound on the γ of all reports between two, for each such interval.

        S_x(γ), what the clients offer after the report x, grows with x. So if γ is announced
        after a report x of the interval, then for all smaller γ'

            γ S_high(γ) - p γ² >= γ' S_low(γ') - p γ'²,   with p at most λ t.

        A piece where this fails against some earlier piece is out. In a piece where the client
        is in the same phase after both reports γ is at most the vertex at S_high and p. A piece
        on which the utility surely falls, and does not jump where the piece starts, holds no
        maximum that the piece before it does not.
        """
        less, more = self.rows(low, high)
        price = self._least_price(low, less, more)
        least, most = _peak(less, price), _peak(more, price)
        reached = least * (less.linear + (less.quadratic - price) * least)
        possible = most * (more.linear + (more.quadratic - price) * most)
        before = np.maximum.accumulate(reached, axis=1)
        before = np.concatenate((np.full((low.size, 1), -np.inf), before[:, :-1]), axis=1)
        rounding = 1e-14 * (np.abs(before) + price)
        alive = possible >= before - np.where(np.isfinite(rounding), rounding, 0.0)
        if not self.situation.game.whole_epochs:
            alive &= ~self._falls(high, less, more, price)
        farthest = np.where(less.passed == more.passed, most, more.end)
        found: Vector = np.max(np.where(alive, farthest, self.gamma_min), axis=1)
        return found

    def _falls(
        self, high: Vector, less: ReportRows, more: ReportRows, price: Vector
    ) -> NDArray[np.bool_]:
        """Return on which pieces the utility falls for every report up to the highest.

        Its slope is S + γ S' - 2 p γ. Of S' the client's part is at most x / 2 where reports
        differ in phase. Where a client enters the game the utility jumps; such pieces are left in.
        """
        slopes = []
        for gamma in (more.start, more.end):
            offer = more.linear + more.quadratic * gamma
            steepest = np.where(
                less.passed == more.passed,
                more.quadratic,
                self.quadratic[more.rest] + high[:, None] / 2,
            )
            slopes.append(offer + gamma * (steepest - 2 * price))
        falls = np.maximum(*slopes) < 0
        falls &= ~self._enters(less, more)
        falls &= ~self.jumps[more.event]
        falls[:, 0] = False
        return falls

    def _enters(self, less: ReportRows, more: ReportRows) -> NDArray[np.bool_]:
        """Return on which pieces the client has entered the game after some reports only."""
        can_abstain = self.situation.game.epoch_bounds[0] > 0
        return np.asarray((less.passed == 0) & (more.passed > 0) & can_abstain)

    def _least_price(self, low: Vector, less: ReportRows, more: ReportRows) -> Vector:
        """Return the smallest λ t of all reports between two.

        Derived, it is the least (top - γ S(γ)) / (1 - γ²). Of that the client's own part,
        s(x) - γ s(γ x), falls with x where the client does the same epochs at γ = 1, which it
        does in every cell if epochs are whole, or from τ_max on. Otherwise it rises with x, but
        for a drop where the client enters the game at γ.
        """
        top = less.linear[:, -1] + less.quadratic[:, -1]
        falls = self.situation.game.whole_epochs | (low >= 2 * self.situation.game.epoch_bounds[1])
        extra = np.where(
            self._enters(less, more), self.omega + self.situation.game.epoch_bounds[0], 0.0
        )
        falls = np.broadcast_to(np.asarray(falls), low.shape)[:, None]
        linear = np.where(falls, more.linear, less.linear + extra)
        quadratic = np.where(falls, more.quadratic, less.quadratic)
        return self._price(replace(less, linear=linear, quadratic=quadratic), top)

    def _price(self, rows: ReportRows, top: Vector) -> Vector:
        """Return λ t after each report, as a column."""
        if self.situation.derived is None:
            return np.full((top.size, 1), self.situation.influence_price)
        top = top[:, None]
        bend = np.maximum(top - rows.quadratic, rows.linear)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Where the ratio's derivative is 0: -linear + 2 bend γ - linear γ² = 0.
            root = rows.linear / (bend + np.sqrt((bend - rows.linear) * (bend + rows.linear)))
            gamma = np.clip(np.nan_to_num(root, nan=0.0), rows.start, rows.end)
            # Two forms of the ratio: near γ = 1 its ends cancel, near 0 a steep piece does.
            plain = (top - gamma * (rows.linear + rows.quadratic * gamma)) / (1 - gamma * gamma)
            gap = top - rows.linear - rows.quadratic
            jump = np.where(np.abs(gap) <= 1e-13 * top, 0.0, gap / (1 - gamma * gamma))
        split = np.where(np.isnan(jump), 0.0, jump) + rows.linear / (1 + gamma) + rows.quadratic
        # The price is a bound from below γ = 1: what happens at 1 itself has no ratio.
        below = rows.start < 1 - 2 * FOLLOWER_TIE
        ratio = np.where(below, np.where(gamma < 0.5, plain, split), np.inf)
        least: Vector = np.min(ratio, axis=1, keepdims=True) * self.situation.derived
        return np.maximum(least, 0.0)


def _peak(rows: ReportRows, price: Vector) -> Vector:
    """Return the γ at which each piece is largest."""
    bend = rows.quadratic - price
    gamma = rows.end.copy()
    np.divide(rows.linear, -2 * bend, out=gamma, where=bend < 0)
    return np.clip(gamma, rows.start, rows.end)

"""The best misreport of a client's cost, and its gain.

A client's utility at its best response never falls as γ rises, so the best report is the one that
makes the announced γ largest. What a client reports enters the server's utility only through
x = ω / c, the epochs (times two) it seems willing to do at γ = 1, and it does so monotonically:
the work it seems to do at γ is a step or clip function of γ x. That makes an exact search
possible. For all x of an interval the server's utility lies between two piecewise quadratics, so
the γ of every report in it is bounded from above (``_ReportSearch._bounds``). Intervals whose bound
is no better than what was found are dropped; the others are halved until none is left. The bound
meets the value as an interval shrinks, so what is found is the maximum over all reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flamma.errors import GameError
from flamma.game.equilibrium import solve, utility_pieces
from flamma.game.model import (
    FOLLOWER_TIE,
    LARGEST_COST,
    MAX_EPOCHS,
    SMALLEST_COST,
    Game,
    best_response,
    client_utility,
)
from flamma.game.pricing import PricingRule
from flamma.types import Floats

# The server's utility after many different reports of one client's cost.
#
# All of a report that the server's utility depends on is x = ω / c. Many reports are laid out at
# once: one row per report, one column per piece of the server's utility.

_SEARCHED_EPOCHS = 64
"""Where whole epochs may be more than this, reports are searched up to those of a client that
does this many at γ_max; more steps are not listed."""


_TINIEST_REPORT = float(np.finfo(np.float64).tiny)
"""A client that reports less than this, ω / c, seems to do nothing, for every γ."""


@dataclass(frozen=True)
class _ReportRows:
    """Pieces of the server's utility at price 0, one row per report.

    ``passed`` counts the client's own steps up to a piece, ``rest`` is the piece of the other
    clients, and ``event`` what happens at the start: a piece of theirs, or a step of the client.
    """

    start: Floats
    end: Floats
    linear: Floats
    quadratic: Floats
    passed: NDArray[np.int64]
    rest: NDArray[np.int64]
    event: NDArray[np.int64]


class _ReportedPieces:
    """The pieces of all other clients, and the steps that a report adds to them.

    Parameters
    ----------
    game : Game
        All clients at their true costs, at price 0 and round 1.
    client : int
        The client that reports.
    influence_price : float
        λ t, unless it follows from the reports.
    derived : float, optional
        t / t0 where the price is derived from the reports so that γ leaves 1 after round t0.
    """

    def __init__(
        self, game: Game, client: int, influence_price: float, derived: float | None
    ) -> None:
        self.game, self.influence_price, self.derived = game, influence_price, derived
        self.gamma_min, self.gamma_max = game.decay_bounds
        self.omega = float(game.contributions[client])
        self.honest = max(_TINIEST_REPORT, self.omega / float(game.costs[client]))
        others = np.arange(game.clients) != client
        if others.any():
            rest = game.replace(contributions=game.contributions[others], costs=game.costs[others])
            found = utility_pieces(rest)
            self.start, self.linear, self.quadratic = found.start, found.linear, found.quadratic
        else:
            self.start, self.linear, self.quadratic = np.array([self.gamma_min]), *np.zeros((2, 1))
        self._list_steps()

    def _list_steps(self) -> None:
        """List at which multiples of 1 / x the client's own coefficients change, and by how much.

        The quadratic steps are shares of x.
        """
        game, omega = self.game, self.omega
        low, high = game.epoch_bounds
        enters = [(low, omega + low, 0.0)] if low > 0 else []
        if game.whole_epochs:
            more = [
                (2.0 * k + 1, 1.0, 0.0) for k in range(int(low), int(min(high, _SEARCHED_EPOCHS)))
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

    def rows(self, *reports: Floats) -> list[_ReportRows]:
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
                _ReportRows(
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


# The search for the report that makes the announced decay factor largest, with certified bounds.
#
# The game of a report is that of :mod:`flamma.game.misreport`. Intervals of reports are
# halved until none could hold a larger decay factor than the one found.

_DECAY_TOLERANCE = 1e-11
"""A decay factor that is larger by less than this is not searched for."""

_FIRST_REPORTS = 1000
"""How many reports (each with two neighbours) are evaluated before intervals of them are."""

_INTERVALS_AT_ONCE = 128


class _ReportSearch(_ReportedPieces):
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
        for _ in range(200):  # what is left after that is stated as uncertainty
            if not low.size:
                break
            open_ = bound > best + _DECAY_TOLERANCE
            narrow = open_ & (high <= low * (1 + 1e-12))  # not divided further
            edges += [*low[narrow], *high[narrow]]
            narrow_bound = max(narrow_bound, float(np.max(bound[narrow], initial=0.0)))
            open_ &= ~narrow
            low, high, bound = low[open_], high[open_], bound[open_]
            order = np.argsort(-bound, kind="stable")
            now, later = order[:_INTERVALS_AT_ONCE], order[_INTERVALS_AT_ONCE:]
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
        self, tried: Floats, gammas: Floats, best: float, edges: Floats
    ) -> list[tuple[float, float]]:
        # The largest cost at which the client seems to do as many epochs at this γ: where the
        # price is given, that report does as well as any smaller one that leads to the same γ.
        same = self._inside(np.concatenate((self.multiple / best, edges))) if best else edges
        tried = np.concatenate((tried, same))
        gammas = np.concatenate((gammas, self._in_parts(self._gammas, same)))
        good = gammas >= best - _DECAY_TOLERANCE
        distance = np.abs(np.log(tried[good]) - np.log(self.honest))
        order = np.argsort(distance, kind="stable")[:3]
        chosen = [(float(x), best) for x in tried[good][order]]
        return [*chosen, *((float(x), self.gamma_max) for x in edges[:8])]

    @property
    def is_cut(self) -> bool:
        """Whether reports of very low costs are not searched, as they have too many steps."""
        game = self.game
        return game.whole_epochs and game.epoch_bounds[1] > _SEARCHED_EPOCHS

    def _inside(self, reports: Floats) -> Floats:
        smallest, largest = self._range()
        return np.clip(reports[np.isfinite(reports)], smallest, largest)

    def _range(self) -> tuple[float, float]:
        smallest = max(_TINIEST_REPORT, self.omega / LARGEST_COST)
        largest = self.omega / SMALLEST_COST
        if self.is_cut:
            largest = min(largest, 2 * _SEARCHED_EPOCHS / self.gamma_max)
        return smallest, largest

    def _cells(self) -> Floats:
        """Return reports between which the client does not seem to do other epochs at γ_max."""
        smallest, largest = self._range()
        inner = self.multiple / self.gamma_max
        inner = inner[(inner > smallest) & (inner < largest)]
        beyond = self.multiple[-1:] / self.gamma_max * 2  # so that intervals halve evenly
        beyond = beyond[(beyond > smallest) & (beyond < largest)]
        return np.unique(np.concatenate(([smallest], inner, beyond, [largest])))

    def _first_reports(self) -> Floats:
        """Return reports at which the client's steps meet those of others, and the truth."""
        met = self.start[self.start > 0]
        every = max(1, met.size * self.multiple.size // _FIRST_REPORTS)
        met = np.concatenate((met[::every], [self.gamma_max]))
        reports = (self.multiple / met[:, None]).ravel()
        reports = np.concatenate((reports, reports * (1 + 3e-12), reports * (1 - 3e-12)))
        return self._inside(np.concatenate((reports, [self.honest], self._range())))

    def _in_parts(self, function: Callable[..., Floats], *reports: Floats) -> Floats:
        columns = self.start.size + 2 * self.multiple.size + 1
        rows = max(1, 1_000_000 // columns)  # which bounds the memory
        parts = range(0, reports[0].size, rows)
        found = [function(*(r[i : i + rows] for r in reports)) for i in parts]
        return np.concatenate(found) if found else np.zeros(0)

    def _gammas(self, reports: Floats) -> Floats:
        """Return the decay factor that is announced after each report."""
        (rows,) = self.rows(reports)
        price = self._price(rows, rows.linear[:, -1] + rows.quadratic[:, -1])
        gamma = _peak(rows, price)
        value = gamma * (rows.linear + (rows.quadratic - price) * gamma)
        best = np.max(value, axis=1, keepdims=True)
        enough = value >= best - 1e-14 * (np.abs(best) + price)
        found: Floats = np.max(np.where(enough, gamma, 0.0), axis=1)
        return found

    def _bounds(self, low: Floats, high: Floats) -> Floats:
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
        if not self.game.whole_epochs:
            alive &= ~self._falls(high, less, more, price)
        farthest = np.where(less.passed == more.passed, most, more.end)
        found: Floats = np.max(np.where(alive, farthest, self.gamma_min), axis=1)
        return found

    def _falls(
        self, high: Floats, less: _ReportRows, more: _ReportRows, price: Floats
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

    def _enters(self, less: _ReportRows, more: _ReportRows) -> NDArray[np.bool_]:
        """Return on which pieces the client has entered the game after some reports only."""
        can_abstain = self.game.epoch_bounds[0] > 0
        return np.asarray((less.passed == 0) & (more.passed > 0) & can_abstain)

    def _least_price(self, low: Floats, less: _ReportRows, more: _ReportRows) -> Floats:
        """Return the smallest λ t of all reports between two.

        Derived, it is the least (top - γ S(γ)) / (1 - γ²). Of that the client's own part,
        s(x) - γ s(γ x), falls with x where the client does the same epochs at γ = 1, which it
        does in every cell if epochs are whole, or from τ_max on. Otherwise it rises with x, but
        for a drop where the client enters the game at γ.
        """
        top = less.linear[:, -1] + less.quadratic[:, -1]
        falls = self.game.whole_epochs | (low >= 2 * self.game.epoch_bounds[1])
        extra = np.where(self._enters(less, more), self.omega + self.game.epoch_bounds[0], 0.0)
        falls = np.broadcast_to(np.asarray(falls), low.shape)[:, None]
        linear = np.where(falls, more.linear, less.linear + extra)
        quadratic = np.where(falls, more.quadratic, less.quadratic)
        return self._price(replace(less, linear=linear, quadratic=quadratic), top)

    def _price(self, rows: _ReportRows, top: Floats) -> Floats:
        """Return λ t after each report, as a column."""
        if self.derived is None:
            return np.full((top.size, 1), self.influence_price)
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
        least: Floats = np.min(ratio, axis=1, keepdims=True) * self.derived
        return np.maximum(least, 0.0)


def _peak(rows: _ReportRows, price: Floats) -> Floats:
    """Return the γ at which each piece is largest."""
    bend = rows.quadratic - price
    gamma = rows.end.copy()
    np.divide(rows.linear, -2 * bend, out=gamma, where=bend < 0)
    return np.clip(gamma, rows.start, rows.end)


_GAIN_ROUNDING = 1e-12
"""A gain below this, relative to the honest utility and the cost, is rounding and no gain."""

_CLOSED = 1e-6
"""The largest distance from the bound at which the search has found the largest decay factor."""


@dataclass(frozen=True)
class Misreport:
    """The report of its cost that brings a client most, beside the honest one.

    Attributes
    ----------
    client : int
    cost : float
        What to report; the true cost where no report brings more.
    decay_factor, utility : float
        What is announced after that report, and the client's utility at its true cost.
    honest_cost, honest_decay_factor, honest_utility : float
        The same for the truth.
    decay_factor_uncertainty : float
        No report by which the client gains leads to a decay factor above ``decay_factor`` by more
        than this. It is below 1e-6 but for games in which very many reports are nearly as good as
        each other, and for those in which more than 64 whole epochs are allowed: there the lowest
        costs are only sampled.
    """

    client: int
    cost: float
    decay_factor: float
    utility: float
    honest_cost: float
    honest_decay_factor: float
    honest_utility: float
    decay_factor_uncertainty: float = 0.0

    @property
    def gain(self) -> float:
        """What the lie brings more than the truth, in units of utility."""
        return self.utility - self.honest_utility

    @property
    def relative_gain(self) -> float:
        """The gain as a share of the honest utility; infinite if only the lie brings anything."""
        if self.gain == 0:
            return 0.0
        return self.gain / self.honest_utility if self.honest_utility > 0 else math.inf


@np.errstate(over="ignore")  # a step that is never reached; it is clipped to the bounds of γ
def best_misreport(game: Game, client: int, rule: PricingRule | None = None) -> Misreport:
    """Return the client's best report of its cost, if all others stay with the game's costs.

    Parameters
    ----------
    game : Game
        The game at the true costs. Its price and its bounds of γ stay what they are, whatever
        the client reports, unless a rule is given.
    client : int
        Counted from 0.
    rule : PricingRule, optional
        Sets price and bounds for every report, instead of those of the game; its epoch bounds
        count too. Under ``others`` no report changes the client's offer, and the gain is 0.

    Returns
    -------
    Misreport
        A supremum that no report attains is approached to 1e-9, relatively.

    Examples
    --------
    >>> game = Game([0.9, 0.8, 0.7], [0.05, 0.1, 0.2], round=20)
    >>> lie = best_misreport(game, 2)
    >>> round(lie.cost, 4), round(lie.decay_factor, 4), round(lie.utility / lie.honest_utility, 1)
    (0.0412, 1.0, 8.3)
    >>> best_misreport(game, 2, PricingRule("others", price=1.0)).gain
    0.0
    """
    if not (isinstance(client, int | np.integer) and 0 <= client < game.clients):
        raise GameError(f"a misreport needs its client: set client=0..{game.clients - 1}.")
    audit = _Audit(game, int(client), rule)
    honest = best = audit.outcome(audit.honest_cost)
    if rule is not None and rule.rule == "others":
        return honest
    for cost, expected in audit.candidates(honest.decay_factor):
        # A report and its neighbours: the last bit decides on which side of a tie it lies.
        steps = (sign * step for step in (1e-15, 1e-13, 3e-12, 1e-10, 9e-10) for sign in (-1, 1))
        nearby = (cost, *(cost * (1 + step) for step in steps))
        for near in (c for c in nearby if SMALLEST_COST <= c <= LARGEST_COST):
            try:
                lie = audit.outcome(near)
            except GameError:  # no server could play the game of this report
                continue
            if lie.decay_factor > best.decay_factor + _DECAY_TOLERANCE:
                best = lie
            if lie.decay_factor >= expected - _DECAY_TOLERANCE:
                break
    rounding = _GAIN_ROUNDING * max(honest.utility, float(game.costs[client]))
    chosen = best if best.gain > rounding else honest
    uncertainty = max(0.0, audit.upper - best.decay_factor)
    if uncertainty > _CLOSED:  # a report that was not tried may still gain
        uncertainty = audit.upper - chosen.decay_factor
    return replace(chosen, decay_factor_uncertainty=uncertainty)


class _Audit:
    """One client's reports: what each of them does, and which could be best."""

    def __init__(self, game: Game, client: int, rule: PricingRule | None) -> None:
        if rule is not None:
            game = game.replace(epoch_bounds=rule.epoch_bounds, whole_epochs=rule.whole_epochs)
        self.game, self.client, self.rule = game, client, rule
        self.honest_cost = float(game.costs[client])
        self.omega = float(game.contributions[client])
        self.upper = 0.0  # no report leads to a larger decay factor, once candidates are known

    def decay_factor(self, cost: float) -> float:
        """Return what is announced to the client after this report."""
        costs = self.game.costs.copy()
        costs[self.client] = cost
        if self.rule is None:
            return solve(self.game.replace(costs=costs)).decay_factor
        omega, t = self.game.contributions, self.game.round
        return float(self.rule.decay_factors(omega, costs, t, [*range(omega.size)])[self.client])

    def outcome(self, cost: float) -> Misreport:
        truth = (self.honest_cost, *self._worth(self.honest_cost))
        lie = (cost, *self._worth(cost)) if cost != self.honest_cost else truth
        return Misreport(self.client, *lie, *truth)

    def _worth(self, cost: float) -> tuple[float, float]:
        gamma = self.decay_factor(cost)
        own = Game(
            [self.omega],
            [self.honest_cost],
            epoch_bounds=self.game.epoch_bounds,
            whole_epochs=self.game.whole_epochs,
        )
        return gamma, float(client_utility(own, gamma, best_response(own, gamma))[0])

    def candidates(self, honest: float) -> list[tuple[float, float]]:
        """Return reports with the γ that each should bring, the most promising first."""
        low, _ = self.game.epoch_bounds
        rule = self.rule
        top = 1.0 if rule is not None else self.game.decay_bounds[1]
        if self.omega == 0 or honest == top:
            return []
        if rule is not None and rule.decay_floor == "participation" and low > 0:
            # To say that one only just works at γ = 1 puts the floor there.
            return [(self.omega / low, 1.0)]
        search = self.search()
        found = [(self.omega / x, gamma) for x, gamma in search.best()]
        self.upper = search.upper
        # Who seems to work enough decides alone; who seems to work for nothing lifts the price.
        found.append((LARGEST_COST, top))
        much = 2 * math.ceil(search.influence_price) + 1
        if not search.is_cut:
            return [*found, (top * self.omega / much, top)]
        if search.derived is not None:
            # Just past a step at γ = 1 the price is low; the others matter less for a low cost.
            most = 4 * min(self.game.epoch_bounds[1], 10_000)
            tried = 2 * np.geomspace(_SEARCHED_EPOCHS, most, 24).round() - 1
            low_costs = self.omega / tried * (1 - 1e-9)
            return [*found, *((cost, 0.0) for cost in low_costs.tolist())]
        return [*found, (top * self.omega / much, top)] if much < 2 * MAX_EPOCHS else found

    def search(self) -> _ReportSearch:
        """Return the search of all reports, which cannot change the rest."""
        game, rule = self.game, self.rule
        bounds, price, derived = game.decay_bounds, game.influence_price, None
        if rule is not None:
            bounds = (0.0 if isinstance(rule.decay_floor, str) else rule.decay_floor, 1.0)
            price = (rule.price or 0.0) * game.round
            derived = (
                None if rule.price is not None else game.round / (rule.decay_start * rule.rounds)
            )
        free = game.replace(decay_bounds=bounds, price=0.0, round=1)
        return _ReportSearch(free, self.client, price, derived)

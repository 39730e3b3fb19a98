"""The best lie about one's cost: which report brings a client most, and how much.

A client's utility at its best response never falls as γ rises, so the best report is the one that
makes the announced γ largest. What a client reports enters the server's utility only through
x = ω / c, the epochs (times two) it seems willing to do at γ = 1, and it does so monotonically:
the work it seems to do at γ is a step or clip function of γ x. That makes an exact search
possible. For all x of an interval the server's utility lies between two piecewise quadratics, so
the γ of every report in it is bounded from above (``ReportSearch._bounds``). Intervals whose bound
is no better than what was found are dropped; the others are halved until none is left. The bound
meets the value as an interval shrinks, so what is found is the maximum over all reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from flamma.errors import GameError
from flamma.game.equilibrium import solve
from flamma.game.model import LARGEST_COST, MOST_EPOCHS, SMALLEST_COST, Game
from flamma.game.pricing import PricingRule
from flamma.game.report_search import DECAY_TOLERANCE, ReportSearch
from flamma.game.reported_pieces import SEARCHED_EPOCHS, Situation
from flamma.game.response import best_response
from flamma.game.utilities import client_utility

GAIN_ROUNDING = 1e-12
"""A gain below this, relative to the honest utility and the cost, is rounding and no gain."""

CLOSED = 1e-6
"""The largest distance from the bound at which the search has found the largest decay factor."""

LARGEST_TRIED = 10_000
"""Costs are tried down to that of a client that does four times as many epochs at γ = 1."""

LOW_COSTS = 24
"""How many costs are tried below those searched, where very many whole epochs are allowed."""


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
        Sets price and bounds anew for every report, instead of the game's own; its epoch bounds
        count too. Under ``others`` no report changes one's own offer, and the gain is 0.

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
        raise GameError(f"say whose report it is: client=0..{game.clients - 1}.")
    audit = _Audit(game, int(client), rule)
    honest = best = audit.outcome(audit.honest_cost)
    if rule is not None and rule.rule == "others":
        return honest
    for cost, expected in audit.candidates(honest.decay_factor):
        for near in _nudged(cost):
            try:
                lie = audit.outcome(near)
            except GameError:  # no server could play the game of this report
                continue
            if lie.decay_factor > best.decay_factor + DECAY_TOLERANCE:
                best = lie
            if lie.decay_factor >= expected - DECAY_TOLERANCE:
                break
    rounding = GAIN_ROUNDING * max(honest.utility, float(game.costs[client]))
    chosen = best if best.gain > rounding else honest
    uncertainty = max(0.0, audit.upper - best.decay_factor)
    if uncertainty > CLOSED:  # a report that was not tried may still gain
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
        situation = self.situation()
        search = ReportSearch(situation)
        found = [(self.omega / x, gamma) for x, gamma in search.best()]
        self.upper = search.upper
        # Who seems to work enough decides alone; who seems to work for nothing lifts the price.
        found.append((LARGEST_COST, top))
        much = 2 * math.ceil(situation.influence_price) + 1
        if not search.is_cut:
            return [*found, (top * self.omega / much, top)]
        if situation.derived is not None:
            # Just past a step at γ = 1 the price is low; the others matter less for a low cost.
            most = 4 * min(self.game.epoch_bounds[1], LARGEST_TRIED)
            tried = 2 * np.geomspace(SEARCHED_EPOCHS, most, LOW_COSTS).round() - 1
            low_costs = self.omega / tried * (1 - 1e-9)
            return [*found, *((cost, 0.0) for cost in low_costs.tolist())]
        return [*found, (top * self.omega / much, top)] if much < 2 * MOST_EPOCHS else found

    def situation(self) -> Situation:
        """Return what does not depend on the report."""
        game, rule = self.game, self.rule
        bounds, price, derived = game.decay_bounds, game.influence_price, None
        if rule is not None:
            bounds = (0.0 if isinstance(rule.decay_floor, str) else rule.decay_floor, 1.0)
            price = (rule.price or 0.0) * game.round
            derived = (
                None if rule.price is not None else game.round / (rule.decay_start * rule.rounds)
            )
        free = game.replace(decay_bounds=bounds, price=0.0, round=1)
        return Situation(free, self.client, price, derived)


def _nudged(cost: float) -> list[float]:
    """Return a report and its neighbours: the last bit decides on which side of a tie it lies."""
    steps = (1e-15, 1e-13, 3e-12, 1e-10, 9e-10)
    near = (cost, *(cost * (1 + sign * step) for step in steps for sign in (-1, 1)))
    return [c for c in near if SMALLEST_COST <= c <= LARGEST_COST]

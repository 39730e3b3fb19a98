"""What many clients offer together as a function of the decay factor, and its best price.

The game of "all but one" is needed once per client that gets an offer. Its pieces are the sum of
two sets: those of the clients that get no offer, listed once, and those of the other clients that
do, which are few. So leaving one out costs a search in the first list, not a new sort of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flamma.game.equilibrium import best_of_pieces
from flamma.game.model import FOLLOWER_TIE, Vector
from flamma.game.pieces import Pieces
from flamma.game.schedules import slope_at_top

FIRST_CUTS, FURTHER_CUTS = 64, 8
"""Into how many intervals the range of γ is cut, and each that stays into further ones."""

MOST_PIECES = 4096
"""So many pieces are compared one by one; of more, the hopeless intervals are dropped first."""


@dataclass(frozen=True)
class OfferCurve:
    """γ S(γ) over a range of γ whose upper end is 1, as the sum of several sets of pieces.

    The parts are pieces of games at price 0 over the whole range from 0 to 1.
    """

    parts: tuple[Pieces, ...]
    decay_bounds: tuple[float, float]

    def value(self, gamma: float) -> float:
        """Return γ S(γ)."""
        linear, quadratic = self._coefficients(np.array([gamma]))
        return float(gamma * (linear[0] + quadratic[0] * gamma))

    def slope_below_top(self, top: float) -> float:
        """Return the slope of γ S(γ) just below 1; infinite if it jumps there."""
        below = np.array([1 - 4 * FOLLOWER_TIE])
        linear, quadratic = self._coefficients(below)
        return slope_at_top(float(linear[0]), float(quadratic[0]), 1.0, top)

    def best(self, influence_price: float) -> float:
        """Return the γ that maximises γ S(γ) - λ t γ², the larger of equally good ones."""
        start, end = self._candidates(influence_price)
        linear, quadratic = self._coefficients(start)
        found = Pieces(start, end, linear, quadratic - influence_price)
        return best_of_pieces(found, self.decay_bounds[1])

    def _coefficients(self, gammas: Vector) -> tuple[Vector, Vector]:
        linear, quadratic = np.zeros(gammas.size), np.zeros(gammas.size)
        for part in self.parts:
            # A client within the tie's reach of its next step has taken it.
            at = np.searchsorted(part.start, gammas * (1 + FOLLOWER_TIE), side="right") - 1
            linear += part.linear[at]
            quadratic += part.quadratic[at]
        return linear, quadratic

    def _candidates(self, price: float) -> tuple[Vector, Vector]:
        """Return start and end of all pieces that could hold the maximum, and γ = 1 last."""
        low, high = self._hopeful(price)
        starts, ends = [], []
        # Neighbouring intervals are one run; it begins and ends where a piece does, so that a cut
        # is never taken for a candidate itself.
        first = np.flatnonzero(np.concatenate(([True], low[1:] != high[:-1])))
        last = np.concatenate((first[1:], [low.size])) - 1
        for a, b in zip(low[first], high[last], strict=True):
            inside = []
            begin, finish = self.decay_bounds
            for part in self.parts:
                i, j = np.searchsorted(part.start, (a, b), side="right")
                inside.append(part.start[i:j])
                begin = max(begin, part.start[i - 1])
                finish = min(finish, part.start[j]) if j < part.start.size else finish
            start = np.sort(np.concatenate(([begin], *inside)))
            starts.append(start)
            ends.append(np.concatenate((start[1:], [finish])))
        return np.concatenate((*starts, [1.0])), np.concatenate((*ends, [1.0]))

    def _hopeful(self, price: float) -> tuple[Vector, Vector]:
        """Return the intervals of γ that may hold the maximum.

        S never falls, so on an interval [a, b] the value is at most that of γ S(b) - λ t γ²; an
        interval whose bound is below a value that was found is dropped.
        """
        edges = np.linspace(*self.decay_bounds, FIRST_CUTS + 1)
        low, high = edges[:-1], edges[1:]
        best = -np.inf
        while True:
            linear, quadratic = self._coefficients(high)
            offer = linear + quadratic * high
            best = max(best, float(np.max(high * (offer - price * high))))
            with np.errstate(divide="ignore", invalid="ignore"):
                peak = np.where(offer > 0, offer / (2 * price), 0.0)
            peak = np.clip(peak, low, high)
            keep = peak * (offer - price * peak) >= best - 1e-12 * (abs(best) + price)
            keep |= low == self.decay_bounds[0]  # its own lower end has not been evaluated
            low, high = low[keep], high[keep]
            within = sum(
                np.searchsorted(part.start, high, side="right")
                - np.searchsorted(part.start, low, side="right")
                for part in self.parts
            )
            narrow = bool(np.all(high - low < 1e-9))
            if np.sum(within) <= MOST_PIECES or narrow:
                return low, high
            share = np.arange(FURTHER_CUTS + 1) / FURTHER_CUTS
            cuts = low[:, None] + (high - low)[:, None] * share
            cuts[:, -1] = high
            low, high = cuts[:, :-1].ravel(), cuts[:, 1:].ravel()

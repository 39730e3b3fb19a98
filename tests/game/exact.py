"""The game in exact rational arithmetic, by enumeration: the yardstick of the tests.

Nothing here comes from the package. A client's answer is found by trying every allowed number of
epochs; the leader's utility is probed between all points at which some client is indifferent
between two of its options, and a parabola is drawn through three exact values.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise

OUT = None


@dataclass(frozen=True)
class ExactGame:
    omega: tuple[Fraction, ...]
    cost: tuple[Fraction, ...]
    round: int
    price: Fraction
    low: int
    high: int
    whole: bool
    gamma_min: Fraction
    gamma_max: Fraction

    def client_utility(self, i: int, gamma: Fraction, tau: Fraction) -> Fraction:
        return gamma * self.omega[i] * tau - self.cost[i] * tau**2

    def options(self, i: int, gamma: Fraction) -> list[Fraction]:
        if self.whole:
            return [Fraction(tau) for tau in range(self.low, self.high + 1)]
        inside = gamma * self.omega[i] / (2 * self.cost[i])
        return [Fraction(self.low), Fraction(self.high)] + (
            [inside] if self.low <= inside <= self.high else []
        )

    def answer(self, i: int, gamma: Fraction) -> Fraction | None:
        """The best option, the larger among equals; OUT if even that loses and 0 is no option."""
        best = max(
            self.options(i, gamma), key=lambda tau: (self.client_utility(i, gamma, tau), tau)
        )
        if self.client_utility(i, gamma, best) < 0:
            return OUT
        return best

    def leader(self, gamma: Fraction) -> Fraction:
        total = Fraction(0)
        for i in range(len(self.omega)):
            tau = self.answer(i, gamma)
            if tau is not OUT:
                total += gamma * (self.omega[i] + tau)
        return total - self.price * self.round * gamma**2

    def breakpoints(self) -> list[Fraction]:
        points = {self.gamma_min, self.gamma_max}
        for omega, cost in zip(self.omega, self.cost, strict=True):
            if omega == 0:
                continue
            if self.whole:
                # Indifferent between two numbers of epochs, or between one and staying out.
                choices = {0, *range(self.low, self.high + 1)}
                points |= {cost * (a + b) / omega for a, b in combinations(choices, 2)}
            else:
                points |= {k * cost / omega for k in (self.low, 2 * self.low, 2 * self.high)}
        return sorted(p for p in points if self.gamma_min <= p <= self.gamma_max)

    def optimum(self) -> tuple[Fraction, Fraction]:
        """The leader's best utility and the largest decay factor that attains it."""
        points = self.breakpoints()
        candidates = set(points)
        for a, b in pairwise(points):
            x0, x1, x2 = (a + (b - a) * Fraction(k, 4) for k in (1, 2, 3))
            y0, y1, y2 = (self.leader(x) for x in (x0, x1, x2))
            bend = y0 - 2 * y1 + y2
            if bend < 0:
                vertex = x1 + (x1 - x0) * (y0 - y2) / (2 * bend)
                if a < vertex < b:
                    candidates.add(vertex)
        return max((self.leader(gamma), gamma) for gamma in candidates)

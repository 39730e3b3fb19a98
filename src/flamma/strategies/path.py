"""What the steps of the global model tell of its path: whether it gets on, or swings.

A model that gets on makes steps in about the same direction; one that swings takes back in a round
what it did in the last. The server sees it by the length of the mean of its recent steps, which for
steps that have nothing to do with each other would be short by a known factor.
"""

from __future__ import annotations

from dataclasses import dataclass

from flamma.numerics import dot, power
from flamma.types import Floats

LONGEST_MEAN = 1e6
"""More rounds than a mean over rounds could be worth, where the steps have no direction at all."""


@dataclass(frozen=True)
class Path:
    """How far recent steps led, and how long they were.

    The means over recent rounds fade by a factor that depends on how many rounds it takes to ask
    every client once, so that a swing from one part of the clients to the next one is seen whole.

    Attributes
    ----------
    fading : float
        The factor by which what was seen counts less with each round.
    together : float
        The squared length of the mean step.
    apart : float
        The mean squared length of the steps.
    """

    fading: float
    together: float
    apart: float

    @property
    def efficiency(self) -> float:
        """1 for steps that have nothing to do with each other, above for those that get on.

        Below 1 the model goes back and forth. Before the first step it is infinite.
        """
        if self.apart == 0:
            return float("inf")
        return self.together / (self._by_chance * self.apart)

    @property
    def rounds_to_average(self) -> float:
        """How many rounds' models the mean is best taken of, in the order of magnitude.

        A mean over H rounds lags about H steps d behind, and has 1/H of the noise V of a round:
        H² d² + V / H is smallest for an H in proportion to (V / d²)^(1/3), where d² is what the
        steps have in common and V the rest of their squared length.
        """
        common = (self.together - self._by_chance * self.apart) / (1 - self._by_chance)
        if common <= 0:
            return LONGEST_MEAN
        noise = max(0.0, self.apart - common)
        return min(LONGEST_MEAN, 2 * float(power(noise / common, 1 / 3)))

    @property
    def _by_chance(self) -> float:
        """What is left of the squared length of a mean of steps in unrelated directions."""
        return (1 - self.fading) / (1 + self.fading)


def fading_for(clients: int, per_round: int) -> float:
    """Return the factor for means over about as many rounds as it takes to ask every client.

    Examples
    --------
    >>> fading_for(clients=100, per_round=10)
    0.9166666666666666
    """
    return 1 - 1 / (2 + clients / per_round)


@dataclass(frozen=True, eq=False)
class Steps:
    """Means of recent steps: the vector, the squared length, and the weight of what was seen."""

    mean: Floats
    square: float
    weight: float

    def with_step(self, step: Floats, fading: float) -> Steps:
        """Return the means with one more step."""
        return Steps(
            fading * self.mean + (1 - fading) * step,
            fading * self.square + (1 - fading) * dot(step, step),
            fading * self.weight + (1 - fading),
        )

    def path(self, fading: float) -> Path:
        """Return what the steps tell, as if those before the first had been like the others."""
        together = dot(self.mean, self.mean) / self.weight**2
        return Path(fading, together, self.square / self.weight)

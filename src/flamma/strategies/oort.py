"""Oort: clients whose data and speed promise most, with some exploration.

Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
Algorithm 1. Not built: the removal of clients that were selected often, and the over-commitment of
1.3 K clients of which the first K count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import log, power, total
from flamma.strategies.base import Answers, weighted_choice
from flamma.strategies.utility import (
    ByUtility,
    UtilityState,
    check_shares,
    nearest_rank,
    nothing_known,
    statistical_utility,
)
from flamma.types import Floats, Ints, Params, Population

STALENESS = 0.1
"""The factor within the root of what a client gains with the rounds since its last answer."""

LONGEST_WINDOW = 100_000
"""The most rounds of the pacer's window; two of them are in the state."""


@dataclass(frozen=True, eq=False)
class OortState(UtilityState):
    """``preferred`` is the pacer's: the quantile of the durations that is not too slow.

    ``earned`` has the utility of the answers of the last two windows' rounds, round t at place
    (t - 1) modulo its length.
    """

    preferred: float
    earned: Floats


@dataclass(frozen=True)
class Oort(ByUtility[OortState]):
    """Exploit the largest (|B| F clipped + √(0.1 ln t / t_last)) (T / t_k)^α, explore with ε.

    A share ε of the K places goes to clients never heard from, in proportion to their speed. The
    others are drawn in proportion to their utility among those with at least ``cutoff`` of the
    utility of the last client that would be in by utility alone.

    Parameters
    ----------
    exploration : float
        ε in round 1.
    exploration_decay : float
        What ε is multiplied with after every round.
    exploration_floor : float
        The smallest ε; the paper has 0.2, its authors' code 0.3.
    cutoff : float
        The share of the last utility from which clients can be drawn.
    preferred : float
        T at first, as a quantile of the clients' durations.
    pacer_window : int
        Rounds whose utility is compared with that of as many before: if it is less, T grows.
    pacer_step : float
        By how much the quantile grows then.
    rescale : bool
        Whether utilities are mapped to [0, 1] before what staleness adds, as the authors' code
        does; in the paper's formula that is very little beside a number of samples.
    """

    name: ClassVar[str] = "oort"
    label: ClassVar[str] = "Oort"
    summary: ClassVar[str] = "clients with much loss and little work, with some exploration"
    family: ClassVar[str] = "selection"

    exploration: float = 0.9
    exploration_decay: float = 0.98
    exploration_floor: float = 0.2
    cutoff: float = 0.95
    preferred: float = 0.3
    pacer_window: int = 20
    pacer_step: float = 0.05
    rescale: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(
            self,
            "exploration",
            "exploration_decay",
            "exploration_floor",
            "cutoff",
            "preferred",
            "pacer_step",
        )
        if not 1 <= self.pacer_window <= LONGEST_WINDOW:
            raise StrategyError(
                f"pacer_window must be 1 to {LONGEST_WINDOW:,}, not {self.pacer_window}."
            )

    def init(self, params: Params, population: Population) -> OortState:
        """Start with every client unexplored."""
        return OortState(
            params,
            0,
            population.samples,
            *nothing_known(population),
            preferred=self.preferred,
            earned=np.zeros(2 * self.pacer_window),
        )

    def select(self, state: OortState, available: Ints, rng: np.random.Generator) -> Ints:
        """Exploit what is known, and explore the rest."""
        number, count = state.round + 1, min(self.plan.per_round, available.size)
        heard = state.last_round[available] > 0
        known, new = available[heard], available[~heard]
        wanted = math.floor((1 - self.epsilon(number)) * count)
        explored = min(new.size, count - min(known.size, wanted))
        speed = 1 / np.maximum(state.samples[new], 1)
        return np.sort(
            np.concatenate(
                (
                    self.exploited(state, known, count - explored, rng),
                    weighted_choice(new, speed, explored, rng),
                )
            )
        )

    def epsilon(self, number: int) -> float:
        """Return the share of exploration in a round."""
        decayed = self.exploration * float(power(self.exploration_decay, number - 1))
        return max(decayed, min(self.exploration_floor, self.exploration))

    def exploited(
        self, state: OortState, known: Ints, count: int, rng: np.random.Generator
    ) -> Ints:
        """Draw by utility among the clients above the cut-off."""
        if not count:
            return known[:0]
        utility = self.utilities(state, known)
        bar = self.cutoff * np.sort(utility)[known.size - count]
        good = utility >= bar
        return weighted_choice(known[good], utility[good], count, rng)

    def utilities(self, state: OortState, known: Ints) -> Floats:
        """Return what clients that have answered before are drawn by."""
        utility = state.utility[known]
        utility = np.minimum(utility, nearest_rank(utility, self.clip))
        if self.rescale and utility.max() > utility.min():
            utility = (utility - utility.min()) / (utility.max() - utility.min())
        stale = STALENESS * log(float(state.round + 1)) / state.last_round[known]
        factors = self.speed_factors(state, known, state.preferred)
        result: Floats = (utility + np.sqrt(stale)) * factors
        return result

    def combine(self, state: OortState, answers: Answers) -> OortState:
        """Take the mean, note utilities, and let the pacer look at the last two windows."""
        state = super().combine(state, answers)
        number, earned = answers.offer.round, state.earned.copy()
        gained = statistical_utility(state.samples, answers.accepted)
        earned[(number - 1) % earned.size] = total(gained)
        preferred = state.preferred
        if number % self.pacer_window == 0 and number >= earned.size:
            before, lately = np.split(np.roll(earned, -(number % earned.size)), 2)
            if total(before) > total(lately):
                preferred = min(1.0, preferred + self.pacer_step)
        return replace(state, earned=earned, preferred=preferred)

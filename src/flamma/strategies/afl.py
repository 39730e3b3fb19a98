"""Agnostic federated learning: the mixture of clients for which the model is worst.

Mohri, Sivek and Suresh, "Agnostic federated learning", ICML 2019. With partial participation: Deng,
Kamani and Mahdavi, "Distributionally robust federated averaging", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import total
from flamma.strategies.base import Answers, Offer, State, uniform_choice
from flamma.strategies.fedavg import Averaging
from flamma.strategies.quadratics import project_to_simplex
from flamma.types import Floats, Ints, Params, Population


@dataclass(frozen=True, eq=False)
class MixtureState(State):
    """``mixture`` is λ times the number of all samples: to begin with the data sizes."""

    mixture: Floats


@dataclass(frozen=True)
class Afl(Averaging[MixtureState]):
    """The model is trained for a mixture λ of the clients, which moves to where it is bad.

    Before every round λ ← Π(λ + s F), with the losses F of the current model and Π the nearest
    point of the simplex; λ starts at the shares of the data. With s = 0 this is FedAvg.

    Parameters
    ----------
    step : float
        s, how fast the mixture moves to clients with larger losses.
    participation : {"all", "partial"}
        Whether all clients tell their losses, and those drawn uniformly weigh by λ; or as many as
        train do so, drawn uniformly, while those that train are drawn by λ.
    """

    name: ClassVar[str] = "afl"
    label: ClassVar[str] = "AFL"
    summary: ClassVar[str] = "weights move to the worst mixture of clients (step)"
    family: ClassVar[str] = "fairness"

    step: float = 0.01
    participation: Literal["all", "partial"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.step < np.inf:
            raise StrategyError(f"step must be at least 0, not {self.step:g}.")
        if self.participation not in ("all", "partial"):
            raise StrategyError(f"participation must be all or partial, not {self.participation}.")

    def init(self, params: Params, population: Population) -> MixtureState:
        """Start with the mixture of the data sizes."""
        mixture = population.samples.astype(np.float64)
        return MixtureState(params, 0, population.samples, mixture)

    def survey(self, state: MixtureState, available: Ints, rng: np.random.Generator) -> Ints:
        """Ask for everybody's loss, or for that of as many as train."""
        if not self.step:
            return super().survey(state, available, rng)
        if self.participation == "all":
            return available
        return uniform_choice(available, self.plan.per_round, rng)

    def hear(self, state: MixtureState, losses: Mapping[int, float]) -> MixtureState:
        """Move the mixture by the losses.

        Who has not told a loss counts with the mean of the others, and so neither gains nor loses
        by it. With partial participation it counts with 0 and the others N / K times, as in the
        paper, which is right on average.
        """
        told = {client: loss for client, loss in losses.items() if np.isfinite(loss)}
        if not told:
            return state
        mass = total(state.mixture)
        pace = min(self.step * mass, np.finfo(np.float64).max)  # infinity times 0 is no number
        with np.errstate(over="ignore"):
            moved = state.mixture + pace * self._below_largest(told, state.mixture.size)
        # What lies a whole mass below the largest entry, which is not negative, becomes 0 anyway.
        mixture = project_to_simplex(np.maximum(moved, -2 * mass), mass)
        return replace(state, mixture=mixture)

    def _below_largest(self, told: Mapping[int, float], clients: int) -> Floats:
        """Return everybody's loss less the largest, which changes no projection.

        So nothing can overflow but to minus infinity, whatever clients say.
        """
        values = np.array(list(told.values()))
        below = values - values.max()
        rest, factor = total(below / values.size), 1.0
        if self.participation == "partial":
            rest, factor = -values.max(), clients / values.size
        everybody = np.full(clients, rest)
        everybody[list(told)] = below
        return factor * everybody

    def offer(self, state: MixtureState, available: Ints, rng: np.random.Generator) -> Offer:
        """Draw clients uniformly among those that weigh something, or by what they weigh."""
        weighing = available[state.mixture[available] > 0]
        missing = self.plan.per_round - weighing.size
        if missing >= 0:  # all of them; others only fill up the round
            rest = uniform_choice(np.setdiff1d(available, weighing), missing, rng)
            return self._offer(state, np.union1d(weighing, rest))
        if self.participation == "all":
            return self._offer(state, uniform_choice(weighing, self.plan.per_round, rng))
        mixture = state.mixture[weighing]
        chances = inclusion_probabilities(mixture, self.plan.per_round)
        places = systematic_sample(chances, rng)
        drawn = tuple(chances[places].tolist())
        return replace(self._offer(state, weighing[places]), probabilities=drawn)

    def _offer(self, state: MixtureState, chosen: Ints) -> Offer:
        number = state.round + 1
        return Offer(number, tuple(self.terms(int(client), number) for client in chosen))

    def combine(self, state: MixtureState, answers: Answers) -> MixtureState:
        """Take the mean of the models by the mixture; it stays where no weight has answered."""
        offer, accepted = answers.offer, answers.accepted
        chances = dict(zip(offer.selected, offer.probabilities or (), strict=False))
        weights = [float(state.mixture[r.client]) / chances.get(r.client, 1.0) for r in accepted]
        if not sum(weights) > 0:
            return state
        return replace(state, params=self.average(accepted, weights, answers.reference))


def inclusion_probabilities(weights: Floats, count: int) -> Floats:
    """Return π_k = min(1, c w_k) with the one c that makes their sum the count.

    There are more than ``count`` weights, and all are positive.

    Examples
    --------
    >>> inclusion_probabilities(np.array([6.0, 1.0, 2.0, 1.0]), 2)
    array([1.  , 0.25, 0.5 , 0.25])
    """
    ordered = -np.sort(-weights, kind="stable")
    for certain in range(count):
        scale = (count - certain) / total(ordered[certain:])
        if ordered[certain] * scale <= 1:
            break
    return np.minimum(1.0, scale * weights)


def systematic_sample(chances: Floats, rng: np.random.Generator) -> Ints:
    """Return places drawn with these chances, as many as the chances add up to, in order.

    The chances are laid end to end in a random order, and a comb of teeth at a distance of 1 is
    laid on them: a place is drawn if a tooth falls on it (Madow, "On the theory of systematic
    sampling", Annals of Mathematical Statistics 1949).
    """
    order = rng.permutation(chances.size)
    ends = np.cumsum(chances[order])
    teeth = rng.random() + np.arange(round(ends[-1]))
    hit = np.searchsorted(ends, teeth, side="right")
    return np.unique(order[np.minimum(hit, chances.size - 1)])

"""FLamma-plus: the game of FLamma, where who was asked last does not decide.

Partial participation makes the model swing towards whoever was selected last. Five things remove
that, each as far as the server sees that there is something to remove, so that nothing has to be
set from one federation to the next:

- what is expected of those who were not asked stands in for them, by their last updates and as far
  as new updates follow from these (:mod:`.stand_ins`);
- a part of the mean step of recent rounds is repeated, which is what all clients agree on;
- where the model goes back and forth, its step is shorter;
- the model that is served, and evaluated, is a mean of those that clients train, over the more
  rounds the less these get on (:mod:`.path`);
- the decay starts when the model stops getting on.

Clients weigh by a power of their data size, so that the largest do not have all of the model, and
as the decay sets in, those that the model serves badly weigh more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import norm, power, total
from flamma.strategies.base import Answers
from flamma.strategies.levelling import LevellingStrategy, told_losses
from flamma.strategies.memory import CHECKPOINT_ROUNDS, streams_rows
from flamma.strategies.path import LONGEST_MEAN, Path, Steps, fading_for
from flamma.strategies.plus_state import PlusState
from flamma.strategies.rows import Rows
from flamma.strategies.server_steps import change, stepped
from flamma.strategies.stand_ins import PRODUCTS, Slopes, of_all, of_these, products
from flamma.types import Floats, Ints, Params, Population, Report

GETS_ON = 2.0
"""The efficiency of a path below which the model has stopped getting on."""

MORE_ROUNDS = 3
"""How many rounds more than it takes to ask every client a mean is taken of at most."""

SEEN_FADING = 0.9
"""The factor by which what is known of the slopes counts less with each round."""


P = TypeVar("P", bound=PlusState)


@dataclass(frozen=True)
class PlusStrategy(LevellingStrategy[P], Generic[P]):
    """w ← w + Σ_S p_k u_k - (Σ_S p_k û_k - Σ q_i û_i) + β d, and a mean of recent w is served.

    u_k is the update of client k in this round, û_k = b y_k + a (r_k - w) what was expected of it,
    by its last update y_k and the model r_k that this one answered, and d the mean step of recent
    rounds; S are those asked.

    Parameters
    ----------
    decay_start : float
        Share of the rounds before γ leaves 1, if the model has stopped getting on by then.
    latest_decay_start : float
        Share of the rounds before γ leaves 1 in any case.
    correction : "measured" or float
        b, how far the last updates of other clients stand in for them. A number leaves a at 0;
        measured, both are the slopes of new updates on old ones and on the models these answered.
    momentum : float
        β, how much of the mean step of recent rounds is repeated, from 0 to below 1; less of it
        while the model swings.
    averaging : "measured" or float
        How many rounds' models the served one is a mean of; 1 serves the last one. Measured, it is
        by how far the model gets on, and at most as many as it takes to ask every client, and
        three more.
    smallest_step : float
        A model that goes back and forth makes a part of its step, and at least this one; 1 for
        the whole step in any case.
    size_power : float
        A client weighs by its data size to this power: 1 as in FedAvg, 0 for all the same.
    """

    warmup_iterations: int = 0
    epoch_bounds: tuple[int, int] | Literal["planned"] = "planned"
    latest_decay_start: float = 0.6
    correction: float | Literal["measured"] = "measured"
    momentum: float = 0.3
    averaging: float | Literal["measured"] = "measured"
    smallest_step: float = 0.3
    size_power: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.latest_decay_start <= 1:
            raise StrategyError(
                f"latest_decay_start must lie in (0, 1], not {self.latest_decay_start:g}."
            )
        if not isinstance(self.correction, str) and not 0 <= self.correction <= 1:
            raise StrategyError(f"correction must lie in [0, 1], not {self.correction:g}.")
        if not 0 <= self.momentum < 1:
            raise StrategyError(f"momentum must lie in [0, 1), not {self.momentum:g}.")
        if not isinstance(self.averaging, str) and not 1 <= self.averaging <= LONGEST_MEAN:
            raise StrategyError(
                f"averaging must be from 1 to {LONGEST_MEAN:,.0f} rounds, not {self.averaging:g}."
            )
        if not 0 < self.smallest_step <= 1:
            raise StrategyError(f"smallest_step must lie in (0, 1], not {self.smallest_step:g}.")
        if not 0 <= self.size_power <= 1:
            raise StrategyError(f"size_power must lie in [0, 1], not {self.size_power:g}.")

    def first_path(self, params: Params, population: Population) -> dict[str, Any]:
        """Return the fields of the state of a server that has not made a step."""
        size = population.trainable_size
        known = self.first_knowledge(params, population, size=size, fading=1.0)
        return known | {
            "averaged": params,
            "stand_ins": np.zeros(size),
            "answered": self._no_models(population),
            "shares": np.zeros(population.clients),
            "places": np.full(population.clients, -1),
            "answered_sum": np.zeros(size),
            "seen": np.zeros(PRODUCTS),
            "step_mean": np.zeros(size),
        }

    def _no_models(self, population: Population) -> Rows:
        """Return where answered models will be, at most one of each round; there are none yet."""
        rounds, clients = self.plan.rounds, population.clients
        most = min(rounds, clients) + 3 * min(rounds, CHECKPOINT_ROUNDS)
        return Rows.empty(min(rounds, clients) + 1, population.trainable_size, "float32", most)

    def starts(self, state: P) -> float:
        """Return the share of the rounds at which γ leaves 1."""
        return max(self.decay_start, min(self.latest_decay_start, state.start))

    def sizes(self, samples: Ints | Floats, clients: Ints) -> Floats:
        """Return what the data sizes of some clients count for, up to a common factor."""
        return power(samples[clients], self.size_power)

    def _shares(self, state: P, accepted: Sequence[Report]) -> Floats:
        """Return the share of each of those who answered, by their data."""
        sizes = self.sizes(state.samples, _clients_of(accepted))
        return sizes / total(sizes)

    def step(self, state: P, answers: Answers) -> P:
        """Step by this round's updates and the stand-ins of the others, and serve a mean."""
        offer, accepted = answers.offer, answers.accepted
        losses = told_losses(state.losses, accepted)
        clients = _clients_of(accepted)
        factors = self.loss_factors(losses, offer.decay_factor)[clients]
        weights = self.sizes(state.samples, clients) * factors
        mean = self.average(accepted, weights.tolist(), answers.reference)
        if not offer.round:  # what a warm-up sends is too short to stand in for an update
            return replace(state, params=mean, averaged=mean)
        kept, answered, received = state.kept, state.answered, state.params
        seen = SEEN_FADING * state.seen + products(kept, answered, state.places, accepted, received)
        own = change(received, mean, state.trainable_size)
        update = own - self._excess(replace(state, seen=seen), answers)
        update += self._repeated(state)
        update *= self._length(state)
        if not streams_rows(self):  # what an aggregator bounds, memory and momentum do not exceed
            update *= min(1.0, norm(own) / max(norm(update), np.finfo(float).tiny))
        params = self.damped(received, stepped(received, mean, update), offer)
        shares = self._shares(state, accepted)
        after = replace(state, seen=seen, losses=losses).remembering(accepted, shares, offer.round)
        return self._moved(replace(after, params=params), received)

    def _repeated(self, state: P) -> Floats:
        """Return what is repeated of the mean step: less while the model swings."""
        if state.step_weight == 0:
            return state.step_mean
        part = self.momentum * min(1.0, self._path(state).efficiency)
        return part / state.step_weight * state.step_mean

    def _length(self, state: P) -> float:
        """Return which part of a step is made: less than all of it where the model swings."""
        if state.step_weight == 0:
            return 1.0
        return max(self.smallest_step, min(1.0, math.sqrt(self._path(state).efficiency)))

    def slopes(self, state: P) -> Slopes:
        """Return b and a: as set, or as new updates followed from old ones."""
        if self.correction != "measured":
            return Slopes(self.correction, 0.0)
        return Slopes.fitted(state.seen)

    def _excess(self, state: P, answers: Answers) -> Floats:
        """Return Σ_S p_k û_k - Σ q_i û_i, with those that were heard from before.

        p is by data alone, and q a client's share in the last round that it was in: so what is
        taken off is whom S happens to have, and not what levelling makes of the weights, or that a
        large client weighs less among few others than among all.
        """
        accepted, kept = answers.accepted, state.kept
        clients = _clients_of(accepted)
        among = kept.slots[clients] >= 0
        if not among.any():
            return np.zeros(state.trainable_size)
        reference, usual = answers.reference, state.shares[kept.known]
        shares = self._shares(state, accepted)
        if streams_rows(self):
            these = kept.weighted_sum(clients[among], shares[among])
            others = state.stand_ins / total(usual)
        else:
            mean = self.average(accepted, shares.tolist(), reference)
            these = of_these(self, kept, accepted, shares, mean, reference)
            others = of_all(self, kept, kept.known, usual / total(usual), reference)
        slopes, told = self.slopes(state), total(shares[among])
        excess = slopes.updates * (these - told * others)
        if slopes.models > 0:
            models = state.answered.weighted_sum(state.places[clients[among]], shares[among])
            excess += slopes.models * (models - told * (state.answered_sum / total(usual)))
        return excess

    def _moved(self, state: P, before: Params) -> P:
        """Return the state with its step seen, the served model and the start of the decay."""
        step = change(before, state.params, state.trainable_size)
        steps = Steps(state.step_mean, state.step_square, state.step_weight)
        steps = steps.with_step(step, self._fading(state))
        state = replace(
            state, step_mean=steps.mean, step_square=steps.square, step_weight=steps.weight
        )
        path, number = self._path(state), state.round + 1
        passes = state.samples.size / min(self.plan.per_round, state.samples.size)
        share = 1 / max(1.0, min(self.rounds_averaged(path), MORE_ROUNDS + passes))
        averaged = state.averaged + share * (state.params.astype(np.float64) - state.averaged)
        measured = number + 1 >= self.decay_start * self.plan.rounds and state.start == 1.0
        stopped = measured and path.efficiency < GETS_ON
        return replace(
            state,
            averaged=averaged.astype(np.float32),
            start=(number + 1) / self.plan.rounds if stopped else state.start,
        )

    def _fading(self, state: P) -> float:
        clients = state.samples.size
        return fading_for(clients, min(self.plan.per_round, clients))

    def _path(self, state: P) -> Path:
        """Return what the steps so far tell of how the model moves."""
        steps = Steps(state.step_mean, state.step_square, state.step_weight)
        return steps.path(self._fading(state))

    def rounds_averaged(self, path: Path) -> float:
        """Return how many rounds' models the served one is a mean of."""
        return path.rounds_to_average if self.averaging == "measured" else self.averaging


def _clients_of(reports: Sequence[Report]) -> Ints:
    return np.array([report.client for report in reports], dtype=np.int64)


@dataclass(frozen=True)
class FlammaPlus(PlusStrategy[PlusState]):
    """FLamma where who was asked last does not decide."""

    name: ClassVar[str] = "flamma-plus"
    label: ClassVar[str] = "FLamma-plus"
    summary: ClassVar[str] = "FLamma where those not asked count, and a mean of models is served"
    family: ClassVar[str] = "flamma"

    def init(self, params: Params, population: Population) -> PlusState:
        """Start without having heard from any client."""
        return PlusState(**self.first_path(params, population))

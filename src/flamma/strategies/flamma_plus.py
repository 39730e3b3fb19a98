"""FLamma-plus: FLamma with variance reduction for partial participation and a served average.

Under partial participation the model drifts towards the clients selected last. Five corrections
reduce this drift; each is scaled by a measured quantity, so that nothing has to be set from one
federation to the next:

- clients that were not selected count by what is predicted of them, from their last updates and as
  far as new updates follow from these (:mod:`.memory`);
- a part of the mean step of recent rounds is repeated, which is what all clients agree on;
- where the model oscillates, its step is shorter;
- the model that is served, and evaluated, is a mean of those that clients train, over the more
  rounds the less progress these make;
- the decay starts when training reaches a plateau.

Clients weigh by a power of their data size, so that the largest do not have all of the model, and
as the decay sets in, those that the model serves badly weigh more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np

from flamma.numerics import dot, norm, power, total
from flamma.registry import Between, at_least
from flamma.strategies.base import Offer, Round, loss_unit, model_of, with_losses
from flamma.strategies.fedavg import change, stepped
from flamma.strategies.flamma import FlammaState, GameStrategy
from flamma.strategies.memory import (
    CHECKPOINT_ROUNDS,
    PRODUCTS,
    Remembering,
    Slopes,
    empty_memory,
    predicted_mean_of_all,
    predicted_mean_of_selected,
    products,
    streams_rows,
)
from flamma.strategies.rows import RowFormat, Rows
from flamma.types import Floats, Ints, Params, Population, Update

# Weights by loss: clients that the model serves badly weigh more.

_SMALLEST_LOSS = 1e-3
"""Below it a loss weighs as this one does, so that no client's weight is 0."""


def _latest_losses(before: Floats, updates: Sequence[Update]) -> Floats:
    """Return every client's last loss, with those that were reported this round."""
    losses = before.copy()
    for update in with_losses(updates):
        losses[update.client] = update.loss
    return losses


def loss_factors(losses: Floats, exponent: float) -> Floats:
    """Return loss^exponent; a client without a reported loss counts as having the mean."""
    reported = np.isfinite(losses)
    if exponent == 0 or not reported.any():
        return np.ones(losses.size)
    known = losses[reported]
    unit = loss_unit([_SMALLEST_LOSS, *known.tolist()], exponent)
    mean = total(known / unit) / known.size * unit
    powers = power(np.maximum(np.append(known, mean), _SMALLEST_LOSS) / unit, exponent)
    factors = np.full(losses.size, powers[-1])  # most clients may have reported none
    factors[reported] = powers[:-1]
    return factors


# Progress and oscillation of the global model, estimated from its recent steps.
#
# A model that makes progress steps in about the same direction; one that oscillates takes back in
# a round what it did in the last. The server sees it by the length of the mean of its recent steps,
# which for steps that have nothing to do with each other would be short by a known factor.

LONGEST_MEAN = 1e6
"""More rounds than a mean over rounds could be worth, where the steps have no direction at all."""


@dataclass(frozen=True)
class Path:
    """How far recent steps led, and how long they were.

    The means over recent rounds fade by a factor that depends on how many rounds it takes to ask
    every client once, so that an oscillation between two parts of the clients is seen whole.

    Attributes
    ----------
    fading : float
        The factor by which what was seen counts less with each round.
    squared_mean_step : float
        The squared length of the mean step.
    mean_squared_step : float
        The mean squared length of the steps.
    """

    fading: float
    squared_mean_step: float
    mean_squared_step: float

    @property
    def efficiency(self) -> float:
        """1 for steps that have nothing to do with each other, above for progress.

        Below 1 the model oscillates. Before the first step it is infinite.
        """
        if self.mean_squared_step == 0:
            return float("inf")
        return self.squared_mean_step / (self._by_chance * self.mean_squared_step)

    @property
    def rounds_to_average(self) -> float:
        """How many rounds' models the mean is best taken of, in the order of magnitude.

        A mean over H rounds lags about H steps d behind, and has 1/H of the noise V of a round:
        H² d² + V / H is smallest for an H in proportion to (V / d²)^(1/3), where d² is what the
        steps have in common and V the rest of their squared length.
        """
        common = (self.squared_mean_step - self._by_chance * self.mean_squared_step) / (
            1 - self._by_chance
        )
        if common <= 0:
            return LONGEST_MEAN
        noise = max(0.0, self.mean_squared_step - common)
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
        squared_mean_step = dot(self.mean, self.mean) / self.weight**2
        return Path(fading, squared_mean_step, self.square / self.weight)


# What the server of FLamma-plus knows between rounds.


@dataclass(frozen=True, eq=False)
class PlusState(FlammaState, Remembering):
    """What FLamma knows of every client, their last updates, and how the model moves.

    Attributes
    ----------
    losses : ndarray
        Every client's loss of the model it last received; NaN before it has reported one.
    averaged : Params
        The served model.
    stand_ins : ndarray
        Σ q_i y_i over the clients heard from, q their last shares in a round.
    shares : ndarray
        The share of each client, by its data, in the last round that it was in.
    answered : Rows
        The models r that the kept updates answered, each in a place of its own.
    places : ndarray
        The place of the model that each client's last update answered; -1 before there is one.
    answered_sum : ndarray
        Σ q_i r_i over the clients heard from.
    seen : ndarray
        Sums of products that the slopes of new updates on old ones are fitted to.
    step_mean, step_square, step_weight : ndarray, float, float
        Means of recent steps.
    start : float
        The share of the rounds at which γ leaves 1; 1 before it is measured.
    """

    losses: Floats
    averaged: Params
    stand_ins: Floats
    shares: Floats
    answered: Rows
    places: Ints
    answered_sum: Floats
    seen: Floats
    step_mean: Floats
    step_square: float = 0.0
    step_weight: float = 0.0
    start: float = 1.0

    @property
    def served(self) -> Params:
        """The mean of recent models."""
        return self.averaged

    def remembering(self, accepted: Sequence[Update], shares: Floats, number: int) -> Self:
        """Return the state with these updates, of this model, in place of the last ones.

        ``shares`` are those of the clients in round ``number``.
        """
        size, received = self.trainable_size, self.params
        clients = np.array([report.client for report in accepted])
        every = self.shares.copy()
        every[clients] = shares
        before = clients[self.kept.slots[clients] >= 0]
        updates = (model_of(report)[:size] - received[:size] for report in accepted)
        kept = self.kept.updated(clients.tolist(), updates, clients[:0])
        stand_ins = self.stand_ins + kept.weighted_sum(clients, shares)
        sent = received[:size].astype(np.float64)
        answered_sum = self.answered_sum + total(shares) * sent
        if before.size:
            stand_ins -= self.kept.weighted_sum(before, self.shares[before])
            answered_sum -= self.answered.weighted_sum(self.places[before], self.shares[before])
        heard, places = self.heard.copy(), self.places.copy()
        heard[clients] = number
        place = int(np.argmin(self.answered.slots))  # -1, where none is
        places[clients] = place
        gone = np.setdiff1d(self.answered.known, places)
        return replace(
            self,
            kept=kept,
            heard=heard,
            stand_ins=stand_ins,
            answered=self.answered.updated([place], [received[:size]], gone),
            places=places,
            shares=every,
            answered_sum=answered_sum,
        )


_PLATEAU_EFFICIENCY = 2.0
"""The efficiency of a path below which training is on a plateau."""

_MORE_ROUNDS = 3
"""How many rounds more than it takes to ask every client a mean is taken of at most."""

_SLOPE_FADING = 0.9
"""The factor by which what is known of the slopes counts less with each round."""


P = TypeVar("P", bound=PlusState)


@dataclass(frozen=True)
class PlusStrategy(GameStrategy[P], Generic[P]):
    """w ← w + Σ_S p_k u_k - (Σ_S p_k û_k - Σ q_i û_i) + β d, and a mean of recent w is served.

    u_k is the update of client k in this round, û_k = b y_k + a (r_k - w) what was expected of it,
    by its last update y_k and the model r_k that this one answered, and d the mean step of recent
    rounds; S are those asked.

    Parameters
    ----------
    decay_start : float
        Share of the rounds before γ leaves 1, if progress has stalled by then.
    latest_decay_start : float
        Share of the rounds before γ leaves 1 at the latest.
    correction : "measured" or float
        b, how far the last updates of other clients stand in for them. A number leaves a at 0;
        measured, both are the slopes of new updates on old ones and on the models these answered.
    momentum : float
        β, how much of the mean step of recent rounds is repeated, from 0 to below 1; less of it
        while the model oscillates.
    averaging : "measured" or float
        How many rounds' models the served one is a mean of; 1 serves the last one. Measured, it is
        by the model's progress, and at most as many as it takes to ask every client, and
        three more.
    smallest_step : float
        A model that goes back and forth makes a part of its step, and at least this one; 1 for
        the whole step in any case.
    size_power : float
        A client weighs by its data size to this power: 1 as in FedAvg, 0 for all the same.
    levelling : float
        That weight is multiplied by loss^(levelling (1 - γ)): not at all before the decay, and then
        the more for clients that the model serves badly, the smaller γ. 0 for never.
    rows : {"auto", "float32", "float16"}
        How what clients last sent is kept on disk; ``auto`` is float32 up to 256 MiB for all
        clients, else float16.
    """

    rotation: Annotated[float | Literal["gamma"], Between(0, 1)] = 0.1
    levelling: Annotated[float, Between(0, 10)] = 0.5
    rows: RowFormat = "auto"

    warmup_iterations: Annotated[int, at_least(0)] = 0
    epoch_bounds: tuple[int, int] | Literal["planned"] = "planned"
    latest_decay_start: Annotated[float, Between(0, 1, without="low")] = 0.6
    correction: Annotated[float | Literal["measured"], Between(0, 1)] = "measured"
    momentum: Annotated[float, Between(0, 1, without="high")] = 0.3
    averaging: Annotated[float | Literal["measured"], Between(1, LONGEST_MEAN)] = "measured"
    smallest_step: Annotated[float, Between(0, 1, without="low")] = 0.3
    size_power: Annotated[float, Between(0, 1)] = 0.5

    def first_state(self, make: Callable[..., P], params: Params, population: Population) -> P:
        """Return the state of a server that has not heard from any client."""
        rounds, clients, size = self.plan.rounds, population.clients, population.trainable_size
        kept, heard = empty_memory(
            self,
            clients,
            size,
            fading=1.0,
            kept_as=self.rows,
            warms_up=self.warmup_iterations > 0,
        )
        models = min(rounds, clients)  # at most one of each round is answered by a kept update
        most = models + 3 * min(rounds, CHECKPOINT_ROUNDS)
        make = partial(
            make,
            kept=kept,
            heard=heard,
            losses=np.full(clients, np.nan),
            averaged=params,
            stand_ins=np.zeros(size),
            shares=np.zeros(clients),
            answered=Rows.empty(models + 1, size, "float32", most),
            places=np.full(clients, -1),
            answered_sum=np.zeros(size),
            seen=np.zeros(PRODUCTS),
            step_mean=np.zeros(size),
        )
        return super().first_state(make, params, population)

    @property
    def wants_losses(self) -> bool:
        """Whether clients must report the loss of the model they receive."""
        return self.levelling > 0

    def offer(self, state: P, available: Ints, rng: np.random.Generator) -> Offer:
        """Ask those selected for the loss of the received model, if it will weigh."""
        made = super().offer(state, available, rng)
        if not self.wants_losses or not made.round:
            return made
        return replace(made, terms=tuple(replace(t, report_loss="received") for t in made.terms))

    def loss_factors(self, losses: Floats, decay_factor: float) -> Floats:
        """Return what each client's last loss multiplies its weight by, up to a common factor."""
        return loss_factors(losses, self.levelling * (1 - decay_factor))

    def starts(self, state: P) -> float:
        """Return the share of the rounds at which γ leaves 1."""
        return max(self.decay_start, min(self.latest_decay_start, state.start))

    def sizes(self, samples: Ints | Floats, clients: Ints) -> Floats:
        """Return what the data sizes of some clients count for, up to a common factor."""
        return power(samples[clients], self.size_power)

    def _shares(self, state: P, clients: Ints) -> Floats:
        """Return the share of each of these clients, by their data."""
        sizes = self.sizes(state.samples, clients)
        return sizes / total(sizes)

    def move(self, state: P, round: Round) -> P:
        """Step by this round's updates and the predicted ones of absent clients; serve a mean."""
        received, clients, size = state.params, round.clients, state.trainable_size
        losses = _latest_losses(state.losses, round.updates)
        factors = self.loss_factors(losses, round.offer.decay_factor)[clients]
        weights = self.sizes(state.samples, clients) * factors
        mean = self.average(round, weights.tolist())
        if round.number == 0:  # what a warm-up sends is too short to predict an update
            return replace(state, params=mean, averaged=mean)
        new = products(state.kept, state.answered, state.places, round.updates, received)
        state = replace(state, seen=_SLOPE_FADING * state.seen + new, losses=losses)

        own = change(received, mean, size)
        update = own - self.sampling_error(state, round)  # who happens to be in this round
        update += self.momentum_term(state)  # what all clients agree on
        update *= self.step_length(state)  # shorter while the model oscillates
        if not streams_rows(self):  # what an aggregator bounds, memory and momentum do not exceed
            update *= min(1.0, norm(own) / max(norm(update), np.finfo(float).tiny))

        params = self.damped(received, stepped(received, mean, update), round.offer)
        shares = self._shares(state, clients)
        after = replace(state.remembering(round.updates, shares, round.number), params=params)
        return self._with_step(after, received)

    def sampling_error(self, state: P, round: Round) -> Floats:
        """Return Σ_S p_k û_k - Σ q_i û_i, with those that were heard from before.

        p is by data alone, and q a client's share in the last round that it was in: so what is
        taken off is whom S happens to have, and not what levelling makes of the weights, or that a
        large client weighs less among few others than among all.
        """
        kept, clients = state.kept, round.clients
        among = kept.slots[clients] >= 0
        if not among.any():
            return np.zeros(state.trainable_size)
        shares, usual = self._shares(state, clients), state.shares[kept.known]
        if streams_rows(self):
            selected = kept.weighted_sum(clients[among], shares[among])
            everybody = state.stand_ins / total(usual)
        else:
            mean = self.average(round, shares.tolist())
            selected = predicted_mean_of_selected(self, kept, round, shares, mean)
            everybody = predicted_mean_of_all(
                self, kept, kept.known, usual / total(usual), round.reference
            )
        slopes, known = self.slopes(state), total(shares[among])
        error = slopes.updates * (selected - known * everybody)
        if slopes.models > 0:
            models = state.answered.weighted_sum(state.places[clients[among]], shares[among])
            error += slopes.models * (models - known * (state.answered_sum / total(usual)))
        return error

    def slopes(self, state: P) -> Slopes:
        """Return b and a: as set, or as new updates followed from old ones."""
        if self.correction != "measured":
            return Slopes(self.correction, 0.0)
        return Slopes.fitted(state.seen)

    def momentum_term(self, state: P) -> Floats:
        """Return what is repeated of the mean step: less while the model oscillates."""
        if state.step_weight == 0:
            return state.step_mean
        part = self.momentum * min(1.0, self._path(state).efficiency)
        return part / state.step_weight * state.step_mean

    def step_length(self, state: P) -> float:
        """Return which part of a step is made: less than all of it where the model oscillates."""
        if state.step_weight == 0:
            return 1.0
        return max(self.smallest_step, min(1.0, math.sqrt(self._path(state).efficiency)))

    def _with_step(self, state: P, before: Params) -> P:
        """Return the state with its step seen, the served model and the start of the decay."""
        step = change(before, state.params, state.trainable_size)
        steps = Steps(state.step_mean, state.step_square, state.step_weight)
        steps = steps.with_step(step, self._fading(state))
        state = replace(
            state, step_mean=steps.mean, step_square=steps.square, step_weight=steps.weight
        )
        path, number = self._path(state), state.round + 1
        passes = state.samples.size / min(self.plan.per_round, state.samples.size)
        share = 1 / max(1.0, min(self.rounds_averaged(path), _MORE_ROUNDS + passes))
        averaged = state.averaged + share * (state.params.astype(np.float64) - state.averaged)
        may_start = number + 1 >= self.decay_start * self.plan.rounds and state.start == 1.0
        on_plateau = may_start and path.efficiency < _PLATEAU_EFFICIENCY
        return replace(
            state,
            averaged=averaged.astype(np.float32),
            start=(number + 1) / self.plan.rounds if on_plateau else state.start,
        )

    def _fading(self, state: P) -> float:
        clients = state.samples.size
        return fading_for(clients, min(self.plan.per_round, clients))

    def _path(self, state: P) -> Path:
        """Return what the steps so far say of how the model moves."""
        steps = Steps(state.step_mean, state.step_square, state.step_weight)
        return steps.path(self._fading(state))

    def rounds_averaged(self, path: Path) -> float:
        """Return how many rounds' models the served one is a mean of."""
        return path.rounds_to_average if self.averaging == "measured" else self.averaging


@dataclass(frozen=True)
class FlammaPlus(PlusStrategy[PlusState]):
    """FLamma with control variates, so recently sampled clients do not dominate."""

    name: ClassVar[str] = "flamma-plus"
    label: ClassVar[str] = "FLamma-plus"
    summary: ClassVar[str] = "FLamma where those not asked count, and a mean of models is served"
    family: ClassVar[str] = "flamma"

    def init(self, params: Params, population: Population) -> PlusState:
        """Start without having heard from any client."""
        return self.first_state(PlusState, params, population)

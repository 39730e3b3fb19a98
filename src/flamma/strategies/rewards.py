"""A model for each client on the server: what CGSV and CFFL have in common.

The better a client's reputation is, the larger is its model's share of every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from flamma.aggregators import Reference, aggregated
from flamma.numerics import dot, exp, norm, total
from flamma.registry import Between, above
from flamma.strategies.base import (
    Needs,
    Offer,
    Round,
    State,
    Strategy,
    data_weights,
    marginal_gains,
    model_of,
    weighted_choice,
)
from flamma.strategies.fedavg import Averaging
from flamma.strategies.rows import Rows
from flamma.types import Broadcast, Floats, Ints, Params, Population, Update

_LIVING_COPIES = 5
"""How often every model is on disk at most: of this round, the next, and of checkpoints."""

_LARGEST_WEIGHT = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class OwnModels(State):
    """A model and a reputation for each client; ``params`` is the model that had every step whole.

    Attributes
    ----------
    sizes : ndarray
        The lengths of the parts of the trained weights: a share is taken of each part.
    reputations : ndarray
        One for each client, with a sum of 1 as long as there are any.
    models : Rows
        The clients' models; none before the first step, when all have the first one.
    """

    sizes: Ints
    reputations: Floats
    models: Rows

    @classmethod
    def first(cls, params: Params, population: Population) -> Self:
        """Return equal reputations and equal models.

        Without the lengths of the parts the trained weights are taken as one part.
        """
        clients = population.clients
        return cls(
            params,
            0,
            population.samples,
            np.array(population.trainable_sizes or (population.trainable_size,), dtype=np.int64),
            np.full(clients, 1 / clients),
            # In half precision a model would lose the steps that are small beside its weights.
            Rows.empty(clients, params.size, "float32", _LIVING_COPIES * clients),
        )

    @property
    def trainable_size(self) -> int:
        """How many of the weights are trained."""
        return int(self.sizes.sum())

    def model(self, client: int) -> Params:
        """Return the model of a client."""
        if self.models.slots[client] < 0:
            return self.params
        return next(self.models.each(np.array([client])))

    def broadcast(self) -> Broadcast:
        """Return what clients receive and evaluate: each its own model."""
        return Broadcast(self.params, self.round, per_client=self.model)

    def updates(self, accepted: Sequence[Update]) -> list[Floats]:
        """Return what each client has added to the trained weights of its own model."""
        trained = slice(self.trainable_size)
        return [
            model_of(report)[trained].astype(np.float64) - self.model(report.client)[trained]
            for report in accepted
        ]


def _combined_step(
    strategy: Strategy[Any],
    state: OwnModels,
    updates: Sequence[Floats],
    weights: Floats,
    reference: Reference | None,
) -> Floats:
    """Return what the strategy's aggregator makes of updates, with weights in proportion."""
    received = state.params[: state.trainable_size].astype(np.float64)
    models = [received + update for update in updates]
    if reference is not None:
        reference = reference.of_trained(received.size)
    shares = weights / total(weights)
    return aggregated(strategy.aggregator, models, shares, reference) - received


def _carried_along(
    strategy: Strategy[Any],
    state: OwnModels,
    round: Round,
) -> Params:
    """Return what is not trained, such as running means: the mean of the updates by data size."""
    if state.trainable_size == state.params.size:
        return state.params[:0]
    return strategy.average(round, data_weights(round.updates))[state.trainable_size :]


def _rewarded(
    state: OwnModels,
    step: Floats,
    carried: Params,
    shares: Floats,
    kept: Mapping[int, tuple[Floats, float]] | None = None,
) -> OwnModels:
    """Return the state in which every client has received its share of a step.

    Client i adds the entries of the step with the largest magnitudes, ⌊share_i D⌋ of the D entries
    of each part. What is not trained becomes the same in all models.

    Parameters
    ----------
    state : OwnModels
        Before the step, with the new reputations.
    step : ndarray
        The step of the trained weights.
    carried : ndarray
        What is not trained, after the step.
    shares : ndarray
        In [0, 1], one for each client.
    kept : mapping, optional
        The update that a client keeps of its own, and its weight in the step: that much of it is
        taken out of the entries that it receives, for it has them already.
    """
    ranks = magnitude_ranks(step, state.sizes)
    clients = np.arange(shares.size)

    def models() -> Iterator[Params]:
        for client, share in zip(clients.tolist(), shares.tolist(), strict=True):
            received = ranks < np.repeat(np.floor(share * state.sizes), state.sizes)
            own, weight = (kept or {}).get(client, (0.0, 0.0))
            moves = np.where(received, step - weight * own, 0.0) + own
            yield _moved(state.model(client), moves, carried)

    rows = state.models.updated(clients.tolist(), models(), np.zeros(0, dtype=np.int64))
    return replace(state, params=_moved(state.params, step, carried), models=rows)


def magnitude_ranks(step: Floats, sizes: Ints) -> Ints:
    """Return the place of each entry among those of its part, 0 for the largest in magnitude.

    Examples
    --------
    >>> magnitude_ranks(np.array([0.1, -3.0, 2.0, 0.5, -0.7]), np.array([3, 2]))
    array([2, 0, 1, 1, 0])
    """
    ranks = np.empty(step.size, dtype=np.int64)
    ends = np.cumsum(sizes)
    for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True):
        order = np.argsort(-np.abs(step[start:end]), kind="stable")
        ranks[start + order] = np.arange(end - start)
    return ranks


def _with_reputations(state: OwnModels, clients: Sequence[int], among: Floats) -> Floats:
    """Return all reputations after those of some clients were shared out among them anew.

    Together these have what they had before, so that who is not asked in a round keeps its place.
    If all clients answer, ``among`` are the new reputations.
    """
    reputations = state.reputations.copy()
    had = total(reputations[list(clients)])
    whole = total(among)
    reputations[list(clients)] = had * among / whole if whole > 0 else 0.0
    return reputations


def _shares_among(state: OwnModels, clients: Sequence[int]) -> Floats:
    """Return the reputations of some clients as shares of what they have together."""
    own = state.reputations[list(clients)]
    whole = total(own)
    return own / whole if whole > 0 else np.full(own.size, 1 / own.size)


def _of_largest(values: Floats) -> Floats:
    """Return values as shares of the largest one, 0 where none is above 0."""
    most = float(values.max())
    return values / most if most > 0 else np.zeros_like(values)


def hyperbolic_tangent(x: Floats) -> Floats:
    """Return tanh x of numbers from 0 on, with the same bits everywhere."""
    fading = exp(-2 * x)
    tangent: Floats = (1 - fading) / (1 + fading)
    return tangent


def _moved(model: Params, moves: Floats, carried: Params) -> Params:
    trained = model[: moves.size].astype(np.float64) + moves
    held: NDArray[np.float32] = np.clip(trained, -_LARGEST_WEIGHT, _LARGEST_WEIGHT).astype(
        np.float32
    )
    return np.concatenate((held, carried))


# CGSV: who moves the model in the common direction receives more of it.
#
# Xu et al., "Gradient-driven rewards to guarantee fairness in collaborative machine learning",
# NeurIPS 2021.


@dataclass(frozen=True)
class CGSV(Averaging[OwnModels]):
    """Unit updates by reputation; r ← α r + (1 - α) cos(u_i, u), and a share of u by tanh(β r_i).

    Every client has a model of its own, from which it trains. The step is u = Σ r_i Γ u_i / ‖u_i‖,
    and client i adds the share tanh(β r_i) / max_k tanh(β r_k) of it to its model: of every part of
    the model that share of the entries, those of the largest magnitude. The data sizes that clients
    tell have no effect on trained weights. The paper has all clients in every round. Here those
    that answer share their reputations anew among them, and all clients receive their share.

    Parameters
    ----------
    memory : float
        α, the weight of the past in a reputation.
    length : float
        Γ, what every update is scaled to; a schedule of the learning rate multiplies it, too.
    altruism : float
        β: the larger, the more equal the shares; without end, everybody receives everything.
    floor : float
        The smallest reputation before reputations are divided by their sum.
    """

    name: ClassVar[str] = "cgsv"
    label: ClassVar[str] = "CGSV"
    summary: ClassVar[str] = "clients receive the more of a step the better they agree with it"
    family: ClassVar[str] = "incentive"
    needs: ClassVar[Needs] = Needs(server_reads="plain")

    memory: Annotated[float, Between(0, 1)] = 0.95
    length: Annotated[float, above(0)] = 0.5
    altruism: Annotated[float, above(0)] = 1.0
    floor: Annotated[float, Between(0, 1, without="low")] = 1e-3

    def init(self, params: Params, population: Population) -> OwnModels:
        """Start with one model and one reputation for all."""
        return OwnModels.first(params, population)

    def broadcast(self, state: OwnModels) -> Broadcast:
        """Return each client's own model."""
        return state.broadcast()

    def step(self, state: OwnModels, round: Round) -> OwnModels:
        """Step by unit updates, learn reputations from their angles, and share the step out."""
        accepted = round.updates
        if not accepted:
            return state
        clients = [report.client for report in accepted]
        length = self.length * self.plan.factor(round.number)
        units = [scaled(update, length) for update in state.updates(accepted)]
        before = _shares_among(state, clients)
        step = _combined_step(self, state, units, before, round.reference)
        agreement = np.array([_cosine_between(unit, step) for unit in units])
        now = np.maximum(self.memory * before + (1 - self.memory) * agreement, self.floor)
        reputations = _with_reputations(state, clients, now)
        shares = _of_largest(hyperbolic_tangent(self.altruism * reputations))
        carried = _carried_along(self, state, round)
        return _rewarded(replace(state, reputations=reputations), step, carried, shares)


def scaled(update: Floats, length: float) -> Floats:
    """Return an update with a given length; one of length 0 as it is."""
    size = norm(update)
    return length / size * update if size > 0 else update


def _cosine_between(x: Floats, y: Floats) -> float:
    """Return the cosine of the angle between two vectors, 0 if one of them has no length."""
    size = norm(x) * norm(y)
    return dot(x, y) / size if size > 0 else 0.0


# CFFL: who does well on the server's validation set receives more of the model.
#
# Lyu et al., "Collaborative fairness in federated learning", in: Federated Learning, Springer
# LNCS 12500, 2020.

_SMALLEST_STEEPNESS = 1e-8
"""Below this sinh α r is α r to double precision for every r up to 1."""


@dataclass(frozen=True)
class CFFL(Averaging[OwnModels]):
    """Reputation by validation accuracy, made steeper by sinh, decides what a client receives.

    Every client has a model of its own, from which it trains, and keeps what it trained. Among
    those that answer, whose reputations r add up to 1, r ← m r + (1 - m) A_i / Σ A with A the
    validation accuracy of the model that a client sends, then r ← sinh(α r) / Σ sinh(α r). Who
    falls below ``threshold`` over the number of them loses its reputation for good: it is not
    asked again and receives nothing. The step is the mean of the others' updates by data size. Each
    client receives the share r_i / max r of it, the largest entries, less its own part of those.

    Parameters
    ----------
    memory : float
        m, the weight of the past in a reputation.
    steepness : float
        α: the larger, the more a small lead in accuracy counts.
    threshold : float
        The share of an equal reputation below which a client is dropped; 0 drops nobody.
    """

    name: ClassVar[str] = "cffl"
    label: ClassVar[str] = "CFFL"
    summary: ClassVar[str] = "clients receive the more of a step the better their own models are"
    family: ClassVar[str] = "incentive"
    needs: ClassVar[Needs] = Needs(server_reads="plain", validation=True, varies_selection=True)

    memory: Annotated[float, Between(0, 1)] = 0.8
    steepness: Annotated[float, Between(0, 100, without="low")] = 5.0
    threshold: Annotated[float, Between(0, 1, without="high")] = 1 / 3

    def init(self, params: Params, population: Population) -> OwnModels:
        """Start with one model and one reputation for all."""
        return OwnModels.first(params, population)

    def broadcast(self, state: OwnModels) -> Broadcast:
        """Return each client's own model."""
        return state.broadcast()

    def offer(self, state: OwnModels, available: Ints, rng: np.random.Generator) -> Offer:
        """Select uniformly among those that have a reputation."""
        return super().offer(state, available[state.reputations[available] > 0], rng)

    def step(self, state: OwnModels, round: Round) -> OwnModels:
        """Learn reputations, step by the updates of those that keep one, and share it out."""
        if not round.updates:
            return state
        clients = [report.client for report in round.updates]
        among = self._reputations(state, round)
        state = replace(state, reputations=_with_reputations(state, clients, among))
        kept = [r for r, own in zip(round.updates, among.tolist(), strict=True) if own > 0]
        updates, weights = state.updates(kept), np.array(data_weights(kept))
        step = _combined_step(self, state, updates, weights, round.reference)
        own = {
            report.client: (update, weight)
            for report, update, weight in zip(
                kept, updates, (weights / total(weights)).tolist(), strict=True
            )
        }
        carried = _carried_along(self, state, round.only(kept))
        return _rewarded(state, step, carried, _of_largest(state.reputations), own)

    def _reputations(self, state: OwnModels, round: Round) -> Floats:
        """Return the new reputations of those that answered, 0 for whom is dropped."""
        scores = np.array([round.validate(model_of(update))[1] for update in round.updates])
        # A score below 0, which R² can be, earns nothing.
        scores = np.maximum(np.where(np.isfinite(scores), scores, 0.0), 0.0)
        together = total(scores)
        now = scores / together if together > 0 else np.full(scores.size, 1 / scores.size)
        before = _shares_among(state, round.clients.tolist())
        mixed = self.memory * before + (1 - self.memory) * now
        if self.steepness >= _SMALLEST_STEEPNESS:  # below it sinh is linear, and rounded to 0
            mixed = _hyperbolic_sine(self.steepness * mixed)
        shares: Floats = mixed / total(mixed)
        return np.where(shares < self.threshold / shares.size, 0.0, shares)


def _hyperbolic_sine(x: Floats) -> Floats:
    """Return sinh x, with the same bits everywhere."""
    sine: Floats = (exp(x) - exp(-x)) / 2
    return sine


# Incentivization: clients whose updates improve the model are preferred.
#
# A reconstruction. The paper's baseline (Wu et al. 2023) has no public code; it is described as
# evaluating each client's marginal contribution to the global model and giving priority to
# clients whose updates improve accuracy. That is what this does, by leave-one-out.


@dataclass(frozen=True, eq=False)
class _IncentiveState(State):
    """The moving average of every client's marginal contribution (gain in validation loss)."""

    gain: Floats


@dataclass(frozen=True)
class Incentive(Averaging[_IncentiveState]):
    """Marginal contribution on the server's validation set decides selection and weight.

    The contribution of client k is the loss of the aggregate without it minus the loss with it.
    Selection draws without replacement, in proportion to the softmax of the standardised moving
    average, mixed with ``floor`` of the uniform distribution so that no client starves. Updates
    weigh by data size times the positive part of this round's contribution; if no client has a
    positive one, by data size alone.

    Parameters
    ----------
    memory : float
        The weight of the past in the moving average of a client's contribution.
    floor : float
        The share of the uniform distribution in the selection.
    """

    name: ClassVar[str] = "incentive"
    label: ClassVar[str] = "Incentivization"
    summary: ClassVar[str] = "marginal contribution decides selection and weight (reconstruction)"
    family: ClassVar[str] = "incentive"
    needs: ClassVar[Needs] = Needs(validation=True)

    memory: Annotated[float, Between(0, 1)] = 0.5
    floor: Annotated[float, Between(0, 1)] = 0.2

    def init(self, params: Params, population: Population) -> _IncentiveState:
        """Start with no client's contribution known."""
        return _IncentiveState(params, 0, population.samples, np.zeros(population.clients))

    def select(self, state: _IncentiveState, available: Ints, rng: np.random.Generator) -> Ints:
        """Draw clients by their moving average, each with a floor."""
        gain = state.gain[available]
        offset = gain - total(gain) / gain.size
        spread = math.sqrt(total(np.square(offset)) / gain.size)
        score = exp(offset / spread) if spread > 0 else np.ones(gain.size)
        chance = (1 - self.floor) * score / total(score) + self.floor / score.size
        return weighted_choice(available, chance, self.plan.per_round, rng)

    def step(self, state: _IncentiveState, round: Round) -> _IncentiveState:
        """Weigh by what leaving each client out would cost."""
        accepted = round.updates
        if not accepted:
            return state
        gains, shares = marginal_gains(self, round), data_weights(accepted)
        average = state.gain.copy()
        for update, gain in zip(accepted, gains, strict=True):
            if np.isfinite(gain):
                kept = self.memory * average[update.client]
                average[update.client] = kept + (1 - self.memory) * gain
        weights = [
            share * max(gain, 0.0) if np.isfinite(gain) else 0.0
            for share, gain in zip(shares, gains, strict=True)
        ]
        params = self.average(round, weights if sum(weights) > 0 else shares)
        return replace(state, params=params, gain=average)

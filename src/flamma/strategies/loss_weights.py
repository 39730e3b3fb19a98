"""What strategies share whose weights go by the clients' losses of the received model."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flamma.aggregators import AGGREGATORS, Reference, aggregated, weighted_mean
from flamma.numerics import dot, exp, power, total
from flamma.registry import Between, at_least
from flamma.strategies.base import (
    MAX_EPOCHS,
    Needs,
    Offer,
    Round,
    State,
    data_weights,
    loss_unit,
    model_of,
    uniform_choice,
    with_losses,
)
from flamma.strategies.fedavg import Averaging, FedAvg, GradientState
from flamma.strategies.quadratics import project_to_simplex
from flamma.types import Floats, Ints, Objective, Params, Population, Terms, Update


@dataclass(frozen=True)
class _ByLoss(FedAvg):
    """FedAvg whose weights go by losses; a client without a usable loss is left out."""

    name: ClassVar[str] = ""
    family: ClassVar[str] = "fairness"
    needs: ClassVar[Needs] = Needs()

    def terms(self, client: int, round: int) -> Terms:
        """Return FedAvg's terms, asking for the loss of the received model."""
        return replace(super().terms(client, round), report_loss="received")

    def step(self, state: State, round: Round) -> State:
        """Take the mean of the models by the weights."""
        usable = with_losses(round.updates)
        if not usable:
            return state
        params = self.average(round.only(usable), self.weights(usable))
        return replace(state, params=params)

    @abstractmethod
    def weights(self, updates: Sequence[Update]) -> list[float]:
        """Return what each of the reports, all of which have a loss, weighs."""


# q-FFL (q-FedAvg): clients with a larger loss weigh more.
#
# Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020.

SMALLEST_LOSS_SHIFT = 1e-10
"""Added to every loss, so that a power of 0 is defined."""


@dataclass(frozen=True)
class QFFL(Averaging[GradientState]):
    """Step by Σ Δ_k / Σ h_k, with F_k the loss of the *received* model on client k's data.

    L = 1/η, g_k = L (w - w_k), Δ_k = F_k^q g_k, h_k = q F_k^(q-1) ‖g_k‖² + L F_k^q. With q = 0
    this is the plain mean of the models, whatever the data sizes. What is not trained, such as a
    batch norm's running means, has no gradient: it becomes the mean by data size. With an
    aggregator other than ``mean``, its centre of the models, with weights F_k^q, takes the place of
    every w_k.

    Parameters
    ----------
    q : float
        How much more a client with a larger loss weighs; 0 is the plain mean.
    """

    name: ClassVar[str] = "qffl"
    label: ClassVar[str] = "q-FFL"
    summary: ClassVar[str] = "q-FFL: clients with a larger loss weigh more (q)"
    family: ClassVar[str] = "fairness"

    q: Annotated[float, at_least(0)] = 0.5

    def init(self, params: Params, population: Population) -> GradientState:
        """Start with the given weights."""
        return GradientState(params, 0, population.samples, population.trainable_size)

    def terms(self, client: int, round: int) -> Terms:
        """Return FedAvg's terms, asking for the loss of the received model."""
        return replace(super().terms(client, round), report_loss="received")

    def step(self, state: GradientState, round: Round) -> GradientState:
        """Take the q-FedAvg step; a client without a usable loss is left out of it."""
        usable = with_losses(round.updates)
        if not usable:
            return state
        trained = slice(state.trainable_size)
        received = state.params[trained].astype(np.float64)
        lipschitz = 1 / self.plan.step_size(round.number)
        step, scale = np.zeros(received.size), 0.0
        unit = loss_unit([update.loss + SMALLEST_LOSS_SHIFT for update in usable], self.q)
        losses = [(update.loss + SMALLEST_LOSS_SHIFT) / unit for update in usable]
        weights, slopes = (power(losses, exponent).tolist() for exponent in (self.q, self.q - 1))
        models = self._models(usable, weights, round.reference, state.trainable_size)
        for model, weight, slope in zip(models, weights, slopes, strict=True):
            gradient = lipschitz * (received - model)
            step += weight * gradient
            scale += self.q * slope * dot(gradient, gradient) / unit
            scale += lipschitz * weight
        params = self.average(round.only(usable), data_weights(usable))
        params[trained] = (received - step / scale).astype(np.float32)
        return replace(state, params=params)

    def _models(
        self,
        updates: Sequence[Update],
        weights: Sequence[float],
        reference: Reference | None,
        size: int,
    ) -> list[NDArray[np.floating]]:
        """Return the trained weights that each client counts with: its own, under the mean.

        Any other aggregator's centre stands for all of them. The length of one client's gradient
        could otherwise make the step as small as it likes.
        """
        own: list[NDArray[np.floating]] = [model_of(update)[:size] for update in updates]
        if AGGREGATORS[self.aggregator.name] is weighted_mean:
            return own
        if reference is not None:
            reference = reference.of_trained(size)
        sums = aggregated(self.aggregator, own, np.array(weights), reference)
        return [sums / total(weights)] * len(own)


# Agnostic federated learning: the mixture of clients for which the model is worst.
#
# Mohri, Sivek and Suresh, "Agnostic federated learning", ICML 2019. With partial participation:
# Deng, Kamani and Mahdavi, "Distributionally robust federated averaging", NeurIPS 2020.


@dataclass(frozen=True, eq=False)
class _MixtureState(State):
    """``mixture`` is λ times the number of all samples: to begin with the data sizes."""

    mixture: Floats


@dataclass(frozen=True)
class Afl(Averaging[_MixtureState]):
    """The model is trained for a mixture λ of the clients, which moves to where it is bad.

    Before every round λ ← Π(λ + s F), with the losses F of the current model and Π the nearest
    point of the simplex; λ starts at the shares of the data. With s = 0 this is FedAvg.

    Parameters
    ----------
    pace : float
        s, how fast the mixture moves to clients with larger losses.
    participation : {"all", "partial"}
        Whether all clients tell their losses, and those drawn uniformly weigh by λ; or as many as
        train do so, drawn uniformly, while those that train are drawn by λ.
    """

    name: ClassVar[str] = "afl"
    label: ClassVar[str] = "AFL"
    summary: ClassVar[str] = "weights move to the worst mixture of clients (step)"
    family: ClassVar[str] = "fairness"

    pace: Annotated[float, at_least(0)] = field(default=0.01, metadata={"option": "step"})
    participation: Literal["all", "partial"] = "all"

    def init(self, params: Params, population: Population) -> _MixtureState:
        """Start with the mixture of the data sizes."""
        mixture = population.samples.astype(np.float64)
        return _MixtureState(params, 0, population.samples, mixture)

    def survey(self, state: _MixtureState, available: Ints, rng: np.random.Generator) -> Ints:
        """Ask for everybody's loss, or for that of as many as train."""
        if not self.pace:
            return super().survey(state, available, rng)
        if self.participation == "all":
            return available
        return uniform_choice(available, self.plan.per_round, rng)

    def hear(self, state: _MixtureState, losses: Mapping[int, float]) -> _MixtureState:
        """Move the mixture by the losses.

        Who has not told a loss counts with the mean of the others, and so neither gains nor loses
        by it. With partial participation it counts with 0 and the others N / K times, as in the
        paper, which is right on average.
        """
        told = {client: loss for client, loss in losses.items() if np.isfinite(loss)}
        if not told:
            return state
        mass = total(state.mixture)
        pace = min(self.pace * mass, np.finfo(np.float64).max)  # infinity times 0 is no number
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

    def offer(self, state: _MixtureState, available: Ints, rng: np.random.Generator) -> Offer:
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

    def _offer(self, state: _MixtureState, chosen: Ints) -> Offer:
        number = state.round + 1
        return Offer(number, tuple(self.terms(int(client), number) for client in chosen))

    def step(self, state: _MixtureState, round: Round) -> _MixtureState:
        """Take the mean of the models by the mixture; it stays where no weight has answered."""
        offer, accepted = round.offer, round.updates
        chances = dict(zip(offer.selected, offer.probabilities or (), strict=False))
        weights = [float(state.mixture[r.client]) / chances.get(r.client, 1.0) for r in accepted]
        if not sum(weights) > 0:
            return state
        return replace(state, params=self.average(round, weights))


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


# TERM: weights by the exponential of the loss.
#
# Li et al., "Tilted empirical risk minimization", ICLR 2021.


@dataclass(frozen=True)
class Term(_ByLoss):
    """Clients weigh p_k exp(t F_k), the gradient of (1/t) log Σ p_k exp(t F_k); t = 0 is FedAvg.

    Parameters
    ----------
    t : float
        How much more a client with a larger loss weighs: towards the largest loss alone as it
        grows. Below 0 clients with a larger loss weigh less, as outliers.
    sample_tilt : float
        The same among the samples of a client's mini-batches; 0 is their mean.
    """

    name: ClassVar[str] = "term"
    label: ClassVar[str] = "TERM"
    summary: ClassVar[str] = "weights by data size times exp(t loss)"

    t: Annotated[float, Between(-math.inf, math.inf)] = 1.0
    sample_tilt: Annotated[float, Between(-math.inf, math.inf)] = 0.0

    def terms(self, client: int, round: int) -> Terms:
        """Return FedAvg's terms, asking for the loss, with the tilt among samples."""
        return replace(super().terms(client, round), objective=Objective(tilt=self.sample_tilt))

    def weights(self, updates: Sequence[Update]) -> list[float]:
        """Return n_k exp(t F_k), but for a common factor that keeps them finite."""
        losses = np.array([update.loss for update in updates])
        largest_exponent = losses.max() if self.t > 0 else losses.min()
        with np.errstate(over="ignore"):
            exponents = self.t * (losses - largest_exponent)
        weights: list[float] = (exp(exponents) * data_weights(updates)).tolist()
        return weights


# PropFair: clients minimise a logarithm of how far their loss is below a bound.
#
# Zhang et al., "Proportional fairness in federated learning", TMLR 2023.


@dataclass(frozen=True)
class PropFair(FedAvg):
    """Clients minimise -M log(1 - ℓ / M) in place of the loss ℓ of a mini-batch.

    Its gradient is that of ℓ times M / (M - ℓ), so that clients with a larger loss move further;
    near M and beyond the factor stays what it is there. M → ∞ is FedAvg.

    Parameters
    ----------
    loss_bound : float
        M, the loss that counts as worthless. The smaller, the longer are the steps of clients with
        large losses: small bounds want a small step size.
    """

    name: ClassVar[str] = "propfair"
    label: ClassVar[str] = "PropFair"
    summary: ClassVar[str] = "FedAvg with the local loss -M log(1 - loss / M)"
    family: ClassVar[str] = "fairness"

    loss_bound: Annotated[float, Between(0, without="low", infinite=True)] = 10.0

    def terms(self, client: int, round: int) -> Terms:
        """Return FedAvg's terms with the bound of the loss."""
        return Terms(client, round, objective=Objective(bound=self.loss_bound))


# GIFAIR-FL: weights by the rank of the loss.
#
# Yue, Nouiehed and Al Kontar, "GIFAIR-FL: a framework for group and individual fairness in
# federated learning", INFORMS Journal on Data Science 2023.


@dataclass(frozen=True)
class Gifair(_ByLoss):
    """Clients weigh p_k + λ r_k, the gradient of Σ p_k F_k + λ Σ_(i<j) |F_i - F_j|.

    r_k is how many of the others have a smaller loss, less how many have a larger one. No weight is
    negative as long as λ is at most min p_k / (n - 1), for n clients that answered.

    Parameters
    ----------
    strength : float
        λ as a share of that largest value; 0 is FedAvg.
    """

    name: ClassVar[str] = "gifair"
    label: ClassVar[str] = "GIFAIR"
    summary: ClassVar[str] = "weights by data size and the rank of the loss"

    strength: Annotated[float, Between(0, 1, without="high")] = 0.9

    def weights(self, updates: Sequence[Update]) -> list[float]:
        """Return n_k + λ r_k in units of samples."""
        losses = np.array([update.loss for update in updates])
        below = np.searchsorted(np.sort(losses), losses, side="left")
        above = losses.size - np.searchsorted(np.sort(losses), losses, side="right")
        samples = data_weights(updates)
        price = self.strength * min(samples) / max(losses.size - 1, 1)
        weights: list[float] = (np.array(samples) + price * (below - above)).tolist()
        return weights


# MaxFL: clients count that might come to prefer the common model to their own.
#
# Cho et al., "Maximizing Global Model Appeal in Federated Learning", TMLR 2024.


@dataclass(frozen=True, eq=False)
class _MaxFLState(State):
    """ρ, the loss that each client reached alone; NaN where that is not known."""

    alone: Floats


@dataclass(frozen=True)
class MaxFL(Averaging[_MaxFLState]):
    """Step by Σ q_k u_k / (Σ q_k + ε), q_k = σ(x) (1 - σ(x)), x = F_k(w) - ρ_k.

    q is the slope of a smooth count of the clients with F_k(w) above ρ_k: largest for those that
    the model serves about as well as they serve themselves, small for those it has won or lost.
    ρ_k comes from a warm-up in which every client trains alone from the first weights, and the
    model stays. A client whose ρ is not known weighs as much as the others on average.

    Parameters
    ----------
    warmup_epochs : int
        Epochs that every client trains alone before round 1.
    epsilon : float
        ε: with weights that add up to much less, the step becomes smaller.
    """

    name: ClassVar[str] = "maxfl"
    label: ClassVar[str] = "MaxFL"
    summary: ClassVar[str] = "clients near to preferring the common model weigh more"
    family: ClassVar[str] = "incentive"

    warmup_epochs: Annotated[int, Between(1, MAX_EPOCHS)] = 5
    epsilon: Annotated[float, Between(0, 1, without="low")] = 1e-8

    def init(self, params: Params, population: Population) -> _MaxFLState:
        """Start before the warm-up, without anybody's ρ."""
        return _MaxFLState(params, -1, population.samples, np.full(population.clients, np.nan))

    def select(self, state: _MaxFLState, available: Ints, rng: np.random.Generator) -> Ints:
        """Let everybody take part in the warm-up, and draw uniformly afterwards."""
        return available if state.round < 0 else super().select(state, available, rng)

    def terms(self, client: int, round: int) -> Terms:
        """Ask for ρ_k in the warm-up, and for F_k(w) in all other rounds."""
        if round == 0:
            return Terms(client, 0, epochs=self.warmup_epochs, report_loss="trained")
        return replace(super().terms(client, round), report_loss="received")

    def step(self, state: _MaxFLState, round: Round) -> _MaxFLState:
        """Note who reached what alone, or step by the weighted updates."""
        usable = tuple(update for update in round.updates if np.isfinite(update.loss))
        clients = [update.client for update in usable]
        losses = np.array([update.loss for update in usable])
        if round.number == 0:
            alone = state.alone.copy()
            alone[clients] = losses
            return replace(state, alone=alone)
        weights = appeal_slopes(losses - state.alone[clients])
        whole = total(weights)
        if not whole > 0:
            return state
        mean = self.average(round.only(usable), weights.tolist())
        step = mean.astype(np.float64) - state.params
        moved = state.params + whole / (whole + self.epsilon) * step
        return replace(state, params=moved.astype(np.float32))


def appeal_slopes(gaps: Floats) -> Floats:
    """Return σ(x) (1 - σ(x)) of each gap x; of one that is NaN, the mean of the others.

    Examples
    --------
    >>> appeal_slopes(np.array([0.0, np.nan]))
    array([0.25, 0.25])
    """
    known = np.isfinite(gaps)
    small = exp(-np.abs(gaps[known]))  # of either sign: the slope is even
    result = np.ones(gaps.size)
    result[known] = small / np.square(1 + small)
    if known.any():
        result[~known] = total(result[known]) / known.sum()
    return result

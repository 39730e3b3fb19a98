"""What selections by a client's utility share: how it is estimated, clipped and penalised.

Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
equation 1. The statistical utility |B| √(mean of ℓ²) over a client's samples is approximated by the
mean loss that it tells, |B| F. The duration of a client is not taken in seconds, which would be
other ones in every run, but as the work that it is asked for: epochs times samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import log, power, total
from flamma.registry import Between, at_least
from flamma.strategies.base import (
    Needs,
    Round,
    State,
    largest,
    marginal_gains,
    uniform_choice,
    weighted_choice,
)
from flamma.strategies.fedavg import Averaging
from flamma.types import Floats, Ints, Params, Population, Terms, Update


@dataclass(frozen=True, eq=False)
class _UtilityState(State):
    """What is known of the clients' utility.

    ``utility`` is that of each client's last answer, and ``last_round`` is the round of that
    answer; both are 0 before the first.
    """

    utility: Floats
    last_round: Ints


U = TypeVar("U", bound=_UtilityState)


@dataclass(frozen=True)
class _ByUtility(Averaging[U]):
    """FedAvg that keeps every client's utility, for a selection to go by.

    Parameters
    ----------
    clip : float
        The quantile of the known utilities at which they are cut, so that an outlier, or a client
        that tells too large a loss, is not all that counts.
    slowness : float
        α: the utility of a client whose duration t exceeds the preferred T is multiplied with
        (T / t)^α; 0 for no such penalty.
    """

    clip: Annotated[float, Between(0, 1)] = 0.95
    slowness: Annotated[float, at_least(0)] = 2.0

    def terms(self, client: int, round: int) -> Terms:
        """Return FedAvg's terms, asking for the loss of the received model."""
        return replace(super().terms(client, round), report_loss="received")

    def step(self, state: U, round: Round) -> U:
        """Take FedAvg's mean, and note the utility of those that answered."""
        state = super().step(state, round)
        utility, last_round = state.utility.copy(), state.last_round.copy()
        told = _statistical_utility(state.samples, round.updates)
        clients = [update.client for update in round.updates]
        utility[clients], last_round[clients] = told, round.number
        return replace(state, utility=utility, last_round=last_round)

    def speed_factors(self, state: U, clients: Ints, preferred: float) -> Floats:
        """Return (T / t)^α of those slower than the quantile T of all durations, 1 of others."""
        work = np.maximum(self.plan.epochs * state.samples, 1).astype(np.float64)
        longest = nearest_rank(work, preferred)
        return power(np.minimum(1.0, longest / work[clients]), self.slowness)


def _nothing_known(population: Population) -> tuple[Floats, Ints]:
    """Return the utilities and last rounds before the first round."""
    return np.zeros(population.clients), np.zeros(population.clients, dtype=np.int64)


def _statistical_utility(samples: Ints, updates: Sequence[Update]) -> Floats:
    """Return |B| F of each report; what is not finite counts as the smallest, 0.

    |B| is what clients said before the first round, so that they cannot raise it later.
    """
    clients = [update.client for update in updates]
    losses = np.array([update.loss for update in updates])
    with np.errstate(over="ignore", invalid="ignore"):
        utility = samples[clients] * losses
    return np.where(np.isfinite(utility), utility, 0.0)


def nearest_rank(values: Floats, share: float) -> float:
    """Return the smallest of the values that at least this share of them does not exceed.

    Examples
    --------
    >>> nearest_rank(np.array([3.0, 1.0, 2.0, 4.0]), 0.5)
    2.0
    """
    place = max(math.ceil(share * values.size) - 1, 0)
    return float(np.sort(values)[place])


# Power-of-Choice: of a few candidates, those whom the model serves worst train.
#
# Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning",
# AISTATS 2022 (π_pow-d).


@dataclass(frozen=True, eq=False)
class _SurveyState(State):
    """The loss that each candidate of the next round told, -inf for all others."""

    losses: Floats


@dataclass(frozen=True)
class PowerOfChoice(Averaging[_SurveyState]):
    """d candidates by data share tell F_k(w); the K with the largest loss train, and weigh alike.

    The data sizes are in the draw of the candidates, so the mean of the models is the plain one.
    A candidate that tells no loss counts as having the smallest, and so do the clients that were
    not asked, which take part only where fewer than K candidates answer.

    Parameters
    ----------
    candidates : int, optional
        d, how many clients are asked for their loss, at least ``per_round``; twice that by default.
        With ``per_round`` itself the losses decide nothing: it is a draw by data share.
    """

    name: ClassVar[str] = "power-of-choice"
    label: ClassVar[str] = "Power-of-Choice"
    summary: ClassVar[str] = "of d candidates by data share, those with the largest loss"
    family: ClassVar[str] = "selection"

    candidates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fewest = self.plan.per_round
        if self.candidates is not None and self.candidates < fewest:
            raise StrategyError(
                f"candidates must be at least per_round, which is {fewest}, not {self.candidates}."
            )

    def init(self, params: Params, population: Population) -> _SurveyState:
        """Start without any loss."""
        losses = np.full(population.clients, -np.inf)
        return _SurveyState(params, 0, population.samples, losses)

    def survey(self, state: _SurveyState, available: Ints, rng: np.random.Generator) -> Ints:
        """Draw the candidates by data share, without replacement."""
        asked = 2 * self.plan.per_round if self.candidates is None else self.candidates
        shares = state.samples[available].astype(np.float64)
        return weighted_choice(available, shares, asked, rng)

    def hear(self, state: _SurveyState, losses: Mapping[int, float]) -> _SurveyState:
        """Note the candidates' losses, and forget those of the round before."""
        told = np.full_like(state.losses, -np.inf)
        for client, loss in losses.items():
            told[client] = loss if np.isfinite(loss) else -np.inf
        return replace(state, losses=told)

    def select(self, state: _SurveyState, available: Ints, rng: np.random.Generator) -> Ints:
        """Return the K largest losses; ties are broken at random."""
        count = min(self.plan.per_round, available.size)
        return np.sort(available[largest(state.losses[available], count, rng)])

    def step(self, state: _SurveyState, round: Round) -> _SurveyState:
        """Take the plain mean of the models."""
        updates = round.updates
        if not updates:
            return state
        params = self.average(round, [1.0] * len(updates))
        return replace(state, params=params)


# Oort: clients whose data and speed promise most, with some exploration.
#
# Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
# Algorithm 1. Not built: the removal of clients that were selected often, and the over-commitment
# of 1.3 K clients of which the first K count.

_STALENESS = 0.1
"""The factor within the root of what a client gains with the rounds since its last answer."""

_LONGEST_WINDOW = 100_000
"""The most rounds of the pacer's window; two of them are in the state."""


@dataclass(frozen=True, eq=False)
class _OortState(_UtilityState):
    """``preferred`` is the pacer's: the quantile of the durations that is not too slow.

    ``earned`` has the utility of the answers of the last two windows' rounds, round t at place
    (t - 1) modulo its length.
    """

    preferred: float
    earned: Floats


@dataclass(frozen=True)
class Oort(_ByUtility[_OortState]):
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

    exploration: Annotated[float, Between(0, 1)] = 0.9
    exploration_decay: Annotated[float, Between(0, 1)] = 0.98
    exploration_floor: Annotated[float, Between(0, 1)] = 0.2
    cutoff: Annotated[float, Between(0, 1)] = 0.95
    preferred: Annotated[float, Between(0, 1)] = 0.3
    pacer_window: Annotated[int, Between(1, _LONGEST_WINDOW)] = 20
    pacer_step: Annotated[float, Between(0, 1)] = 0.05
    rescale: bool = False

    def init(self, params: Params, population: Population) -> _OortState:
        """Start with every client unexplored."""
        return _OortState(
            params,
            0,
            population.samples,
            *_nothing_known(population),
            preferred=self.preferred,
            earned=np.zeros(2 * self.pacer_window),
        )

    def select(self, state: _OortState, available: Ints, rng: np.random.Generator) -> Ints:
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
        self, state: _OortState, known: Ints, count: int, rng: np.random.Generator
    ) -> Ints:
        """Draw by utility among the clients above the cut-off."""
        if not count:
            return known[:0]
        utility = self.utilities(state, known)
        bar = self.cutoff * np.sort(utility)[known.size - count]
        good = utility >= bar
        return weighted_choice(known[good], utility[good], count, rng)

    def utilities(self, state: _OortState, known: Ints) -> Floats:
        """Return what clients that have answered before are drawn by."""
        utility = state.utility[known]
        utility = np.minimum(utility, nearest_rank(utility, self.clip))
        if self.rescale and utility.max() > utility.min():
            utility = (utility - utility.min()) / (utility.max() - utility.min())
        stale = _STALENESS * log(float(state.round + 1)) / state.last_round[known]
        factors = self.speed_factors(state, known, state.preferred)
        result: Floats = (utility + np.sqrt(stale)) * factors
        return result

    def step(self, state: _OortState, round: Round) -> _OortState:
        """Take the mean, note utilities, and let the pacer look at the last two windows."""
        state = super().step(state, round)
        number, earned = round.number, state.earned.copy()
        gained = _statistical_utility(state.samples, round.updates)
        earned[(number - 1) % earned.size] = total(gained)
        preferred = state.preferred
        if number % self.pacer_window == 0 and number >= earned.size:
            before, lately = np.split(np.roll(earned, -(number % earned.size)), 2)
            if total(before) > total(lately):
                preferred = min(1.0, preferred + self.pacer_step)
        return replace(state, earned=earned, preferred=preferred)


# FairFedCS: good reputation, and a queue for those who have waited.
#
# Shi et al., "Fairness-Aware Client Selection for Federated Learning", ICME 2023. The authors
# measure contributions by a Shapley value; only their sign counts, and it is taken from leaving
# one client out here.


@dataclass(frozen=True, eq=False)
class _FairFedCSState(State):
    """How often each client's answer helped and did not, and how long its queue is."""

    helped: Ints
    harmed: Ints
    queue: Floats

    @property
    def reputation(self) -> Floats:
        """The mean of the Beta distribution after these answers, 1/2 before the first."""
        result: Floats = (self.helped + 1) / (self.helped + self.harmed + 2)
        return result


@dataclass(frozen=True)
class FairFedCS(Averaging[_FairFedCSState]):
    """Select the K largest σ r_k + Q_k, with Q_k ← max(0, Q_k + (K/N) r_k (1 - x_k) - x_k).

    r_k = (a + 1) / (a + b + 2), with a and b how often the answer of client k lowered the
    validation loss and did not; x_k is 1 if it was selected. No client is ruled out by its
    reputation: the queue brings it back.

    Parameters
    ----------
    sigma : float
        σ, the weight of the reputation beside the queue.
    """

    name: ClassVar[str] = "fairfedcs"
    label: ClassVar[str] = "FairFedCS"
    summary: ClassVar[str] = "reputation, and a queue for those who wait (needs validation)"
    family: ClassVar[str] = "selection"
    needs: ClassVar[Needs] = Needs(validation=True)

    sigma: Annotated[float, at_least(0)] = 0.6

    def init(self, params: Params, population: Population) -> _FairFedCSState:
        """Start with no reputation and empty queues."""
        none = np.zeros(population.clients, dtype=np.int64)
        queue = np.zeros(population.clients)
        return _FairFedCSState(params, 0, population.samples, none, none, queue)

    def select(self, state: _FairFedCSState, available: Ints, rng: np.random.Generator) -> Ints:
        """Return the K largest priorities; ties are broken at random."""
        priority = (self.sigma * state.reputation + state.queue)[available]
        count = min(self.plan.per_round, available.size)
        return np.sort(available[largest(priority, count, rng)])

    def step(self, state: _FairFedCSState, round: Round) -> _FairFedCSState:
        """Take the mean, move the queues, and note whose answer helped."""
        chosen = np.zeros(state.queue.size)
        chosen[list(round.offer.selected)] = 1
        waiting = self.plan.per_round / state.queue.size * state.reputation * (1 - chosen)
        state = replace(state, queue=np.maximum(0.0, state.queue + waiting - chosen))
        if not round.updates:
            return state
        helped, harmed = state.helped.copy(), state.harmed.copy()
        gains = marginal_gains(self, round)
        for update, gain in zip(round.updates, gains, strict=True):
            (helped if gain > 0 else harmed)[update.client] += 1
        return replace(super().step(state, round), helped=helped, harmed=harmed)


# FedFair³: loss, speed and past selections decide who takes part.
#
# A reconstruction. Javaherian et al., "FedFair³: Unlocking Threefold Fairness in Federated
# Learning", ICC 2024, has no public code, and goes by properties of devices (energy, power) that
# clients do not have here. What is built are its three aims: clients with a large loss are
# preferred, as in Oort, slow ones are penalised, and whoever was selected often waits until the
# others had their rounds.


@dataclass(frozen=True, eq=False)
class _FedFair3State(_UtilityState):
    """``selections`` is how often each client was selected."""

    selections: Ints


@dataclass(frozen=True)
class FedFair3(_ByUtility[_FedFair3State]):
    """Draw K clients in proportion to |B| F clipped, times (T / t_k)^α, times λ^s.

    s is how much oftener a client was selected than the one that was least often. A client that has
    not answered yet counts as having the largest utility known.

    Parameters
    ----------
    preferred : float
        T, as a quantile of the clients' durations.
    repeat : float
        λ, what the chance of a client is multiplied with for every selection that it is ahead.
    """

    name: ClassVar[str] = "fedfair3"
    label: ClassVar[str] = "FedFair³ (reconstruction)"
    summary: ClassVar[str] = "loss, speed and past selections decide (reconstruction)"
    family: ClassVar[str] = "selection"

    preferred: Annotated[float, Between(0, 1)] = 0.5
    repeat: Annotated[float, Between(0, 1)] = 0.5

    def init(self, params: Params, population: Population) -> _FedFair3State:
        """Start with nobody selected."""
        utility, last_round = _nothing_known(population)
        return _FedFair3State(
            params, 0, population.samples, utility, last_round, np.zeros_like(last_round)
        )

    def select(self, state: _FedFair3State, available: Ints, rng: np.random.Generator) -> Ints:
        """Draw by the three factors."""
        chances = self.chances(state, available)
        return weighted_choice(available, chances, self.plan.per_round, rng)

    def chances(self, state: _FedFair3State, available: Ints) -> Floats:
        """Return what the available clients are drawn in proportion to."""
        heard = state.last_round[available] > 0
        known = state.utility[available][heard]
        most = nearest_rank(known, self.clip) if known.size else 1.0
        utility = np.where(heard, np.minimum(state.utility[available], most), most)
        selections = state.selections[available]
        ahead = selections - selections.min()
        factors = self.speed_factors(state, available, self.preferred)
        result: Floats = utility * factors * power(self.repeat, ahead)
        return result

    def step(self, state: _FedFair3State, round: Round) -> _FedFair3State:
        """Take the mean, note utilities, and count who was selected."""
        state = super().step(state, round)
        selections = state.selections.copy()
        selections[list(round.offer.selected)] += 1
        return replace(state, selections=selections)


# AdaFL: few clients in the first rounds, more later.
#
# Li et al., "AdaFL: Adaptive Client Selection and Dynamic Contribution Evaluation for Efficient
# Federated Learning", ICASSP 2024. What is built is its growing number of participants; its
# evaluation of contributions is not public in enough detail.


@dataclass(frozen=True)
class AdaFL(Averaging[State]):
    """FedAvg whose number of clients grows from a share of K to K, in equal steps.

    Parameters
    ----------
    first_share : float
        The share of ``per_round`` that is selected in round 1, at least one client; with 1 this is
        FedAvg.
    grown_at : float
        The share of the rounds after which all of ``per_round`` are selected.
    """

    name: ClassVar[str] = "adafl"
    label: ClassVar[str] = "AdaFL (growing number)"
    summary: ClassVar[str] = "FedAvg with few clients at first and more later"
    family: ClassVar[str] = "selection"
    needs: ClassVar[Needs] = Needs(varies_selection=True)

    first_share: Annotated[float, Between(0, 1, without="low")] = 0.2
    grown_at: Annotated[float, Between(0, 1, without="low")] = 0.8

    def init(self, params: Params, population: Population) -> State:
        """Start with the given weights."""
        return State(params, 0, population.samples)

    def select(self, state: State, available: Ints, rng: np.random.Generator) -> Ints:
        """Draw as many as it is the round's turn for."""
        return uniform_choice(available, self.participants(state.round + 1), rng)

    def participants(self, number: int) -> int:
        """Return how many clients a round has."""
        most, growing = self.plan.per_round, self.grown_at * self.plan.rounds - 1
        grown = min(1.0, (number - 1) / growing) if growing > 0 else 1.0
        share = self.first_share + (1 - self.first_share) * grown
        return min(most, max(1, math.floor(share * most + 0.5)))

"""Prices for which clients choose how likely they take part, and a step without bias.

Luo et al., "Incentive mechanism design for unbiased federated learning with randomized client
participation", ICDCS 2023. :mod:`flamma.game.participation` has the game.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from flamma.errors import GameError, StrategyError
from flamma.game.budget import payment_share
from flamma.game.model import LARGEST_COST
from flamma.game.participation import Participation, ParticipationGame, solve_participation
from flamma.numerics import norm, total
from flamma.strategies.base import Answers, Offer, State, data_shares, model_of
from flamma.strategies.common import check_prior_cost, round_costs
from flamma.strategies.fedavg import Averaging
from flamma.types import Floats, Ints, Params, Population, Report

GRADIENT_RANGE = 10.0
"""Gradients count as at most so many times larger or smaller than the median one, so that no client
sets its price by the size of what it sends."""

LEAST_SIZE = 1e-6
"""What a_n G_n counts as at least, as a share of the largest one."""


@dataclass(frozen=True, eq=False)
class PricingState(State):
    """What the server goes by when it sets prices.

    Attributes
    ----------
    trainable_size : int
        How many of the weights count in the size of a gradient.
    costs : ndarray
        What a round of work costs each client, as far as the server knows.
    gradients : ndarray
        G, from each client's last update; NaN for one that was never heard from.
    spent : float
        What was paid so far.
    """

    trainable_size: int
    costs: Floats
    gradients: Floats
    spent: float


@dataclass(frozen=True)
class Pricing(Averaging[PricingState]):
    """Client n takes part with the probability q_n that it chooses for the price P_n.

    The prices make the noise Σ a_n² G_n² (1 - q_n) / q_n of the step least, for what they cost: the
    probabilities add up to the clients per round of the plan, or with ``ledger.budget`` the
    expected payments to an equal part of what is left of it. Clients are drawn independently, so
    their number varies. The step is w + Σ (a_n / q_n) u_n over those drawn, with a_n the data share
    among all clients: its expectation is the step of all that are available. As in the paper the
    server knows the costs, and the cost of taking part with probability q is c q². G is estimated
    from a client's last update over its number of mini-batches, and is the median for a new client.

    Parameters
    ----------
    value : float
        κ, what less noise is worth to clients, v α/R in the paper, in units of the largest
        a_n² G_n²; above 0 clients may pay to take part.
    least : float
        The smallest probability; an update counts at most 1 / ``least`` times its data share.
    prior_cost : float
        The cost, per squared epoch, of a client that does not tell its own.
    """

    name: ClassVar[str] = "pricing"
    label: ClassVar[str] = "Pricing"
    summary: ClassVar[str] = "prices for which clients choose how likely they take part"
    family: ClassVar[str] = "incentive"
    varies_selection: ClassVar[bool] = True

    value: float = 0.0
    least: float = 0.05
    prior_cost: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.least <= 1:
            raise StrategyError(f"least must lie in (0, 1], not {self.least:g}.")
        if not 0 <= self.value <= LARGEST_COST:
            raise StrategyError(f"value must be at least 0, not {self.value:g}.")
        check_prior_cost(self.prior_cost)

    def init(self, params: Params, population: Population) -> PricingState:
        """Start with nothing known of gradients."""
        return PricingState(
            params,
            0,
            population.samples,
            population.trainable_size,
            round_costs(population, self.plan.epochs, self.prior_cost),
            gradients=np.full(population.clients, np.nan),
            spent=0.0,
        )

    def offer(self, state: PricingState, available: Ints, rng: np.random.Generator) -> Offer:
        """Draw each available client with the probability that it chooses for its price."""
        number, drawn = state.round + 1, rng.random(available.size)
        found = self.priced(state, available)
        if found is None:
            return Offer(number, (), probabilities=(), payments=())
        places = np.flatnonzero(drawn < found.probabilities)
        places = places[self._payable(state, found.prices[places])]
        return Offer(
            number,
            tuple(self.terms(int(client), number) for client in available[places]),
            probabilities=tuple(found.probabilities[places].tolist()),
            payments=tuple(found.prices[places].tolist()),
        )

    def priced(self, state: PricingState, available: Ints) -> Participation | None:
        """Return prices and probabilities of the available clients; None if none can be paid."""
        if not available.size:
            return None
        sizes = state.samples[available] * plausible_gradients(state.gradients[available])
        noises = np.square(np.maximum(sizes / max(float(sizes.max()), LEAST_SIZE), LEAST_SIZE))
        game = ParticipationGame(state.costs[available], noises, self.value, self.least)
        left = self._left(state)
        if left is None:
            return solve_participation(game, expected=float(self.plan.per_round))
        try:
            return solve_participation(game, budget=left / (self.plan.rounds - state.round))
        except GameError:  # not even the least probabilities can be paid
            return None

    def combine(self, state: PricingState, answers: Answers) -> PricingState:
        """Step by Σ (a_n / q_n) u_n, and look at the size of the updates."""
        offer, accepted = answers.offer, answers.accepted
        paid = state.spent + total(self.payments(state, answers) or ())
        state = replace(state, spent=paid)
        if not accepted or offer.probabilities is None:
            return state
        chances = dict(zip(offer.selected, offer.probabilities, strict=True))
        everybody = float(total(state.samples))
        weights = np.array(
            [state.samples[r.client] / everybody / chances[r.client] for r in accepted]
        )
        trained = slice(state.trainable_size)
        centre = self.average(accepted, weights.tolist(), answers.reference)
        received = state.params[trained].astype(np.float64)
        step = total(weights) * (centre[trained] - received)
        params = self.average(accepted, data_shares(accepted), answers.reference)
        params[trained] = (received + step).astype(np.float32)
        gradients = state.gradients.copy()
        for report in accepted:
            gradients[report.client] = self._gradient(report, received, offer.round)
        return replace(state, params=params, gradients=gradients)

    def _left(self, state: PricingState) -> float | None:
        """Return what may still be paid, None without a budget."""
        budget, rounds = self.plan.budget, self.plan.rounds
        if budget is None:
            return None
        payments = rounds * int(state.samples.size)
        return max(0.0, payment_share(budget, payments) * payments - state.spent)

    def _payable(self, state: PricingState, prices: Floats) -> Ints:
        """Return the places of those drawn, the first ones, whom what is left can pay."""
        left = self._left(state)
        if left is None:
            return np.arange(prices.size)
        return np.flatnonzero(np.cumsum(np.maximum(prices, 0.0)) <= left)

    def _gradient(self, report: Report, received: Floats, round: int) -> float:  # noqa: A002
        """Return the mean size of a client's gradients: its update over η times mini-batches."""
        batches = self.plan.epochs * math.ceil(report.samples / self.plan.batch_size)
        moved = norm(model_of(report)[: received.size] - received)
        return moved / (self.plan.step_size(round) * batches)


def plausible_gradients(gradients: Floats) -> Floats:
    """Return sizes of gradients within a range around the median, which stands for unknown ones.

    Examples
    --------
    >>> plausible_gradients(np.array([1.0, 2.0, np.nan, 1e9]))
    array([ 1.,  2.,  2., 20.])
    """
    known = np.sort(gradients[np.isfinite(gradients) & (gradients > 0)])
    middle = float(known[(known.size - 1) // 2]) if known.size else 1.0
    filled = np.where(np.isnan(gradients), middle, gradients)
    return np.clip(filled, middle / GRADIENT_RANGE, middle * GRADIENT_RANGE)

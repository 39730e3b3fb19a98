"""Prices for which clients choose how likely they take part, and a step without bias.

Luo et al., "Incentive mechanism design for unbiased federated learning with randomized client
participation", ICDCS 2023. :mod:`flamma.game.mechanisms` has the game.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np

from flamma.contributions import CONTRIBUTIONS
from flamma.errors import GameError, StrategyError
from flamma.game.mechanisms import (
    ContractMenu,
    Participation,
    ParticipationGame,
    optimal_menu,
    solve_participation,
)
from flamma.game.model import LARGEST_COST
from flamma.game.pricing import payment_share
from flamma.numerics import norm, total
from flamma.registry import Between, Choice, at_least
from flamma.strategies.base import (
    Inspect,
    Needs,
    Offer,
    PriorCost,
    Round,
    State,
    Verdict,
    data_weights,
    measured_contributions,
    model_of,
    round_costs,
)
from flamma.strategies.fedavg import Averaging
from flamma.types import Floats, Ints, LocalWork, Params, Population, Profile, Terms, Update

_GRADIENT_RANGE = 10.0
"""Gradients count as at most so many times larger or smaller than the median one, so that no client
sets its price by the size of what it sends."""

_LEAST_SIZE = 1e-6
"""What a_n G_n counts as at least, as a share of the largest one."""


@dataclass(frozen=True, eq=False)
class _PricingState(State):
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
class Pricing(Averaging[_PricingState]):
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
    needs: ClassVar[Needs] = Needs(varies_selection=True)

    value: Annotated[float, Between(0, LARGEST_COST)] = 0.0
    least: Annotated[float, Between(0, 1, without="low")] = 0.05
    prior_cost: PriorCost = 0.1

    def init(self, params: Params, population: Population) -> _PricingState:
        """Start with nothing known of gradients."""
        return _PricingState(
            params,
            0,
            population.samples,
            population.trainable_size,
            round_costs(population, self.plan.epochs, self.prior_cost),
            gradients=np.full(population.clients, np.nan),
            spent=0.0,
        )

    def offer(self, state: _PricingState, available: Ints, rng: np.random.Generator) -> Offer:
        """Draw each available client with the probability that it chooses for its price."""
        number, drawn = state.round + 1, rng.random(available.size)
        found = self.priced(state, available)
        if found is None:
            return Offer(number, (), probabilities=(), payments=())
        places = np.flatnonzero(drawn < found.probabilities)
        left = self._left(state)
        if left is not None:  # the first ones whom it can pay
            places = places[np.cumsum(np.maximum(found.prices[places], 0.0)) <= left]
        return Offer(
            number,
            tuple(self.terms(int(client), number) for client in available[places]),
            probabilities=tuple(found.probabilities[places].tolist()),
            payments=tuple(found.prices[places].tolist()),
        )

    def priced(self, state: _PricingState, available: Ints) -> Participation | None:
        """Return prices and probabilities of the available clients; None if none can be paid."""
        if not available.size:
            return None
        sizes = state.samples[available] * _plausible_gradients(state.gradients[available])
        noises = np.square(np.maximum(sizes / max(float(sizes.max()), _LEAST_SIZE), _LEAST_SIZE))
        game = ParticipationGame(state.costs[available], noises, self.value, self.least)
        left = self._left(state)
        if left is None:
            return solve_participation(game, expected=float(self.plan.per_round))
        try:
            return solve_participation(game, budget=left / (self.plan.rounds - state.round))
        except GameError:  # not even the least probabilities can be paid
            return None

    def step(self, state: _PricingState, round: Round) -> _PricingState:
        """Step by Σ (a_n / q_n) u_n, and look at the size of the updates."""
        offer, accepted = round.offer, round.updates
        paid = state.spent + total(self.payments(state, round) or ())
        state = replace(state, spent=paid)
        if not accepted or offer.probabilities is None:
            return state
        chances = dict(zip(offer.selected, offer.probabilities, strict=True))
        everybody = float(total(state.samples))
        weights = np.array(
            [state.samples[r.client] / everybody / chances[r.client] for r in accepted]
        )
        trained = slice(state.trainable_size)
        centre = self.average(round, weights.tolist())
        received = state.params[trained].astype(np.float64)
        step = total(weights) * (centre[trained] - received)
        params = self.average(round, data_weights(accepted))
        params[trained] = (received + step).astype(np.float32)
        gradients = state.gradients.copy()
        for update in accepted:  # the mean size of gradients: an update over η times mini-batches
            batches = self.plan.epochs * math.ceil(update.samples / self.plan.batch_size)
            moved = norm(model_of(update)[: received.size] - received)
            gradients[update.client] = moved / (self.plan.step_size(offer.round) * batches)
        return replace(state, params=params, gradients=gradients)

    def _left(self, state: _PricingState) -> float | None:
        """Return what may still be paid, None without a budget."""
        budget, rounds = self.plan.budget, self.plan.rounds
        if budget is None:
            return None
        payments = rounds * int(state.samples.size)
        return max(0.0, payment_share(budget, payments) * payments - state.spent)


def _plausible_gradients(gradients: Floats) -> Floats:
    """Return sizes of gradients within a range around the median, which stands for unknown ones.

    Examples
    --------
    >>> _plausible_gradients(np.array([1.0, 2.0, np.nan, 1e9]))
    array([ 1.,  2.,  2., 20.])
    """
    known = np.sort(gradients[np.isfinite(gradients) & (gradients > 0)])
    middle = float(known[(known.size - 1) // 2]) if known.size else 1.0
    filled = np.where(np.isnan(gradients), middle, gradients)
    return np.clip(filled, middle / _GRADIENT_RANGE, middle * _GRADIENT_RANGE)


# A menu of contracts: so many local epochs for so much pay, from which every client chooses.
#
# Ding, Fang and Huang, "Optimal contract design for efficient federated learning with
# multi-dimensional private information", IEEE JSAC 2021; Kang et al., IEEE Internet of Things
# Journal 2019. :mod:`flamma.game.mechanisms` has the menu.


@dataclass(frozen=True)
class Contract(Averaging[State]):
    """FedAvg whose clients choose their epochs from a menu of contracts.

    The menu is best for the server among those under which a client of any of the types loses
    nothing by its own item and gains nothing by another. It follows from the options alone. What a
    client reports of its cost therefore changes nothing, and playing as another type would cannot
    pay. Work that is claimed and not done is paid all the same: a contract is about costs, not
    about proofs.

    Parameters
    ----------
    type_costs : tuple of float
        The costs of the types, per squared epoch, increasing.
    type_shares : tuple of float
        How frequent each type is, in any unit; alike if left out.
    value : float
        v: τ epochs of a client are worth v ln(1 + τ) to the server.
    epoch_bounds : (int, int)
        The fewest and the most epochs of an item.
    """

    name: ClassVar[str] = "contract"
    label: ClassVar[str] = "Contract"
    summary: ClassVar[str] = "FedAvg; clients choose epochs and pay from an optimal menu"
    family: ClassVar[str] = "incentive"
    needs: ClassVar[Needs] = Needs(server_reads="mean")

    type_costs: tuple[float, ...] = (0.053, 0.077, 0.1, 0.13, 0.19)
    type_shares: tuple[float, ...] = ()
    value: float = 6.0
    epoch_bounds: tuple[int, int] = (1, 10)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(self.menu.epochs) and self.plan.budget is None:
            raise StrategyError(
                f"no type's work is worth its cost at value = {self.value:g}: raise it."
            )

    @cached_property
    def menu(self) -> ContractMenu:
        """The menu; under a budget one whose dearest item every selected client could choose."""
        budget, payments = self.plan.budget, self.plan.rounds * self.plan.per_round
        most = math.inf if budget is None else payment_share(budget, payments)
        return optimal_menu(
            self.type_costs,
            self.type_shares or (1.0,) * len(self.type_costs),
            value=self.value,
            epoch_bounds=self.epoch_bounds,
            most_payment=most,
        )

    def init(self, params: Params, population: Population) -> State:
        """Start with the given weights."""
        return State(params, 0, population.samples)

    def respond(self, terms: Terms, profile: Profile) -> LocalWork:
        """Choose the item that is best at this client's true cost; nothing if none pays."""
        task = super().respond(terms, profile)
        if not terms.train:
            return task
        return replace(task, epochs=self.menu.choice(profile.cost))

    def epoch_range(self, terms: Terms) -> tuple[int, int]:
        """Return the fewest and the most epochs of the menu."""
        return self.epoch_bounds[0], max(*self.menu.epochs, self.epoch_bounds[0])

    def screen(
        self, state: State, offer: Offer, answers: tuple[Update, ...], inspect: Inspect | None
    ) -> Verdict:
        """Refuse work that no item of the menu has."""
        menu = self.menu
        return Verdict(tuple(_on_menu(update, menu) for update in answers))

    def payments(self, state: State, round: Round) -> tuple[float, ...]:
        """Return the payment of the item that each has chosen."""
        menu = self.menu
        chosen = {update.client: update.epochs for update in round.updates}
        return tuple(
            (menu.payment(chosen[client]) or 0.0) if client in chosen else 0.0
            for client in round.offer.selected
        )


def _on_menu(update: Update, menu: ContractMenu) -> Update:
    if update.params is None or menu.payment(update.epochs) is not None:
        return update
    reason = f"refused: {update.epochs} epochs, which no item of the menu has"
    return replace(update, params=None, epochs=0, failure=reason)


# FLI: a budget is shared out so that nobody waits long for what its work has cost.
#
# Yu et al., "A fairness-aware incentive scheme for federated learning", AIES 2020.


@dataclass(frozen=True, eq=False)
class _FLIState(State):
    """What clients have done and what they wait for, one entry for each client.

    Attributes
    ----------
    trainable_size : int
        How many of the weights count in a contribution.
    costs : ndarray
        What a round of work costs each client, as far as the server knows.
    contributions : ndarray
        As of the client's last report.
    regret : ndarray
        Y, the cost that has not been paid yet.
    waiting : ndarray
        Q, which grows as long as there is regret.
    paid : ndarray
        What each was paid when it last answered.
    """

    trainable_size: int
    costs: Floats
    contributions: Floats
    regret: Floats
    waiting: Floats
    paid: Floats


@dataclass(frozen=True)
class FLI(Averaging[_FLIState]):
    """FedAvg whose budget of a round goes to those that answered, in proportion to u_i.

    u_i = (ω q_i + Y_i + c_i + Q_i + λ_i) / 2 with the contribution q_i, the cost c_i of the round,
    and λ_i = c_i if Y_i > 0, else 0. With the payoff x_i = B u_i / Σ u: Y_i ← max(Y_i + c_i - x_i,
    0) and Q_i ← max(Q_i + λ_i - x_i, 0). The paper pays instalments to those that do not work in a
    round too; here they wait for the next round in which they answer. Costs are those that clients
    tell, so a client that tells a larger one is paid more.

    Parameters
    ----------
    round_budget : float
        B, the payments of a round together, in units of utility. With ``ledger.budget`` it is an
        equal part of that instead.
    contribution_weight : float
        ω, what a full contribution counts beside costs and regret.
    contribution : name or table
        What measures q, in [0, 1].
    prior_cost : float
        The cost, per squared epoch, of a client that does not tell its own.
    """

    name: ClassVar[str] = "fli"
    label: ClassVar[str] = "FLI"
    summary: ClassVar[str] = "FedAvg; a budget shared by contribution, cost and unpaid regret"
    family: ClassVar[str] = "incentive"

    round_budget: Annotated[float, at_least(0)] = 10.0
    contribution_weight: Annotated[float, at_least(0)] = 1.0
    contribution: Annotated[Choice, CONTRIBUTIONS] = Choice("cosine")
    prior_cost: PriorCost = 0.1

    def init(self, params: Params, population: Population) -> _FLIState:
        """Start without regret."""
        zeros = np.zeros(population.clients)
        return _FLIState(
            params,
            0,
            population.samples,
            population.trainable_size,
            round_costs(population, self.plan.epochs, self.prior_cost),
            np.ones(population.clients),
            zeros,
            zeros,
            zeros,
        )

    @property
    def payable(self) -> float:
        """What is paid in a round."""
        whole = self.plan.budget
        return self.round_budget if whole is None else payment_share(whole, self.plan.rounds)

    def step(self, state: _FLIState, round: Round) -> _FLIState:
        """Average as FedAvg does, then share the budget out and settle the queues."""
        after = super().step(state, round)
        contributions = measured_contributions(
            self.contribution,
            round,
            after.params,
            state.trainable_size,
            state.contributions,
        )
        after = replace(after, contributions=contributions)
        clients = [update.client for update in round.updates]
        return self.settled(after, clients) if clients else after

    def settled(self, state: _FLIState, clients: list[int]) -> _FLIState:
        """Return the state after those that answered were paid."""
        cost, regret = state.costs[clients], state.regret[clients]
        urgency = np.where(regret > 0, cost, 0.0)
        queues = regret + cost + state.waiting[clients] + urgency
        claims = (self.contribution_weight * state.contributions[clients] + queues) / 2
        payoffs = self.payable * (claims / total(claims))
        paid, regrets, waiting = state.paid.copy(), state.regret.copy(), state.waiting.copy()
        paid[clients] = payoffs
        regrets[clients] = np.maximum(regret + cost - payoffs, 0.0)
        waiting[clients] = np.maximum(waiting[clients] + urgency - payoffs, 0.0)
        return replace(state, paid=paid, regret=regrets, waiting=waiting)

    def payments(self, state: _FLIState, round: Round) -> tuple[float, ...]:
        """Return the payoffs of those that answered."""
        usable = {update.client for update in round.updates}
        return tuple(
            float(state.paid[client]) if client in usable else 0.0
            for client in round.offer.selected
        )

"""FLI: a budget is shared out so that nobody waits long for what its work has cost.

Yu et al., "A fairness-aware incentive scheme for federated learning", AIES 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from flamma.contributions import CONTRIBUTIONS
from flamma.errors import StrategyError
from flamma.game.budget import payment_share
from flamma.numerics import total
from flamma.registry import Choice
from flamma.strategies.base import Answers, State
from flamma.strategies.common import check_prior_cost, round_costs
from flamma.strategies.fedavg import Averaging
from flamma.strategies.measured import measured_contributions
from flamma.types import Floats, Params, Population


@dataclass(frozen=True, eq=False)
class FLIState(State):
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
class FLI(Averaging[FLIState]):
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

    round_budget: float = 10.0
    contribution_weight: float = 1.0
    contribution: Annotated[Choice, CONTRIBUTIONS] = Choice("cosine")
    prior_cost: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("round_budget", "contribution_weight"):
            if not 0 <= getattr(self, option) < np.inf:
                raise StrategyError(f"{option} must be at least 0, not {getattr(self, option):g}.")
        check_prior_cost(self.prior_cost)

    def init(self, params: Params, population: Population) -> FLIState:
        """Start without regret."""
        zeros = np.zeros(population.clients)
        return FLIState(
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

    def combine(self, state: FLIState, answers: Answers) -> FLIState:
        """Average as FedAvg does, then share the budget out and settle the queues."""
        after = super().combine(state, answers)
        contributions = measured_contributions(
            self.contribution,
            answers,
            state.params,
            after.params,
            state.trainable_size,
            state.contributions,
        )
        after = replace(after, contributions=contributions)
        clients = [report.client for report in answers.accepted]
        return self.settled(after, clients) if clients else after

    def settled(self, state: FLIState, clients: list[int]) -> FLIState:
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

    def payments(self, state: FLIState, answers: Answers) -> tuple[float, ...]:
        """Return the payoffs of those that answered."""
        usable = {report.client for report in answers.accepted}
        return tuple(
            float(state.paid[client]) if client in usable else 0.0
            for client in answers.offer.selected
        )

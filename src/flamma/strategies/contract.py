"""A menu of contracts: so many local epochs for so much pay, from which every client chooses.

Ding, Fang and Huang, "Optimal contract design for efficient federated learning with
multi-dimensional private information", IEEE JSAC 2021; Kang et al., IEEE Internet of Things
Journal 2019. :mod:`flamma.game.contracts` has the menu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from flamma.errors import StrategyError
from flamma.game.budget import payment_share
from flamma.game.contracts import ContractMenu, optimal_menu
from flamma.strategies.base import Answers, Inspect, Offer, Screened, ServerReads, State
from flamma.strategies.fedavg import Averaging
from flamma.types import LocalTask, Params, Population, Profile, Report, Terms


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
    server_reads: ClassVar[ServerReads] = "mean"

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

    def respond(self, terms: Terms, profile: Profile) -> LocalTask:
        """Choose the item that is best at this client's true cost; nothing if none pays."""
        task = super().respond(terms, profile)
        return task if terms.evaluates else replace(task, epochs=self.menu.choice(profile.cost))

    def epoch_range(self, terms: Terms) -> tuple[int, int]:
        """Return the fewest and the most epochs of the menu."""
        return self.epoch_bounds[0], max(*self.menu.epochs, self.epoch_bounds[0])

    def screen(
        self, state: State, offer: Offer, answers: tuple[Report, ...], inspect: Inspect | None
    ) -> Screened:
        """Refuse work that no item of the menu has."""
        menu = self.menu
        return Screened(tuple(_on_menu(report, menu) for report in answers))

    def payments(self, state: State, answers: Answers) -> tuple[float, ...]:
        """Return the payment of the item that each has chosen."""
        menu = self.menu
        chosen = {report.client: report.epochs for report in answers.accepted}
        return tuple(
            (menu.payment(chosen[client]) or 0.0) if client in chosen else 0.0
            for client in answers.offer.selected
        )


def _on_menu(report: Report, menu: ContractMenu) -> Report:
    if report.params is None or menu.payment(report.epochs) is not None:
        return report
    reason = f"refused: {report.epochs} epochs, which no item of the menu has"
    return replace(report, params=None, epochs=0, failure=reason)

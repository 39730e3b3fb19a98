"""FedMGDA+: the shortest combination of gradients near the mean.

Hu et al., "Federated learning meets multi-objective optimization", IEEE Transactions on Network
Science and Engineering 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from flamma.aggregators import AGGREGATORS, ROUNDING_LENGTH, aggregated, weighted_mean
from flamma.errors import StrategyError
from flamma.numerics import dot, norm, power, weighted_sum
from flamma.registry import Between, above, at_least
from flamma.strategies.base import Round, data_weights, model_of, with_losses
from flamma.strategies.fedavg import (
    ByGradients,
    ByUnitGradients,
    GradientState,
    Moves,
    inner_products,
)
from flamma.strategies.loss_weights import SMALLEST_LOSS_SHIFT
from flamma.strategies.memory import CHECKPOINT_ROUNDS, Remembering
from flamma.strategies.quadratics import least_norm_weights, weights_of_rates
from flamma.strategies.rows import Rows
from flamma.types import Floats, Ints, Params, Population, Terms, Update


@dataclass(frozen=True)
class FedMgdaPlus(ByUnitGradients):
    """The step is η_s Σ λ_k g_k, of gradients of length 1, with λ the least ‖Σ λ_k g_k‖.

    λ lies on the simplex with |λ_k - p_k| ≤ ε for every k. Along the shortest combination of all
    (ε = 1) no client's loss grows, to first order; ε = 0 is the mean by data size of gradients of
    length 1. An aggregator other than ``mean`` combines the models that gradients of length 1 lead
    to, with weights λ.

    Parameters
    ----------
    epsilon : float
        ε, how far a client's weight may be from its share of the data.
    """

    name: ClassVar[str] = "fedmgda+"
    label: ClassVar[str] = "FedMGDA+"
    summary: ClassVar[str] = "the shortest combination of unit gradients near the mean"
    family: ClassVar[str] = "fairness"

    epsilon: Annotated[float, Between(0, 1)] = 0.1

    def moved(self, state: GradientState, moves: Moves) -> Floats:
        """Step along the shortest combination."""
        units = moves.of_length_1()
        samples = data_weights(moves.reports)
        shares = np.array([count / math.fsum(samples) for count in samples])
        weights = least_norm_weights(inner_products(units), shares, self.epsilon)
        models = [moves.received + unit for unit in units]
        there = aggregated(self.aggregator, models, weights, moves.reference)
        step = self.step_length(state)
        return there if step == 1 else moves.received + step * (there - moves.received)


# FedFV: gradients that conflict are projected before they are averaged.
#
# Wang et al., "Federated learning with fair averaging", IJCAI 2021.

_ROUNDED_SHARE = 1e-9
"""A share of clients that is a whole number of them but for rounding is that number."""


@dataclass(frozen=True)
class FedFV(ByGradients[Remembering]):
    """Gradients give up what works against others, and then those that were not asked count too.

    In the order of the losses F_j, the smallest first, g_k ← g_k - (⟨g_k, g_j⟩ / ‖g_j‖²) g_j
    where ⟨g_k, g_j⟩ < 0, for all clients k but those with the largest losses. The mean of these by
    data size then gives up in the same way what works against the clients last heard in one of the
    rounds before. Its length becomes that of the mean of what clients have sent. Without conflicts
    this is FedAvg. An aggregator other than ``mean`` combines the projected gradients, and the
    ones whose mean gives the length.

    Parameters
    ----------
    alpha : float
        α, the share of clients whose gradients stay as they are: those with the largest losses.
    tau : int
        τ, how many rounds before this one count; 0 for none.
    """

    name: ClassVar[str] = "fedfv"
    label: ClassVar[str] = "FedFV"
    summary: ClassVar[str] = "gradients give up what conflicts with others' before the mean"
    family: ClassVar[str] = "fairness"

    alpha: Annotated[float, Between(0, 1)] = 0.1
    tau: Annotated[int, at_least(0)] = 1

    def init(self, params: Params, population: Population) -> Remembering:
        """Start with no client's gradient."""
        clients, size = population.clients, population.trainable_size
        most = min(clients, (self.tau + 1) * self.plan.per_round)
        replaced = min(clients, CHECKPOINT_ROUNDS * self.plan.per_round)
        kept = Rows.empty(clients, size, "auto", most + 3 * replaced)
        return Remembering(params, 0, population.samples, size, kept, np.full(clients, -1))

    def terms(self, client: int, round: int) -> Terms:
        """Return FedAvg's terms, asking for the loss of the received model."""
        return replace(super().terms(client, round), report_loss="received")

    def usable(self, accepted: Sequence[Update]) -> Sequence[Update]:
        """Return the reports that have a usable loss."""
        return with_losses(accepted)

    def step(self, state: Remembering, round: Round) -> Remembering:
        """Step, and keep what clients sent for the next τ rounds."""
        after, number = super().step(state, round), round.number
        reports = self.usable(round.updates) if self.tau else ()
        clients = [report.client for report in reports]
        heard = state.heard.copy()
        heard[clients] = number
        trained = slice(state.trainable_size)
        updates = (model_of(report)[trained] - state.params[trained] for report in reports)
        kept = state.kept.updated(clients, updates, np.flatnonzero(heard <= number - self.tau))
        return replace(after, kept=kept, heard=heard)

    def moved(self, state: Remembering, moves: Moves) -> Floats:
        """Step by what is left of the gradients, as far as their mean would."""
        plain = self._mean(moves, moves.updates)
        cleared = self._cleared(moves)
        changed = any(new is not old for new, old in zip(cleared, moves.updates, strict=True))
        step = before = (self._mean(moves, cleared) if changed else plain) - moves.received
        reporting = np.array([report.client for report in moves.reports])
        for age in range(self.tau, 0, -1) if state.round >= self.tau else ():
            then = np.flatnonzero(state.heard == state.round + 1 - age)
            step = _clear_of_others(step, state.kept, np.setdiff1d(then, reporting))
        if not changed and step is before:
            return plain
        length = norm(step)
        # What is left of gradients that cancel out is rounding, and has no direction.
        if not length > ROUNDING_LENGTH * max(norm(update) for update in moves.updates):
            return moves.received
        return moves.received + norm(plain - moves.received) / length * step

    def _mean(self, moves: Moves, updates: Sequence[Floats]) -> Floats:
        """Return the model that these updates lead to, by the aggregator."""
        samples = data_weights(moves.reports)
        shares = np.array([count / math.fsum(samples) for count in samples])
        models = [moves.received + update for update in updates]
        return aggregated(self.aggregator, models, shares, moves.reference)

    def _cleared(self, moves: Moves) -> list[Floats]:
        """Return each update without what works against others, where it is not to be kept."""
        updates, count = moves.updates, len(moves.updates)
        order = np.argsort([report.loss for report in moves.reports], kind="stable").tolist()
        kept = math.ceil(self.alpha * count - _ROUNDED_SHARE)
        cleared = list(updates)
        for place in order[: count - kept]:
            for other in order:
                if other != place:
                    cleared[place] = _clear_of(cleared[place], updates[other])
        return cleared


def _clear_of(update: Floats, other: Floats) -> Floats:
    """Return u - (⟨u, v⟩ / ‖v‖²) v if ⟨u, v⟩ < 0, else u itself.

    Examples
    --------
    >>> _clear_of(np.array([1.0, 1.0]), np.array([-2.0, 0.0]))
    array([0., 1.])
    """
    product = dot(update, other)
    return update - product / dot(other, other) * other if product < 0 else update


def _clear_of_others(step: Floats, rows: Rows, clients: Ints) -> Floats:
    """Return the step without what works against the sum of those clients' rows that it harms."""
    against = np.array([dot(step, row) < 0 for row in rows.each(clients)], dtype=np.bool_)
    if not against.any():
        return step
    return _clear_of(step, rows.weighted_sum(clients[against], np.ones(int(against.sum()))))


# AdaFed: a common direction along which the larger losses fall faster.
#
# Hamidi and Yang, "AdaFed: fair federated learning via adaptive common descent direction", TMLR
# 2024.


@dataclass(frozen=True)
class AdaFed(ByUnitGradients):
    """The step is η_s d with ⟨d, g_k⟩ = F_k^γ ‖d‖² for every client, d in the span of all g_k.

    The gradients g_k have length 1, and losses are in units of the largest one. The paper comes to
    d by orthogonal vectors g̃_k and the shortest of their convex combinations; these equations
    have the same solution, and nothing in them is divided by a difference that could be 0.

    Parameters
    ----------
    gamma : float
        γ, how much faster a larger loss falls; 0 for all alike.
    """

    name: ClassVar[str] = "adafed"
    label: ClassVar[str] = "AdaFed"
    summary: ClassVar[str] = "a common direction along which larger losses fall faster (gamma)"
    family: ClassVar[str] = "fairness"

    server_step: Annotated[float, above(0)] = 0.5
    gamma: Annotated[float, Between(0, 10)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if AGGREGATORS[self.aggregator.name] is not weighted_mean:
            raise StrategyError(
                f"adafed solves for one direction from all gradients, and the aggregator "
                f"{self.aggregator.name} has nothing to combine: leave it at mean."
            )

    def terms(self, client: int, round: int) -> Terms:
        """Return FedAvg's terms, asking for the loss of the received model."""
        return replace(super().terms(client, round), report_loss="received")

    def usable(self, accepted: Sequence[Update]) -> Sequence[Update]:
        """Return the reports that have a usable loss."""
        return with_losses(accepted)

    def moved(self, state: GradientState, moves: Moves) -> Floats:
        """Step along the common direction."""
        units = moves.of_length_1()
        losses = np.array([update.loss + SMALLEST_LOSS_SHIFT for update in moves.reports])
        rates = power(losses / losses.max(), self.gamma)
        weights = weights_of_rates(inner_products(units), rates)
        return moves.received + self.step_length(state) * weighted_sum(units, weights)

"""Small things that many strategies need: choices, weights and models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flamma.errors import StrategyError
from flamma.game.model import LARGEST_COST, SMALLEST_COST
from flamma.numerics import gumbel, log
from flamma.types import Floats, Ints, Params, Population, Report

MOST_EXPONENT = 300.0
"""Powers of losses are taken as they are if they lie within e to plus and minus this."""


def uniform_choice(available: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Return ``count`` of the available clients (all if there are fewer), in order."""
    return np.sort(rng.choice(available, size=min(count, available.size), replace=False))


def largest(values: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Return the places of the ``count`` largest values, ties broken at random."""
    bar = np.partition(values, values.size - count)[values.size - count]
    above = np.flatnonzero(values > bar)
    ties = np.flatnonzero(values == bar)
    return np.concatenate((above, rng.choice(ties, count - above.size, replace=False)))


def weighted_choice(available: Ints, weights: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Return ``count`` of the available clients (all if there are fewer), in order.

    They are drawn without replacement, each draw in proportion to the weights of those left: the
    largest of log(weight) + Gumbel noise. Clients without weight come last, in any order.
    """
    if not min(count, available.size):
        return available[:0]
    keys = log(weights) + gumbel(rng, available.size)
    return np.sort(available[largest(keys, min(count, available.size), rng)])


def data_shares(accepted: Sequence[Report]) -> list[float]:
    """Return each report's number of training samples, the weights of FedAvg."""
    return [float(report.samples) for report in accepted]


def with_losses(accepted: Sequence[Report]) -> list[Report]:
    """Return the reports that have a usable loss."""
    return [report for report in accepted if np.isfinite(report.loss)]


def loss_unit(losses: Sequence[float], power: float) -> float:
    """Return what to divide losses by before they are raised to a power and compared.

    It is 1, or the largest loss where the power of that would leave the range of floats: the
    weights that follow are the same but for a common factor, and stay finite whatever a client
    says its loss is.
    """
    most = max(losses)
    return 1.0 if abs(max(1.0, power) * float(log(most))) < MOST_EXPONENT else most


def model_of(report: Report) -> Params:
    """Return the model of an accepted report."""
    assert report.params is not None
    return report.params


def check_prior_cost(cost: float) -> None:
    """Refuse what cannot be the cost of a client that does not tell its own."""
    if not SMALLEST_COST <= cost <= LARGEST_COST:
        raise StrategyError(f"prior_cost must be positive, not {cost:g}.")


def round_costs(population: Population, epochs: int, prior: float) -> Floats:
    """Return what a round of so many epochs costs each client, as far as the server knows.

    A client that does not tell its cost per squared epoch is taken to have the prior one.
    """
    unknown = np.full(population.clients, np.nan)
    told = unknown if population.costs is None else population.costs
    costs = np.where(np.isfinite(told), told, prior) * float(epochs) ** 2
    return np.clip(costs, SMALLEST_COST, LARGEST_COST)

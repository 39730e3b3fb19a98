"""Small things that many strategies need: choices, weights and models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flamma.numerics import log
from flamma.types import Floats, Ints, Params, Report

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

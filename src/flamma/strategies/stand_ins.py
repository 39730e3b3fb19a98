"""Clients' last updates as stand-ins for those who were not asked.

A round hears from a part S of the clients, whose mean update differs from that of all by whom S
happens to have. What is expected of every client tells how much: Σ_S p_k û_k against Σ q_i û_i over
all, and that difference is taken off (a control variate, as in FedVARP and SAGA).

What is expected follows from the last update y_i and from the model r_i that it answered, while the
model is w by now: û_i = b y_i + a (r_i - w). With b = 1 and a = 0 the client goes on as it did, as
FedVARP has it. With b = a = 1 it goes back to the model that it sent, wherever it starts: so do
clients that train to their own optimum, for instance with one class each. Where a last update tells
nothing of the next, b = a = 0. Both are measured, as the slopes of new updates on old ones and on
the models that these answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flamma.aggregators import Reference, aggregated
from flamma.numerics import dot, total, weighted_sum
from flamma.strategies.base import Strategy, data_shares, model_of
from flamma.strategies.memory import combined_rows, streams_rows
from flamma.strategies.rows import Rows
from flamma.types import Floats, Ints, Params, Report

PRODUCTS = 5
"""How many sums of products a fit is made from."""

SMALLEST_SPREAD = 1e-6
"""How much models that updates answered differ at least, as a part of how much updates do, and what
of it does not follow from the updates themselves, for the two slopes to be told apart."""


def of_all(
    strategy: Strategy[Any],
    kept: Rows,
    clients: Ints,
    weights: Floats,
    reference: Reference | None,
) -> Floats:
    """Return Σ q_i y_i of these clients by the strategy's aggregator; zeros if there are none."""
    still = np.zeros(kept.file.size)
    if not clients.size:
        return still
    reference = None if reference is None else reference.of_trained(still.size)
    return combined_rows(strategy, kept, clients, weights, still, reference)


def of_these(
    strategy: Strategy[Any],
    kept: Rows,
    reports: Sequence[Report],
    shares: Floats,
    mean: Params,
    reference: Reference | None,
) -> Floats:
    """Return Σ p_k y_k of those who answered.

    Under another aggregator than the mean it is the difference that taking y_k off each model
    makes to their ``mean``: rows alone may be those of few clients, liars among them.
    """
    clients, size = np.array([report.client for report in reports]), kept.file.size
    known = kept.slots[clients] >= 0
    if not known.any():
        return np.zeros(size)
    if streams_rows(strategy):
        return kept.weighted_sum(clients[known], shares[known])
    models = [model_of(report).astype(np.float64) for report in reports]
    for place, row in zip(np.flatnonzero(known), kept.each(clients[known]), strict=True):
        models[place][:size] -= row
    without = aggregated(strategy.aggregator, models, shares, reference)
    difference: Floats = mean[:size] - without[:size]
    return difference


def shares_of_data(reports: Sequence[Report]) -> Floats:
    """Return the share of each of those who answered in their data."""
    sizes = np.array(data_shares(reports))
    return sizes / total(sizes)


@dataclass(frozen=True)
class Slopes:
    """How a client's update follows from its last one, and from the model that this one answered.

    Attributes
    ----------
    updates : float
        b, of new updates on old ones, from 0 to 1.
    models : float
        a, of new updates on the models that the old ones answered, from 0 to b.
    """

    updates: float
    models: float

    @classmethod
    def fitted(cls, products: Floats) -> Slopes:
        """Return the least squares fit to sums of :func:`products`, with 0 ≤ a ≤ b ≤ 1.

        It is the fit without these bounds, if that keeps them, or the best on one of them.
        """
        yy, yr, rr, uy, ur = products.tolist()
        if yy <= 0:
            return cls(0.0, 0.0)
        alone = cls(_share(uy, yy), 0.0)
        spread = yy * rr - yr * yr
        one_model = rr <= SMALLEST_SPREAD * yy  # or nearly so
        if one_model or spread <= SMALLEST_SPREAD * yy * rr:
            return alone
        free = cls((rr * uy - yr * ur) / spread, (yy * ur - yr * uy) / spread)
        if 0 <= free.models <= free.updates <= 1:
            return free
        both = _share(uy + ur, yy + 2 * yr + rr)
        bounded = [alone, cls(both, both), cls(1.0, _share(ur - yr, rr))]
        return min(bounded, key=lambda fit: fit._misfit(products))

    def _misfit(self, products: Floats) -> float:
        """Return Σ |u - b y - a r|², less Σ |u|²."""
        b, a = self.updates, self.models
        yy, yr, rr, uy, ur = products.tolist()
        misfit: float = b * b * yy + 2 * a * b * yr + a * a * rr - 2 * (b * uy + a * ur)
        return misfit


def _share(part: float, whole: float) -> float:
    """Return part / whole, from 0 to 1; 0 of nothing."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def products(
    kept: Rows, answered: Rows, places: Ints, reports: Sequence[Report], received: Params
) -> Floats:
    """Return Σ <y, y>, <y, r>, <r, r>, <u, y> and <u, r> of those who answered and had a row.

    u_k is a new update of the ``received`` model, y_k the last one, and r_k the model that it
    answered, which is in a place of ``answered``, each less their mean. With fewer than two such
    clients all are 0.
    """
    size = kept.file.size
    known = [report for report in reports if kept.slots[report.client] >= 0]
    if len(known) < 2:
        return np.zeros(PRODUCTS)
    clients = np.array([report.client for report in known])
    new = _apart([model_of(report)[:size] - received[:size] for report in known])
    old = _apart(list(kept.each(clients)))
    models = _apart([row - received[:size] for row in answered.each(places[clients])])
    pairs = [(old, old), (old, models), (models, models), (new, old), (new, models)]
    sums = [total([dot(x, y) for x, y in zip(*pair, strict=True)]) for pair in pairs]
    return np.array(sums)


def _apart(vectors: list[Params]) -> list[Floats]:
    """Return vectors less their mean."""
    middle = weighted_sum(vectors, np.full(len(vectors), 1 / len(vectors)))
    return [vector - middle for vector in vectors]

"""Clients' last updates as stand-ins for those who were not asked.

A round hears from a part S of the clients, whose mean update differs from that of all by whom S
happens to have. The last updates y_i tell how much: Σ_S p_k y_k against Σ q_i y_i over all. A part
b of that difference is taken off (a control variate, as in FedVARP and SAGA, which have b = 1). The
best b is the slope of new updates on old ones: 1 where clients go on as they did, 0 where a last
update tells nothing of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flamma.aggregators import Reference, aggregated
from flamma.numerics import dot, total, weighted_sum
from flamma.strategies.base import Strategy, model_of
from flamma.strategies.memory import combined_rows, streams_rows
from flamma.strategies.rows import Rows
from flamma.types import Floats, Ints, Params, Report


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


def common_motion(kept: Rows, reports: Sequence[Report], received: Params) -> tuple[float, float]:
    """Return Σ <u_k - ū, y_k - ȳ> and Σ |y_k - ȳ|² of those who answered and had a row.

    u_k is a new update and y_k the last one; their ratio is the slope of one on the other. With
    fewer than two such clients both are 0.
    """
    size = kept.file.size
    known = [report for report in reports if kept.slots[report.client] >= 0]
    if len(known) < 2:
        return 0.0, 0.0
    new = [model_of(report)[:size] - received[:size] for report in known]
    old = list(kept.each(np.array([report.client for report in known])))
    equal = np.full(len(known), 1 / len(known))
    middle_new, middle_old = weighted_sum(new, equal), weighted_sum(old, equal)
    apart = [(u - middle_new, y - middle_old) for u, y in zip(new, old, strict=True)]
    return total([dot(u, y) for u, y in apart]), total([dot(y, y) for _, y in apart])

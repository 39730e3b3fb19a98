"""Contributions of the clients that answered, as a strategy needs them."""

from __future__ import annotations

import math

import numpy as np

from flamma.contributions import RoundUpdates, measure_round
from flamma.registry import Choice
from flamma.strategies.base import Answers, data_shares, model_of
from flamma.types import Floats, Params


def measured_contributions(
    choice: Choice,
    answers: Answers,
    before: Params,
    after: Params,
    trainable_size: int,
    last: Floats,
    last_step: Params | None = None,
) -> Floats:
    """Return all clients' contributions, with those of this round measured anew.

    ``before`` and ``after`` are the global model around the round, and ``last`` the contributions
    as of every client's last report. A strategy that keeps the ``last_step`` of the global model
    lets measures tell what clients could have sent without work.
    """
    accepted, number = answers.accepted, answers.offer.round
    if not accepted:
        return last
    clients = np.array([report.client for report in accepted])
    shares = data_shares(accepted)
    updates = RoundUpdates(
        clients=clients,
        models=[model_of(report) for report in accepted],
        before=before,
        after=after,
        trainable_size=trainable_size,
        weights=np.array(shares) / math.fsum(shares),
        # In a warm-up nothing was measured before.
        previous=last[clients] if number else np.full(clients.size, np.nan),
        round=number,
        last_step=last_step,
        validate=answers.validate,
    )
    measured = last.copy()
    measured[clients] = measure_round(choice, updates)
    return measured

"""A budget that no play of the clients can exceed, and that gives none a reason to lie."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from flamma.errors import GameError
from flamma.game.model import Vector

ROUNDINGS_PER_PAYMENT = 16
"""More roundings than there are between a share of the budget and the payment out of it."""


def affordable(
    decay_factors: ArrayLike,
    contributions: ArrayLike,
    most_epochs: ArrayLike,
    *,
    budget: float,
    rounds: int,
    per_round: int,
) -> Vector:
    """Return the factor in [0, 1] by which the decay factor of each offer must be multiplied.

    The rule: of a budget B for T rounds with K clients each, every selected client's share is
    q = B / (T K), decided before the first round. An offer whose pay for the most epochs,
    γ ω τ_max, is more than the share is scaled down to it; every other offer stays as it is.

    Parameters
    ----------
    decay_factors : array_like
        γ as offered, one for all selected clients or one for each.
    contributions : array_like
        ω, one for each selected client.
    most_epochs : array_like
        τ_max, the most epochs that a client is paid for.
    budget : float
        B, in units of utility.
    rounds, per_round : int
        T, and K: the most clients that are ever selected in a round.

    Raises
    ------
    GameError
        If the budget is negative, or the epochs have no upper bound.

    Notes
    -----
    *The budget is never exceeded.* A client is paid s γ ω τ ≤ s γ ω τ_max ≤ q, and there are at
    most T K payments of at most q = B / (T K). The share is lowered by as many units in the last
    place as that sum may have rounding errors, so that this holds for the floats in a ledger too.

    *Truth stays a dominant strategy.* The factor s_i depends on γ_i, ω_i, τ_max, B, T and K alone.
    If γ_i and ω_i do not depend on what client i reports, as with a price from the game of the
    others, neither does the rate r_i = s_i γ_i ω_i that it is offered. What it then earns, the
    largest r_i τ - c_i τ², has nothing in it that the report could change.

    Rules that use the budget better do not have this. A common factor for a round, and dividing
    what earlier rounds have left, both depend on the offers and payments of the *others*; those
    move with i's report, so i could raise its own pay by a lie that lowers theirs.

    Examples
    --------
    >>> affordable(0.5, [0.8, 0.2], 10, budget=120.0, rounds=30, per_round=2).round(6)
    array([0.5, 1. ])
    """
    if not (budget >= 0 and math.isfinite(budget)):
        raise GameError("a budget must be a number from 0 on.")
    most = np.asarray(most_epochs, dtype=np.float64)
    if not np.isfinite(most).all():
        raise GameError("a budget needs an upper bound of the local epochs.")
    share = payment_share(budget, rounds * per_round)
    pay = np.asarray(decay_factors, dtype=np.float64) * np.asarray(contributions) * most
    factors: Vector = np.divide(share, pay, out=np.ones_like(pay), where=pay > share)
    return factors


def payment_share(budget: float, payments: int) -> float:
    """Return the most that each of so many payments may be, so that their sum is in the budget.

    It is lowered by as many units in the last place as the sum may have rounding errors.

    Examples
    --------
    >>> 0.0999 < payment_share(1.0, 10) < 0.1
    True
    """
    roundings = (payments + ROUNDINGS_PER_PAYMENT) * float(np.finfo(np.float64).eps)
    return budget / payments * max(0.0, 1 - roundings)

"""What selections by a client's utility share: how it is estimated, clipped and penalised.

Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
equation 1. The statistical utility |B| √(mean of ℓ²) over a client's samples is approximated by the
mean loss that it tells, |B| F. The duration of a client is not taken in seconds, which would be
other ones in every run, but as the work that it is asked for: epochs times samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from flamma.errors import StrategyError
from flamma.numerics import power
from flamma.strategies.base import Answers, State
from flamma.strategies.fedavg import Averaging
from flamma.types import Floats, Ints, Population, Report, Terms


@dataclass(frozen=True, eq=False)
class UtilityState(State):
    """What is known of the clients' utility.

    ``utility`` is that of each client's last answer, and ``last_round`` is the round of that
    answer; both are 0 before the first.
    """

    utility: Floats
    last_round: Ints


U = TypeVar("U", bound=UtilityState)


@dataclass(frozen=True)
class ByUtility(Averaging[U]):
    """FedAvg that keeps every client's utility, for a selection to go by.

    Parameters
    ----------
    clip : float
        The quantile of the known utilities at which they are cut, so that an outlier, or a client
        that tells too large a loss, is not all that counts.
    slowness : float
        α: the utility of a client whose duration t exceeds the preferred T is multiplied with
        (T / t)^α; 0 for no such penalty.
    """

    clip: float = 0.95
    slowness: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self, "clip")
        if not 0 <= self.slowness < math.inf:
            raise StrategyError(f"slowness must be at least 0, not {self.slowness:g}.")

    def terms(self, client: int, round: int) -> Terms:  # noqa: A002
        """Return FedAvg's terms, asking for the loss of the received model."""
        return replace(super().terms(client, round), wants_loss=True)

    def combine(self, state: U, answers: Answers) -> U:
        """Take FedAvg's mean, and note the utility of those that answered."""
        state = super().combine(state, answers)
        utility, last_round = state.utility.copy(), state.last_round.copy()
        told = statistical_utility(state.samples, answers.accepted)
        clients = [report.client for report in answers.accepted]
        utility[clients], last_round[clients] = told, answers.offer.round
        return replace(state, utility=utility, last_round=last_round)

    def speed_factors(self, state: U, clients: Ints, preferred: float) -> Floats:
        """Return (T / t)^α of those slower than the quantile T of all durations, 1 of others."""
        work = np.maximum(self.plan.epochs * state.samples, 1).astype(np.float64)
        longest = nearest_rank(work, preferred)
        return power(np.minimum(1.0, longest / work[clients]), self.slowness)


def nothing_known(population: Population) -> tuple[Floats, Ints]:
    """Return the utilities and last rounds before the first round."""
    return np.zeros(population.clients), np.zeros(population.clients, dtype=np.int64)


def statistical_utility(samples: Ints, reports: Sequence[Report]) -> Floats:
    """Return |B| F of each report; what is not finite counts as the smallest, 0.

    |B| is what clients said before the first round, so that they cannot raise it later.
    """
    clients = [report.client for report in reports]
    losses = np.array([report.loss for report in reports])
    with np.errstate(over="ignore", invalid="ignore"):
        utility = samples[clients] * losses
    return np.where(np.isfinite(utility), utility, 0.0)


def nearest_rank(values: Floats, share: float) -> float:
    """Return the smallest of the values that at least this share of them does not exceed.

    Examples
    --------
    >>> nearest_rank(np.array([3.0, 1.0, 2.0, 4.0]), 0.5)
    2.0
    """
    place = max(math.ceil(share * values.size) - 1, 0)
    return float(np.sort(values)[place])


def check_shares(strategy: object, *options: str) -> None:
    """Refuse options that are not shares.

    Raises
    ------
    StrategyError
        If one does not lie in [0, 1].
    """
    for option in options:
        value = getattr(strategy, option)
        if not 0 <= value <= 1:
            raise StrategyError(f"{option} must lie in [0, 1], not {value:g}.")

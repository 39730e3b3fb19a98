"""The server's memory of what every client last sent, shared by the strategies that have one.

A client received the model r_i and sent w_i back. MIFA (Gu et al., "Fast federated learning in the
presence of arbitrary device unavailability", NeurIPS 2021) and FedVARP (Jhunjhunwala et al., UAI
2022) repeat its update w_i - r_i until a new one comes. With few clients a round that overshoots,
since an update answers a model that is gone. One may as well let w_i itself pull, the less the
nearer the global model has come to it. Here it is w_i - κ r_i - (1 - κ) w: the update at a
*persistence* κ of 1, the pull of its model at 0, and it may fade with every round of age.

The vectors w_i - κ r_i are in a file, one row for each client heard from (:mod:`.rows`), and the
step adds them up one by one in client order. A row that has faded away is neither read nor kept:
with m = 0.9 a round reads the rows of the last 190 rounds in float32, or 105 in float16, however
many clients there are. With m = 1 nothing fades, and every round reads the row of every client ever
heard from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from flamma.aggregators import AGGREGATORS, Reference, aggregated, weighted_mean
from flamma.errors import StrategyError
from flamma.numerics import total
from flamma.strategies.base import Strategy, data_shares, model_of
from flamma.strategies.gradients import GradientState
from flamma.strategies.rows import RowFormat, Rows, check_matrix
from flamma.types import Floats, Ints, Params, Report

TAIL_OF_ROUNDING = 2.0**-5
"""The oldest rows are left out of the step as long as all of them together have a smaller share of
its weight than this part of what rounding may change in each row that is kept: 2^-29 of the whole
with rows in float32, and 2^-16 in float16. That cannot be told from the rounding."""

OLDEST_SHARE = 2.0**-16
"""A row is left out in any case once it has faded to this part of that share, which bounds how many
rows there can be, whatever the weights of the clients."""

CHECKPOINT_ROUNDS = 32
"""Rounds between two checkpoints that room on disk is reckoned with: the rows that were replaced
meanwhile stay as long as one of the two checkpoints that are kept, or one that is being written,
has them."""

REPORT_COPIES = 2
"""How many times the weights of a round are in memory: as they arrive, and as reports."""


@dataclass(frozen=True, eq=False)
class Remembering(GradientState):
    """A state with what every client last sent and the round of it (-1: never heard from).

    ``kept`` has a row w_i - κ r_i for every client heard from whose row has not faded away.
    """

    kept: Rows
    heard: Ints


class Recalled(NamedTuple):
    """The weights that all that is remembered leads to, and the memory with this round's."""

    params: Params
    kept: Rows
    heard: Ints


def check_memory(memory: float, persistence: float) -> None:
    """Refuse options that no memory can have."""
    for name, value in (("memory", memory), ("persistence", persistence)):
        if not 0 <= value <= 1:
            raise StrategyError(f"{name} must lie in [0, 1], not {value:g}.")


def empty_memory(
    strategy: Strategy[Any],
    clients: int,
    size: int,
    *,
    fading: float,
    kept_as: RowFormat,
    warms_up: bool = False,
) -> tuple[Rows, Ints]:
    """Return the rows and rounds of a server that has not heard from any client.

    Raises
    ------
    StrategyError
        If this machine has no room in memory for what a round will need. Room on disk is checked
        when it is known where the rows will be (:meth:`.Rows.moved`).
    """
    plan = strategy.plan
    per_round = min(plan.per_round, clients)
    _check_reports(clients if warms_up else per_round, size, warms_up)
    rounds = plan.rounds
    empty = Rows.empty(clients, size, kept_as, 0)
    if fading < 1:
        rounds = min(rounds, oldest_age(fading, empty) + 1)
    most = clients if warms_up else min(clients, rounds * per_round)
    if not streams_rows(strategy):
        check_matrix(most, size)
    replaced = min(most, CHECKPOINT_ROUNDS * per_round)
    rows = Rows.empty(clients, size, kept_as, most + 3 * replaced)
    return rows, np.full(clients, -1)


def recall(
    strategy: Strategy[Any],
    state: Remembering,
    accepted: Sequence[Report],
    number: int,
    reference: Reference | None,
    *,
    fading: float,
    persistence: float,
    weights: Floats | None = None,
) -> Recalled:
    """Return w + Σ q_i m^(age_i) (w_i - κ r_i - (1 - κ) w) over all clients heard from.

    q is in proportion to the weights, by default the data sizes. What is not trained, such as a
    running variance, is the mean of this round's reports: an old difference could take it below
    zero. What has faded away is left out.

    An aggregator other than the mean combines the rows of all clients heard from, not this round's
    alone, so that what an attacker has sent is held down as long as it is remembered.
    """
    clients = [report.client for report in accepted]
    heard = state.heard.copy()
    heard[clients] = number
    known = np.flatnonzero(heard >= 0)
    ages = number - heard[known]
    weighing = (state.samples.astype(np.float64) if weights is None else weights)[known]
    faded: Floats = weighing / total(weighing) * powers(fading, int(ages.max()))[ages]
    lasting = has_not_faded(ages, faded, fading, state.kept)
    own = np.float32(persistence) * state.params
    kept = state.kept.updated(
        clients, (model_of(report) - own for report in accepted), known[~lasting]
    )
    lasting &= kept.slots[known] >= 0
    remembered, faded = known[lasting], faded[lasting]
    stays = np.float64(1 - total(faded) * (1 - persistence))
    # A client that has changed nothing since the received model w has the row (1 - κ) w.
    still = np.float64(1 - persistence) * state.params
    pull = combined_rows(strategy, kept, remembered, faded, still, reference)
    params = (stays * state.params + pull).astype(np.float32)
    carried = slice(state.trainable_size, None)
    if state.trainable_size < params.size:
        params[carried] = strategy.average(accepted, data_shares(accepted), reference)[carried]
    return Recalled(params, kept, heard)


def combined_rows(
    strategy: Strategy[Any],
    kept: Rows,
    clients: Ints,
    weights: Floats,
    still: Floats,
    reference: Reference | None,
) -> Floats:
    """Return Σ w_i row_i of these clients, by the strategy's aggregator.

    ``still`` is the row of a client that has changed nothing. The mean takes memory for one row at
    a time, the other aggregators for all of them.
    """
    if streams_rows(strategy):
        return kept.weighted_sum(clients, weights)
    at_rows = None if reference is None else replace(reference, received=still)
    return aggregated(strategy.aggregator, kept.matrix(clients), weights, at_rows)


def powers(base: float, most: int) -> Floats:
    """Return base^0 to base^most, each the one before times the base: the same bits anywhere."""
    return np.cumprod(np.array([1.0, *[base] * most]))


def has_not_faded(ages: Ints, faded: Floats, fading: float, rows: Rows) -> NDArray[np.bool_]:
    """Return which rows count: the oldest are left out while all of them together do not show."""
    if fading == 1:
        return np.ones(ages.size, dtype=np.bool_)
    at_least_so_old = np.cumsum(np.bincount(ages, faded)[::-1])[::-1]
    shows: NDArray[np.bool_] = at_least_so_old > negligible_share(rows) * at_least_so_old[0]
    shows[oldest_age(fading, rows) + 1 :] = False
    return shows[ages]


def negligible_share(rows: Rows) -> float:
    """Return the share of the weight that cannot be told from the rounding of the rows."""
    rounding = np.finfo(np.float16 if rows.file.half else np.float32).eps / 2
    return float(rounding) * TAIL_OF_ROUNDING


def oldest_age(fading: float, rows: Rows) -> int:
    """Return the age beyond which no row is kept."""
    if fading == 0:
        return 0
    age = math.log(negligible_share(rows) * OLDEST_SHARE) / math.log(fading)
    return int(age + 1e-6)  # a whole number stays one however logarithms are rounded


def streams_rows(strategy: Strategy[Any]) -> bool:
    """Return whether rows can be aggregated one by one."""
    return AGGREGATORS[strategy.aggregator.name] is weighted_mean


def _check_reports(clients: int, size: int, warms_up: bool) -> None:
    needed = clients * size * np.float32().nbytes * REPORT_COPIES
    free = int(psutil.virtual_memory().available)
    if needed > free:
        who = "the warm-up, which hears from all clients at once," if warms_up else "a round"
        mend = "set strategy.warmup_iterations to 0" if warms_up else "lower per_round"
        raise StrategyError(
            f"the weights of {clients:,} clients with {size:,} each, which {who} holds in memory, "
            f"take {needed / 1e9:,.1f} GB, but {free / 1e9:,.1f} GB are free: {mend}, or use a "
            f"smaller model."
        )

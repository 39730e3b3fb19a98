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
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from flamma.aggregators import AGGREGATORS, Reference, aggregated, weighted_mean
from flamma.errors import Key, StrategyError
from flamma.numerics import dot, total, weighted_sum
from flamma.registry import Between, above
from flamma.strategies.base import Round, Strategy, data_weights, model_of
from flamma.strategies.fedavg import Averaging, GradientState, change, stepped
from flamma.strategies.rows import RowFormat, Rows, check_matrix
from flamma.types import Floats, Ints, Params, Population, Update

_TAIL_OF_ROUNDING = 2.0**-5
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

_REPORT_COPIES = 2
"""How many times the weights of a round are in memory: as they arrive, and as reports."""


@dataclass(frozen=True, eq=False)
class Remembering(GradientState):
    """A state with what every client last sent and the round of it (-1: never heard from).

    ``kept`` has a row w_i - κ r_i for every client heard from whose row has not faded away.
    """

    kept: Rows
    heard: Ints


class _Recalled(NamedTuple):
    """The weights that all that is remembered leads to, and the memory with this round's."""

    params: Params
    kept: Rows
    heard: Ints


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


def _recall(
    strategy: Strategy[Any],
    state: Remembering,
    round: Round,
    *,
    fading: float,
    persistence: float,
    weights: Floats | None = None,
) -> _Recalled:
    """Return w + Σ q_i m^(age_i) (w_i - κ r_i - (1 - κ) w) over all clients heard from.

    q is in proportion to the weights, by default the data sizes. What is not trained, such as a
    running variance, is the mean of this round's reports: an old difference could take it below
    zero. What has faded away is left out.

    An aggregator other than the mean combines the rows of all clients heard from, not this round's
    alone, so that what an attacker has sent is held down as long as it is remembered.
    """
    clients = round.clients
    heard = state.heard.copy()
    heard[clients] = round.number
    known = np.flatnonzero(heard >= 0)
    ages = round.number - heard[known]
    weighing = (state.samples.astype(np.float64) if weights is None else weights)[known]
    faded: Floats = weighing / total(weighing) * powers(fading, int(ages.max()))[ages]
    lasting = is_significant(ages, faded, fading, state.kept)
    own = np.float32(persistence) * state.params
    kept = state.kept.updated(
        clients.tolist(), (model_of(update) - own for update in round.updates), known[~lasting]
    )
    lasting &= kept.slots[known] >= 0
    remembered, faded = known[lasting], faded[lasting]
    stays = np.float64(1 - total(faded) * (1 - persistence))
    # A client that has changed nothing since the received model w has the row (1 - κ) w.
    still = np.float64(1 - persistence) * state.params
    pull = _combined_rows(strategy, kept, remembered, faded, still, round.reference)
    params = (stays * state.params + pull).astype(np.float32)
    carried = slice(state.trainable_size, None)
    if state.trainable_size < params.size:
        params[carried] = strategy.average(round, data_weights(round.updates))[carried]
    return _Recalled(params, kept, heard)


def _combined_rows(
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


def is_significant(ages: Ints, faded: Floats, fading: float, rows: Rows) -> NDArray[np.bool_]:
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
    return float(rounding) * _TAIL_OF_ROUNDING


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
    needed = clients * size * np.float32().nbytes * _REPORT_COPIES
    free = int(psutil.virtual_memory().available)
    if needed > free:
        who = "the warm-up, which hears from all clients at once," if warms_up else "a round"
        mend = (
            ["set ", Key("strategy.warmup_iterations"), " to 0"]
            if warms_up
            else ["lower ", Key("per_round")]
        )
        raise StrategyError(
            f"the weights of {clients:,} clients with {size:,} each, which {who} holds in memory, "
            f"take {needed / 1e9:,.1f} GB, but {free / 1e9:,.1f} GB are free: ",
            *mend,
            ", or use a smaller model.",
        )


# Clients' last updates as stand-ins for those who were not asked.
#
# A round hears from a part S of the clients, whose mean update differs from that of all by whom S
# happens to have. What is expected of every client tells how much: Σ_S p_k û_k against Σ q_i û_i
# over all, and that difference is taken off (a control variate, as in FedVARP and SAGA).
#
# What is expected follows from the last update y_i and from the model r_i that it answered, while
# the model is w by now: û_i = b y_i + a (r_i - w). With b = 1 and a = 0 the client goes on as it
# did, as FedVARP has it. With b = a = 1 it goes back to the model that it sent, wherever it
# starts: so do clients that train to their own optimum, for instance with one class each. Where a
# last update tells nothing of the next, b = a = 0. Both are measured, as the slopes of new
# updates on old ones and on the models that these answered.

PRODUCTS = 5
"""How many sums of products a fit is made from."""

_SMALLEST_SPREAD = 1e-6
"""How much models that updates answered differ at least, as a part of how much updates do, and what
of it does not follow from the updates themselves, for the two slopes to be told apart."""


def predicted_mean_of_all(
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
    return _combined_rows(strategy, kept, clients, weights, still, reference)


def predicted_mean_of_selected(
    strategy: Strategy[Any], kept: Rows, round: Round, shares: Floats, mean: Params
) -> Floats:
    """Return Σ p_k y_k of those who answered.

    Under another aggregator than the mean it is the difference that taking y_k off each model
    makes to their ``mean``: rows alone may be those of few clients, liars among them.
    """
    clients, size = round.clients, kept.file.size
    known = kept.slots[clients] >= 0
    if not known.any():
        return np.zeros(size)
    if streams_rows(strategy):
        return kept.weighted_sum(clients[known], shares[known])
    models = [model_of(update).astype(np.float64) for update in round.updates]
    for place, row in zip(np.flatnonzero(known), kept.each(clients[known]), strict=True):
        models[place][:size] -= row
    without = aggregated(strategy.aggregator, models, shares, round.reference)
    difference: Floats = mean[:size] - without[:size]
    return difference


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
        one_model = rr <= _SMALLEST_SPREAD * yy  # or nearly so
        if one_model or spread <= _SMALLEST_SPREAD * yy * rr:
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
    kept: Rows, answered: Rows, places: Ints, updates: Sequence[Update], received: Params
) -> Floats:
    """Return Σ <y, y>, <y, r>, <r, r>, <u, y> and <u, r> of those who answered and had a row.

    u_k is a new update of the ``received`` model, y_k the last one, and r_k the model that it
    answered, which is in a place of ``answered``, each less their mean. With fewer than two such
    clients all are 0.
    """
    size = kept.file.size
    known = [update for update in updates if kept.slots[update.client] >= 0]
    if len(known) < 2:
        return np.zeros(PRODUCTS)
    clients = np.array([update.client for update in known])
    new = _centred([model_of(update)[:size] - received[:size] for update in known])
    old = _centred(list(kept.each(clients)))
    models = _centred([row - received[:size] for row in answered.each(places[clients])])
    pairs = [(old, old), (old, models), (models, models), (new, old), (new, models)]
    sums = [total([dot(x, y) for x, y in zip(*pair, strict=True)]) for pair in pairs]
    return np.array(sums)


def _centred(vectors: list[Params]) -> list[Floats]:
    """Return vectors less their mean."""
    middle = weighted_sum(vectors, np.full(len(vectors), 1 / len(vectors)))
    return [vector - middle for vector in vectors]


# MIFA: FedAvg with a memory of every client's last update.
#
# Gu et al., "Fast federated learning in the presence of arbitrary device unavailability", NeurIPS
# 2021. It is what FLamma-plus adds to FLamma, without the game: the row that tells whether a gain
# is the memory's.


@dataclass(frozen=True)
class Mifa(Averaging[Remembering]):
    """The step is Σ p_i m^(age_i) u_i over all clients heard from, p by data size.

    Parameters
    ----------
    memory : float
        m, the factor by which an update fades with each round of age; MIFA has 1.
    persistence : float
        How much of an update is repeated though the model has moved on; MIFA has 1.
    rows : {"auto", "float32", "float16"}
        How updates are kept on disk; ``auto`` is float32 up to 256 MiB for all clients, else
        float16.
    """

    name: ClassVar[str] = "mifa"
    label: ClassVar[str] = "FedAvg + memory"
    summary: ClassVar[str] = "FedAvg with a memory of every client's last update"
    family: ClassVar[str] = "optimisation"

    memory: Annotated[float, Between(0, 1)] = 1.0
    persistence: Annotated[float, Between(0, 1)] = 1.0
    rows: RowFormat = "auto"

    def init(self, params: Params, population: Population) -> Remembering:
        """Start with no update of any client."""
        memory = empty_memory(
            self, population.clients, params.size, fading=self.memory, kept_as=self.rows
        )
        return Remembering(params, 0, population.samples, population.trainable_size, *memory)

    def step(self, state: Remembering, round: Round) -> Remembering:
        """Remember this round's updates and step by all that is remembered."""
        if not round.updates:
            return state
        recalled = _recall(
            self,
            state,
            round,
            fading=self.memory,
            persistence=self.persistence,
        )
        return replace(state, params=recalled.params, kept=recalled.kept, heard=recalled.heard)


# FedVARP: those who were not asked stand in by their last update.
#
# Jhunjhunwala et al., "FedVARP: Tackling the Variance Due to Partial Client Participation in
# Federated Learning", UAI 2022.


@dataclass(frozen=True)
class FedVarp(Averaging[Remembering]):
    """w ← w + η_s (Σ_S p_k (u_k - y_k) + Σ_all q_i y_i), then y_k ← u_k for those in S.

    y_i is client i's last update, 0 before it has sent one; p and q are in proportion to the data
    sizes, over those who answered and over all clients. If all take part and η_s = 1, it is FedAvg.

    Parameters
    ----------
    server_step : float
        η_s, the server's step size.
    rows : {"auto", "float32", "float16"}
        How updates are kept on disk; ``auto`` is float32 up to 256 MiB for all clients, else
        float16.
    """

    name: ClassVar[str] = "fedvarp"
    label: ClassVar[str] = "FedVARP"
    summary: ClassVar[str] = "FedAvg where the last updates of absent clients stand in for them"
    family: ClassVar[str] = "optimisation"

    server_step: Annotated[float, above(0)] = 1.0
    rows: RowFormat = "auto"

    def init(self, params: Params, population: Population) -> Remembering:
        """Start with no update of any client."""
        size = population.trainable_size
        memory = empty_memory(self, population.clients, size, fading=1.0, kept_as=self.rows)
        return Remembering(params, 0, population.samples, size, *memory)

    def step(self, state: Remembering, round: Round) -> Remembering:
        """Step by this round's mean update, with that of the remembered ones put right."""
        reports, size = round.updates, state.trainable_size
        if not reports:
            return state
        mean = self.average(round, data_weights(reports))
        kept, known = state.kept, state.kept.known
        every = (state.samples / total(state.samples))[known]
        sizes = np.array(data_weights(reports))
        shares = sizes / total(sizes)
        others = predicted_mean_of_all(self, kept, known, every, round.reference)
        predicted = others - predicted_mean_of_selected(self, kept, round, shares, mean)
        update = change(state.params, mean, size) + predicted
        clients = [report.client for report in reports]
        received = state.params[:size]
        updates = (model_of(report)[:size] - received for report in reports)
        heard = state.heard.copy()
        heard[clients] = round.number
        return replace(
            state,
            params=stepped(state.params, mean, self.server_step * update),
            kept=state.kept.updated(clients, updates, np.zeros(0, dtype=np.int64)),
            heard=heard,
        )

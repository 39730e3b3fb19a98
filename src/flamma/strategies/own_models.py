"""A model for each client on the server: what CGSV and CFFL have in common.

The better a client's reputation is, the larger is its model's share of every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flamma.aggregators import Reference, aggregated
from flamma.numerics import exp, total
from flamma.strategies.base import State, Strategy, data_shares, model_of
from flamma.strategies.rows import Rows
from flamma.types import Download, Floats, Ints, Params, Population, Report

LIVING_COPIES = 5
"""How often every model is on disk at most: of this round, the next, and of checkpoints."""

LARGEST_WEIGHT = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class OwnModels(State):
    """A model and a reputation for each client; ``params`` is the model that had every step whole.

    Attributes
    ----------
    sizes : ndarray
        The lengths of the parts of the trained weights: a share is taken of each part.
    reputations : ndarray
        One for each client, with a sum of 1 as long as there are any.
    models : Rows
        The clients' models; none before the first step, when all have the first one.
    """

    sizes: Ints
    reputations: Floats
    models: Rows

    @classmethod
    def first(cls, params: Params, population: Population) -> Self:
        """Return equal reputations and equal models.

        Without the lengths of the parts the trained weights are taken as one part.
        """
        clients = population.clients
        return cls(
            params,
            0,
            population.samples,
            np.array(population.trainable_sizes or (population.trainable_size,), dtype=np.int64),
            np.full(clients, 1 / clients),
            # In half precision a model would lose the steps that are small beside its weights.
            Rows.empty(clients, params.size, "float32", LIVING_COPIES * clients),
        )

    @property
    def trainable_size(self) -> int:
        """How many of the weights are trained."""
        return int(self.sizes.sum())

    def model(self, client: int) -> Params:
        """Return the model of a client."""
        if self.models.slots[client] < 0:
            return self.params
        return next(self.models.each(np.array([client])))

    def download(self) -> Download:
        """Return what clients receive and evaluate: each its own model."""
        return Download(self.params, self.round, model_for=self.model)

    def updates(self, accepted: Sequence[Report]) -> list[Floats]:
        """Return what each client has added to the trained weights of its own model."""
        trained = slice(self.trainable_size)
        return [
            model_of(report)[trained].astype(np.float64) - self.model(report.client)[trained]
            for report in accepted
        ]


def combined_step(
    strategy: Strategy[Any],
    state: OwnModels,
    updates: Sequence[Floats],
    weights: Floats,
    reference: Reference | None,
) -> Floats:
    """Return what the strategy's aggregator makes of updates, with weights in proportion."""
    received = state.params[: state.trainable_size].astype(np.float64)
    models = [received + update for update in updates]
    if reference is not None:
        reference = reference.of_trained(received.size)
    shares = weights / total(weights)
    return aggregated(strategy.aggregator, models, shares, reference) - received


def carried_along(
    strategy: Strategy[Any],
    state: OwnModels,
    accepted: Sequence[Report],
    reference: Reference | None,
) -> Params:
    """Return what is not trained, such as running means: the mean of the answers by data size."""
    if state.trainable_size == state.params.size:
        return state.params[:0]
    return strategy.average(accepted, data_shares(accepted), reference)[state.trainable_size :]


def rewarded(
    state: OwnModels,
    step: Floats,
    carried: Params,
    shares: Floats,
    kept: Mapping[int, tuple[Floats, float]] | None = None,
) -> OwnModels:
    """Return the state in which every client has received its share of a step.

    Client i adds the entries of the step with the largest magnitudes, ⌊share_i D⌋ of the D entries
    of each part. What is not trained becomes the same in all models.

    Parameters
    ----------
    state : OwnModels
        Before the step, with the new reputations.
    step : ndarray
        The step of the trained weights.
    carried : ndarray
        What is not trained, after the step.
    shares : ndarray
        In [0, 1], one for each client.
    kept : mapping, optional
        The update that a client keeps of its own, and its weight in the step: that much of it is
        taken out of the entries that it receives, for it has them already.
    """
    ranks = magnitude_ranks(step, state.sizes)
    clients = np.arange(shares.size)

    def models() -> Iterator[Params]:
        for client, share in zip(clients.tolist(), shares.tolist(), strict=True):
            received = ranks < np.repeat(np.floor(share * state.sizes), state.sizes)
            own, weight = (kept or {}).get(client, (0.0, 0.0))
            moves = np.where(received, step - weight * own, 0.0) + own
            yield _moved(state.model(client), moves, carried)

    rows = state.models.updated(clients.tolist(), models(), np.zeros(0, dtype=np.int64))
    return replace(state, params=_moved(state.params, step, carried), models=rows)


def magnitude_ranks(step: Floats, sizes: Ints) -> Ints:
    """Return the place of each entry among those of its part, 0 for the largest in magnitude.

    Examples
    --------
    >>> magnitude_ranks(np.array([0.1, -3.0, 2.0, 0.5, -0.7]), np.array([3, 2]))
    array([2, 0, 1, 1, 0])
    """
    ranks = np.empty(step.size, dtype=np.int64)
    ends = np.cumsum(sizes)
    for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True):
        order = np.argsort(-np.abs(step[start:end]), kind="stable")
        ranks[start + order] = np.arange(end - start)
    return ranks


def with_reputations(state: OwnModels, clients: Sequence[int], among: Floats) -> Floats:
    """Return all reputations after those of some clients were shared out among them anew.

    Together these have what they had before, so that who is not asked in a round keeps its place.
    If all clients answer, ``among`` are the new reputations.
    """
    reputations = state.reputations.copy()
    had = total(reputations[list(clients)])
    whole = total(among)
    reputations[list(clients)] = had * among / whole if whole > 0 else 0.0
    return reputations


def shares_among(state: OwnModels, clients: Sequence[int]) -> Floats:
    """Return the reputations of some clients as shares of what they have together."""
    own = state.reputations[list(clients)]
    whole = total(own)
    return own / whole if whole > 0 else np.full(own.size, 1 / own.size)


def of_largest(values: Floats) -> Floats:
    """Return values as shares of the largest one, 0 where none is above 0."""
    most = float(values.max())
    return values / most if most > 0 else np.zeros_like(values)


def hyperbolic_tangent(x: Floats) -> Floats:
    """Return tanh x of numbers from 0 on, with the same bits everywhere."""
    fading = exp(-2 * x)
    tangent: Floats = (1 - fading) / (1 + fading)
    return tangent


def _moved(model: Params, moves: Floats, carried: Params) -> Params:
    trained = model[: moves.size].astype(np.float64) + moves
    held: NDArray[np.float32] = np.clip(trained, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.float32)
    return np.concatenate((held, carried))

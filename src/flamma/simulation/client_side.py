"""What a client does with vectors before and after its training, as the strategy says.

It is the same on this machine, in a simulation and at a site.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flamma.clients.behaviours import Notes
from flamma.data.sites import OverLimitError
from flamma.numerics import total
from flamma.strategies.base import Strategy
from flamma.training import TooSlow, Trained
from flamma.types import (
    NO_VECTORS,
    Broadcast,
    ClientVectors,
    LocalWork,
    Params,
    TaskVectors,
    Update,
)

Train = Callable[[Sequence[LocalWork], Sequence[TaskVectors]], list[Update]]
"""Trains clients that received the same weights, with what each needs besides."""


@dataclass(frozen=True, eq=False)
class ClientSide:
    """What clients do as the strategy says, and what they keep from one training to the next.

    Parameters
    ----------
    strategy : Strategy
        Of the run.
    trainable_size : int
        How many of the weights are trained.
    kept : Notes
        Where clients keep their vectors.
    """

    strategy: Strategy[Any]
    trainable_size: int
    kept: Notes = field(default_factory=Notes)

    def is_plain(self, broadcast: Broadcast) -> bool:
        """Whether clients need nothing but the common weights."""
        only_model = broadcast.extra is None and broadcast.per_client is None
        return only_model and not self.strategy.needs.client_memory

    def carry_out(
        self, broadcast: Broadcast, tasks: Sequence[LocalWork], train: Train
    ) -> list[Update]:
        """Return what honest clients report of these tasks, and keep what they keep."""
        if self.is_plain(broadcast):
            return train(tasks, [NO_VECTORS] * len(tasks))
        common = broadcast.params
        at_hand = [self.vectors(t, broadcast.model(t.client), broadcast.extra) for t in tasks]
        prepared = [self.prepared(t, v, common) for t, v in zip(tasks, at_hand, strict=True)]
        updates = train(tasks, prepared)
        own = self._own_models(common, tasks, at_hand, updates, train)
        return [
            self.settle(task, vectors, update, own.get(task.client))
            for task, vectors, update in zip(tasks, at_hand, updates, strict=True)
        ]

    def _own_models(
        self,
        common: Params,
        tasks: Sequence[LocalWork],
        at_hand: Sequence[ClientVectors],
        updates: Sequence[Update],
        train: Train,
    ) -> dict[int, Params]:
        """Return what clients trained for themselves; those that fail at it have nothing."""
        wanted = [
            own
            for task, vectors, update in zip(tasks, at_hand, updates, strict=True)
            if update.params is not None
            and (own := self.own_training(task, vectors, common)) is not None
        ]
        if not wanted:
            return {}
        own_tasks, prepared = zip(*wanted, strict=True)
        trained = train(own_tasks, prepared)
        return {update.client: update.params for update in trained if update.params is not None}

    def vectors(self, task: LocalWork, received: Params, extra: Params | None) -> ClientVectors:
        """Return what a client has at hand before it trains."""
        kept = (
            self.kept.read(task.client, task.round) if self.strategy.needs.client_memory else None
        )
        return ClientVectors(received, extra, kept, self.trainable_size)

    def prepared(self, task: LocalWork, vectors: ClientVectors, common: Params) -> TaskVectors:
        """Return what the training of a task needs besides the common weights."""
        own = None if vectors.received is common else vectors.received
        if not task.terms.train or task.abstains:
            return NO_VECTORS if own is None else TaskVectors(received=own)
        return replace(self.strategy.prepare(task, vectors), received=own)

    def own_training(
        self, task: LocalWork, vectors: ClientVectors, common: Params
    ) -> tuple[LocalWork, TaskVectors] | None:
        """Return what a client trains for itself after a task, None if nothing."""
        own = self.strategy.personal_work(task)
        if own is None:
            return None
        own = replace(own, personal=True, terms=replace(own.terms, report_loss="no"))
        received = None if vectors.received is common else vectors.received
        return own, TaskVectors(received=received, start=vectors.kept)

    def settle(
        self, task: LocalWork, vectors: ClientVectors, update: Update, own: Params | None = None
    ) -> Update:
        """Keep what the client keeps after a training; return its report.

        ``own`` is what it trained for itself. After a training that diverged it keeps what it had:
        numbers that are not finite would end all that it does later.
        """
        if not self.strategy.needs.client_memory or update.params is None:
            return update
        if own is None:
            done = replace(vectors, samples=update.samples)
            kept = self.strategy.keep(task, done, update.params)
        else:
            kept = own
        if kept is not None and np.isfinite(kept).all():
            self.kept.write(task.client, task.round, kept)
        return replace(update, restarted=vectors.kept is None)

    def model_of(self, client: int, broadcast: Broadcast) -> Params:
        """Return the model that a client evaluates: its own where it has one."""
        kept = self.kept.read(client, broadcast.round + 1) if broadcast.evaluates_kept else None
        return broadcast.model(client) if kept is None else kept


# How every engine reports a client's training, and averages scores. Needs numpy only.


class Outcome(NamedTuple):
    """What a training came to besides its weights; small, for there may be very many."""

    loss: float
    seconds: float
    failure: str


def outcome_of(trained: Trained, time_limit: float | None) -> Outcome:
    """Return the outcome of a training, with the reason in one line if it failed."""
    failure = ""
    if isinstance(trained.error, TooSlow):
        failure = late(time_limit)
    elif trained.error is not None:
        failure = one_line(trained.error)
    return Outcome(trained.loss, trained.seconds, failure)


def training_report(
    task: LocalWork, samples: int, outcome: Outcome, params: Params | None
) -> Update:
    """Return the report of a training: of no weights and no epochs if it failed or evaluated."""
    loss, seconds, failure = outcome
    if failure or not task.terms.train:
        return Update(task.client, None, samples, 0, loss, seconds, failure)
    return Update(task.client, params, samples, task.epochs, loss, seconds)


def late(limit: float | None) -> str:
    """Return the failure of a client that took longer than the time limit."""
    return f"late: over {limit:g} s"


def one_line(error: BaseException) -> str:
    """Return an exception as one line of at most 200 characters."""
    if isinstance(error, OverLimitError):  # a refusal, not a fault
        return str(error)[:200]
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:200] if lines else type(error).__name__


def mean_or_nan(values: NDArray[np.generic]) -> float:
    """Return the mean of all values; the mean of no values is NaN."""
    return total(values) / values.size if values.size else math.nan

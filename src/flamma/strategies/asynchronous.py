"""Strategies whose server does not wait for the slowest client: an event queue in virtual time.

Some clients are always at work, each on the model that was the newest when it began. The next
event is the earliest finisher, of those that finish at the same moment the one with the lowest
number. Its answer goes into a buffer and another client begins in its place. When the buffer is
full the server makes one step, which is a round of the run: the clients that have answered are its
selected ones.

Who answers when depends on the virtual clock alone, not on what clients learn. So clients are
trained when they answer, all of a step at once, and the queue between two steps is a few numbers
for each client and the model that it has received.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Annotated, ClassVar

import numpy as np

from flamma.registry import above, at_least
from flamma.strategies.base import Needs, Offer, Round, SecondsOf, model_of, uniform_choice
from flamma.strategies.fedavg import Averaging, GradientState, change, stepped
from flamma.strategies.memory import CHECKPOINT_ROUNDS
from flamma.strategies.rows import Rows
from flamma.types import Broadcast, Floats, Ints, Params, Plan, Population, Update


@dataclass(frozen=True, eq=False)
class AsyncState(GradientState):
    """The state of a server whose clients are at work between its steps.

    Attributes
    ----------
    now : float
        The virtual time, in seconds.
    began : ndarray
        The round in which each client at work began, 0 for one that is idle.
    finishes : ndarray
        When each client at work has finished, in virtual time.
    answered : ndarray
        1 for those that have answered and whose answers the next step takes.
    received : Rows
        The models that clients at work have received, but for those that began in this round.
    """

    now: float
    began: Ints
    finishes: Floats
    answered: Ints
    received: Rows

    def model_of(self, client: int) -> Params:
        """Return the model that a client at work has received."""
        if self.received.slots[client] < 0:
            return self.params
        [row] = self.received.each(np.array([client]))
        return row

    def without_answered(self) -> AsyncState:
        """Return the state in which those that have answered are idle."""
        done = np.flatnonzero(self.answered)
        began, finishes = self.began.copy(), self.finishes.copy()
        began[done], finishes[done] = 0, 0.0
        return replace(
            self,
            began=began,
            finishes=finishes,
            answered=np.zeros_like(self.answered),
            received=self.received.updated([], [], done),
        )


@dataclass(frozen=True)
class Asynchronous(Averaging[AsyncState]):
    """What strategies share whose server steps as soon as some of the clients at work answered.

    A client is not started twice on the same model: it would do the same work again.

    Parameters
    ----------
    concurrency : int
        How many clients are at work at any time; ``per_round`` of them if left out.
    buffer : int
        K, the answers that a step waits for; ``per_round`` of them if left out.
    """

    family: ClassVar[str] = "asynchronous"
    needs: ClassVar[Needs] = Needs(clock=True, varies_selection=True, server_reads="plain")

    concurrency: Annotated[int | None, at_least(1)] = None
    buffer: Annotated[int | None, at_least(1)] = None

    def init(self, params: Params, population: Population) -> AsyncState:
        """Start with all clients idle, at time 0."""
        clients = population.clients
        most, wanted = self._sizes(self.plan)
        rows = min(clients, most) + 3 * CHECKPOINT_ROUNDS * min(clients, wanted)  # with checkpoints
        return AsyncState(
            params,
            0,
            population.samples,
            population.trainable_size,
            now=0.0,
            began=np.zeros(clients, dtype=np.int64),
            finishes=np.zeros(clients),
            answered=np.zeros(clients, dtype=np.int64),
            received=Rows.empty(clients, params.size, "float32", rows),
        )

    def advance(
        self, state: AsyncState, available: Ints, rng: np.random.Generator, seconds_of: SecondsOf
    ) -> AsyncState:
        """Let clients begin and finish until as many have answered as the step waits for.

        Fewer answer where all others are away or have had the newest model already.
        """
        number = state.round + 1
        began, finishes = state.began.copy(), state.finishes.copy()
        answered = np.zeros_like(state.answered)
        at_work = [(float(finishes[c]), int(c)) for c in np.flatnonzero(began)]
        heapify(at_work)
        now, most, wanted = state.now, *self._sizes(self.plan)
        while np.count_nonzero(answered) < wanted:
            if not at_work or at_work[0][0] > now:  # else others finish at this very moment
                idle = available[began[available] == 0]
                for client in uniform_choice(idle, most - len(at_work), rng).tolist():
                    began[client] = number
                    finishes[client] = now + seconds_of(self.terms(client, number))
                    heappush(at_work, (float(finishes[client]), client))
            if not at_work:
                break
            now, client = heappop(at_work)
            answered[client] = 1
        new = [client for _, client in sorted(at_work) if began[client] == number]
        return replace(
            state,
            now=now,
            began=began,
            finishes=finishes,
            answered=answered,
            received=state.received.updated(new, [state.params] * len(new), available[:0]),
        )

    def offer(self, state: AsyncState, available: Ints, rng: np.random.Generator) -> Offer:
        """Return the terms on which those began that have answered."""
        heard = np.flatnonzero(state.answered).tolist()
        terms = tuple(self.terms(client, int(state.began[client])) for client in heard)
        return Offer(state.round + 1, terms)

    def broadcast(self, state: AsyncState) -> Broadcast:
        """Return the global model, and to those that have answered the one that each received."""
        per_client = state.model_of if state.answered.any() else None
        return Broadcast(state.params, state.round, per_client=per_client)

    def staleness(self, state: AsyncState, round: Round) -> list[int]:
        """Return how many steps the server has made since each accepted client began."""
        return [state.round + 1 - int(state.began[r.client]) for r in round.updates]

    def _sizes(self, plan: Plan) -> tuple[int, int]:
        """Return how many clients are at work, and how many answers a step waits for."""
        return (
            plan.per_round if self.concurrency is None else self.concurrency,
            plan.per_round if self.buffer is None else self.buffer,
        )


# FedBuff: an asynchronous server with a buffer of updates, stale ones weighed down.
#
# Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022.


@dataclass(frozen=True)
class FedBuff(Asynchronous):
    """w ← w + η_s (1/K) Σ u_k / √(1 + s_k), s_k the server's steps since client k began.

    Parameters
    ----------
    server_step : float
        η_s, the server's step size.
    """

    name: ClassVar[str] = "fedbuff"
    label: ClassVar[str] = "FedBuff"
    summary: ClassVar[str] = "steps after every K answers, whoever is still at work"

    server_step: Annotated[float, above(0)] = 1.0

    def step(self, state: AsyncState, round: Round) -> AsyncState:
        """Make the step of those that have answered, who are idle from then on."""
        idle = state.without_answered()
        if not round.updates:
            return idle
        weights = [1 / math.sqrt(1 + steps) for steps in self.staleness(state, round)]
        moved = [
            replace(update, params=_moved(state, update, weight))
            for update, weight in zip(round.updates, weights, strict=True)
        ]
        mean = self.average(round.only(moved), [1.0] * len(moved))
        step = self.server_step * change(state.params, mean, state.trainable_size)
        return replace(idle, params=stepped(state.params, mean, step))


def _moved(state: AsyncState, update: Update, weight: float) -> Params:
    """Return the newest model moved by a client's weighed update, and as it is where not trained.

    It is computed from the client's model, so that an update of the newest one at weight 1 leads
    to that model to the last bit.
    """
    received, trained = state.model_of(update.client), slice(state.trainable_size)
    model = model_of(update).astype(np.float64)
    since = state.params[trained].astype(np.float64) - received[trained]
    model[trained] += since + (weight - 1) * (model[trained] - received[trained])
    moved: Params = model.astype(np.float32)
    return moved

"""A little world in which a strategy can be played without data, models or engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from flamma.engines.client_side import ClientSide
from flamma.records import RoundRecord
from flamma.seeding import stream
from flamma.strategies.base import Offer, State, Strategy
from flamma.testing.vectors import answer_with_vectors, own_losses
from flamma.types import Floats, Ints, LocalTask, Params, Plan, Population, Profile, Report

SIZE, TRAINABLE = 40, 36

Change = Callable[[list[Report]], list[Report]]


@dataclass(frozen=True, eq=False)
class LittleWorld:
    """Clients that each walk towards a target of their own, as far as their epochs take them."""

    clients: int
    costs: Floats
    targets: Params
    sides: dict[int, ClientSide] = field(default_factory=dict)

    @classmethod
    def make(cls, clients: int = 8, seed: int = 0, costs: Floats | None = None) -> LittleWorld:
        """Return a world whose targets depend on the seed alone."""
        targets = stream(seed, "targets").normal(size=(clients, SIZE)).astype(np.float32)
        given = np.linspace(0.06, 0.2, clients) if costs is None else costs
        return cls(clients, given, targets)

    @property
    def all_clients(self) -> Ints:
        """All clients."""
        return np.arange(self.clients)

    def begin(self, strategy: Strategy[Any]) -> State:
        """Return the state before the first round."""
        samples = np.arange(10, 10 + self.clients)
        params = stream(0, "start").normal(size=SIZE).astype(np.float32)
        state: State = strategy.init(params, Population(samples, self.costs, TRAINABLE))
        return state

    def validate(self, params: Params) -> tuple[float, float]:
        """Return the server's validation loss: the squared distance to the mean target."""
        return float(np.sum((params - self.targets.mean(axis=0)) ** 2)), 50.0

    def train_server(self, params: Params, task: LocalTask) -> Params:
        """Return weights on the way to the mean target, as the server's training would."""
        way = min(task.learning_rate, 0.9)
        target = self.targets.mean(axis=0)
        trained: Params = (params + way * (target - params)).astype(np.float32)
        return trained[:TRAINABLE]

    def client_loss(self, client: int, params: Params) -> float:
        """Return a client's loss: the mean squared distance to its target."""
        return float(np.mean((params - self.targets[client]) ** 2))

    def train(self, task: LocalTask, params: Params) -> Report:
        """Return the honest report of a client that does what its task says."""
        way = 1 - (1 - min(task.learning_rate, 0.9)) ** (
            task.epochs if task.iterations is None else 1
        )
        target = self.targets[task.client]
        trained = (params + way * (target - params)).astype(np.float32)
        loss = self.client_loss(task.client, params)
        return Report(task.client, trained, 10 + task.client, task.epochs, loss)

    def answers(self, strategy: Strategy[Any], state: State, offer: Offer) -> list[Report]:
        """Return the honest answer of every selected client."""
        reports, download, side = [], strategy.download(state), self.side(strategy)
        for terms in offer.terms:
            profile = Profile(terms.client, float(self.costs[terms.client]), 10 + terms.client)
            task = strategy.respond(terms, profile)
            reports.append(
                Report(task.client, None, 10 + task.client, 0)
                if task.abstains
                else self.train(task, download.params)
                if side.is_plain(download)
                else answer_with_vectors(side, task, download, self.targets[task.client])
            )
        return reports

    def side(self, strategy: Strategy[Any]) -> ClientSide:
        """Return what clients do with vectors under this very strategy, and what they keep."""
        return self.sides.setdefault(id(strategy), ClientSide(strategy, TRAINABLE))

    def loss(self, strategy: Strategy[Any], state: State) -> float:
        """Return the validation loss, or the mean of the clients' where each has its own model."""
        download = strategy.download(state)
        if not download.scores_kept:
            return self.validate(state.params)[0]
        return float(np.mean(own_losses(self.side(strategy), download, self.targets)))

    def hear(
        self, strategy: Strategy[Any], state: State, seed: int = 0, available: Ints | None = None
    ) -> State:
        """Return the state that knows the losses its strategy asks for before the next offer.

        Of an asynchronous strategy it is the one in which clients have answered; client k takes
        k + 1 seconds.
        """
        who = self.all_clients if available is None else available
        if strategy.asynchronous:
            rng = stream(seed, "select", state.round + 1)
            advanced: State = strategy.advance(state, who, rng, lambda t: t.client + 1.0)
            return advanced
        asked = strategy.survey(state, who, stream(seed, "survey", state.round + 1)).tolist()
        if not asked:
            return state
        assert set(asked) <= set(who.tolist())
        download = strategy.download(state)
        heard: State = strategy.hear(
            state, {c: self.client_loss(c, download.model(c)) for c in asked}
        )
        return heard

    def offer(
        self, strategy: Strategy[Any], state: State, seed: int = 0, available: Ints | None = None
    ) -> Offer:
        """Return the offer of the next round, of a state that has heard what it asks for."""
        who = self.all_clients if available is None else available
        return strategy.offer(state, who, stream(seed, "select", state.round + 1))

    def play_round(
        self,
        strategy: Strategy[Any],
        state: State,
        seed: int = 0,
        available: Ints | None = None,
        change: Change | None = None,
    ) -> tuple[State, RoundRecord]:
        """Play one round; ``change`` may tamper with what comes back."""
        state = self.hear(strategy, state, seed, available)
        offer = self.offer(strategy, state, seed, available)
        reports: Sequence[Report] = self.answers(strategy, state, offer)
        reports = reports if change is None else change(list(reports))
        after, record = strategy.aggregate(
            state, offer, reports, self.validate, train_server=self.train_server
        )
        return after, record

    def play(
        self, strategy: Strategy[Any], rounds: int, seed: int = 0, change: Change | None = None
    ) -> State:
        """Play so many rounds from the start."""
        state = self.begin(strategy)
        while state.round < rounds:
            state, _ = self.play_round(strategy, state, seed, change=change)
        return state


def random_plan(seed: int) -> Plan:
    """Return a plan as a user might have it, by the seed alone."""
    rng = stream(seed, "plan")
    return Plan(
        rounds=int(rng.integers(2, 40)),
        per_round=int(rng.integers(1, 9)),
        epochs=int(rng.integers(1, 60)),
        learning_rate=float(rng.uniform(0.001, 1.0)),
        batch_size=int(rng.integers(1, 257)),
    )


def values_of(state: State) -> dict[str, Any]:
    """Return the fields of a state by name."""
    return {f.name: getattr(state, f.name) for f in fields(state)}


def assert_same(first: State, second: State) -> None:
    """Fail unless two states are the same to the last bit."""
    for name, value in values_of(first).items():
        np.testing.assert_array_equal(value, getattr(second, name), err_msg=name)

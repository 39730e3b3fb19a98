"""The contract that every strategy keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flamma.experiments.checkpoint import Checkpoints
from flamma.records import RoundRecord
from flamma.seeding import stream
from flamma.simulation.client_side import ClientSide
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Offer, ServerSide, State, Strategy
from flamma.types import (
    Broadcast,
    Floats,
    Ints,
    LocalWork,
    Params,
    Plan,
    Population,
    Profile,
    TaskVectors,
    Update,
)

# Clients of a little world that keep and correct what their strategy tells them to.


def _answer_with_vectors(
    side: ClientSide, task: LocalWork, broadcast: Broadcast, target: Params
) -> Update:
    """Return the report of a client that trains as its task and its vectors say.

    It keeps what the strategy lets it keep.
    """
    common = broadcast.params
    at_hand = side.vectors(task, broadcast.model(task.client), broadcast.extra)
    prepared = side.prepared(task, at_hand, common)
    trained = walked(task, at_hand.received, prepared, target, side.trainable_size)
    own = side.own_training(task, at_hand, common)
    kept = None
    if own is not None:
        kept = walked(own[0], at_hand.received, own[1], target, side.trainable_size)
    loss = float(np.mean((at_hand.received - target) ** 2))
    update = Update(task.client, trained, 10 + task.client, task.epochs, loss)
    return side.settle(task, at_hand, update, kept)


def walked(
    task: LocalWork, received: Params, vectors: TaskVectors, target: Params, trainable_size: int
) -> Params:
    """Return the weights after steps on ‖v - target‖² / 2, one for each epoch."""
    weights = (received if vectors.start is None else vectors.start).astype(np.float64)
    rate = min(task.learning_rate, 0.9)
    learns = slice(trainable_size)
    for _ in range(task.epochs if task.terms.batches is None else 1):
        gradient = weights - target
        gradient[learns] += task.terms.objective.proximal * (weights - received)[learns]
        if vectors.correction is not None:
            gradient[learns] += vectors.correction
        weights -= rate * gradient
    return weights.astype(np.float32)


# A little world in which a strategy can be played without data, models or engines.

SIZE, TRAINABLE = 40, 36

Change = Callable[[list[Update]], list[Update]]


@dataclass(frozen=True, eq=False)
class ToyFederation:
    """Clients that each walk towards a target of their own, as far as their epochs take them."""

    clients: int
    costs: Floats
    targets: Params
    sides: dict[int, ClientSide] = field(default_factory=dict)

    @classmethod
    def make(cls, clients: int = 8, seed: int = 0, costs: Floats | None = None) -> ToyFederation:
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

    def train_server(self, params: Params, task: LocalWork) -> Params:
        """Return weights on the way to the mean target, as the server's training would."""
        way = min(task.learning_rate, 0.9)
        target = self.targets.mean(axis=0)
        trained: Params = (params + way * (target - params)).astype(np.float32)
        return trained[:TRAINABLE]

    @property
    def server(self) -> ServerSide:
        """What the server of this world can do."""
        return ServerSide(self.validate, self.train_server)

    def client_loss(self, client: int, params: Params) -> float:
        """Return a client's loss: the mean squared distance to its target."""
        return float(np.mean((params - self.targets[client]) ** 2))

    def train(self, task: LocalWork, params: Params) -> Update:
        """Return the honest report of a client that does what its task says."""
        way = 1 - (1 - min(task.learning_rate, 0.9)) ** (
            task.epochs if task.terms.batches is None else 1
        )
        target = self.targets[task.client]
        trained = (params + way * (target - params)).astype(np.float32)
        loss = self.client_loss(task.client, params)
        return Update(task.client, trained, 10 + task.client, task.epochs, loss)

    def answers(self, strategy: Strategy[Any], state: State, offer: Offer) -> list[Update]:
        """Return the honest answer of every selected client."""
        updates, broadcast, side = [], strategy.broadcast(state), self.side(strategy)
        for terms in offer.terms:
            profile = Profile(terms.client, float(self.costs[terms.client]), 10 + terms.client)
            task = strategy.respond(terms, profile)
            updates.append(
                Update(task.client, None, 10 + task.client, 0)
                if task.abstains
                else self.train(task, broadcast.params)
                if side.is_plain(broadcast)
                else _answer_with_vectors(side, task, broadcast, self.targets[task.client])
            )
        return updates

    def side(self, strategy: Strategy[Any]) -> ClientSide:
        """Return what clients do with vectors under this very strategy, and what they keep."""
        return self.sides.setdefault(id(strategy), ClientSide(strategy, TRAINABLE))

    def loss(self, strategy: Strategy[Any], state: State) -> float:
        """Return the validation loss, or the mean of the clients' where each has its own model."""
        broadcast = strategy.broadcast(state)
        if not broadcast.evaluates_kept:
            return self.validate(state.params)[0]
        side = self.side(strategy)
        models = [side.model_of(client, broadcast) for client in range(len(self.targets))]
        apart = np.square(np.stack(models) - self.targets, dtype=np.float64)
        return float(np.mean(np.sum(apart, axis=1)))

    def hear(
        self, strategy: Strategy[Any], state: State, seed: int = 0, available: Ints | None = None
    ) -> State:
        """Return the state that knows the losses its strategy asks for before the next offer.

        Of an asynchronous strategy it is the one in which clients have answered; client k takes
        k + 1 seconds.
        """
        who = self.all_clients if available is None else available
        if strategy.needs.clock:
            rng = stream(seed, "select", state.round + 1)
            advanced: State = strategy.advance(state, who, rng, lambda t: t.client + 1.0)
            return advanced
        asked = strategy.survey(state, who, stream(seed, "survey", state.round + 1)).tolist()
        if not asked:
            return state
        assert set(asked) <= set(who.tolist())
        broadcast = strategy.broadcast(state)
        heard: State = strategy.hear(
            state, {c: self.client_loss(c, broadcast.model(c)) for c in asked}
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
        updates: Sequence[Update] = self.answers(strategy, state, offer)
        updates = updates if change is None else change(list(updates))
        after, record = strategy.aggregate(state, offer, updates, self.server)
        return after, record

    def play(
        self, strategy: Strategy[Any], rounds: int, seed: int = 0, change: Change | None = None
    ) -> State:
        """Play so many rounds from the start."""
        state = self.begin(strategy)
        while state.round < rounds:
            state, _ = self.play_round(strategy, state, seed, change=change)
        return state


def _random_plan(seed: int) -> Plan:
    """Return a plan as a user might have it, by the seed alone."""
    rng = stream(seed, "plan")
    return Plan(
        rounds=int(rng.integers(2, 40)),
        per_round=int(rng.integers(1, 9)),
        epochs=int(rng.integers(1, 60)),
        learning_rate=float(rng.uniform(0.001, 1.0)),
        batch_size=int(rng.integers(1, 257)),
    )


def _values_of(state: State) -> dict[str, Any]:
    """Return the fields of a state by name."""
    return {f.name: getattr(state, f.name) for f in fields(state)}


def assert_same(first: State, second: State) -> None:
    """Fail unless two states are the same to the last bit."""
    for name, value in _values_of(first).items():
        np.testing.assert_array_equal(value, getattr(second, name), err_msg=name)


_CONTRACT_ROUNDS = 25
PLAN = Plan(rounds=_CONTRACT_ROUNDS, per_round=3, epochs=4, learning_rate=0.1)
_RANDOM_PLANS = 40


def _model(update: Update) -> Any:
    assert update.params is not None
    return update.params


_BAD_UPDATES: dict[str, Callable[[Update], Update]] = {
    "nan": lambda r: replace(r, params=np.full(SIZE, np.nan, np.float32)),
    "infinite": lambda r: replace(r, params=np.full(SIZE, np.inf, np.float32)),
    "too short": lambda r: replace(r, params=_model(r)[:-1]),
    "a matrix": lambda r: replace(r, params=_model(r).reshape(2, -1)),
    "doubles": lambda r: replace(r, params=_model(r).astype(np.float64)),
    "no samples": lambda r: replace(r, samples=0),
    "negative epochs": lambda r: replace(r, epochs=-1),
    "negative loss": lambda r: replace(r, loss=-1.0),
    "failed": lambda r: replace(r, params=None, failure="its battery is empty"),
}
"""Reports that no strategy may use."""


class StrategyContract:
    """The tests that a strategy passes; derive from it and set ``name``, or override ``make``."""

    name: str = ""

    def make(self, plan: Plan = PLAN) -> Strategy[Any]:
        """Return the strategy under test."""
        return STRATEGIES[self.name](plan=plan)

    @pytest.fixture
    def world(self) -> ToyFederation:
        """Return the clients it is played with."""
        return ToyFederation.make()

    def test_it_learns(self, world: ToyFederation) -> None:
        """After the plan's rounds the validation loss is well below that of the start."""
        strategy = self.make()
        trained = world.loss(strategy, world.play(strategy, _CONTRACT_ROUNDS))
        assert trained < 0.5 * world.loss(strategy, world.begin(strategy))

    def test_a_state_is_never_changed(self, world: ToyFederation) -> None:
        """A round leaves the state it started from as it was."""
        strategy = self.make()
        state = world.begin(strategy)
        while state.round < 12:
            before = {k: np.array(v, copy=True) for k, v in _values_of(state).items()}
            following, _ = world.play_round(strategy, state)
            for key, value in before.items():
                np.testing.assert_array_equal(value, getattr(state, key), err_msg=key)
            state = following

    def test_the_same_seed_gives_the_same_bits(self, world: ToyFederation) -> None:
        """Two plays with one seed end in the same state."""
        assert_same(
            world.play(self.make(), _CONTRACT_ROUNDS), world.play(self.make(), _CONTRACT_ROUNDS)
        )

    def test_selection_is_random_unless_contributions_decide(self, world: ToyFederation) -> None:
        """Another seed selects other clients, unless the offer says what selection went by."""
        selected: list[list[tuple[int, ...]]] = []
        by_contribution = []
        for seed in (0, 1):
            strategy, chosen = self.make(), []
            state = world.begin(strategy)
            while state.round < 6:
                heard = world.hear(strategy, state, seed)
                offer = world.offer(strategy, heard, seed)
                by_contribution.append(offer.effective is not None)
                chosen.append(offer.selected)
                state, _ = world.play_round(strategy, state, seed)
            selected.append(chosen)
        assert selected[0] != selected[1] or any(by_contribution)

    def test_the_order_of_reports_does_not_matter(self, world: ToyFederation) -> None:
        """Reports are reduced in client order, whatever order they come in."""
        backwards = world.play(self.make(), _CONTRACT_ROUNDS, change=lambda updates: updates[::-1])
        assert_same(world.play(self.make(), _CONTRACT_ROUNDS), backwards)

    def test_saved_and_loaded_it_goes_on_as_before(
        self, world: ToyFederation, tmp_path: Path
    ) -> None:
        """A state survives a checkpoint bit for bit, and so do the rounds after it."""
        strategy = self.make()
        state = world.play(strategy, 7)
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(state)
        loaded = checkpoints.load(world.begin(strategy))
        assert loaded is not None
        assert_same(state, loaded)
        while state.round < 12:
            state, _ = world.play_round(strategy, state)
            loaded, _ = world.play_round(strategy, loaded)
        assert_same(state, loaded)

    def test_selects_as_many_as_planned_of_those_available(self, world: ToyFederation) -> None:
        """Selected clients are available, different, in order, and as many as the plan says.

        Their number is free where the strategy says that it varies. Clients of an asynchronous
        one were available when they began.
        """
        strategy = self.make()
        state = world.begin(strategy)
        few, could_begin = np.array([1, 4]), set[int]()
        while state.round < 10:
            available = few if state.round % 3 == 2 else world.all_clients[state.round % 4 :]
            state, record = world.play_round(strategy, state, available=available)
            could_begin = set(available.tolist()) | (could_begin if strategy.needs.clock else set())
            assert set(record.selected) <= could_begin
            assert list(record.selected) == sorted(set(record.selected))
            planned = min(PLAN.per_round, available.size)
            if record.round > 0 and not strategy.needs.varies_selection:
                assert len(record.selected) == planned

    def test_an_honest_answer_is_never_refused(self, world: ToyFederation) -> None:
        """Whatever the plan, what clients do by the strategy's own ``respond`` is accepted."""
        for seed in range(_RANDOM_PLANS):
            plan = _random_plan(seed)
            costs = np.exp(stream(seed, "honest").normal(-2, 1, world.clients))
            own = ToyFederation.make(world.clients, costs=costs)
            strategy = self.make(plan)
            state = own.begin(strategy)
            while state.round < min(plan.rounds, 4):
                state, record = own.play_round(strategy, state, seed)
                assert not record.outcome.failed, f"{plan}: {record.outcome.failed}"

    @pytest.mark.parametrize("bad", _BAD_UPDATES)
    def test_a_bad_report_is_left_out_and_recorded(self, world: ToyFederation, bad: str) -> None:
        """A report that cannot be used counts as a missing one, and the record has the reason."""
        strategy = self.make()
        state = self._before_two_answers(strategy, world)
        victims = []

        def spoil(updates: list[Update]) -> list[Update]:
            *others, last = updates
            victims.append(last.client)
            return [*others, _BAD_UPDATES[bad](last)]

        def lose(updates: list[Update]) -> list[Update]:
            return updates[:-1]

        spoiled, record = world.play_round(strategy, state, change=spoil)
        without, missing = world.play_round(strategy, state, change=lose)
        assert list(record.outcome.failed) == victims
        assert record.outcome.failed[victims[0]]
        assert missing.outcome.failed == {victims[0]: "no answer"}
        assert np.isfinite(spoiled.params).all()
        assert_same(spoiled, without)

    def test_every_selected_client_is_accounted_for(self, world: ToyFederation) -> None:
        """A selected client is accepted, abstains or has failed; none is silently lost."""
        strategy = self.make()
        state = world.begin(strategy)
        while state.round < 10:
            state = world.hear(strategy, state)
            offer = world.offer(strategy, state)
            updates = world.answers(strategy, state, offer)[1:]
            state, record = strategy.aggregate(state, offer, updates, world.server)
            accepted = {r.client for r in updates if r.params is not None}
            told = accepted | set(record.outcome.abstained) | set(record.outcome.failed)
            assert told == set(record.selected) == set(offer.selected)

    def test_a_round_without_any_answer_leaves_the_weights(self, world: ToyFederation) -> None:
        """If no client answers, the model stays and the round counts."""
        strategy = self.make()
        state = world.play(strategy, 3)
        after, record = world.play_round(strategy, state, change=lambda updates: [])
        np.testing.assert_array_equal(after.params, state.params)
        assert len(record.outcome.failed) == len(record.selected)
        assert after.round == state.round + 1

    def _before_two_answers(self, strategy: Strategy[Any], world: ToyFederation) -> State:
        """Return a state after two rounds or more whose next offer goes to two clients or more."""
        state = world.play(strategy, 2)
        while len(world.offer(strategy, world.hear(strategy, state)).selected) < 2:
            state, _ = world.play_round(strategy, state)
        return state

    def test_a_client_that_was_not_asked_is_ignored(self, world: ToyFederation) -> None:
        """Reports of clients that were not selected, and second reports, change nothing."""
        strategy = self.make()
        state = world.hear(strategy, self._before_two_answers(strategy, world))
        offer = world.offer(strategy, state)
        updates = world.answers(strategy, state, offer)
        stranger = next(c for c in range(world.clients) if c not in offer.selected)
        extra = replace(updates[0], client=stranger, params=_model(updates[0]) + 100)
        twice = replace(updates[0], params=_model(updates[0]) + 100)
        assert_same(
            strategy.aggregate(state, offer, updates, world.server)[0],
            strategy.aggregate(state, offer, [*updates, extra, twice], world.server)[0],
        )

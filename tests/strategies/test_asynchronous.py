"""Asynchronous strategies: the event queue and FedBuff's step by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import FlammaError, StrategyError
from flamma.flower.refusals import check_own_app
from flamma.seeding import stream
from flamma.strategies import in_family
from flamma.strategies.asynchronous import FedBuff
from flamma.testing.strategies import SIZE, TRAINABLE, ToyFederation, assert_same
from flamma.types import Plan, Population, Update

PLAN = Plan(rounds=9, per_round=2, epochs=1, learning_rate=0.1)
SECONDS = (1.0, 2.0, 4.0, 8.0)
EVERYBODY = np.arange(4)


def begun(strategy, clients=4):
    params = stream(1, "start").normal(size=SIZE).astype(np.float32)
    return strategy.init(params, Population(np.full(clients, 10), None, TRAINABLE))


def advanced(strategy, state, seconds=SECONDS, available=EVERYBODY, seed=0):
    rng = stream(seed, "select", state.round + 1)
    return strategy.advance(state, available, rng, lambda terms: seconds[terms.client])


def offered(strategy, state):
    return strategy.offer(state, EVERYBODY, stream(0, "select", state.round + 1))


def stepped_on(strategy, state):
    """The state after a step in which every answer is the model that the client received."""
    offer = offered(strategy, state)
    answers = [Update(t.client, state.model_of(t.client), 10, 1) for t in offer.terms]
    return strategy.aggregate(state, offer, answers)


def test_the_queue_by_hand():
    # All four are always at work, or idle because they have had the newest model already.
    strategy = FedBuff(PLAN, concurrency=4, buffer=2)
    state, seen = begun(strategy), []
    for _ in range(4):
        state = advanced(strategy, state)
        began = [terms.round for terms in offered(strategy, state).terms]
        state, record = stepped_on(strategy, state)
        seen.append((record.selected, state.now, began))
    assert seen == [
        ((0, 1), 2.0, [1, 1]),
        ((0, 1), 4.0, [2, 2]),  # client 2 finishes at 4, too, but its number is higher
        ((0, 2), 5.0, [3, 1]),
        ((0, 1), 6.0, [4, 3]),
    ]
    assert state.began.tolist() == [0, 0, 4, 1]
    assert state.finishes.tolist() == [0.0, 0.0, 9.0, 8.0]
    assert state.received.known.tolist() == [2, 3]


def test_a_place_is_taken_as_soon_as_it_is_free():
    strategy = FedBuff(PLAN, concurrency=1, buffer=3)
    state = advanced(strategy, begun(strategy))
    first = offered(strategy, state).selected
    assert len(first) == 3
    assert state.now == sum(SECONDS[client] for client in first)  # one after the other
    assert not state.received.known.size


def test_clients_that_finish_together_are_heard_before_another_begins():
    strategy = FedBuff(PLAN)
    state = advanced(strategy, begun(strategy), seconds=(3.0,) * 4)
    assert np.count_nonzero(state.began) == 2
    assert state.answered.sum() == 2


def test_fewer_answer_where_no_one_is_left():
    strategy = FedBuff(PLAN, buffer=3)
    state = advanced(strategy, begun(strategy), available=np.array([1, 3]))
    assert offered(strategy, state).selected == (1, 3)
    assert state.now == 8.0


def test_one_that_is_away_goes_on_with_what_it_has_begun():
    strategy = FedBuff(PLAN, concurrency=4, buffer=2)
    state, _ = stepped_on(strategy, advanced(strategy, begun(strategy)))
    state = advanced(strategy, state, available=np.array([0]))
    assert offered(strategy, state).selected == (0, 2)  # client 2 began in the first round


def test_the_step_by_hand():
    strategy = FedBuff(PLAN, concurrency=4, buffer=2, server_step=0.5)
    state = begun(strategy)
    for _ in range(2):
        state, _ = stepped_on(strategy, advanced(strategy, state))
    # The third step is of client 0, which has the newest model, and of client 2, two steps late.
    old = state.model_of(2).copy()
    state = replace(state, params=state.params + np.float32(1))
    state = advanced(strategy, state)
    newest, updates = state.params, {}
    answers = []
    for client, received in ((0, newest), (2, old)):
        updates[client] = stream(client, "update").normal(size=SIZE).astype(np.float32)
        answers.append(Update(client, received + updates[client], 10, 1))
    after, _ = strategy.aggregate(state, offered(strategy, state), answers)
    mean = (updates[0] + updates[2] / math.sqrt(3)) / 2
    trained, carried = slice(TRAINABLE), slice(TRAINABLE, None)
    np.testing.assert_allclose(after.params[trained], (newest + 0.5 * mean)[trained], atol=1e-5)
    sent = (answers[0].params + answers[1].params) / 2
    np.testing.assert_allclose(after.params[carried], sent[carried], atol=1e-5)


def test_an_answer_that_cannot_be_used_frees_its_client():
    strategy = FedBuff(PLAN)
    state = advanced(strategy, begun(strategy))
    after, record = strategy.aggregate(state, offered(strategy, state), [])
    assert len(record.outcome.failed) == 2
    assert not after.answered.any()
    assert not after.began[list(record.selected)].any()
    np.testing.assert_array_equal(after.params, state.params)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=5, max_size=5), st.integers(1, 5), st.integers(1, 5))
def test_time_goes_forward_and_nobody_is_lost(seconds, concurrency, buffer):
    strategy = FedBuff(PLAN, concurrency=concurrency, buffer=buffer)
    state, everybody = begun(strategy, clients=5), np.arange(5)
    for _ in range(4):
        before = state
        state = advanced(strategy, state, seconds=seconds, available=everybody)
        at_work = np.flatnonzero((state.began > 0) & (state.answered == 0))
        heard = np.flatnonzero(state.answered)
        assert at_work.size <= concurrency
        assert heard.size == buffer
        assert before.now <= state.now == state.finishes[heard].max()
        assert (state.finishes[at_work] >= state.now).all()
        state, _ = stepped_on(strategy, state)
        assert np.flatnonzero(state.began).tolist() == at_work.tolist()
        assert state.received.known.tolist() == at_work.tolist()


def test_the_same_seed_gives_the_same_queue():
    strategy = FedBuff(replace(PLAN, per_round=3))
    world = ToyFederation.make()
    assert_same(world.play(strategy, 6), world.play(strategy, 6))


@pytest.mark.parametrize("option", ["concurrency", "buffer"])
def test_nobody_at_work_is_refused(option):
    with pytest.raises(StrategyError, match=f"{option} must be at least 1"):
        FedBuff(PLAN, **{option: 0})


def test_an_app_of_ones_own_has_no_virtual_time():
    with pytest.raises(FlammaError, match="virtual clock"):
        check_own_app(FedBuff(PLAN))


def test_it_is_listed_in_its_family():
    assert in_family("asynchronous") == ["fedbuff"]

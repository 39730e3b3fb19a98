"""The contract that every registered strategy keeps. A new strategy is tested by being listed."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from flamma.experiments.checkpoint import Checkpoints
from flamma.seeding import stream
from flamma.strategies import STRATEGIES
from flamma.types import Plan, Population, Profile, Report

CLIENTS, SIZE, ROUNDS = 8, 40, 25
PLAN = Plan(rounds=ROUNDS, per_round=3, epochs=4, learning_rate=0.1)
COSTS = np.linspace(0.06, 0.2, CLIENTS)
TARGETS = stream(0, "targets").normal(size=(CLIENTS, SIZE)).astype(np.float32)
EVERYBODY = np.arange(CLIENTS)

FEDERATED = [name for name in STRATEGIES if not STRATEGIES[name].pools_data]

pytestmark = pytest.mark.parametrize("name", FEDERATED)


def make(name):
    return STRATEGIES[name](plan=PLAN)


def begin(strategy):
    samples = np.arange(10, 10 + CLIENTS)
    params = stream(0, "start").normal(size=SIZE).astype(np.float32)
    return strategy.init(params, Population(samples, COSTS, trainable_size=SIZE - 4))


def judge(params):
    """The server's validation loss in this little world: distance to the mean target."""
    return float(np.sum((params - TARGETS.mean(axis=0)) ** 2)), 50.0


def train(task, params):
    """A client that walks towards its own target, as far as its epochs and step take it."""
    way = 1 - (1 - task.learning_rate) ** (task.epochs if task.iterations is None else 1)
    trained = (params + way * (TARGETS[task.client] - params)).astype(np.float32)
    loss = float(np.mean((params - TARGETS[task.client]) ** 2))
    return Report(task.client, trained, 10 + task.client, task.epochs, loss)


def answer(strategy, state, offer):
    reports = []
    for terms in offer.terms:
        task = strategy.respond(terms, Profile(terms.client, COSTS[terms.client], 10))
        if task.abstains:
            reports.append(Report(task.client, None, 10 + task.client, 0))
        else:
            reports.append(train(task, state.params))
    return reports


def play_round(strategy, state, seed=0, available=EVERYBODY, change=lambda reports: reports):
    offer = strategy.offer(state, available, stream(seed, "select", state.round + 1))
    reports = change(answer(strategy, state, offer))
    return strategy.aggregate(state, offer, reports, judge)


def play(strategy, rounds=ROUNDS, seed=0, **options):
    state = begin(strategy)
    while state.round < rounds:
        state, outcome = play_round(strategy, state, seed, **options)
    return state, outcome


def arrays(state):
    return {f.name: getattr(state, f.name) for f in fields(state)}


def assert_same(first, second):
    for name, value in arrays(first).items():
        np.testing.assert_array_equal(value, getattr(second, name), err_msg=name)


def test_it_learns(name):
    strategy = make(name)
    state, _ = play(strategy)
    assert judge(state.params)[0] < 0.5 * judge(begin(strategy).params)[0]


def test_a_state_is_never_changed(name):
    strategy = make(name)
    state = begin(strategy)
    while state.round < 12:
        before = {k: np.array(v, copy=True) for k, v in arrays(state).items()}
        following, _ = play_round(strategy, state)
        for key, value in before.items():
            np.testing.assert_array_equal(value, getattr(state, key), err_msg=key)
        state = following


def test_the_same_seed_gives_the_same_bits(name):
    assert_same(play(make(name))[0], play(make(name))[0])


def test_another_seed_selects_others_unless_contributions_decide(name):
    first, second = (
        [play_round(make(name), s, seed)[1].selected for s in _states(name, seed)]
        for seed in (0, 1)
    )
    # There chance breaks ties only.
    by_contribution = name in ("flamma", "flamma-plus", "flamma-adaptive")
    assert (first == second) == by_contribution


def _states(name, seed):
    strategy = make(name)
    state = begin(strategy)
    states = [state]
    while state.round < 6:
        state, _ = play_round(strategy, state, seed)
        states.append(state)
    return states


def test_the_order_of_reports_does_not_matter(name):
    assert_same(play(make(name))[0], play(make(name), change=lambda r: r[::-1])[0])


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened(name, tmp_path):
    strategy = make(name)
    state, _ = play(strategy, rounds=7)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state)
    loaded = checkpoints.load(begin(strategy))
    assert_same(state, loaded)
    while state.round < 12:
        state, _ = play_round(strategy, state)
        loaded, _ = play_round(strategy, loaded)
    assert_same(state, loaded)


def test_selects_as_many_as_planned_of_those_available(name):
    strategy = make(name)
    state = begin(strategy)
    few = np.array([1, 4])
    while state.round < 10:
        available = few if state.round % 3 == 2 else EVERYBODY[state.round % 4 :]
        state, outcome = play_round(strategy, state, available=available)
        assert set(outcome.selected) <= set(available.tolist())
        assert list(outcome.selected) == sorted(set(outcome.selected))
        if outcome.round > 0:
            assert len(outcome.selected) == min(PLAN.per_round, available.size)


BAD = {
    "nan": lambda r: replace(r, params=np.full(SIZE, np.nan, np.float32)),
    "infinite": lambda r: replace(r, params=np.full(SIZE, np.inf, np.float32)),
    "too short": lambda r: replace(r, params=r.params[:-1]),
    "a matrix": lambda r: replace(r, params=r.params.reshape(2, -1)),
    "doubles": lambda r: replace(r, params=r.params.astype(np.float64)),
    "no samples": lambda r: replace(r, samples=0),
    "minus epochs": lambda r: replace(r, epochs=-1),
    "failed": lambda r: replace(r, params=None, failure="its battery is empty"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_update_is_left_out_and_recorded(name, bad):
    strategy = make(name)
    state, _ = play(strategy, rounds=2)
    victims = []

    def spoil(reports):
        victims.append(reports[1].client)
        return [reports[0], BAD[bad](reports[1]), *reports[2:]]

    def lose(reports):
        return [reports[0], *reports[2:]]

    spoiled, outcome = play_round(strategy, state, change=spoil)
    without, missing = play_round(strategy, state, change=lose)
    assert list(outcome.failed) == victims
    assert outcome.failed[victims[0]]
    assert missing.failed == {victims[0]: "no answer"}
    assert np.isfinite(spoiled.params).all()
    assert_same(spoiled, without)


def test_nobody_is_silently_lost(name):
    strategy = make(name)
    state = begin(strategy)
    while state.round < 10:
        offer = strategy.offer(state, EVERYBODY, stream(0, "select", state.round + 1))
        reports = answer(strategy, state, offer)[1:]
        state, outcome = strategy.aggregate(state, offer, reports, judge)
        accepted = {r.client for r in reports if r.params is not None}
        told = accepted | set(outcome.abstained) | set(outcome.failed)
        assert told == set(outcome.selected) == set(offer.selected)


def test_a_round_without_any_answer_leaves_the_weights(name):
    strategy = make(name)
    state, _ = play(strategy, rounds=3)
    after, outcome = play_round(strategy, state, change=lambda reports: [])
    np.testing.assert_array_equal(after.params, state.params)
    assert len(outcome.failed) == len(outcome.selected)
    assert after.round == state.round + 1


def test_a_client_that_was_not_asked_is_not_heard(name):
    strategy = make(name)
    state, _ = play(strategy, rounds=3)
    offer = strategy.offer(state, EVERYBODY, stream(0, "select", state.round + 1))
    reports = answer(strategy, state, offer)
    stranger = next(c for c in range(CLIENTS) if c not in offer.selected)
    extra = replace(reports[0], client=stranger, params=reports[0].params + 100)
    twice = replace(reports[0], params=reports[0].params + 100)
    assert_same(
        strategy.aggregate(state, offer, reports, judge)[0],
        strategy.aggregate(state, offer, [*reports, extra, twice], judge)[0],
    )

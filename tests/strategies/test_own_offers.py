"""Under ``pricing = "others"`` nothing that is known of one's own cost moves one's own terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.federation import certified
from flamma.game import Game, solve
from flamma.seeding import stream
from flamma.strategies.flamma import Flamma
from flamma.strategies.flamma_honest import FlammaHonest
from flamma.strategies.flamma_plus import FlammaPlus
from flamma.types import Plan, Population, Profile, Update

CLIENTS = 7


def played(kind, number, seed, budget=None, costs="given", **options):
    """A strategy in the middle of a run, with its state."""
    rng = np.random.default_rng(seed)
    plan = Plan(rounds=40, per_round=4, budget=budget)
    strategy = kind(plan, pricing="others", server_costs=costs, **options)
    told = 0.1 * np.exp(rng.normal(size=CLIENTS))
    people = Population(np.full(CLIENTS, 10), told, trainable_size=2)
    omega = rng.uniform(0.3, 1, CLIENTS)
    state = strategy.init(np.zeros(2, np.float32), people)
    lower = 0.1 * np.exp(rng.normal(size=CLIENTS))
    return strategy, replace(
        state,
        round=number - 1,
        contributions=omega,
        effective=omega * rng.uniform(0.5, 1, CLIENTS),
        cost_lower=lower,
        cost_upper=lower * rng.uniform(1, 2, CLIENTS),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([Flamma, FlammaPlus, FlammaHonest]),
    st.integers(1, 40),
    st.integers(0, 2**32),
    st.sampled_from([None, 5.0]),
    st.sampled_from(["given", "revealed"]),
    st.sampled_from([{}, {"price": 0.5}, {"decay_floor": 0.1}, {"selection": "sample"}]),
    st.floats(-8, 8),
)
def test_terms_and_selection_do_not_depend_on_ones_own_cost(
    kind, number, seed, budget, costs, options, power
):
    strategy, state = played(kind, number, seed, budget, costs, **options)
    present = np.sort(np.random.default_rng(seed).permutation(CLIENTS)[:6])
    before = strategy.offer(state, present, stream(seed, "select", number))
    factor = np.exp(power)
    for place, own in enumerate(before.selected):
        scaled = {
            name: np.where(np.arange(CLIENTS) == own, getattr(state, name) * factor, old)
            for name in ("costs", "cost_lower", "cost_upper")
            for old in (getattr(state, name),)
        }
        after = strategy.offer(replace(state, **scaled), present, stream(seed, "select", number))
        assert after.selected == before.selected
        assert after.terms[place] == before.terms[place]
        assert after.inspected == before.inspected


def test_the_same_changes_do_move_the_offers_of_others():
    strategy, state = played(Flamma, 30, 0)
    before = strategy.offer(state, np.arange(CLIENTS), stream(0, "select", 30))
    own = before.selected[0]
    costs = np.where(np.arange(CLIENTS) == own, 5 * state.costs, state.costs)
    after = strategy.offer(replace(state, costs=costs), np.arange(CLIENTS), stream(0, "select", 30))
    assert after.terms[0] == before.terms[0]
    assert after.terms[1:] != before.terms[1:]


@pytest.mark.parametrize("seed", range(5))
def test_the_record_certifies_each_client_by_its_own_decay_factor(seed):
    strategy, state = played(Flamma, 30, seed)
    made = strategy.offer(state, np.arange(CLIENTS), stream(0, "select", 30))
    profiles = [Profile(c, state.costs[c], 10) for c in made.selected]
    reports = [
        Update(p.client, state.params + 1, 10, strategy.respond(terms, p).epochs)
        for terms, p in zip(made.terms, profiles, strict=True)
    ]
    failed = replace(reports[1], params=None, epochs=0, failure="late")
    _, record = strategy.aggregate(state, made, [reports[0], failed, *reports[2:]])
    told = certified(record, made, state.costs)
    kept = [0, 2, 3]
    terms = [made.terms[k] for k in kept]
    tau = [reports[k].epochs for k in kept]
    assert told.outcome.client_utilities[1] is None
    for k, own, epochs in zip(kept, terms, tau, strict=True):
        pay = own.decay_factor * own.contribution * epochs
        cost = state.costs[own.client] * epochs**2
        assert told.outcome.client_utilities[k] == pytest.approx(pay - cost)
    assert abs(told.game.certificate.follower_gap) < 1e-12
    common = Game(
        [own.contribution for own in terms],
        state.costs[[own.client for own in terms]],
        30,
        made.game.price,
        decay_bounds=made.game.decay_bounds,
    )
    gain = sum(
        own.decay_factor * (own.contribution + epochs)
        for own, epochs in zip(terms, tau, strict=True)
        if epochs
    )
    influence = np.mean([own.decay_factor**2 for own in terms])
    assert told.game.server_utility == pytest.approx(gain - made.game.price * 30 * influence)
    assert told.game.certificate.leader_regret == pytest.approx(
        solve(common).server_utility - told.game.server_utility, abs=1e-12
    )

"""Identities between algorithms, and golden values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flamma.aggregators import AGGREGATORS
from flamma.contributions import SingleUpdate, cosine, distance
from flamma.errors import StrategyError
from flamma.federation import certified
from flamma.game import certify, solve
from flamma.seeding import stream
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Offer, ServerSide
from flamma.strategies.fedavg import Central, FedAvg, FedAvgDecay, FedProx
from flamma.strategies.flamma import Flamma, known_costs
from flamma.strategies.flamma_plus import FlammaPlus, loss_factors
from flamma.strategies.loss_weights import QFFL
from flamma.strategies.memory import Mifa
from flamma.strategies.rewards import Incentive
from flamma.types import Objective, Plan, Population, Profile, Terms, Update

PLAN = Plan(rounds=20, per_round=2, epochs=3, learning_rate=0.5)


def population(clients=3, costs=0.1):
    return Population(np.arange(1, clients + 1) * 10, np.full(clients, costs), trainable_size=2)


def vector(*numbers):
    return np.array(numbers, dtype=np.float32)


def report(client, params, samples, loss=float("nan"), epochs=3):
    return Update(client, vector(*params), samples, epochs, loss)


def offer(*clients, number=1, **options):
    return Offer(number, tuple(Terms(c, number) for c in clients), **options)


def test_fedavg_weighs_by_data():
    strategy = FedAvg(PLAN)
    state = strategy.init(vector(0, 0), population())
    after, _ = strategy.aggregate(
        state, offer(0, 1), [report(0, (3, 0), 10), report(1, (0, 3), 20)]
    )
    np.testing.assert_array_equal(after.params, vector(1, 2))


def test_qffl_with_q_0_is_the_unweighted_mean():
    strategy = QFFL(PLAN, q=0.0)
    state = strategy.init(vector(1, 1), population())
    reports = [report(0, (3, 0), 10, loss=0.3), report(1, (0, 3), 20, loss=5.0)]
    after, _ = strategy.aggregate(state, offer(0, 1), reports)
    np.testing.assert_allclose(after.params, vector(1.5, 1.5), rtol=1e-6)


def test_more_samples_than_a_client_had_at_first_are_refused():
    strategy = FedAvg(PLAN)
    state = strategy.init(vector(0, 0), population())
    reports = [report(0, (3, 0), 11), report(1, (0, 3), 20)]
    after, record = strategy.aggregate(state, offer(0, 1), reports)
    np.testing.assert_array_equal(after.params, vector(0, 3))
    assert record.outcome.failed == {0: "refused: 11 samples of a client that had 10"}


def test_qffl_takes_the_mean_of_what_is_not_trained():
    strategy = QFFL(PLAN, q=1.0)
    wide = Population(np.array([10, 30]), None, trainable_size=2)
    narrow = Population(np.array([10, 30]), None, trainable_size=2)
    reports = [report(0, (1, 0, 8), 10, loss=2.0), report(1, (0, 2, 4), 30, loss=3.0)]
    after, _ = strategy.aggregate(strategy.init(vector(0, 0, 100), wide), offer(0, 1), reports)
    plain = [report(0, (1, 0), 10, loss=2.0), report(1, (0, 2), 30, loss=3.0)]
    alone, _ = strategy.aggregate(strategy.init(vector(0, 0), narrow), offer(0, 1), plain)
    np.testing.assert_array_equal(after.params[:2], alone.params)
    assert after.params[2] == 5  # (10 * 8 + 30 * 4) / 40


def test_qffl_by_hand():
    # η = 0.5, so L = 2; w = (0, 0), w_1 = (1, 0), w_2 = (0, 2): g = (-2, 0), (0, -4).
    # q = 1, F = 2 and 3: Δ = (-4, 0), (0, -12); h = 4 + 4 = 8 and 16 + 6 = 22.
    # w - ΣΔ / Σh = (4/30, 12/30).
    strategy = QFFL(PLAN, q=1.0)
    state = strategy.init(vector(0, 0), population())
    reports = [report(0, (1, 0), 10, loss=2.0), report(1, (0, 2), 10, loss=3.0)]
    after, _ = strategy.aggregate(state, offer(0, 1), reports)
    np.testing.assert_allclose(after.params, vector(4 / 30, 12 / 30), rtol=1e-6)


def test_qffl_asks_for_the_loss_of_the_received_model():
    strategy = QFFL(PLAN)
    state = strategy.init(vector(0, 0), population())
    made = strategy.offer(state, np.arange(3), stream(0, "select", 1))
    assert all(terms.report_loss == "received" for terms in made.terms)
    assert strategy.respond(made.terms[0], Profile(0, 0.1, 10)).terms.report_loss == "received"


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_fedprox_differs_from_fedavg_in_the_proximal_weight_only(mu):
    states = [s.init(vector(0, 0), population()) for s in (FedAvg(PLAN), FedProx(PLAN, mu=mu))]
    plain = FedAvg(PLAN).offer(states[0], np.arange(3), stream(0, "select", 1))
    prox = FedProx(PLAN, mu=mu).offer(states[1], np.arange(3), stream(0, "select", 1))
    ours, theirs = (
        [replace(t, objective=Objective(), contribution=0.0) for t in made.terms]
        for made in (prox, plain)
    )
    assert ours == theirs
    assert {t.objective.proximal for t in prox.terms} == {mu}


def test_incentive_by_hand():
    # Validation loss is (x - 1)²; models at 1 and 0, equal data, mean 0.5 (loss 0.25).
    # Without the first: 0, loss 1, gain 0.75; without the second: 1, loss 0, gain -0.25.
    # So the first has all the weight, and the averages are half the gains (memory 0.5).
    strategy = Incentive(PLAN)
    state = strategy.init(vector(0, 0), population())
    reports = [report(0, (1, 0), 10), report(1, (0, 0), 10)]
    after, _ = strategy.aggregate(
        state,
        offer(0, 1),
        reports,
        ServerSide(validate=lambda w: (float((w[0] - 1) ** 2), 0.0)),
    )
    np.testing.assert_allclose(after.params, vector(1, 0))
    np.testing.assert_allclose(after.gain, [0.375, -0.125, 0.0])


def test_incentive_without_a_validation_set_says_what_to_do():
    strategy = Incentive(PLAN)
    state = strategy.init(vector(0, 0), population())
    with pytest.raises(StrategyError, match="validation_samples"):
        strategy.aggregate(state, offer(0), [report(0, (1, 0), 10)])


def test_contributions_by_hand():
    def closeness(local, aggregate):
        return distance(SingleUpdate(local, vector(9, 9), aggregate))

    def agreement(move, common):
        return cosine(SingleUpdate(vector(1, 1) + move, vector(1, 1), vector(1, 1) + common))

    assert closeness(vector(3, 0), vector(3, 4)) == pytest.approx(1 - 4 / 5)
    assert closeness(vector(3, 4), vector(3, 4)) == 1
    assert closeness(vector(-30, 0), vector(3, 4)) == 0  # clipped, it would be negative
    assert closeness(vector(1, 0), vector(0, 0)) == 0
    assert agreement(vector(3, 4), vector(30, 0)) == pytest.approx(3 / 5)
    assert agreement(vector(-3, 4), vector(1, 0)) == 0  # clipped, it would be negative
    assert agreement(vector(0, 0), vector(1, 0)) == 0  # who does nothing contributes nothing


def test_by_cosine_who_does_nothing_contributes_nothing():
    reports = [report(0, (1, 2), 10), report(1, (3, 2), 10)]  # both from (1, 2): one has not moved
    measured = {}
    for kind in ("distance", "cosine"):
        strategy = Flamma(PLAN, contribution=kind, warmup_iterations=0)
        state = strategy.init(vector(1, 2), population())
        after, _ = strategy.aggregate(state, offer(0, 1), reports)
        measured[kind] = after.measured[:2].tolist()
    assert measured["cosine"] == [0, 1]
    assert measured["distance"][0] == measured["distance"][1] > 0.5


FIXED = {
    "selection": "uniform",
    "epoch_bounds": (3, 3),
    "warmup_iterations": 0,
    "decay_floor": 1.0,
}


def test_flamma_with_gamma_1_uniform_selection_and_fixed_epochs_is_fedavg():
    flamma, fedavg = Flamma(PLAN, **FIXED), FedAvg(PLAN)
    ours = flamma.init(vector(1, 2), population(8, costs=0.01))
    theirs = fedavg.init(vector(1, 2), population(8, costs=0.01))
    for number in range(1, 13):
        rng = [stream(4, "select", number) for _ in range(2)]
        ours_offer = flamma.offer(ours, np.arange(8), rng[0])
        theirs_offer = fedavg.offer(theirs, np.arange(8), rng[1])
        assert ours_offer.selected == theirs_offer.selected
        tasks = [
            (flamma.respond(a, Profile(a.client, 0.01, 9)), fedavg.respond(b, Profile(0, 0.01, 9)))
            for a, b in zip(ours_offer.terms, theirs_offer.terms, strict=True)
        ]
        assert all(
            (a.epochs, a.learning_rate, a.terms.objective)
            == (b.epochs, b.learning_rate, b.terms.objective)
            for a, b in tasks
        )
        noise = stream(number, "noise").normal(0, 0.05, (8, 2)).astype(np.float32)
        reports = [Update(t.client, ours.params + noise[t.client], 7, 3) for t, _ in tasks]
        ours, _ = flamma.aggregate(ours, ours_offer, reports)
        theirs, _ = fedavg.aggregate(theirs, theirs_offer, reports)
        np.testing.assert_array_equal(ours.params, theirs.params)


def warm(strategy, clients=6, costs=0.1):
    """A state after a warm-up in which client i ends i percent away from the mean."""
    state = strategy.init(vector(10, 0), population(clients, costs))
    made = strategy.offer(state, np.arange(clients), stream(0, "select", 0))
    assert made.round == 0
    assert {t.batches for t in made.terms} == {10}
    assert made.selected == tuple(range(clients))
    reports = [Update(c, vector(10, 0.1 * (-1) ** c * (c + 1)), 10, 0) for c in range(clients)]
    return strategy.aggregate(state, made, reports)[0]


def test_flamma_measures_contributions_in_the_warm_up():
    state = warm(Flamma(PLAN))
    mean = np.mean([0.1 * (-1) ** c * (c + 1) for c in range(6)])
    expected = [1 - abs(0.1 * (-1) ** c * (c + 1) - mean) / np.hypot(10, mean) for c in range(6)]
    np.testing.assert_allclose(state.contributions, expected, rtol=1e-5)
    np.testing.assert_array_equal(state.effective, state.contributions)


def test_flamma_selects_the_largest_effective_contributions():
    strategy = Flamma(PLAN)
    state = warm(strategy)
    made = strategy.offer(state, np.arange(6), stream(0, "select", 1))
    assert set(made.selected) == set(np.argsort(-state.effective)[:2].tolist())


def test_flamma_announces_the_certified_equilibrium_of_those_selected():
    strategy = Flamma(PLAN, decay_start=0.1)
    state = replace(warm(strategy), round=9)
    made = strategy.offer(state, np.arange(6), stream(0, "select", 10))
    assert made.game is not None
    equilibrium = solve(made.game)
    assert made.decay_factor == equilibrium.decay_factor < 1
    epochs = [strategy.respond(t, Profile(t.client, 0.1, 10)).epochs for t in made.terms]
    assert epochs == equilibrium.local_epochs.tolist()
    found = certify(made.game, made.decay_factor, epochs)
    assert max(abs(found.follower_gap), abs(found.leader_regret)) < 1e-9
    assert {t.step_scale for t in made.terms} == {made.decay_factor}


def test_gamma_leaves_1_where_decay_start_says():
    strategy = Flamma(PLAN, decay_start=0.5)
    state = warm(strategy)
    factors = []
    for number in range(1, 21):
        made = strategy.offer(replace(state, round=number - 1), np.arange(6), stream(0, "s", 1))
        factors.append(made.decay_factor)
    assert factors[:10] == [1.0] * 10
    assert factors[10] < 1
    assert sorted(factors, reverse=True) == factors


def test_the_selected_are_decayed_until_the_refresh():
    strategy = Flamma(PLAN, rotation=0.5, refresh_every=10)
    state = warm(strategy)
    made = strategy.offer(state, np.arange(6), stream(0, "select", 1))
    reports = [Update(c, state.params.copy(), 10, 3) for c in made.selected]
    after, _ = strategy.aggregate(state, made, reports)
    chosen = list(made.selected)
    np.testing.assert_allclose(after.effective[chosen], 0.5 * state.effective[chosen])
    np.testing.assert_array_equal(after.contributions, state.contributions)
    due = replace(made, round=10)
    refreshed, _ = strategy.aggregate(state, due, reports)
    assert refreshed.contributions[chosen].tolist() == [1.0, 1.0]  # they are at the new mean
    np.testing.assert_array_equal(refreshed.effective, refreshed.contributions)


def test_decay_on_the_server_moves_gamma_of_the_way():
    strategy = Flamma(PLAN, decay_acts_on="server")
    state = warm(strategy)
    made = replace(strategy.offer(state, np.arange(6), stream(0, "select", 1)), decay_factor=0.25)
    reports = [Update(c, state.params + vector(4, 0), 10, 3) for c in made.selected]
    after, _ = strategy.aggregate(state, made, reports)
    np.testing.assert_allclose(after.params - state.params, vector(1, 0), atol=1e-5)
    assert {t.step_scale for t in made.terms} == {1.0}


def test_a_client_whose_cost_is_too_high_abstains():
    strategy = Flamma(PLAN)
    task = strategy.respond(Terms(0, 5, 0.5, 0.9), Profile(0, cost=0.6, samples=10))
    assert task.abstains


def test_revealed_costs_close_in_on_the_true_ones():
    true = np.array([0.05, 0.08, 0.11, 0.15, 0.2, 0.3])
    strategy = Flamma(PLAN, server_costs="revealed", decay_start=0.2, rotation=0.3)
    state = replace(warm(strategy), costs=np.full(6, np.nan))
    for number in range(1, 21):
        made = strategy.offer(state, np.arange(6), stream(0, "select", number))
        reports = []
        for terms in made.terms:
            task = strategy.respond(terms, Profile(terms.client, true[terms.client], 10))
            params = None if task.abstains else state.params + vector(0.01, terms.client / 50)
            reports.append(Update(terms.client, params, 10, task.epochs))
        state, _ = strategy.aggregate(state, made, reports)
    assert np.all(state.cost_lower <= true * (1 + 1e-9))
    assert np.all(true <= state.cost_upper * (1 + 1e-9))
    seen = state.cost_upper < np.inf
    assert seen.sum() >= 4
    np.testing.assert_allclose(
        known_costs(state, np.flatnonzero(seen), strategy.prior_cost), true[seen], rtol=0.3
    )


@pytest.mark.parametrize(
    ("persistence", "memory", "samples", "expected"),
    [
        # κ = 1: client 0's update (4, 0) is repeated, and half faded; half of each counts.
        (1.0, 0.5, (10, 10), (4 + 0.5 * 0.5 * 4, 1)),
        # κ = 0 and m = 1: the mean by data size of (4, 0) and (4, 2).
        (0.0, 1.0, (10, 30), (4, 1.5)),
        # κ = 0.5: client 0 pulls by (4, 0) - 0.5 (0, 0) - 0.5 (4, 0) = (2, 0), half faded.
        (0.5, 0.5, (10, 10), (4 + 0.5 * 0.5 * 2, 1)),
    ],
)
def test_memory_by_hand(persistence, memory, samples, expected):
    # Round 1: client 0 receives (0, 0) and sends (4, 0). Round 2: client 1 sends (4, 2).
    strategy = Mifa(PLAN, persistence=persistence, memory=memory)
    state = strategy.init(vector(0, 0), Population(np.array(samples), np.full(2, 0.1), 2))
    state, _ = strategy.aggregate(state, offer(0, number=1), [report(0, (4, 0), samples[0])])
    np.testing.assert_allclose(state.params, vector(4, 0))
    state, _ = strategy.aggregate(state, offer(1, number=2), [report(1, (4, 2), samples[1])])
    np.testing.assert_allclose(state.params, vector(*expected), rtol=1e-6)


def test_who_has_told_no_loss_is_levelled_as_the_mean_of_the_others():
    losses = np.array([1.0, 3.0, np.nan])
    np.testing.assert_allclose(loss_factors(losses, 1.0), [1, 3, 2])
    np.testing.assert_allclose(loss_factors(losses, 0.0), [1, 1, 1])
    np.testing.assert_allclose(loss_factors(np.full(3, np.nan), 1.0), [1, 1, 1])
    assert loss_factors(np.array([0.0, 1.0, 1.0]), 1.0)[0] > 0


@pytest.mark.parametrize("levelling", [0.0, 0.5])
def test_the_loss_is_asked_for_where_it_weighs(levelling):
    strategy = FlammaPlus(PLAN, levelling=levelling)
    state = strategy.init(vector(1, 2), population())
    made = strategy.offer(replace(state, round=0), np.arange(3), stream(0, "select", 1))
    assert {terms.report_loss == "received" for terms in made.terms} == {levelling > 0}


@pytest.mark.parametrize("persistence", [0.0, 0.6, 1.0])
def test_memory_leaves_what_is_not_trained_a_mean(persistence):
    strategy = Mifa(PLAN, memory=1.0, persistence=persistence)
    state = strategy.init(vector(0, 5), Population(np.array([10, 10]), np.full(2, 0.1), 1))
    for number in (1, 2, 3):  # client 0 once lowered the carried number by 4; that is not repeated
        client, carried = (0, 1) if number == 1 else (1, 1)
        reports = [report(client, (state.params[0] + 1, carried), 10)]
        state, _ = strategy.aggregate(state, offer(client, number=number), reports)
    assert state.params[1] == 1


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FedProx, {"mu": -1.0}),
        (QFFL, {"q": float("nan")}),
        (Incentive, {"floor": 2.0}),
        (Flamma, {"decay_start": 0.0}),
        (Flamma, {"rotation": 2.0}),
        (Flamma, {"price": -1.0}),
        (Flamma, {"refresh_every": 0}),
        (Flamma, {"epoch_bounds": (3, 1)}),
        (Mifa, {"memory": 1.5}),
        (FlammaPlus, {"levelling": -0.5}),
        (Mifa, {"persistence": 2.0}),
        (Mifa, {"memory": -1.0}),
    ],
)
def test_options_that_cannot_work_are_refused(kind, options):
    with pytest.raises(ValueError, match="must"):
        kind(PLAN, **options)


def test_mifa_by_hand():
    # Round 1: client 0 (10 samples) moves by (3, 0), the only one known: w = (3, 0).
    # Round 2: client 1 (20 samples) moves by (0, 3); the first one's update is one round old.
    for memory, fading in ((1.0, 1.0), (0.5, 0.5)):
        strategy = Mifa(PLAN, memory=memory)
        state = strategy.init(vector(0, 0), population())
        state, _ = strategy.aggregate(state, offer(0), [report(0, (3, 0), 10)])
        np.testing.assert_array_equal(state.params, vector(3, 0))
        state, _ = strategy.aggregate(state, offer(1, number=2), [report(1, (3, 3), 20)])
        np.testing.assert_allclose(state.params, vector(3 + fading, 2), rtol=1e-6)


@pytest.mark.parametrize("persistence", [0.0, 0.6, 1.0])
def test_mifa_that_hears_from_everybody_is_fedavg(persistence):
    reports = [report(k, (k, 1 - k), 10 * (k + 1)) for k in range(3)]
    made = offer(0, 1, 2)
    after = [
        strategy.aggregate(strategy.init(vector(0.5, 0), population()), made, reports)[0].params
        for strategy in (Mifa(PLAN, memory=0.3, persistence=persistence), FedAvg(PLAN))
    ]
    np.testing.assert_allclose(*after, rtol=1e-6)


def test_fedavg_with_decay_has_the_gamma_of_flamma_and_nothing_else_of_it():
    ours, flamma = FedAvgDecay(PLAN), Flamma(PLAN, selection="uniform")
    state = replace(flamma.init(vector(1, 2), population(8)), round=17)
    decayed, played = (
        strategy.offer(state, np.arange(8), stream(4, "select", 18)) for strategy in (ours, flamma)
    )
    assert decayed.terms == played.terms
    assert decayed.game is None
    assert decayed.decay_factor < 1
    task = ours.respond(decayed.terms[0], Profile(0, 0.1, 9))
    assert task.epochs == PLAN.epochs
    assert task.learning_rate == PLAN.learning_rate * decayed.decay_factor


def test_the_ceiling_trains_on_everything_as_much_as_the_selected_would():
    strategy = Central(PLAN)  # two clients a round, three epochs, batches of 32
    state = strategy.init(vector(0, 0), Population(np.array([200, 0, 0]), None, trainable_size=2))
    made = strategy.offer(state, np.arange(3), stream(0, "select", 1))
    [terms] = made.terms
    assert (terms.client, terms.epochs, terms.batches) == (0, 6, 6 * 3)  # 200 / 3 in 3 batches
    after, record = strategy.aggregate(state, made, [report(0, (1, 2), 200, epochs=6)])
    np.testing.assert_array_equal(after.params, vector(1, 2))
    assert record.outcome.local_epochs == (6,)


def test_the_cost_of_who_does_not_tell_it_is_estimated_from_its_play():
    strategy = Flamma(PLAN, warmup_iterations=0)
    told = Population(np.array([10, 10]), np.array([0.1, np.nan]), trainable_size=2)
    state = strategy.init(vector(1, 2), told)
    made = strategy.offer(state, np.arange(2), stream(0, "select", 1))
    assert made.game.costs.tolist() == [0.1, strategy.prior_cost]
    epochs = [
        strategy.respond(terms, Profile(terms.client, 0.25, 10)).epochs for terms in made.terms
    ]
    answers = [report(c, (1, 2), 10, epochs=e) for c, e in enumerate(epochs)]
    state, _ = strategy.aggregate(state, made, answers)
    known = known_costs(state, np.arange(2), strategy.prior_cost)
    assert known[0] == 0.1
    assert state.cost_lower[1] <= 0.25 <= state.cost_upper[1]
    assert known[1] != strategy.prior_cost


def test_the_record_has_what_selection_and_the_game_went_by():
    strategy = Flamma(PLAN, rotation=0.5)
    state = warm(strategy)
    made = strategy.offer(state, np.arange(6), stream(0, "select", 1))
    assert made.effective == tuple(state.effective[list(made.selected)])
    assert made.measure == "distance"
    reports = [Update(c, state.params.copy(), 10, 3) for c in made.selected]
    after, record = strategy.aggregate(state, made, reports)
    told = certified(record, made, np.full(6, 0.1))
    assert told.game.effective == made.effective
    assert told.game.decay_bounds == made.game.decay_bounds
    assert told.game.costs == tuple(made.game.costs)
    following = strategy.offer(after, np.arange(6), stream(0, "select", 2))
    assert set(following.selected).isdisjoint(made.selected)  # those selected have decayed


def test_an_aggregator_is_an_option_of_every_strategy():
    AGGREGATORS.add("largest", lambda vectors, weights: np.max(np.stack(vectors), axis=0) * 1.0)
    try:
        for name in STRATEGIES:
            # Their weights come from gradients, from one client or none, or by other steps.
            others = ("fedmgda+", "adafed", "fedadam", "fedyogi", "feddyn", "fedbuff", "local")
            if name in ("qffl", "central", "cgsv", "pricing", *others):
                continue
            strategy = STRATEGIES[name](PLAN, aggregator="largest")
            state = replace(strategy.init(vector(0, 0), population()), round=0)
            reports = [report(0, (3, 0), 10, loss=1.0), report(1, (0, 4), 10, loss=1.0)]
            after, record = strategy.aggregate(
                state,
                offer(0, 1),
                [replace(r, epochs=3) for r in reports],
                ServerSide(lambda w: (1.0, 0.0)),
            )
            assert not record.outcome.failed
            np.testing.assert_allclose(after.params, vector(3, 4), err_msg=name)
    finally:
        AGGREGATORS.discard("largest")

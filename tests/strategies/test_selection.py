"""Selections: identities with FedAvg, values by hand, and clients that tell strange losses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.errors import StrategyError
from flamma.experiments.run import run
from flamma.federation import Federation
from flamma.seeding import stream
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Offer, ServerSide, weighted_choice
from flamma.strategies.fedavg import FedAvg
from flamma.strategies.loss_weights import MaxFL, appeal_slopes
from flamma.strategies.selection import (
    AdaFL,
    FairFedCS,
    FedFair3,
    Oort,
    PowerOfChoice,
    nearest_rank,
)
from flamma.testing.strategies import ToyFederation, assert_same
from flamma.types import Plan, Population, Terms, Update

PLAN = Plan(rounds=40, per_round=3, epochs=2, learning_rate=0.1)
EVERYBODY = np.arange(8)


def population(clients=8):
    return Population(np.arange(1, clients + 1) * 10, None, trainable_size=2)


def begun(strategy, clients=8):
    return strategy.init(np.zeros(2, dtype=np.float32), population(clients))


def report(client, params=(1, 1), loss=1.0, epochs=2):
    samples = 10 * (client + 1)
    return Update(client, np.array(params, dtype=np.float32), samples, epochs, loss)


def offered(*clients, number=1):
    return Offer(number, tuple(Terms(c, number) for c in clients))


def after(strategy, state, *reports, validate=None):
    offer = offered(*(r.client for r in reports), number=state.round + 1)
    return strategy.aggregate(state, offer, reports, ServerSide(validate))[0]


def frequencies(select, draws=2000):
    """Return how often each client is in a draw."""
    counts, rng = np.zeros(8), stream(0, "frequency")
    for _ in range(draws):
        counts[select(rng)] += 1
    return counts / draws


# Drawing by weight


def test_a_weighted_choice_takes_each_first_client_in_proportion():
    found = frequencies(lambda rng: weighted_choice(EVERYBODY, np.arange(8.0), 1, rng), 4000)
    np.testing.assert_allclose(found, np.arange(8) / 28, atol=0.025)


@given(count=st.integers(0, 10), seed=st.integers(0, 99))
def test_a_weighted_choice_has_no_client_twice_and_those_without_weight_last(count, seed):
    weights = np.array([0.0, 1, 2, 0, 3, 4, 5, 6])
    chosen = weighted_choice(EVERYBODY, weights, count, stream(seed, "choice")).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, 8)
    assert len({0, 3} & set(chosen)) == max(0, len(chosen) - 6)


# Power-of-Choice


def test_power_of_choice_with_as_many_candidates_as_places_is_a_draw_by_data_share():
    strategy = PowerOfChoice(PLAN, candidates=3)
    state = begun(strategy)
    for seed in range(20):
        asked = strategy.survey(state, EVERYBODY, stream(seed, "survey"))
        by_share = weighted_choice(EVERYBODY, state.samples * 1.0, 3, stream(seed, "survey"))
        heard = strategy.hear(state, {int(c): float(c) for c in asked})
        offer = strategy.offer(heard, EVERYBODY, stream(seed, "select"))
        assert offer.selected == tuple(asked.tolist()) == tuple(by_share.tolist())


def test_power_of_choice_takes_the_largest_losses_of_the_candidates():
    strategy = PowerOfChoice(PLAN, candidates=5)
    state = strategy.hear(begun(strategy), {7: 0.1, 1: 0.5, 2: 0.0, 4: 9.0, 5: 0.2})
    assert strategy.offer(state, EVERYBODY, stream(0, "select")).selected == (1, 4, 5)


def test_power_of_choice_forgets_the_losses_of_the_round_before():
    strategy = PowerOfChoice(PLAN)
    state = strategy.hear(begun(strategy), {1: 50.0, 2: 50.0, 3: 50.0})
    state = strategy.hear(state, {4: 0.1, 5: 0.1, 6: 0.1})
    assert strategy.offer(state, EVERYBODY, stream(0, "select")).selected == (4, 5, 6)


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_the_smallest(strange):
    strategy = PowerOfChoice(PLAN)
    state = strategy.hear(begun(strategy), {0: strange, 1: 0.0, 2: 0.3, 3: 0.2})
    assert strategy.offer(state, EVERYBODY, stream(0, "select")).selected == (1, 2, 3)


def test_power_of_choice_fills_up_where_few_candidates_answer():
    strategy = PowerOfChoice(PLAN)
    state = strategy.hear(begun(strategy), {6: 0.0})
    selected = strategy.offer(state, EVERYBODY, stream(0, "select")).selected
    assert len(selected) == 3
    assert 6 in selected


def test_power_of_choice_weighs_all_alike():
    strategy = PowerOfChoice(PLAN)
    state = after(strategy, begun(strategy), report(0, (3, 0)), report(1, (0, 6)))
    np.testing.assert_array_equal(state.params, [1.5, 3.0])


def test_power_of_choice_asks_its_candidates_in_a_run(tmp_path):
    tables = {"rounds": 2, "per_round": 2, "data": {"dataset": "digits", "clients": 6}}
    tables |= {"model": {"name": "logistic"}, "strategy": {"name": "power-of-choice"}}
    done = run(tables, out=tmp_path / "run")
    assert [(r.survey.asked, r.survey.failed) for r in done.history] == [(4, {}), (4, {})]


# Oort


def test_oort_draws_by_the_papers_formula():
    strategy = Oort(PLAN, clip=1.0)
    state = begun(strategy)
    state = after(strategy, state, report(0, loss=2.0), report(3, loss=0.5))
    state = after(strategy, state, report(0, loss=1.0), report(7, loss=0.25))
    # The 30% quantile of 10, 20, .. 80 samples is the third: client 3 has 4/3 of its work.
    stale = 0.1 * math.log(3)
    expected = [
        10 * 1.0 + math.sqrt(stale / 2),
        (40 * 0.5 + math.sqrt(stale / 1)) * (30 / 40) ** 2,
        (80 * 0.25 + math.sqrt(stale / 2)) * (30 / 80) ** 2,
    ]
    np.testing.assert_allclose(strategy.utilities(state, np.array([0, 3, 7])), expected)
    rescaled = Oort(PLAN, clip=1.0, rescale=True, slowness=0.0)
    expected = [math.sqrt(stale / 2), 1 + math.sqrt(stale), 1 + math.sqrt(stale / 2)]
    np.testing.assert_allclose(rescaled.utilities(state, np.array([0, 3, 7])), expected)


def test_oort_clips_what_a_client_says():
    strategy = Oort(PLAN, clip=0.5, slowness=0.0)
    state = begun(strategy)
    told = [report(c, loss=loss / (c + 1)) for c, loss in enumerate((1, 2, 3, 1e300))]
    state = after(strategy, state, *told)
    np.testing.assert_allclose(
        strategy.utilities(state, np.arange(4)) - math.sqrt(0.1 * math.log(2)), [10, 20, 20, 20]
    )


@pytest.mark.parametrize("strange", [math.nan, math.inf, 1e308])
@pytest.mark.parametrize("kind", [Oort, FedFair3])
def test_a_utility_that_is_not_finite_is_the_smallest(kind, strange):
    strategy = kind(PLAN)
    state = after(strategy, begun(strategy), report(0, loss=strange), report(1, loss=0.5))
    assert state.utility.tolist() == [0, 10, 0, 0, 0, 0, 0, 0]


def test_oort_explores_less_and_less():
    strategy = Oort(replace(PLAN, per_round=10))
    decays = [strategy.epsilon(t) for t in (1, 2, 3, 1000)]
    np.testing.assert_allclose(decays, [0.9, 0.882, 0.9 * 0.98**2, 0.2])
    assert Oort(PLAN, exploration=0.0).epsilon(5) == 0


def test_oort_gives_the_share_of_exploration_to_those_never_heard_from():
    strategy = Oort(replace(PLAN, per_round=5), exploration=0.4, exploration_decay=1.0)
    state = after(strategy, begun(strategy), *(report(c) for c in range(5)))
    for seed in range(20):
        selected = strategy.offer(state, EVERYBODY, stream(seed, "select")).selected
        assert sum(client >= 5 for client in selected) == 2
        few = strategy.offer(state, np.arange(6), stream(seed, "select")).selected
        assert few == (0, 1, 2, 3, 4) or 5 in few
        assert len(few) == 5
    only_new = strategy.offer(begun(strategy), EVERYBODY, stream(0, "select")).selected
    assert len(only_new) == 5


def test_oort_explores_the_quick_first():
    strategy = Oort(replace(PLAN, per_round=1))
    state = begun(strategy)
    found = frequencies(lambda rng: strategy.select(state, EVERYBODY, rng))
    speed = 1 / state.samples
    np.testing.assert_allclose(found, speed / speed.sum(), atol=0.04)


def test_oort_draws_only_above_the_cutoff():
    strategy = Oort(replace(PLAN, per_round=2), exploration=0.0, slowness=0.0, clip=1.0)
    losses = (10, 10.2, 9.9, 9.0, 1.0, 1.0, 1.0, 1.0)
    told = [report(c, loss=loss / (c + 1)) for c, loss in enumerate(losses)]
    state = after(strategy, begun(strategy), *told)
    found = frequencies(lambda rng: strategy.select(state, EVERYBODY, rng), 300)
    assert (found[:3] > 0.5).all()  # 99 is above 95% of 100, the second largest; 90 is not
    assert not found[3:].any()


def test_the_pacer_allows_more_work_when_utility_falls():
    strategy = Oort(PLAN, pacer_window=2, pacer_step=0.25)
    state, seen = begun(strategy), []
    for loss in (4.0, 4.0, 1.0, 1.0, 8.0, 8.0, 2.0, 2.0):
        state = after(strategy, state, report(0, loss=loss))
        seen.append(state.preferred)
    np.testing.assert_allclose(seen, [0.3, 0.3, 0.3, 0.55, 0.55, 0.55, 0.55, 0.8])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_the_nearest_rank_is_not_exceeded_by_its_share(values, share):
    found = nearest_rank(np.array(values), share)
    assert found in values
    assert np.mean(np.array(values) <= found) >= share - 1e-12
    assert np.mean(np.array(values) < found) < max(share, 1e-12) + 1e-12


# FedFair3


def test_fedfair3_multiplies_loss_speed_and_past_selections():
    strategy = FedFair3(PLAN, clip=1.0)
    state = after(strategy, begun(strategy), report(0, loss=2.0), report(5, loss=0.5))
    state = after(strategy, state, report(0, loss=4.0))
    # T is 40 samples, the median; unknown clients count as having the largest utility, 40.
    expected = [40 * 0.5**2, 40, 40, 40, 40 * (4 / 5) ** 2, 30 * (4 / 6) ** 2 * 0.5]
    expected += [40 * (4 / 7) ** 2, 40 * (4 / 8) ** 2]
    np.testing.assert_allclose(strategy.chances(state, EVERYBODY), expected)
    available = np.array([0, 5])  # where client 5 was selected least often
    expected = [40 * 0.5, 30 * (4 / 6) ** 2]
    np.testing.assert_allclose(strategy.chances(state, available), expected)


def test_fedfair3_lets_everybody_have_their_rounds():
    world = ToyFederation.make()
    counts = np.zeros(8)
    strategy = FedFair3(PLAN, repeat=0.01)
    state = world.begin(strategy)
    for _ in range(16):
        state, record = world.play_round(strategy, state)
        counts[list(record.selected)] += 1
    assert counts.max() - counts.min() <= 3
    np.testing.assert_array_equal(state.selections, counts)


# FairFedCS


def test_fairfedcs_follows_reputation_and_queues():
    strategy = FairFedCS(replace(PLAN, per_round=2))
    state = begun(strategy, clients=4)
    # The validation loss is the first weight's: client 0 lowers it, client 1 raises it.
    reports = (report(0, (-3, 0)), report(1, (3, 0)))
    state = after(strategy, state, *reports, validate=lambda w: (float(w[0]), 50.0))
    np.testing.assert_allclose(state.reputation, [2 / 3, 1 / 3, 1 / 2, 1 / 2])
    np.testing.assert_allclose(state.queue, [0, 0, 0.25, 0.25])
    np.testing.assert_allclose(state.params, [1, 0])
    # Priorities: 0.4, 0.2, 0.55, 0.55.
    offer = strategy.offer(state, np.arange(4), stream(0, "select"))
    assert offer.selected == (2, 3)
    state, _ = strategy.aggregate(state, offer, [])
    np.testing.assert_allclose(state.queue, [1 / 3, 1 / 6, 0, 0])
    # Priorities: 0.7333, 0.3667, 0.3, 0.3: client 1 is back in spite of its reputation.
    assert strategy.offer(state, np.arange(4), stream(0, "select")).selected == (0, 1)


def test_fairfedcs_says_that_it_needs_a_validation_set():
    strategy = FairFedCS(PLAN)
    with pytest.raises(StrategyError, match="the server has no validation set"):
        after(strategy, begun(strategy), report(0))


# AdaFL


def test_adafl_with_a_constant_number_is_fedavg():
    world = ToyFederation.make()
    assert_same(world.play(AdaFL(PLAN, first_share=1.0), 10), world.play(FedAvg(PLAN), 10))


def test_the_number_of_clients_of_adafl_grows_to_the_planned():
    strategy = AdaFL(replace(PLAN, rounds=11, per_round=10), first_share=0.2, grown_at=1.0)
    assert [strategy.participants(t) for t in range(1, 12)] == [2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10]
    early = AdaFL(replace(PLAN, rounds=20, per_round=10), first_share=0.01, grown_at=0.25)
    assert [early.participants(t) for t in (1, 2, 3, 4, 5, 6, 20)] == [1, 3, 5, 8, 10, 10, 10]
    short = AdaFL(replace(PLAN, rounds=1), grown_at=0.1)
    assert short.participants(1) == 3


# MaxFL


def warmed_up(strategy, losses, clients=8):
    state = begun(strategy, clients)
    offer = strategy.offer(state, np.arange(clients), stream(0, "select"))
    epochs = strategy.warmup_epochs
    reports = [report(c, (9, 9), loss, epochs) for c, loss in enumerate(losses)]
    return strategy.aggregate(state, offer, reports)[0]


def test_maxfl_warms_up_with_everybody_and_the_model_stays():
    strategy = MaxFL(PLAN, warmup_epochs=7)
    offer = strategy.offer(begun(strategy), EVERYBODY, stream(0, "select"))
    assert offer.round == 0
    assert offer.selected == tuple(range(8))
    assert all(t.epochs == 7 and t.report_loss == "trained" for t in offer.terms)
    state = warmed_up(strategy, [0.1, 0.2, math.inf])
    assert state.round == 0
    np.testing.assert_array_equal(state.params, [0, 0])
    np.testing.assert_array_equal(state.alone, [0.1, 0.2, *[math.nan] * 6])
    later = strategy.offer(state, EVERYBODY, stream(0, "select"))
    assert len(later.selected) == 3
    assert all(t.report_loss == "received" for t in later.terms)


def test_maxfl_with_equal_gaps_is_the_plain_mean():
    strategy = MaxFL(PLAN)
    state = warmed_up(strategy, [0.1, 0.2, 0.3])
    told = [report(0, (3, 0), 1.1), report(1, (0, 6), 1.2), report(2, (3, 3), 1.3)]
    np.testing.assert_allclose(after(strategy, state, *told).params, [2, 3], rtol=1e-6)


def test_maxfl_weighs_by_the_slope_of_the_sigmoid():
    strategy = MaxFL(PLAN, epsilon=0.5)
    state = warmed_up(strategy, [2.0, 2.0, 2.0])
    # e^x = 1, 2 and 1/3: the slopes are 1/4, 2/9 and 3/16.
    losses = (2.0, 2.0 + math.log(2), 2.0 - math.log(3))
    told = [report(c, params, losses[c]) for c, params in enumerate([(1, 0), (0, 1), (1, 1)])]
    slopes = np.array([1 / 4, 2 / 9, 3 / 16])
    expected = np.array([slopes[0] + slopes[2], slopes[1] + slopes[2]]) / (slopes.sum() + 0.5)
    np.testing.assert_allclose(after(strategy, state, *told).params, expected, rtol=1e-6)


def test_a_client_that_missed_the_warm_up_weighs_as_the_others_do_on_average():
    np.testing.assert_allclose(
        appeal_slopes(np.array([0.0, math.nan, -math.log(3)])), [1 / 4, 7 / 32, 3 / 16]
    )
    np.testing.assert_array_equal(appeal_slopes(np.array([math.nan, math.nan])), [1, 1])


@given(st.floats(-800, 800))
def test_the_slope_is_even_and_at_most_a_quarter(gap):
    left, right = appeal_slopes(np.array([gap, -gap]))
    assert left == right
    assert 0 <= left <= 0.25 * (1 + 1e-15)


def test_maxfl_stays_where_nobody_can_be_won():
    strategy = MaxFL(PLAN)
    state = warmed_up(strategy, [0.0, 0.0])
    stayed = after(strategy, state, report(0, loss=1e9), report(1, loss=1e12))
    np.testing.assert_array_equal(stayed.params, [0, 0])


def test_a_warm_up_of_epochs_is_counted():
    """Seven epochs of each of five clients that answer, and none of the three that do not."""
    strategy = MaxFL(PLAN, warmup_epochs=7)
    state = begun(strategy)
    offer = strategy.offer(state, EVERYBODY, stream(0, "select"))
    reports = [report(c, epochs=7) for c in range(5)]
    state, record = strategy.aggregate(state, offer, reports)
    federation = Federation(strategy, clients=None, truth=None, seed=0)
    assert federation._warmup(offer, record, state, 1.0).epochs == 35


# Options


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("power-of-choice", {"candidates": 2}, "candidates must be at least per_round, which is 3"),
        ("oort", {"exploration": 1.5}, r"exploration must lie in \[0, 1\], not 1.5"),
        ("oort", {"clip": -0.1}, r"clip must lie in \[0, 1\]"),
        ("oort", {"slowness": math.inf}, "slowness must be at least 0, not inf"),
        ("oort", {"pacer_window": 0}, "pacer_window must lie in .1, 100,000., not 0"),
        ("fedfair3", {"repeat": math.nan}, r"repeat must lie in \[0, 1\], not nan"),
        ("fairfedcs", {"sigma": -1.0}, "sigma must be at least 0, not -1"),
        ("adafl", {"first_share": 0.0}, r"first_share must lie in \(0, 1\], not 0"),
        ("maxfl", {"warmup_epochs": 0}, "warmup_epochs must lie in .1, 1,000,000., not 0"),
        ("maxfl", {"epsilon": 0.0}, r"epsilon must lie in \(0, 1\], not 0"),
    ],
)
def test_impossible_options_are_refused(name, options, sentence):
    with pytest.raises(StrategyError, match=sentence):
        STRATEGIES[name](PLAN, **options)

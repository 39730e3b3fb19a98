"""Fairness by weights: identities with FedAvg to the bit, and values computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from flamma.errors import StrategyError
from flamma.seeding import stream
from flamma.strategies import STRATEGIES, in_family
from flamma.strategies.base import Offer
from flamma.strategies.fedavg import FedAvg
from flamma.strategies.loss_weights import (
    Afl,
    Gifair,
    PropFair,
    Term,
    inclusion_probabilities,
    systematic_sample,
)
from flamma.strategies.multi_objective import AdaFed, FedFV, FedMgdaPlus
from flamma.testing import StrategyContract
from flamma.testing.strategies import PLAN as CONTRACT_PLAN
from flamma.testing.strategies import ToyFederation
from flamma.types import Plan, Population, Profile, Terms, Update

PLAN = Plan(rounds=20, per_round=2, epochs=3, learning_rate=0.5)
WORLD = ToyFederation.make()


def vector(*numbers):
    return np.array(numbers, dtype=np.float32)


def started(strategy, samples=(10, 10), received=(0, 0), trainable_size=2):
    population = Population(np.array(samples), None, trainable_size)
    return strategy.init(vector(*received), population)


def after(strategy, reports, samples=(10, 10), received=(0, 0), state=None):
    """Return the state after a round in which these reports came back."""
    state = started(strategy, samples, received) if state is None else state
    number = state.round + 1
    made = Offer(number, tuple(Terms(r.client, number) for r in reports))
    following, record = strategy.aggregate(state, made, reports)
    assert not record.outcome.failed
    return following


def report(client, params, loss=1.0, samples=10):
    return Update(client, vector(*params), samples, 3, loss)


def afl_of(plan, step):
    return Afl(plan, pace=step)


class TestPartialAfl(StrategyContract):
    """The contract suite plays the defaults; this is the other participation."""

    def make(self, plan=CONTRACT_PLAN):
        return Afl(plan, participation="partial")


@pytest.mark.parametrize(
    "strategy",
    [
        Afl(CONTRACT_PLAN, pace=0.0),
        Term(CONTRACT_PLAN, t=0.0),
        Gifair(CONTRACT_PLAN, strength=0.0),
        PropFair(CONTRACT_PLAN, loss_bound=math.inf),
        FedFV(CONTRACT_PLAN, alpha=1.0, tau=0),
    ],
    ids=lambda strategy: strategy.name,
)
def test_without_its_own_part_it_is_fedavg_to_the_bit(strategy):
    plain = WORLD.play(FedAvg(CONTRACT_PLAN), 12).params
    np.testing.assert_array_equal(WORLD.play(strategy, 12).params, plain)
    other = WORLD.play(type(strategy)(CONTRACT_PLAN), 12).params
    # PropFair acts in the trainer alone, which this world does not have.
    assert (other != plain).any() or isinstance(strategy, PropFair)


@pytest.mark.parametrize("name", in_family("fairness"))
@pytest.mark.parametrize("told", [0.0, 1e-300, 1e308, np.nan, np.inf])
def test_no_loss_that_a_client_tells_makes_the_weights_anything_but_finite(name, told):
    def lie(reports):
        return [replace(r, loss=told) if r.client % 2 else r for r in reports]

    plan = replace(CONTRACT_PLAN, per_round=6)
    assert np.isfinite(WORLD.play(STRATEGIES[name](plan), 6, change=lie).params).all()


# AFL


def test_the_mixture_moves_to_the_larger_loss():
    strategy = Afl(PLAN, pace=0.1)
    state = strategy.hear(started(strategy), {0: 1.0, 1: 3.0})
    # (0.5, 0.5) + 0.1 (1, 3) = (0.6, 0.8), on the simplex (0.4, 0.6); of 20 samples.
    np.testing.assert_allclose(state.mixture, [8, 12], rtol=1e-12)
    moved = after(strategy, [report(0, (1, 0)), report(1, (0, 1))], state=state)
    np.testing.assert_allclose(moved.params, vector(0.4, 0.6), rtol=1e-6)


def test_who_told_no_loss_neither_gains_nor_loses():
    strategy = Afl(PLAN, pace=0.01)
    state = strategy.hear(started(strategy, (10, 10, 10)), {0: 1.0, 1: 3.0, 2: np.nan})
    assert state.mixture[2] == pytest.approx(10)
    assert state.mixture[1] > 10 > state.mixture[0]
    assert strategy.hear(state, {0: np.inf}) is state


def test_partial_participation_scales_the_losses_of_a_survey():
    strategy = Afl(PLAN, pace=0.05, participation="partial")
    state = strategy.hear(started(strategy, (5, 5, 5, 5)), {1: 1.0, 3: 2.0})
    # 0.25 + 0.05 * 4/2 * (0, 1, 0, 2) = (.25, .35, .25, .45), less 0.3/4 each; of 20 samples.
    np.testing.assert_allclose(state.mixture, [3.5, 5.5, 3.5, 7.5], rtol=1e-12)


@pytest.mark.parametrize("participation", ["all", "partial"])
def test_a_huge_loss_takes_the_whole_mixture_and_no_more(participation):
    strategy = Afl(PLAN, pace=1.0, participation=participation)
    state = strategy.hear(started(strategy, (10, 30, 20)), {0: 1.0, 1: 1.7e308, 2: 0.0})
    np.testing.assert_array_equal(state.mixture, [0, 60, 0])
    made = strategy.offer(state, np.arange(3), stream(0, "select", 1))
    assert 1 in made.selected
    assert len(made.selected) == 2
    answers = [report(c, (c, 5), samples=10) for c in made.selected]
    moved, _ = strategy.aggregate(state, made, answers)
    np.testing.assert_array_equal(moved.params, vector(1, 5))
    without = [r for r in answers if r.client != 1]
    stays, _ = strategy.aggregate(state, made, without)
    np.testing.assert_array_equal(stays.params, state.params)


def test_who_is_asked():
    rng = stream(0, "survey", 1)
    present = np.array([1, 2, 4])
    everybody = Afl(PLAN)
    np.testing.assert_array_equal(everybody.survey(started(everybody), present, rng), present)
    some = Afl(PLAN, participation="partial")
    assert some.survey(started(some), present, rng).size == 2
    still = Afl(PLAN, pace=0.0)
    assert still.survey(started(still), present, rng).size == 0


def test_clients_are_drawn_by_the_mixture_without_bias():
    # Chances min(1, c w) with sum 2: client 3 for certain, the others 1/10 to 5/10.
    # What is drawn counts w / chance, and so w on average.
    weights = np.array([1.0, 4.0, 5.0, 30.0])
    chances = inclusion_probabilities(weights, 2)
    np.testing.assert_allclose(chances, [0.1, 0.4, 0.5, 1.0])
    strategy = Afl(PLAN, participation="partial")
    state = replace(started(strategy, (10, 10, 10, 10)), mixture=weights)
    sums, rounds = np.zeros(4), 4000
    for number in range(rounds):
        made = strategy.offer(state, np.arange(4), stream(0, "select", number))
        assert len(made.selected) == 2
        drawn = list(made.selected)
        sums[drawn] += weights[drawn] / made.probabilities
    np.testing.assert_allclose(sums / rounds, weights, rtol=0.15)


def test_who_is_drawn_counts_its_weight_by_its_chance():
    strategy = Afl(PLAN, participation="partial")
    mixture = np.array([1.0, 4.0, 5.0, 30.0])
    state = replace(started(strategy, (10, 10, 10, 10)), mixture=mixture)
    made = Offer(1, (Terms(1, 1), Terms(3, 1)), probabilities=(0.4, 1.0))
    moved, _ = strategy.aggregate(state, made, [report(1, (4, 0)), report(3, (0, 4))])
    np.testing.assert_allclose(moved.params, vector(1, 3), rtol=1e-6)  # 4 / 0.4 of 40, and 30


def test_systematic_samples_have_the_size_and_the_chances():
    chances = np.array([0.9, 0.3, 0.8, 0.5, 0.5])
    rng = stream(0, "comb")
    drawn = [systematic_sample(chances, rng) for _ in range(3000)]
    assert {places.size for places in drawn} == {3}
    share = np.bincount(np.concatenate(drawn), minlength=5) / 3000
    np.testing.assert_allclose(share, chances, atol=0.04)


# TERM


def test_term_by_hand():
    told = [report(0, (3, 0), loss=1.0), report(1, (0, 3), loss=1.0 + math.log(2))]
    np.testing.assert_allclose(after(Term(PLAN, t=1.0), told).params, vector(1, 2), rtol=1e-6)
    np.testing.assert_allclose(after(Term(PLAN, t=-1.0), told).params, vector(2, 1), rtol=1e-6)
    told[1] = replace(told[1], samples=30)
    found = after(Term(PLAN, t=1.0), told, (10, 30)).params
    np.testing.assert_allclose(found, vector(3 / 7, 18 / 7), rtol=1e-6)


def test_term_goes_to_the_largest_loss_and_leaves_out_who_has_none():
    told = [report(0, (1, 0), loss=1e308), report(1, (0, 1), loss=2.0), report(2, (9, 9), np.nan)]
    strategy = Term(PLAN, t=5.0)
    np.testing.assert_array_equal(after(strategy, told, (10, 10, 10)).params, vector(1, 0))
    task = Term(PLAN, sample_tilt=0.5).respond(
        Term(PLAN, sample_tilt=0.5).terms(0, 1), Profile(0, 0.1, 10)
    )
    assert task.terms.objective.tilt == 0.5
    assert task.terms.report_loss == "received"


# GIFAIR


def test_gifair_by_hand():
    # λ = 0.5 · 10 / 2 in samples; ranks 2, -2 and 0: weights 15, 15 and 30 of 60.
    strategy = Gifair(PLAN, strength=0.5)
    told = [
        report(0, (4, 0), loss=3.0, samples=10),
        report(1, (0, 4), loss=1.0, samples=20),
        report(2, (0, 0), loss=2.0, samples=30),
    ]
    assert strategy.weights(told) == [15.0, 15.0, 30.0]
    found = after(strategy, told, (10, 20, 30)).params
    np.testing.assert_allclose(found, vector(1, 1), rtol=1e-6)
    equal = [replace(r, loss=1.0) for r in told]
    assert strategy.weights(equal) == [10.0, 20.0, 30.0]
    assert strategy.weights(told[:1]) == [10.0]


# PropFair


def test_propfair_asks_for_the_bound_and_averages_by_data():
    strategy = PropFair(PLAN, loss_bound=3.0)
    made = strategy.offer(started(strategy), np.arange(2), stream(0, "select", 1))
    assert {terms.objective.bound for terms in made.terms} == {3.0}
    task = strategy.respond(made.terms[0], Profile(0, 0.1, 10))
    assert task.terms.objective.bound == 3.0
    told = [report(0, (3, 0), 9.0), report(1, (0, 3), 0.1, samples=20)]
    np.testing.assert_array_equal(after(strategy, told, (10, 20)).params, vector(1, 2))


def test_propfair_without_a_bound_makes_the_offers_of_fedavg():
    offers = [
        strategy.offer(started(strategy), np.arange(2), stream(0, "select", 1)).terms
        for strategy in (PropFair(PLAN, loss_bound=math.inf), FedAvg(PLAN))
    ]
    assert offers[0] == offers[1]


# FedMGDA+


def test_fedmgda_plus_by_hand():
    # Orthogonal gradients of any length have the shortest combination (1/2, 1/2).
    told = [report(0, (3, 0)), report(1, (0, 4), samples=30)]
    for epsilon, expected in ((1.0, (0.5, 0.5)), (0.1, (0.35, 0.65)), (0.0, (0.25, 0.75))):
        strategy = FedMgdaPlus(PLAN, epsilon=epsilon)
        np.testing.assert_allclose(after(strategy, told, (10, 30)).params, vector(*expected))
    half = FedMgdaPlus(PLAN, epsilon=1.0, server_step=0.5)
    np.testing.assert_allclose(after(half, told, (10, 30)).params, vector(0.25, 0.25))


def test_fedmgda_plus_at_the_data_shares_on_unit_gradients_is_fedavg_to_the_bit():
    received, samples = (0.125, -3.0), (7, 11, 13)
    moves = ((1, 0), (0, -1), (-1, 0))
    told = [
        report(k, (received[0] + x, received[1] + y), samples=samples[k])
        for k, (x, y) in enumerate(moves)
    ]
    plan = replace(PLAN, per_round=3)
    found = [
        after(strategy, told, samples, received).params
        for strategy in (FedMgdaPlus(plan, epsilon=0.0), FedAvg(plan))
    ]
    np.testing.assert_array_equal(*found)


def test_along_the_shortest_combination_no_loss_grows():
    plan = replace(CONTRACT_PLAN, per_round=8)
    strategy = FedMgdaPlus(plan, epsilon=1.0)
    state = WORLD.play(strategy, 5)
    following, _ = WORLD.play_round(strategy, state)
    step = (following.params - state.params)[:36].astype(float)
    gradients = (state.params - WORLD.targets)[:, :36].astype(float)
    assert (gradients @ step <= 1e-5).all()


@pytest.mark.parametrize("strategy", [FedMgdaPlus(PLAN), AdaFed(PLAN), FedFV(PLAN)])
def test_who_does_nothing_has_no_direction_and_nobody_leaves_the_model(strategy):
    nothing = [report(0, (1, 2)), report(1, (1, 2))]
    found = after(strategy, nothing, received=(1, 2)).params
    np.testing.assert_array_equal(found, vector(1, 2))


@pytest.mark.parametrize("kind", [FedMgdaPlus, AdaFed, FedFV])
def test_what_is_not_trained_is_the_mean_by_data(kind):
    strategy = kind(PLAN)
    told = [report(0, (1, 0, 4)), report(1, (0, 1, 8), samples=30)]
    state = started(strategy, (10, 30), received=(0, 0, 1))
    assert after(strategy, told, state=state).params[2] == 7


# FedFV


def published_fedfv(updates, losses, alpha):
    """Return the step of FedFV's algorithms 1 and 2, of clients with as much data each."""
    order = sorted(range(len(updates)), key=lambda k: losses[k])
    kept = order[len(order) - math.ceil(alpha * len(order) - 1e-9) :]
    projected = [u.copy() for u in updates]
    for k in range(len(updates)):
        for j in order:
            if k not in kept and j != k and projected[k] @ updates[j] < 0:
                square = updates[j] @ updates[j]
                projected[k] -= projected[k] @ updates[j] / square * updates[j]
    step = np.mean(projected, axis=0)
    return step / np.linalg.norm(step) * np.linalg.norm(np.mean(updates, axis=0))


def test_fedfv_by_hand():
    # Client 0 (the smaller loss) moves by (2, 0), client 1 by (-1, 1). With α = 0.1 one client
    # keeps its gradient: client 1. Client 0's becomes (2, 0) + (2/2) (-1, 1) = (1, 1); the mean is
    # (0, 1), as long as the plain mean (0.5, 0.5) is √0.5.
    told = [report(0, (2, 0), 1.0), report(1, (-1, 1), 2.0)]
    found = after(FedFV(PLAN), told).params
    np.testing.assert_allclose(found, vector(0, math.sqrt(0.5)), atol=1e-7)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 2 / 3, 1.0])
def test_fedfv_is_the_published_algorithm(alpha):
    rng = np.random.default_rng(3)
    for _ in range(5):
        updates = [u.astype(np.float32) for u in rng.normal(size=(6, 5))]
        losses = rng.uniform(size=6)
        told = [report(k, u, loss) for k, (u, loss) in enumerate(zip(updates, losses, strict=True))]
        strategy = FedFV(replace(PLAN, per_round=6), alpha=alpha)
        state = started(strategy, (10,) * 6, (0,) * 5, trainable_size=5)
        expected = published_fedfv([u.astype(float) for u in updates], losses, alpha)
        np.testing.assert_allclose(after(strategy, told, state=state).params, expected, rtol=1e-5)


def test_fedfv_without_conflicts_is_fedavg_to_the_bit():
    told = [report(0, (0.3, 0.1)), report(1, (0.2, 0.7), 2.0, samples=30)]
    found = [after(strategy, told, (10, 30)).params for strategy in (FedFV(PLAN), FedAvg(PLAN))]
    np.testing.assert_array_equal(*found)


def test_fedfv_gives_up_what_works_against_those_of_the_rounds_before():
    strategy = FedFV(PLAN, tau=2)
    state = after(strategy, [report(0, (-1, 0))], (10, 10, 10))
    state = after(strategy, [report(1, (-1, 1))], state=state)
    assert state.kept.known.tolist() == [0, 1]
    # Round 3: client 2 moves by (1, 1), against client 0's (-1, 0) of two rounds ago: (0, 1) is
    # left, which agrees with client 1's (0, 1), and becomes as long as (1, 1).
    state = after(strategy, [report(2, (0, 2))], state=state)
    np.testing.assert_allclose(state.params, vector(-1, 1 + math.sqrt(2)), rtol=1e-6)
    assert state.kept.known.tolist() == [1, 2]
    # Client 1 itself moves by (0, -1): what it said before counts no more, only client 2's (1, 1),
    # which leaves (0.5, -0.5), as long as 1.
    state = after(strategy, [report(1, tuple(state.params - vector(0, 1)))], state=state)
    expected = vector(-1 + math.sqrt(0.5), 1 + math.sqrt(2) - math.sqrt(0.5))
    np.testing.assert_allclose(state.params, expected, rtol=1e-5)


@pytest.mark.parametrize(("tau", "expected"), [(0, (0, 1)), (1, (-1, math.sqrt(2))), (2, (0, 1))])
def test_fedfv_looks_back_once_there_are_as_many_rounds(tau, expected):
    strategy = FedFV(PLAN, tau=tau)
    state = after(strategy, [report(0, (-1, 0))], (10, 10, 10))
    state = after(strategy, [report(1, (0, 1))], state=state)  # moves by (1, 1)
    np.testing.assert_allclose(state.params, vector(*expected), atol=1e-6)


def test_gradients_that_cancel_out_leave_the_model():
    told = [report(0, (0.1, 0.7), 1.0), report(1, (-0.1, -0.7), 2.0)]
    np.testing.assert_array_equal(after(FedFV(PLAN, alpha=0.0), told).params, vector(0, 0))


# AdaFed


def published_adafed(gradients, losses, gamma):
    """Return d of AdaFed's equations: orthogonal vectors, and the shortest of their hull."""
    orthogonal = []
    for gradient, loss in zip(gradients, losses, strict=True):
        parts = [gradient @ o / (o @ o) for o in orthogonal]
        rest = gradient - sum((p * o for p, o in zip(parts, orthogonal, strict=True)), np.zeros(1))
        orthogonal.append(rest / (loss**gamma - sum(parts)))
    inverse = np.array([1 / (o @ o) for o in orthogonal])
    return (inverse / inverse.sum()) @ np.array(orthogonal)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_adafed_is_the_published_direction(gamma):
    rng = np.random.default_rng(5)
    for _ in range(5):
        moves = rng.normal(size=(4, 7)).astype(np.float32)
        losses = rng.uniform(0.2, 3, size=4)
        told = [report(k, m, loss) for k, (m, loss) in enumerate(zip(moves, losses, strict=True))]
        strategy = AdaFed(replace(PLAN, per_round=4), gamma=gamma, server_step=1.0)
        state = started(strategy, (10,) * 4, (0,) * 7, trainable_size=7)
        units = [m / np.linalg.norm(m) for m in moves.astype(float)]
        expected = published_adafed(units, losses / losses.max(), gamma)
        np.testing.assert_allclose(after(strategy, told, state=state).params, expected, rtol=1e-4)


def test_adafed_by_hand():
    # Unit gradients (1, 0) and (0, 1), losses 4 and 2: d = (0.8, 0.4), twice the rate for twice
    # the loss, and ⟨d, (1, 0)⟩ = ‖d‖² = 0.8.
    told = [report(0, (3, 0), 4.0), report(1, (0, 5), 2.0)]
    found = after(AdaFed(PLAN, server_step=1.0), told).params
    np.testing.assert_allclose(found, vector(0.8, 0.4), rtol=1e-6)
    fair = after(AdaFed(PLAN, gamma=0.0, server_step=0.5), told).params
    np.testing.assert_array_equal(fair, vector(0.25, 0.25))
    # Parallel gradients cannot differ in their rates: that of the larger loss counts.
    told = [report(0, (0, 3), 4.0), report(1, (0, 5), 2.0)]
    np.testing.assert_allclose(
        after(AdaFed(PLAN, server_step=1.0), told).params, vector(0, 1), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (afl_of, {"step": -0.1}),
        (afl_of, {"step": math.inf}),
        (Afl, {"participation": "some"}),
        (Term, {"t": math.nan}),
        (Term, {"sample_tilt": math.inf}),
        (Gifair, {"strength": 1.0}),
        (PropFair, {"loss_bound": 0.0}),
        (FedMgdaPlus, {"epsilon": 1.5}),
        (FedMgdaPlus, {"server_step": 0.0}),
        (FedFV, {"alpha": -0.1}),
        (FedFV, {"tau": -1}),
        (AdaFed, {"gamma": 11.0}),
    ],
)
def test_options_out_of_their_range_are_refused(kind, options):
    with pytest.raises(StrategyError, match=f"{next(iter(options))} must"):
        kind(PLAN, **options)

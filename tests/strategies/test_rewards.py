"""Incentives and rewards: values by hand, by a reference of a few lines, and identities."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from flamma.errors import StrategyError
from flamma.experiments.audit import audit
from flamma.experiments.ledger import LedgerConfig, LedgerWriter, _parse_lines
from flamma.experiments.run import run
from flamma.federation import certified
from flamma.game.mechanisms import ParticipationGame, certify_menu, certify_participation
from flamma.seeding import stream
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Offer, ServerSide
from flamma.strategies.fedavg import FedAvg
from flamma.strategies.markets import FLI, Contract, Pricing
from flamma.strategies.rewards import CFFL, CGSV, hyperbolic_tangent, magnitude_ranks
from flamma.testing.strategies import TRAINABLE, ToyFederation
from flamma.types import Plan, Population, Profile, Terms, Update

PLAN = Plan(rounds=20, per_round=3, epochs=3, learning_rate=0.5, batch_size=8)
SMALL = {
    "rounds": 4,
    "per_round": 3,
    "data": {"dataset": "digits", "clients": 6, "train_samples": 200},
    "model": {"name": "logistic"},
    "costs": {"kind": "lognormal", "value": 0.1, "spread": 0.5},
}


def vector(*numbers):
    return np.array(numbers, dtype=np.float32)


def population(clients=3, size=4, costs=0.1, **options):
    samples = np.arange(1, clients + 1) * 10
    return Population(samples, np.full(clients, costs), trainable_size=size, **options)


def report(client, params, epochs=3):
    return Update(client, vector(*params), 10 * (client + 1), epochs)


def offer(*clients, number=1, **options):
    return Offer(number, tuple(Terms(c, number) for c in clients), **options)


def moved(state, client, update):
    """Return the report of a client that adds an update to its own model."""
    return report(client, state.model(client) + vector(*update))


# CGSV


def test_cgsv_by_hand():
    strategy = CGSV(PLAN, memory=0.5, length=1.0, altruism=1.0)
    state = strategy.init(vector(0, 0, 0, 0), population(trainable_sizes=(4,)))
    updates = [(3, 0, 0, 0), (0, 0, 8, 6), (-5, 0, 0, 0)]
    after, _ = strategy.aggregate(
        state, offer(0, 1, 2), [moved(state, k, u) for k, u in enumerate(updates)]
    )
    # Unit updates (1,0,0,0), (0,0,.8,.6) and (-1,0,0,0), a third each: the first and third cancel.
    step = np.array([0, 0, 0.8, 0.6]) / 3
    np.testing.assert_allclose(after.params, step, atol=1e-7)
    # Cosines 0, 1, 0: r = (1/6, 1/6 + 1/2, 1/6), which adds up to 1.
    np.testing.assert_allclose(after.reputations, [1 / 6, 2 / 3, 1 / 6], rtol=1e-12)
    # tanh(1/6) / tanh(2/3) = 0.1651 / 0.5828 = 0.2833 of 4 entries is 1: the largest.
    np.testing.assert_allclose(after.model(0), [0, 0, 0.8 / 3, 0], atol=1e-7)
    np.testing.assert_allclose(after.model(1), step, atol=1e-7)
    np.testing.assert_allclose(after.model(2), after.model(0))


def reference_cgsv(updates, reputations, memory, length, altruism, floor):
    unit = [length * u / np.linalg.norm(u) for u in updates]
    step = sum(r * u for r, u in zip(reputations, unit, strict=True))
    angle = [u @ step / np.linalg.norm(u) / np.linalg.norm(step) for u in unit]
    now = np.maximum(memory * reputations + (1 - memory) * np.array(angle), floor)
    now /= now.sum()
    return step, now, np.tanh(altruism * now) / np.tanh(altruism * now).max()


def test_cgsv_agrees_with_a_reference_over_rounds():
    rng = np.random.default_rng(3)
    strategy, sizes = CGSV(PLAN), (9, 5, 2)
    state = strategy.init(np.zeros(16, np.float32), population(size=16, trainable_sizes=sizes))
    models, reputations = np.zeros((3, 16)), np.full(3, 1 / 3)
    for number in range(1, 6):
        updates = rng.normal(size=(3, 16)) + 0.5
        reports = [moved(state, k, u) for k, u in enumerate(updates)]
        state, _ = strategy.aggregate(state, offer(0, 1, 2, number=number), reports)
        step, reputations, shares = reference_cgsv(updates, reputations, 0.95, 0.5, 1.0, 1e-3)
        for k, share in enumerate(shares):
            for start, size in zip((0, 9, 14), sizes, strict=True):
                part = np.abs(step[start : start + size])
                for place in np.argsort(-part)[: int(share * size)]:
                    models[k, start + place] += step[start + place]
            np.testing.assert_allclose(state.model(k), models[k], atol=1e-5)
        np.testing.assert_allclose(state.reputations, reputations, rtol=1e-5)


def test_cgsv_with_a_large_altruism_gives_everybody_everything():
    strategy = CGSV(PLAN, altruism=1e6)
    world = ToyFederation.make(5)
    state = world.play(strategy, 4)
    assert np.ptp(state.reputations) > 0
    for client in range(5):
        np.testing.assert_array_equal(state.model(client), state.params)


def test_cgsv_shares_differ_without_it():
    world = ToyFederation.make(5)
    state = world.play(CGSV(PLAN), 4)
    ahead = int(np.argmax(state.reputations))
    behind = int(np.argmin(state.reputations))
    assert not np.array_equal(state.model(behind), state.model(ahead))
    broadcast = CGSV(PLAN).broadcast(state)
    np.testing.assert_array_equal(broadcast.model(behind), state.model(behind))


def test_who_is_not_asked_keeps_its_reputation():
    strategy = CGSV(PLAN, memory=0.5)
    state = strategy.init(np.zeros(4, np.float32), population())
    after, _ = strategy.aggregate(
        state, offer(0, 1), [moved(state, 0, (1, 1, 0, 0)), moved(state, 1, (-1, 1, 1, 1))]
    )
    assert after.reputations[2] == state.reputations[2]
    assert after.reputations.sum() == pytest.approx(1)


def test_cgsv_bears_an_update_without_length():
    strategy = CGSV(PLAN)
    state = strategy.init(vector(1, 2, 3, 4), population())
    after, _ = strategy.aggregate(state, offer(0, 1), [moved(state, k, [0] * 4) for k in (0, 1)])
    np.testing.assert_array_equal(after.params, state.params)
    assert np.isfinite(after.reputations).all()


def test_what_is_not_trained_is_the_mean_in_all_models():
    strategy = CGSV(PLAN)
    state = strategy.init(vector(0, 0, 5), population(size=2))
    reports = [report(0, (1, 0, 8)), report(1, (0, 1, 2))]
    after, _ = strategy.aggregate(state, offer(0, 1), reports)
    for client in range(3):
        assert after.model(client)[2] == pytest.approx(4.0)  # (10 · 8 + 20 · 2) / 30


def test_magnitudes_are_ranked_within_parts_and_ties_by_place():
    ranks = magnitude_ranks(np.array([1.0, -1.0, 2.0, 0.0, 0.0]), np.array([3, 2]))
    assert ranks.tolist() == [1, 2, 0, 0, 1]


def test_the_hyperbolic_tangent():
    x = np.array([0.0, 1e-6, 0.3, 4.0, 800.0])
    np.testing.assert_allclose(hyperbolic_tangent(x), np.tanh(x), rtol=1e-9)


# CFFL


def scored(*accuracies):
    """Return a validation by the first entry of a model."""
    return lambda params: (0.0, float(accuracies[round(float(params[0])) - 1]))


def test_cffl_by_hand():
    strategy = CFFL(PLAN)
    state = strategy.init(vector(0, 0, 0, 0), population())
    reports = [report(0, (1, 1, 0, 0)), report(1, (2, 0, 3, 1)), report(2, (3, 0, 0, 2))]
    after, _ = strategy.aggregate(state, offer(0, 1, 2), reports, ServerSide(scored(20, 30, 50)))
    risen = np.sinh(5 * (0.8 / 3 + 0.2 * np.array([0.2, 0.3, 0.5])))
    np.testing.assert_allclose(after.reputations, risen / risen.sum(), rtol=1e-12)
    # By data 1 : 2 : 3 the step is ((1+4+9)/6, 1/6, 6/6, 8/6).
    step = np.array([14, 1, 6, 8]) / 6
    np.testing.assert_allclose(after.params, step, rtol=1e-6)
    # Client 2 has the best reputation: all of the step less its half of it, and its own update.
    own = np.array([3, 0, 0, 2])
    np.testing.assert_allclose(after.model(2), own + step - own / 2, rtol=1e-6)
    # Client 0 has sinh(1.533) / sinh(1.833) = 0.725 of it, so the two largest of four entries.
    share = risen[0] / risen[2]
    assert 0.5 < share < 0.75
    own = np.array([1, 1, 0, 0])
    received = (step - own / 6) * [1, 0, 0, 1]
    np.testing.assert_allclose(after.model(0), own + received, rtol=1e-6)


def test_cffl_with_equal_reputations_gives_all_of_the_step():
    strategy = CFFL(PLAN)
    state = strategy.init(vector(0, 0, 0, 0), population())
    updates = [(1, 1, 0, 0), (2, 0, 3, 1), (3, 0, 0, 2)]
    reports = [report(k, u) for k, u in enumerate(updates)]
    after, _ = strategy.aggregate(state, offer(0, 1, 2), reports, ServerSide(scored(40, 40, 40)))
    np.testing.assert_allclose(after.reputations, np.full(3, 1 / 3), rtol=1e-12)
    fedavg = FedAvg(PLAN)
    plain, _ = fedavg.aggregate(fedavg.init(state.params, population()), offer(0, 1, 2), reports)
    np.testing.assert_allclose(after.params, plain.params, rtol=1e-6)
    for k, update in enumerate(updates):
        others = plain.params + (1 - (k + 1) / 6) * vector(*update)
        np.testing.assert_allclose(after.model(k), others, rtol=1e-6)


def test_who_falls_below_the_threshold_is_out():
    strategy = CFFL(PLAN, memory=0.0, threshold=0.9)
    state = strategy.init(vector(0, 0, 0, 0), population())
    reports = [report(0, (1, 1, 0, 0)), report(1, (2, 0, 3, 1)), report(2, (3, 0, 0, 2))]
    after, _ = strategy.aggregate(state, offer(0, 1, 2), reports, ServerSide(scored(1, 50, 50)))
    np.testing.assert_allclose(after.reputations, [0, 0.5, 0.5], rtol=1e-12)
    np.testing.assert_array_equal(after.model(0), state.params)  # neither its own nor others'
    mean = (2 * np.array([2, 0, 3, 1]) + 3 * np.array([3, 0, 0, 2])) / 5
    np.testing.assert_allclose(after.params, mean, rtol=1e-6)
    asked = strategy.offer(after, np.arange(3), stream(0, "select", 2))
    assert asked.selected == (1, 2)
    assert strategy.offer(after, np.array([0]), stream(0, "select", 2)).selected == ()


def test_scores_that_say_nothing_change_nothing():
    strategy = CFFL(PLAN)
    state = strategy.init(vector(0, 0, 0, 0), population())
    reports = [report(0, (1, 1, 0, 0)), report(1, (2, 0, 3, 1))]
    after, _ = strategy.aggregate(
        state, offer(0, 1), reports, ServerSide(scored(math.nan, math.nan))
    )
    np.testing.assert_allclose(after.reputations, np.full(3, 1 / 3), rtol=1e-12)
    with pytest.raises(StrategyError, match="validation set"):
        strategy.aggregate(state, offer(0, 1), reports)


def test_huge_weights_stay_finite():
    strategy = CFFL(PLAN)
    state = strategy.init(vector(-1e38, 0, 0, 0), population())
    reports = [report(k, (3.4e38, 0, 0, 0)) for k in range(3)]
    after, _ = strategy.aggregate(
        state, offer(0, 1, 2), reports, ServerSide(lambda params: (0.0, 50.0))
    )
    assert np.isfinite(np.asarray(after.models)).all()
    assert np.isfinite(after.params).all()


# Prices of participation


def test_pricing_with_everybody_is_fedavg_with_everybody():
    world = ToyFederation.make(6)
    everybody = replace(PLAN, per_round=6)
    priced = world.play(Pricing(everybody), 5)
    plain = world.play(FedAvg(everybody), 5)
    np.testing.assert_allclose(priced.params, plain.params, rtol=1e-5)


def test_the_priced_step_by_hand():
    strategy = Pricing(PLAN)
    state = strategy.init(vector(0, 0), population(size=2))
    made = offer(0, 2, probabilities=(0.5, 0.25), payments=(1.0, 2.0))
    after, record = strategy.aggregate(state, made, [report(0, (6, 0)), report(2, (0, 1))])
    # Data shares 1/6 and 3/6 over their probabilities: 2/6 of (6, 0) and 2 of (0, 1).
    np.testing.assert_allclose(after.params, (2, 2), rtol=1e-6)
    assert record.outcome.payments == (1.0, 2.0)
    assert after.spent == 3.0
    # Three epochs of 30 samples in batches of 8 are 12 steps of size 0.5.
    np.testing.assert_allclose(after.gradients[[0, 2]], [6 / (0.5 * 6), 1 / (0.5 * 12)])


def test_the_priced_step_has_no_bias():
    """Over all sixteen sets that may be drawn, the mean of the step is that of everybody."""
    world = ToyFederation.make(4, costs=np.geomspace(0.02, 1.0, 4))
    strategy = Pricing(replace(PLAN, per_round=2))
    state = world.begin(strategy)
    chances = strategy.priced(state, world.all_clients).probabilities
    assert chances.sum() == pytest.approx(2)
    assert np.ptp(chances) > 0.3
    mean, trained = np.zeros(TRAINABLE), slice(TRAINABLE)
    for drawn in itertools.product([False, True], repeat=4):
        clients = np.flatnonzero(drawn)
        made = offer(
            *clients, probabilities=tuple(chances[clients]), payments=(0.0,) * clients.size
        )
        after, _ = strategy.aggregate(state, made, world.answers(strategy, state, made))
        likely = np.prod(np.where(drawn, chances, 1 - chances))
        mean += likely * (after.params.astype(np.float64) - state.params)[trained]
    everybody = FedAvg(replace(PLAN, per_round=4))
    whole, _ = world.play_round(everybody, world.begin(everybody))
    np.testing.assert_allclose(mean, (whole.params - state.params)[trained], rtol=1e-4, atol=1e-6)


def test_clients_are_drawn_as_likely_as_they_choose():
    world = ToyFederation.make(6, costs=np.geomspace(0.02, 1.0, 6))
    strategy = Pricing(PLAN)
    state = world.begin(strategy)
    found = strategy.priced(state, world.all_clients)
    counts = np.zeros(6)
    for seed in range(400):
        made = world.offer(strategy, state, seed)
        counts[list(made.selected)] += 1
        np.testing.assert_array_equal(made.payments, found.prices[list(made.selected)])
    np.testing.assert_allclose(counts / 400, found.probabilities, atol=0.1)


def test_priced_clients_would_choose_nothing_else():
    world = ToyFederation.make(6)
    strategy = Pricing(PLAN, value=0.05)
    state = world.play(strategy, 6)
    found = strategy.priced(state, world.all_clients)
    sizes = state.samples * np.where(np.isnan(state.gradients), 1.0, state.gradients)
    game = ParticipationGame(state.costs, np.square(sizes / sizes.max()), 0.05, strategy.least)
    assert certify_participation(game, found).follower_gap < 1e-9
    np.testing.assert_allclose(found.prices, game.prices(found.probabilities), rtol=1e-12)


def test_a_larger_gradient_is_asked_more_often_up_to_a_bound():
    strategy = Pricing(PLAN)
    state = strategy.init(np.zeros(2, np.float32), population(clients=8, size=2))
    state = replace(state, samples=np.full(8, 10))
    quiet = strategy.priced(replace(state, gradients=np.ones(8)), np.arange(8))
    assert np.ptp(quiet.probabilities) < 1e-12
    for loud, times in ((3.0, 3 ** (2 / 3)), (10.0, 10 ** (2 / 3)), (1e9, 10 ** (2 / 3))):
        gradients = np.where(np.arange(8) == 0, loud, 1.0)
        found = strategy.priced(replace(state, gradients=gradients), np.arange(8))
        assert found.probabilities[0] == pytest.approx(
            min(1.0, times * found.probabilities[1]), rel=1e-6
        )


@pytest.mark.parametrize("budget", [0.0, 0.5, 20.0, 300.0])
def test_a_budget_is_never_exceeded(budget):
    world = ToyFederation.make(8)
    for name in ("pricing", "contract", "fli"):
        strategy = STRATEGIES[name](plan=replace(PLAN, budget=budget))
        writer = LedgerWriter(LedgerConfig(budget=budget), "a run")
        for seed in range(3):
            paid, state = 0.0, world.begin(strategy)
            while state.round < PLAN.rounds:
                state, record = world.play_round(strategy, state, seed)
                lines = _parse_lines(writer.lines(record))
                assert [line.gross for line in lines] == list(record.outcome.payments)
                paid += sum(record.outcome.payments)
            assert paid <= budget
            if budget == 300.0:
                assert paid > 30.0


def test_robust_aggregators_serve_steps_of_another_length_too():
    reports = [report(0, (6, 0)), report(1, (6, 3)), report(2, (600, 0))]
    priced = Pricing(PLAN, aggregator="median")
    state = priced.init(vector(0, 0), population(size=2))
    made = offer(0, 1, 2, probabilities=(1.0, 1.0, 1.0), payments=(0.0, 0.0, 0.0))
    equal = [replace(r, samples=10) for r in reports]
    alike = replace(state, samples=np.full(3, 10))
    after, _ = priced.aggregate(alike, made, equal)
    np.testing.assert_allclose(after.params, (6, 0), rtol=1e-6)
    agreeing = CGSV(PLAN, aggregator="median", length=1.0)
    state = agreeing.init(vector(0, 0), population(size=2))
    after, _ = agreeing.aggregate(state, offer(0, 1, 2), reports)
    np.testing.assert_allclose(after.params, (1, 0), atol=1e-6)


# Contracts


def test_a_contract_is_what_its_menu_says():
    strategy = Contract(PLAN)
    menu = strategy.menu
    assert certify_menu(menu, strategy.type_costs).envy < 1e-12
    state = strategy.init(vector(0, 0), population(size=2))
    terms = Terms(0, 1)
    chosen = [strategy.respond(terms, Profile(0, c, 10)).epochs for c in (0.053, 0.1, 5.0)]
    assert chosen == [menu.epochs[0], menu.epochs[2], 0]
    reports = [
        report(0, (1, 0), epochs=menu.epochs[0]),
        report(1, (0, 1), epochs=menu.epochs[4]),
        Update(2, None, 30, 0),
    ]
    _, record = strategy.aggregate(state, offer(0, 1, 2), reports)
    assert record.outcome.payments == (menu.payments[0], menu.payments[4], 0.0)
    assert record.outcome.abstained == (2,)


def test_work_that_no_item_has_is_refused():
    strategy = Contract(PLAN, type_costs=(0.05, 0.2))
    odd = next(t for t in range(1, 10) if t not in strategy.menu.epochs)
    state = strategy.init(vector(0, 0), population(size=2))
    after, record = strategy.aggregate(state, offer(0), [report(0, (1, 1), epochs=odd)])
    assert (
        "no item of the menu" in record.outcome.failed[0] or "on offer" in record.outcome.failed[0]
    )
    assert record.outcome.payments == (0.0,)
    np.testing.assert_array_equal(after.params, state.params)


def test_utilities_are_pay_less_cost():
    strategy = Contract(PLAN)
    state = strategy.init(vector(0, 0), population(size=2))
    epochs, pay = strategy.menu.epochs[0], strategy.menu.payments[0]
    made = offer(0, 1)
    _, record = strategy.aggregate(state, made, [report(0, (1, 0), epochs=epochs)])
    record = certified(record, made, np.array([0.05, 0.1, 0.1]))
    assert record.outcome.client_utilities == (pytest.approx(pay - 0.05 * epochs**2), None)
    assert certified(record, made, None).outcome.client_utilities is None


def test_a_menu_that_nobody_is_to_choose_is_refused():
    with pytest.raises(StrategyError, match="raise it"):
        Contract(PLAN, value=1e-6)


# FLI


def test_fli_by_hand():
    strategy = FLI(replace(PLAN, epochs=2), round_budget=1.0)
    state = strategy.init(vector(0, 0), population(size=2))
    costs = np.array([0.4, 0.8, 0.4])
    state = replace(state, costs=costs, contributions=np.array([1.0, 0.5, 1.0]))
    once = strategy.settled(state, [0, 1])
    # u = (1 + 0.4)/2 = 0.7 and (0.5 + 0.8)/2 = 0.65, of 1.35.
    np.testing.assert_allclose(once.paid, [0.7 / 1.35, 0.65 / 1.35, 0])
    np.testing.assert_allclose(once.regret, [0, 0.8 - 0.65 / 1.35, 0])
    assert once.waiting.tolist() == [0, 0, 0]
    twice = strategy.settled(once, [0, 1])
    regret = 0.8 - 0.65 / 1.35
    claims = np.array([1.4, 0.5 + regret + 0.8 + 0.8])
    payoffs = claims / claims.sum()
    np.testing.assert_allclose(twice.paid[:2], payoffs)
    np.testing.assert_allclose(twice.regret[1], regret + 0.8 - payoffs[1])
    np.testing.assert_allclose(twice.waiting[1], max(0.8 - payoffs[1], 0))


def test_fli_moves_the_model_as_fedavg_does_and_spends_its_budget():
    world = ToyFederation.make(6)
    np.testing.assert_array_equal(
        world.play(FLI(PLAN), 6).params, world.play(FedAvg(PLAN), 6).params
    )
    state = world.begin(FLI(PLAN))
    for _ in range(6):
        state, record = world.play_round(FLI(PLAN), state)
        assert sum(record.outcome.payments) == pytest.approx(10.0)


def test_fli_pays_nothing_for_no_answer():
    world = ToyFederation.make(6)
    state = world.play(FLI(PLAN), 3)
    after, record = world.play_round(FLI(PLAN), state, change=lambda reports: reports[1:])
    assert record.outcome.payments[0] == 0.0
    assert sum(record.outcome.payments[1:]) == pytest.approx(10.0)
    lost = record.selected[0]
    assert after.regret[lost] == state.regret[lost]


# Options, and whole runs


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cgsv", {"memory": 1.5}),
        ("cgsv", {"length": 0.0}),
        ("cgsv", {"altruism": -1.0}),
        ("cgsv", {"floor": 0.0}),
        ("cffl", {"memory": -0.1}),
        ("cffl", {"steepness": 0.0}),
        ("cffl", {"steepness": 1e4}),
        ("cffl", {"threshold": 1.0}),
        ("pricing", {"least": 0.0}),
        ("pricing", {"value": -1.0}),
        ("pricing", {"prior_cost": 0.0}),
        ("fli", {"round_budget": -1.0}),
        ("fli", {"contribution_weight": math.inf}),
        ("fli", {"prior_cost": math.nan}),
    ],
)
def test_options_out_of_range_are_refused(name, options):
    with pytest.raises(StrategyError, match=next(iter(options))):
        STRATEGIES[name](plan=PLAN, **options)


@pytest.mark.parametrize("name", ["contract", "pricing", "fli"])
def test_runs_that_pay_have_a_ledger(tmp_path, name):
    done = run({**SMALL, "strategy": {"name": name}}, out=tmp_path / "run")
    lines = (tmp_path / "run" / "ledger.csv").read_text().splitlines()[1:]
    paid = {(int(x.split(",")[0]), int(x.split(",")[1])): float(x.split(",")[8]) for x in lines}
    told = {
        (record.round, client): record.outcome.payments[k]
        for record in done.history
        for k, client in enumerate(record.selected)
    }
    assert paid == told
    assert any(amount > 0 for amount in paid.values())


def test_lies_about_costs_do_not_pay_under_a_contract(tmp_path):
    found = audit(
        {**SMALL, "strategy": {"name": "contract"}},
        out=tmp_path,
        deviations=["cost-x10", "cost-best", "imitate-x0.5", "imitate-x2"],
        clients=["cheapest"],
        seeds=1,
        processes=1,
    )
    [case] = found.cases
    assert case.is_paid
    assert any(finding.honest_utility > 0 for finding in case.findings)
    for finding in case.findings:
        assert finding.gain == 0 if finding.deviation.startswith("cost") else finding.gain <= 1e-12
    assert any(f.gain < 0 for f in case.findings if f.deviation.startswith("imitate"))

"""Robust aggregators under every strategy: an attacker is held down, in memories too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flamma.aggregators import AGGREGATORS, Reference, aggregated
from flamma.errors import FlammaError, StrategyError
from flamma.registry import Choice
from flamma.strategies import STRATEGIES
from flamma.strategies.base import Offer, Round, ServerSide, Verdict, server_work
from flamma.strategies.fedavg import FedAvg
from flamma.strategies.loss_weights import QFFL
from flamma.testing.strategies import SIZE, TRAINABLE, ToyFederation
from flamma.types import Plan, Terms, Update

FEDERATED = [name for name in STRATEGIES if not STRATEGIES[name].needs.pooled_data]
WITH_MEMORY = {
    "mifa": {"memory": 1.0},
    "flamma-plus": {"warmup_iterations": 0},  # which would find the attacker out
    "fedvarp": {},
}
ROBUST = [name for name in AGGREGATORS if name != "mean"]
ATTACKER, FAR, ROUNDS = 3, 1e4, 12
WORLD = ToyFederation.make(10)


def attacked(reports):
    """Let one client send what is far away from everything, and tell a loss like the others'."""
    return [
        replace(r, params=np.full(SIZE, FAR, np.float32))
        if r.client == ATTACKER and r.params is not None
        else r
        for r in reports
    ]


def distance(strategy, change=attacked):
    """Return how far the model ends from the middle of the honest clients' targets."""
    params = WORLD.play(strategy, ROUNDS, change=change).params
    honest = np.delete(WORLD.targets, ATTACKER, axis=0).mean(axis=0)
    return float(np.abs(params - honest).max())


OF_THE_MEAN_ALONE = ("adafed",)  # it solves for a direction, and refuses other aggregators
TAKES_ANY = [name for name in FEDERATED if name not in OF_THE_MEAN_ALONE]
HELD_DOWN = [(name, aggregator) for name in TAKES_ANY for aggregator in ROBUST]
HELD_DOWN.remove(("incentive", "trimmed-mean"))  # which may weigh an attacker more than is trimmed


@pytest.mark.parametrize(("name", "aggregator"), HELD_DOWN)
def test_an_attacker_is_held_down_under_every_strategy(name, aggregator):
    plan = Plan(rounds=ROUNDS, per_round=10, epochs=4, learning_rate=0.1)
    assert distance(STRATEGIES[name](plan, aggregator=aggregator)) < 10


@pytest.mark.parametrize("name", OF_THE_MEAN_ALONE)
def test_an_aggregator_that_would_do_nothing_is_refused(name):
    with pytest.raises(StrategyError, match="aggregator median"):
        STRATEGIES[name](Plan(rounds=2, per_round=3), aggregator="median")


# q-FFL divides by the length of the gradients, and the incentive leaves out who does harm. Once all
# losses are large, AFL and TERM have eyes only for the largest, which is another client's.
# Alone there is nobody to move.
UNMOVED = ("qffl", "incentive", "afl", "term", "local")


@pytest.mark.parametrize("name", [n for n in FEDERATED if n not in UNMOVED])
def test_under_the_mean_it_is_not(name):
    plan = Plan(rounds=ROUNDS, per_round=10, epochs=4, learning_rate=0.1)
    assert distance(STRATEGIES[name](plan)) > 100


@pytest.mark.parametrize("name", WITH_MEMORY)
@pytest.mark.parametrize("aggregator", ROBUST)
def test_what_an_attacker_sent_is_held_down_as_long_as_it_is_remembered(name, aggregator):
    # Only one round hears from it: what it sent then acts through the memory alone.
    plan = Plan(rounds=ROUNDS, per_round=6, epochs=4, learning_rate=0.1)
    strategy = STRATEGIES[name](plan, aggregator=aggregator, **WITH_MEMORY[name])
    state = WORLD.begin(strategy)
    everyone = WORLD.all_clients
    while state.round < ROUNDS:
        present = everyone if state.round < 1 else np.delete(everyone, ATTACKER)
        if state.round == 1:
            present = np.array([*range(6)])
        state, _ = WORLD.play_round(strategy, state, available=present, change=attacked)
        assert np.abs(state.params).max() < 50
    assert state.heard[ATTACKER] in (0, 1, 2)


def test_the_received_model_is_the_origin_of_rows_too():
    """Clients that change nothing leave the model as it is, whatever the persistence."""
    plan = Plan(rounds=3, per_round=4, epochs=1)
    for persistence in (0.0, 0.6, 1.0):
        for aggregator in ("norm-clipping", "fltrust"):
            strategy = STRATEGIES["mifa"](plan, aggregator=aggregator, persistence=persistence)
            state = WORLD.begin(strategy)
            still = state.params.copy()
            for _ in range(3):
                offer = WORLD.offer(strategy, state)
                reports = [Update(c, state.params.copy(), 10, 1) for c in offer.selected]
                state, _ = strategy.aggregate(
                    state, offer, reports, ServerSide(train=WORLD.train_server)
                )
            np.testing.assert_allclose(state.params, still, atol=1e-6)


def test_clipped_rows_move_the_model_by_the_radius_at_most():
    plan = Plan(rounds=3, per_round=10, epochs=4, learning_rate=0.5)
    choice = Choice("norm-clipping", {"radius": 0.01})
    longer_steps = ("feddyn", "fedavgm", "fedadam", "fedyogi")
    for name in [name for name in TAKES_ANY if name not in longer_steps]:
        strategy = STRATEGIES[name](plan, aggregator=choice)
        state = WORLD.begin(strategy)
        while state.round < 3:
            after, _ = WORLD.play_round(strategy, state, change=attacked)
            assert np.linalg.norm(after.params - state.params) <= 0.0101, name
            state = after


def round_of(updates, reference):
    made = Offer(1, tuple(Terms(update.client, 1) for update in updates))
    usable = tuple(updates)
    return Round(made, usable, (), reference.received, ServerSide(), Verdict(usable), reference)


def test_what_is_not_trained_stays_within_what_clients_sent():
    # FLTrust makes short updates longer, which could take a running variance below zero.
    received = np.ones(SIZE, np.float32)
    received[:TRAINABLE] = 0.0
    reports = []
    for client in range(3):
        model = received.copy()
        model[:TRAINABLE] = 1e-3
        model[TRAINABLE:] = 0.5 + 0.1 * client
        reports.append(Update(client, model, 10, 1))
    strategy = FedAvg(Plan(1, 3, 1), aggregator="fltrust")
    reference = Reference(received, lambda: np.ones(TRAINABLE))
    found = strategy.average(round_of(reports, reference), [1.0, 1.0, 1.0])
    np.testing.assert_allclose(found[:TRAINABLE], 1.0, rtol=1e-5)
    np.testing.assert_allclose(found[TRAINABLE:], 0.6, rtol=1e-5)
    liar = replace(reports[0], params=np.full(SIZE, 1e20, np.float32))
    found = strategy.average(round_of([liar, *reports[1:]], reference), [1.0, 1.0, 1.0])
    np.testing.assert_allclose(found[TRAINABLE:], 0.7, rtol=1e-5)


def test_with_q_0_qffl_is_the_aggregators_centre_of_equal_weights():
    strategy = QFFL(Plan(3, 10, 4, 0.1), q=0.0, aggregator="median")
    state = WORLD.begin(strategy)
    offer = WORLD.offer(strategy, state)
    reports = WORLD.answers(strategy, state, offer)
    after, _ = strategy.aggregate(state, offer, reports)
    models = np.stack([r.params for r in reports])[:, :TRAINABLE]
    np.testing.assert_allclose(after.params[:TRAINABLE], np.median(models, axis=0), atol=1e-5)


def test_the_server_trains_as_the_middle_client_does():
    plan = Plan(5, 3, epochs=5, learning_rate=0.1)
    terms = [Terms(c, 7, step_scale=s) for c, s in ((2, 0.5), (4, 1.0), (9, 0.25))]
    reports = [Update(c, None, 10, e) for c, e in ((2, 8), (4, 1), (9, 3))]
    task = server_work(plan, terms, reports)
    assert (task.round, task.epochs, task.terms.batches) == (7, 3, None)
    assert task.learning_rate == pytest.approx(0.05)
    warm = server_work(plan, [Terms(1, 0, batches=10)], [Update(1, None, 10, 0)])
    assert (warm.terms.batches, warm.abstains) == (10, False)


def test_the_server_trains_once_a_round_and_only_if_the_aggregator_asks():
    for aggregator, expected in (("fltrust", 1), ("median", 0)):
        calls = []

        def train(params, task, calls=calls):
            calls.append(task)
            return params[:TRAINABLE] + 1

        strategy = STRATEGIES["incentive"](Plan(3, 4, 2), aggregator=aggregator)
        state = WORLD.begin(strategy)
        offer = WORLD.offer(strategy, state)
        reports = WORLD.answers(strategy, state, offer)
        strategy.aggregate(state, offer, reports, ServerSide(WORLD.validate, train=train))
        assert len(calls) == expected


def test_who_needs_a_validation_set():
    plan = Plan(3, 5)
    needs = {
        ("fedavg", "mean"): "",
        ("fedavg", "fltrust"): "the aggregator fltrust",
        ("incentive", "mean"): "incentive",
        ("flamma-plus", "krum"): "",
    }
    for (name, aggregator), who in needs.items():
        strategy = STRATEGIES[name](plan, aggregator=aggregator)
        assert strategy.component_that_needs("validation") == who
        assert strategy.wants_validation == bool(who)


def test_a_strategy_that_keeps_the_reference_to_itself_is_told_what_to_do():
    class Forgetful(FedAvg):
        def step(self, state, round: Round):
            models = [update.params for update in round.updates]
            return replace(state, params=aggregated(self.aggregator, models, np.full(5, 0.2)))

    with pytest.raises(StrategyError, match=r"self\.average\(round, weights\)"):
        WORLD.play(Forgetful(Plan(3, 5), aggregator="norm-clipping"), 1)


BAD = {
    "half": ({"name": "trimmed-mean", "share": 0.5}, "from 0 to below 0.5, not 0.5"),
    "negative share": ({"name": "trimmed-mean", "share": -0.1}, "below 0.5, not -0.1"),
    "too many": ({"name": "krum", "attackers": 2}, "7 clients a round to bear f = 2 attackers"),
    "too many of many": ({"name": "multi-krum", "attackers": 2}, "but per_round is 5"),
    "negative": ({"name": "krum", "attackers": -1}, "must not be negative"),
    "all": ({"name": "krum", "attackers": 1.0}, "a share of attackers must lie"),
    "none kept": ({"name": "multi-krum", "kept": 0}, "at least 1 vector must be kept"),
    "radius": ({"name": "norm-clipping", "radius": 0.0}, "radius must be positive"),
    "steps": ({"name": "geometric-median", "iterations": 0}, "iterations must be at least 1"),
    "smoothing": ({"name": "geometric-median", "smoothing": 0.0}, "smoothing positive"),
    "unknown": ({"name": "medain"}, "did you mean median?"),
    "option": ({"name": "median", "share": 0.1}, "trimmed-mean"),
    "not a number": ({"name": "krum", "attackers": "few"}, "a whole number or a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_cannot_work_are_refused_at_the_start_in_one_sentence(case):
    given, expected = BAD[case]
    with pytest.raises(FlammaError) as caught:
        FedAvg(Plan(3, 5), aggregator=AGGREGATORS.choose(given, "aggregator"))
    assert expected in str(caught.value)
    assert str(caught.value).count(".\n") == 0
    assert "\n" not in str(caught.value)


def test_a_round_with_fewer_answers_than_krum_wants_still_counts():
    strategy = FedAvg(Plan(3, 7, 4, 0.1), aggregator=Choice("krum", {"attackers": 2}))
    state = WORLD.begin(strategy)
    after, _ = WORLD.play_round(strategy, state, change=lambda reports: reports[:2])
    assert not np.array_equal(after.params, state.params)

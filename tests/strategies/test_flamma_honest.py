"""FLamma-honest: no gain by any report of a cost, and claims are checked."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flamma.errors import EmptyRunError, StrategyError
from flamma.experiments.audit import audit
from flamma.experiments.run import Run, resume, run
from flamma.game import Game, best_response
from flamma.strategies.base import ServerSide
from flamma.strategies.flamma_honest import (
    FlammaHonest,
    believed_share,
    capped_losses,
    capped_samples,
    looks_like,
    pace_of,
    proven_epochs,
    with_verified,
)
from flamma.types import Plan, Population, Terms, Update

PLAN = Plan(rounds=20, per_round=3, epochs=3, learning_rate=0.1, batch_size=10)
SIZE = 6


def population(clients=5):
    samples = np.full(clients, 40)
    return Population(samples, np.full(clients, 0.1), trainable_size=SIZE)


def first_round(**options):
    strategy = FlammaHonest(PLAN, epoch_bounds=(1, 10), **options)
    state = strategy.init(np.zeros(SIZE, dtype=np.float32), population())
    return strategy, state, strategy.offer(state, np.arange(5), np.random.default_rng(0))


def answer(client, length=1.0, **changes):
    params = np.zeros(SIZE, dtype=np.float32)
    params[client % SIZE] = length
    return replace(Update(client, params, samples=40, epochs=4, loss=1.0), **changes)


def honest_inspector(tasks):
    return [answer(task.client, epochs=task.epochs) for task in tasks]


def test_first_answers_are_inspected_and_then_some():
    strategy, state, offer = first_round(inspection_rate=0.2)
    assert offer.inspected == offer.selected
    answers = [answer(c) for c in offer.selected]
    state, record = strategy.aggregate(state, offer, answers, ServerSide(inspect=honest_inspector))
    assert record.outcome.flags == record.outcome.failed == record.outcome.fines == {}
    later = [
        strategy.offer(state, np.array(offer.selected), np.random.default_rng(seed)).inspected
        for seed in range(200)
    ]
    share = sum(map(len, later)) / (3 * len(later))
    assert 0.15 < share < 0.25
    assert first_round(inspection_rate=0.0)[2].inspected == ()


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        ({"params": np.full(SIZE, 2, dtype=np.float32)}, "not that of 4 epochs on its data"),
        ({"epochs": 5, "params": np.zeros(SIZE, dtype=np.float32)}, "not that of 5 epochs"),
        ({"loss": 1.5}, "its loss is 1, not 1.5"),
    ],
)
def test_who_is_caught_pays_and_is_not_asked_again(lie, says):
    strategy, state, offer = first_round(inspection_rate=0.1)
    liar, *others = offer.selected
    answers = [answer(liar, **lie), *map(answer, others)]
    state, record = strategy.aggregate(state, offer, answers, ServerSide(inspect=honest_inspector))
    assert says in record.outcome.flags[liar]
    assert says in record.outcome.failed[liar]
    place = offer.selected.index(liar)
    assert record.outcome.credited[place] == 0
    earned = offer.terms[place].decay_factor * offer.terms[place].contribution
    epochs = looks_like(answers[0].epochs, math.inf, np.zeros(0), math.nan)
    if "params" not in lie or lie["params"].any():
        assert record.outcome.fines[liar] == pytest.approx(9 * earned * epochs)
    assert record.payment(place) == -record.outcome.fines[liar]
    assert not state.params[liar]  # its update was not used
    for seed in range(20):
        drawn = strategy.offer(state, np.arange(5), np.random.default_rng(seed))
        assert liar not in drawn.selected


def test_more_samples_than_there_are_is_caught():
    strategy, state, offer = first_round()

    def inspector(tasks):
        return [replace(answer(task.client), samples=30) for task in tasks]

    answers = [answer(c) for c in offer.selected]
    _, record = strategy.aggregate(state, offer, answers, ServerSide(inspect=inspector))
    assert set(record.outcome.flags.values()) == {"inspected: it has 30 samples, not 40"}


def late_inspector(tasks):
    return [Update(task.client, None, 40, 0, failure="late: over 1 s") for task in tasks]


def lost_inspector(tasks):
    return [
        answer(t.client, epochs=t.epochs, params=np.full(SIZE, np.nan, np.float32)) for t in tasks
    ]


def no_loss_inspector(tasks):
    return [answer(task.client, epochs=task.epochs, loss=math.nan) for task in tasks]


def late_after_all_inspector(tasks):
    return [replace(report, failure="late: over 1 s") for report in honest_inspector(tasks)]


def cut_inspector(tasks):
    return [replace(report, params=report.params[None]) for report in honest_inspector(tasks)]


def empty_inspector(tasks):
    return [replace(report, samples=0) for report in honest_inspector(tasks)]


def silent_inspector(tasks):
    return []


def inspector_of_others(tasks):
    return [replace(report, client=99) for report in honest_inspector(tasks)]


FAILING = [
    *(late_inspector, lost_inspector, no_loss_inspector, late_after_all_inspector, cut_inspector),
    *(empty_inspector, silent_inspector, inspector_of_others),
]


def again(strategy, state, offer, inspector, **changes):
    """The same clients in another round, in which nobody is drawn for an inspection."""
    number = state.round + 1
    offer = replace(offer, round=number, inspected=strategy_inspects(strategy, state, offer))
    params = state.params
    answers = [answer(c, **changes) for c in offer.selected]
    moved = [replace(a, params=a.params + params) for a in answers]

    def visit(tasks):
        return [
            replace(r, params=None if r.params is None else r.params + params)
            for r in inspector(tasks)
        ]

    return strategy.aggregate(state, offer, moved, ServerSide(inspect=visit))


def strategy_inspects(strategy, state, offer):
    quiet = replace(strategy, inspection_rate=1e-12)
    drawn = quiet.offer(state, np.array(offer.selected), np.random.default_rng(0))
    return drawn.inspected


@pytest.mark.parametrize("inspector", FAILING)
def test_an_inspection_that_fails_verifies_nothing_and_accuses_no_one(inspector):
    strategy, state, offer = first_round()
    after, record = again(strategy, state, offer, inspector)
    assert record.outcome.fines == {}
    assert record.outcome.inspected == ()
    assert set(record.outcome.flags) == set(record.outcome.failed) == set(offer.selected)
    assert all("its inspection failed" in why for why in record.outcome.flags.values())
    assert record.outcome.credited == (0.0, 0.0, 0.0)
    assert [record.payment(k) for k in range(3)] == [0, 0, 0]
    assert record.outcome.local_epochs == (4, 4, 4)  # they may have worked, and that costs them
    assert record.outcome.epochs_total == 0
    np.testing.assert_array_equal(after.params, state.params)
    assert np.isinf(after.largest_costs).all()
    assert not after.inspections.any()


def test_pay_is_withheld_until_an_inspection_succeeds():
    strategy, state, offer = first_round()
    state, _ = again(strategy, state, offer, honest_inspector)
    for _ in range(2):
        state, record = again(
            strategy, replace(state, inspections=state.inspections * 0), offer, late_inspector
        )
        assert record.outcome.credited == (0.0, 0.0, 0.0)
    assert strategy_inspects(strategy, state, offer) == offer.selected  # also if seen before
    state, record = again(strategy, state, offer, honest_inspector)
    assert record.outcome.inspected == offer.selected
    assert record.outcome.credited == pytest.approx((12.0, 12.0, 12.0))
    assert not state.unverified.any()
    assert not state.withheld.any()
    assert not state.suspended.any()
    assert strategy_inspects(strategy, state, offer) == ()


def test_no_more_is_paid_later_than_verified_work_earns():
    strategy, state, offer = first_round()
    state, _ = again(strategy, state, offer, late_inspector, epochs=10)
    _, record = again(strategy, state, offer, honest_inspector, epochs=2)
    assert record.outcome.credited == pytest.approx((4.0, 4.0, 4.0))


def test_after_three_failed_inspections_a_client_is_not_selected():
    strategy, state, offer = first_round()
    for number in range(3):
        assert not state.suspended.any(), number
        state, _ = again(strategy, state, offer, late_inspector)
    assert set(np.flatnonzero(state.suspended)) == set(offer.selected)
    rest = strategy.offer(state, np.arange(5), np.random.default_rng(0))
    assert not set(rest.selected) & set(offer.selected)


def test_the_suspended_are_not_selected_even_if_nobody_else_is_there():
    strategy, state, _ = first_round()
    state = replace(state, round=1, suspended=np.array([1, 0, 1, 0, 1]))
    empty = strategy.offer(state, np.array([0, 2]), np.random.default_rng(0))
    assert empty.round == 2
    assert empty.terms == ()
    after, record = strategy.aggregate(state, empty, [], ServerSide(inspect=honest_inspector))
    assert after.round == 2
    assert record.selected == ()
    np.testing.assert_array_equal(after.params, state.params)


def test_what_was_earned_unchecked_is_forfeited():
    strategy, state, offer = first_round(inspection_rate=0.1)
    answers = [answer(c) for c in offer.selected]
    state, _ = strategy.aggregate(state, offer, answers, ServerSide(inspect=honest_inspector))
    liar = offer.selected[0]
    unchecked = state.unchecked.copy()
    unchecked[liar] = 7.0
    state = replace(state, unchecked=unchecked)
    again = replace(offer, round=2, inspected=(liar,))
    answers[0] = answer(liar, params=np.full(SIZE, 9, dtype=np.float32))
    _, record = strategy.aggregate(state, again, answers, ServerSide(inspect=honest_inspector))
    place = again.selected.index(liar)
    terms = again.terms[place]
    assert record.outcome.fines[liar] == pytest.approx(
        9 * terms.decay_factor * terms.contribution * 4 + 7
    )


def test_short_updates_are_credited_with_what_they_look_like():
    strategy, state, offer = first_round(inspection_rate=0.0)
    short = offer.selected[0]
    answers = [answer(c, length=0.01 if c == short else 1.0) for c in offer.selected]
    _, record = strategy.aggregate(state, offer, answers)
    place = offer.selected.index(short)
    assert record.outcome.credited[place] < 0.1
    assert "4 epochs claimed look like" in record.outcome.flags[short]
    assert record.payment(place) < 0.1 * record.payment((place + 1) % 3)


def test_pace_grows_less_than_in_proportion_to_the_steps():
    received = np.zeros(SIZE, dtype=np.float32)
    terms = Terms(0, 1, step_scale=0.5)
    one = pace_of(answer(0, epochs=1), terms, received, 10, 40)
    four = pace_of(answer(0, epochs=4), terms, received, 10, 40)
    assert one / four == pytest.approx(4**0.7)
    assert math.isnan(pace_of(answer(0, epochs=0), terms, received, 10, 40))


def test_paces_are_compared_with_others_and_with_ones_own():
    usual = np.array([1.0, 1.2, 0.9])
    assert looks_like(5, 0.5, usual, math.nan) == 5
    assert looks_like(5, 0.1, usual, math.nan) < 1.5
    assert looks_like(5, 0.1, usual, 0.1) < 1.5  # having always done little is no excuse
    assert looks_like(5, 0.5, np.array([0.5]), 4.0) < 3  # one other client is too few to tell
    assert looks_like(5, 0.1, np.zeros(0), math.nan) == 5


def test_updates_that_are_too_long_are_credited_with_less():
    usual = np.array([1.0, 1.2, 0.9])
    assert believed_share(7.9, usual, math.nan) == 1
    assert believed_share(80.0, usual, math.nan) == pytest.approx(0.1 ** (1 / 0.7))
    assert believed_share(80.0, usual, 80.0) < 0.1  # having been long before is no excuse
    assert believed_share(9.0, np.zeros(0), 1.0) < 1
    assert believed_share(9.0, np.zeros(0), math.nan) == 1
    assert believed_share(math.inf, usual, math.nan) == 0
    strategy, state, offer = first_round(inspection_rate=0.0)
    long = offer.selected[0]
    answers = [answer(c, length=1000.0 if c == long else 1.0) for c in offer.selected]
    _, record = strategy.aggregate(state, offer, answers)
    assert record.outcome.flags[long] == "its update is too long for 4 epochs"
    assert record.outcome.credited[offer.selected.index(long)] < 0.1


def test_the_pace_is_by_the_samples_of_the_introduction():
    """Few samples in an answer make few steps of many epochs, and noise long enough for them."""
    strategy, state, offer = first_round(inspection_rate=0.0)
    liar = offer.selected[0]
    answers = [
        answer(c, length=0.15, epochs=10, samples=1) if c == liar else answer(c)
        for c in offer.selected
    ]
    after, record = strategy.aggregate(state, offer, answers)
    assert set(record.outcome.flags) == {liar}
    assert record.outcome.credited[offer.selected.index(liar)] < 5
    verified = strategy.aggregate(state, offer, [answer(c, epochs=4) for c in offer.selected])[1]
    assert verified.outcome.flags == {}
    # The same answer with the samples that it has moves everything as much.
    same = [replace(a, samples=40) for a in answers]
    np.testing.assert_array_equal(
        strategy.aggregate(state, offer, same)[0].measured, after.measured
    )


def test_who_names_other_samples_is_flagged_and_inspected():
    strategy, state, offer = with_bound(0.1)
    liar = offer.selected[1]
    visited = []

    def inspector(tasks):
        visited.extend(task.client for task in tasks)
        return [replace(r, params=r.params + state.params) for r in honest_inspector(tasks)]

    answers = [answer(c, samples=30 if c == liar else 40) for c in offer.selected]
    answers = [replace(a, params=a.params + state.params) for a in answers]
    _, record = strategy.aggregate(state, offer, answers, ServerSide(inspect=inspector))
    assert visited == [liar]
    assert record.outcome.flags == {liar: "30 samples of a client that had 40"}
    assert record.outcome.fines == {}


def test_claims_of_data_and_losses_are_capped():
    assert capped_samples(np.array([10, 20, 10**9]), 3).tolist() == [10, 20, 60]
    losses = np.array([np.nan, 1.0, 2.0, 1000.0])
    np.testing.assert_array_equal(capped_losses(losses), [np.nan, 1, 2, 2])
    np.testing.assert_array_equal(capped_losses(np.array([5.0, np.nan])), [5, np.nan])


@pytest.mark.parametrize("options", [{"inspection_rate": 1.5}, {"fine": -1.0}, {"weight_cap": 0.5}])
def test_impossible_options_are_refused(options):
    with pytest.raises(StrategyError):
        FlammaHonest(PLAN, **options)


def tables(**changes):
    return {
        "rounds": 6,
        "per_round": 3,
        "data": {"clients": 6, "train_samples": 300, "split": "shards"},
        "model": "logistic",
        "strategy": {"name": "flamma-honest", "warmup_iterations": 2, "epoch_bounds": [1, 10]},
        "costs": {"kind": "lognormal", "value": 0.1, "spread": 0.5},
        **changes,
    }


def hash_of(done):
    return [
        (r.selected, r.offer.decay_factors, r.outcome.local_epochs, r.offer.contributions)
        for r in done.history
    ]


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return run(tables(), out=tmp_path_factory.mktemp("honest") / "run")


@pytest.mark.parametrize("factor", [1e-6, 0.3, 7.0])
def test_no_report_of_a_cost_changes_anything(tmp_path, honest, factor):
    lying = {"cost-liar": {"clients": [2], "factor": factor}}
    lie = run(tables(behaviours=lying), out=tmp_path / "lie")
    assert hash_of(lie) == hash_of(honest)
    assert (lie.path / "clients.csv").read_bytes() == (honest.path / "clients.csv").read_bytes()


@pytest.mark.parametrize(
    "lie",
    [
        {"free-rider": {"clients": [2]}},
        {"free-rider": {"clients": [2], "sends": "repeat"}},
        {"epoch-faker": {"clients": [2], "claimed": 10}},
        {"part-trainer": {"clients": [2]}},
        {"data-inflater": {"clients": [2]}},
        {"loss-inflater": {"clients": [2]}},
        {"gaussian-noise": {"clients": [2]}},
    ],
)
def test_who_cheats_is_caught_the_first_time(tmp_path, lie):
    done = run(tables(behaviours=lie), out=tmp_path / "lie")
    asked = [r for r in done.history if 2 in r.selected]
    assert 2 in asked[0].outcome.flags
    assert 2 in asked[0].outcome.fines
    assert len(asked) == 1
    assert not any(set(r.outcome.flags) - {2} for r in done.history)


def test_a_budget_is_kept(tmp_path, honest):
    spent = sum(r.payment(k) for r in honest.history for k in range(3))
    kept = run(tables(ledger={"budget": spent}), out=tmp_path / "kept")
    total = sum(r.payment(k) for r in kept.history for k in range(3))
    assert 0 < total < spent


def with_bound(cost):
    """A second round of clients whose inspected work shows a cost of at most this."""
    strategy, state, offer = first_round(inspection_rate=0.1)
    answers = [answer(c) for c in offer.selected]
    state, _ = strategy.aggregate(state, offer, answers, ServerSide(inspect=honest_inspector))
    state = replace(state, largest_costs=np.full(5, cost))
    return strategy, state, replace(offer, round=2, inspected=())


def inspected_with(epochs, cost=0.1):
    """Whether a client that claims so many epochs is visited."""
    strategy, state, offer = with_bound(cost)
    visited = []

    def inspector(tasks):
        visited.extend(task.client for task in tasks)
        return honest_inspector(tasks)

    who = offer.selected[0]
    answers = [answer(c, epochs=epochs if c == who else 4) for c in offer.selected]
    _, record = strategy.aggregate(state, offer, answers, ServerSide(inspect=inspector))
    assert record.outcome.inspected == tuple(visited)
    return who in visited


def test_who_claims_more_than_inspected_work_proves_is_always_inspected():
    # At a contribution of 1 and a cost of at most 0.1, five epochs are best at least.
    assert not inspected_with(5)
    assert inspected_with(6)
    assert inspected_with(10)
    assert inspected_with(1, cost=np.inf)  # nothing is proved yet


def test_inspections_confirm_work_that_looks_too_short():
    strategy, state, offer = with_bound(0.1)
    short = offer.selected[0]

    def moved(own):
        share = np.float32(0.01 if own.client == short else 1)
        return replace(own, params=own.params * share + state.params)

    answers = [moved(answer(c)) for c in offer.selected]
    _, record = strategy.aggregate(
        state, offer, answers, ServerSide(inspect=lambda tasks: answers[:1])
    )
    assert record.outcome.inspected == (short,)
    assert record.outcome.flags == record.outcome.fines == {}
    assert record.outcome.credited == (4.0, 4.0, 4.0)


@given(
    costs=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=8),
    pulls=st.lists(st.floats(0.05, 1.0), min_size=2, max_size=8),
)
def test_inspected_work_never_proves_more_than_is_best(costs, pulls):
    """However many answers were inspected, what they prove is at most the honest response."""
    bounds, clients = (1, 10), len(costs)
    largest = np.full(clients, np.inf)
    for pull in pulls:
        terms = [Terms(c, 1, pull, 0.9) for c in range(clients)]
        best = best_response(Game(np.full(clients, 0.9), costs, epoch_bounds=bounds), pull)
        for own, epochs in zip(terms, best.tolist(), strict=True):
            assert proven_epochs(own, largest[own.client], bounds) <= epochs
        done = {c: int(e) for c, e in enumerate(best) if e}
        largest = with_verified(largest, terms, done, bounds)
        assert (largest >= np.array(costs) * (1 - 1e-12)).all()


class Breaks:
    """Training on samples of a marked client fails, whoever does it."""

    def __call__(self, samples, rng):
        if (samples > 50).any():
            raise ValueError("this client cannot train")
        return samples


def marked_clients(marked):
    rng = np.random.default_rng(0)
    clients = []
    for client in range(5):
        y = rng.integers(0, 2, 40)
        x = (rng.normal(size=(40, 1, 6, 6)) + y[:, None, None, None]).astype(np.float32)
        x[:, 0, 0, 0] = 99.0 if client == marked else 0.0
        clients.append((x, y))
    return clients


def test_no_work_pays_nothing_where_inspectors_fail(tmp_path):
    """The inspector trains at the client, and training there fails; the free-rider needs none."""
    options = {
        "data": marked_clients(2),
        "strategy": {"name": "flamma-honest", "epoch_bounds": [1, 10]},
        "model": "logistic",
        "rounds": 8,
        "per_round": 3,
        "augment": Breaks(),
        "costs": {"kind": "constant", "value": 0.1},
        "seed": 1,
    }
    found = audit(
        **options,
        deviations=["free-rider:claimed=most"],
        clients=[2],
        seeds=1,
        processes=1,
        out=tmp_path / "audit",
    )
    [finding] = found.cases[0].findings
    assert finding.utility <= finding.honest_utility
    assert finding.flagged > 0


def test_a_run_with_failing_inspections_resumes_to_the_same_bits(tmp_path):
    cheats = {"free-rider": {"clients": [2], "claimed": "most"}}
    options = {
        "strategy": {"name": "flamma-honest", "epoch_bounds": [1, 10], "selection": "uniform"},
        "rounds": 12,
        "per_round": 3,
        "costs": {"kind": "constant", "value": 0.1},
        "behaviours": cheats,
    }
    own = {"data": marked_clients(2), "augment": Breaks(), "model": "logistic"}
    whole = run(options, **own, out=tmp_path / "whole")
    asked = [r for r in whole.history if 2 in r.selected]
    assert len(asked) == 3
    for record in asked:
        place = record.selected.index(2)
        assert "its inspection failed (ValueError" in record.outcome.flags[2]
        assert (record.payment(place), record.outcome.credited[place]) == (0, 0)
        assert not set(record.outcome.flags) - {2}

    def stop(news):
        if news.round == asked[1].round:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(options, **own, out=tmp_path / "cut", on_round=stop)
    resumed = resume(tmp_path / "cut", data=own["data"], augment=own["augment"])
    assert resumed.params_sha256 == whole.params_sha256
    assert [dict(r.outcome.flags) for r in resumed.history] == [
        dict(r.outcome.flags) for r in whole.history
    ]


def test_a_run_goes_on_without_clients_once_all_are_suspended(tmp_path):
    everybody = {"free-rider": {"clients": [0, 1, 2, 3, 4]}}
    cheats = tables(
        behaviours=everybody, data={"clients": 5, "train_samples": 300, "split": "shards"}
    )
    with pytest.raises(EmptyRunError):
        run(cheats, out=tmp_path / "run")
    history = Run.load(tmp_path / "run").history
    asked = [client for record in history for client in record.selected]
    assert sorted(asked) == [0, 1, 2, 3, 4]
    assert [len(record.selected) for record in history] == [3, 2, 0, 0, 0, 0]

"""Behaviours are assigned to clients by number, share or list, by the seed alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.clients.behaviours import (
    BEHAVIOURS,
    Behaviour,
    Encounter,
    Introduction,
    Notes,
    assign,
    read_assignments,
)
from flamma.clients.truth import NotesInFiles, TrueClients, told
from flamma.engines.flower.conduct import NotesInMemory
from flamma.errors import ConfigError
from flamma.experiments.config import make_config
from flamma.experiments.run import run
from flamma.records import OfferRecord, Outcomes, RoundRecord
from flamma.strategies import STRATEGIES
from flamma.types import MOST_SAMPLES, LocalWork, Plan, Population, Profile, Terms, Update


@dataclass(frozen=True)
class Lazy(Behaviour):
    """A client that does less."""

    share: float = 0.5


@pytest.fixture
def lazy():
    BEHAVIOURS.add("lazy", Lazy)
    yield
    BEHAVIOURS.discard("lazy")


def assigned(table, clients=10, seed=0):
    return assign(read_assignments(table), clients, seed)


@pytest.mark.usefixtures("lazy")
def test_by_list_by_number_and_by_share():
    assert assigned({"lazy": {"clients": [1, 4]}}) == {1: Lazy(), 4: Lazy()}
    assert len(assigned({"lazy": {"clients": 3}})) == 3
    assert len(assigned({"lazy": {"clients": 0.4, "share": 0.1}})) == 4
    assert set(assigned({"lazy": {"clients": 0.4, "share": 0.1}}).values()) == {Lazy(0.1)}


@pytest.mark.usefixtures("lazy")
def test_the_seed_draws_them_and_nobody_has_two():
    table = {"lazy": {"clients": 0.5}, "lazier": {"name": "lazy", "clients": 5, "share": 0.1}}
    first, again = assigned(table), assigned(table)
    assert first == again
    assert sorted(own.share for own in first.values()) == [0.1] * 5 + [0.5] * 5
    draws = {tuple(sorted(assigned({"lazy": {"clients": 3}}, seed=s))) for s in range(5)}
    assert len(draws) > 1


@pytest.mark.usefixtures("lazy")
def test_who_is_assigned_honest_is_honest_and_not_drawn_again():
    table = {"honest": {"clients": 7}, "lazy": {"clients": 3}}
    assert len(assigned(table)) == 3
    with pytest.raises(ConfigError, match="4 clients of 3 left"):
        assigned({"honest": {"clients": 7}, "lazy": {"clients": 4}})


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            {"cost-liar": {"clients": 1, "factor": -1}},
            "cost-liar.factor must be best, or be above 0",
        ),
        (
            {"x": {"name": "epoch-faker", "clients": 1, "done": 0}},
            "behaviours.x.done must be honest, or be at least 1",
        ),
        (
            {"free-rider": {"clients": 1, "claimed": 0}},
            "claimed must be honest or most, or be at l",
        ),
        ({"free-rider": {"clients": 1, "claimed": "all"}}, "behaviours.free-rider.claimed must be"),
        ({"free-rider": {"clients": 1, "sends": "love"}}, "behaviours.free-rider.sends must be"),
        ({"part-trainer": {"clients": 1, "share": 0}}, "share must lie in (0, 1]"),
        ({"dropper": {"clients": 1, "rate": 1.1}}, "rate must lie in [0, 1]"),
        ({"free-ridr": {"clients": 1}}, "did you mean free-rider?"),
        (3, "behaviours must be a table"),
        ({"lazy": 3}, "says which clients"),
        ({"lazy": {}}, "says which clients"),
        ({"lazi": {"clients": 1}}, "did you mean lazy?"),
        ({"lazy": {"clients": 1, "shar": 1}}, "did you mean share?"),
        ({"lazy": {"clients": 1.5}}, "a share from 0 to 1"),
        ({"lazy": {"clients": -1}}, "must not be negative"),
        ({"lazy": {"clients": "all"}}, "behaviours.lazy.clients must be"),
        ({"lazy": {"clients": 11}}, "11 clients of 10"),
        ({"lazy": {"clients": [10]}}, "client 10"),
        ({"lazy": {"clients": [1]}, "honest": {"clients": [1]}}, "client 1"),
    ],
)
def test_what_cannot_be_assigned_is_refused(table, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        assigned(table)


@pytest.mark.usefixtures("lazy")
def test_a_configuration_refuses_at_once_what_cannot_be_assigned():
    with pytest.raises(ConfigError, match="11 clients of 10 left"):
        make_config({"data": {"clients": 10}, "behaviours": {"lazy": {"clients": 11}}})
    with pytest.raises(ConfigError, match=r"put behaviour = \{name = \.\.\.\} into the site.toml"):
        make_config({"engine": "deployment", "behaviours": {"lazy": {"clients": 1}}})


@pytest.mark.usefixtures("lazy")
def test_a_configuration_with_behaviours_reads_back_the_same():
    config = make_config({"behaviours": {"lazy": {"clients": [2, 3], "share": 0.3}}})
    assert make_config(config.as_tables()) == config


@dataclass(frozen=True)
class Liar(Behaviour):
    """Tells half its cost, does one epoch, and claims three."""

    def tell(self, introduction):
        return replace(introduction.profile, cost=introduction.profile.cost / 2)

    def act(self, encounter):
        return encounter.honest if encounter.warms_up else replace(encounter.honest, epochs=1)

    def send(self, report, encounter, received, notes):
        assert received.size == report.params.size
        return replace(report, epochs=3)


@pytest.mark.usefixtures("lazy")
def test_a_client_may_lie_in_what_it_tells_does_and_sends(tmp_path):
    BEHAVIOURS.add("liar", Liar)
    tables = {
        "rounds": 1,
        "per_round": 3,
        "data": {"clients": 3, "train_samples": 90, "validation_samples": 0},
        "model": "logistic",
        "strategy": {"name": "flamma", "warmup_iterations": 0},
        "behaviours": {"liar": {"clients": [1]}},
    }
    try:
        done = run(tables, out=tmp_path / "run")
    finally:
        BEHAVIOURS.discard("liar")
    [record] = done.history
    assert record.game.costs == (0.1, 0.05, 0.1)  # what the server took them for
    assert record.outcome.local_epochs[1] == 3
    assert record.game.certificate.follower_gap > 0.1  # at the true cost three epochs are not best
    assert record.outcome.efforts[1] == 1  # what it really did
    assert record.outcome.client_utilities[1] == pytest.approx(record.payment(1) - 0.1)
    assert (tmp_path / "run" / "population.csv").read_text().count("0.1,") == 3  # true costs


# What each behaviour tells, does and sends, in a game small enough to compute by hand.

OMEGA, COST = 0.9, 0.1
PROFILE = Profile(client=1, cost=COST, samples=20)
TERMS = Terms(client=1, round=3, decay_factor=1.0, contribution=OMEGA, report_loss="received")
WARMUP = Terms(client=1, round=0, batches=10)
RECEIVED = np.array([3.0, 4.0, 0.0, 0.0], dtype=np.float32)
TRAINED = np.array([4.0, 4.0, 2.0, 0.0], dtype=np.float32)
UPDATE = TRAINED - RECEIVED
FLAMMA = STRATEGIES["flamma"](plan=Plan(rounds=10, per_round=2))


def made(name, **options):
    return BEHAVIOURS[name](**options)


def offered(terms=TERMS, profile=PROFILE, group=(), strategy=FLAMMA):
    return Encounter(terms, profile, strategy.respond, seed=0, group=group)


def played(behaviour, encounter=None, notes=None, loss=2.0):
    """What the client really does, and what it sends back."""
    encounter = offered() if encounter is None else encounter
    task = behaviour.act(encounter)
    report = Update(
        task.client,
        None if task.abstains else TRAINED,
        encounter.profile.samples,
        0 if task.abstains else task.epochs,
        math.nan if task.abstains else loss,
    )
    return task, behaviour.send(report, encounter, RECEIVED, notes or Notes())


def utility(behaviour, encounter=None):
    """γ ω τ for the claimed epochs less the true cost of the true work."""
    encounter = offered() if encounter is None else encounter
    task, sent = played(behaviour, encounter)
    record = RoundRecord(
        round=3,
        selected=(1,),
        offer=OfferRecord(1.0, (OMEGA,)),
        outcome=Outcomes(
            abstained=(),
            failed={},
            local_epochs=(sent.epochs,),
            epochs_total=sent.epochs,
            efforts=(behaviour.effort(task, replace(encounter, selected=(1, 2))),),
        ),
    )
    return record.payment(0) - COST * record.effort(0)


# By hand, with ω = 0.9, c = 0.1, γ = 1 and 1 to 10 epochs: U(τ) = 0.9 τ - 0.1 τ². U(4) = U(5) = 2,
# and of two equally good numbers a client takes the larger.
@pytest.mark.parametrize(
    ("name", "options", "epochs", "earns"),
    [
        ("honest", {}, 5, 2.0),
        ("cost-liar", {}, 5, 2.0),  # it gains by what it is offered, not by what it does
        ("imitator", {}, 2, 1.4),  # c = 0.2 has its best at 2.25; 0.9 * 2 - 0.1 * 4
        ("data-inflater", {}, 5, 2.0),
        ("loss-inflater", {}, 5, 2.0),
        ("free-rider", {}, 5, 4.5),
        ("free-rider", {"claimed": "most"}, 10, 9.0),
        ("free-rider", {"claimed": 7}, 7, 6.3),
        ("epoch-faker", {}, 5, 4.4),
        ("epoch-faker", {"claimed": "most", "done": 2}, 10, 8.6),
        ("part-trainer", {}, 9, 4.05),  # c = 0.05: 0.9 * 9 - 0.05 * 81, about twice the honest 2
        ("dropper", {"rate": 1.0}, 0, 0.0),
        ("dropper", {"rate": 0.0}, 5, 2.0),
        ("sybil", {}, 5, 2.0),
        ("sign-flip", {}, 5, 2.0),
        ("scaled-update", {}, 5, 2.0),
        ("label-flip", {}, 5, 2.0),
        ("gaussian-noise", {}, 5, 2.0),
    ],
)
def test_what_a_deviation_earns_in_one_round(name, options, epochs, earns):
    behaviour = made(name, **options)
    assert played(behaviour)[1].epochs == epochs
    assert utility(behaviour) == pytest.approx(earns)


def test_the_second_name_of_a_sybil_is_paid_for_the_work_of_the_first():
    sybil, group = made("sybil"), (1, 2)
    assert utility(sybil, offered(group=group)) == pytest.approx(2.0)
    second = offered(replace(TERMS, client=2), replace(PROFILE, client=2), group)
    assert utility(sybil, second) == pytest.approx(0.9 * 5)
    assert sybil.act(second).data.owner == 1
    alone = replace(second, selected=(2, 5))  # the first was not selected
    assert sybil.effort(sybil.act(second), alone) == 25


def test_what_is_told():
    population = Population(np.array([10, 20]), np.array([0.3, COST]), trainable_size=4)
    lies = {0: made("cost-liar", factor=0.5), 1: made("data-inflater")}
    said = told(population, lies)
    assert said.costs.tolist() == [0.15, COST]
    assert said.samples.tolist() == [10, 200]
    assert population.samples.tolist() == [10, 20]  # the truth stays
    unknown = told(replace(population, costs=None), lies)
    assert unknown.costs is None
    assert unknown.samples.tolist() == [10, 200]
    later = told(population, {1: made("data-inflater", from_start=False)})
    assert later.samples.tolist() == [10, 20]


def test_the_best_lie_is_the_strategys_and_needs_the_others():
    liar = made("cost-liar", factor="best")
    population = Population(np.array([10, 20]), np.array([0.3, COST]), trainable_size=4)
    best = Introduction(PROFILE, population, lambda all_, client: all_.costs[client] / 10)
    assert liar.tell(best).cost == pytest.approx(COST / 10)
    assert liar.tell(Introduction(PROFILE, population)) == PROFILE  # costs play no role
    with pytest.raises(ConfigError, match="a site does not know: give a number"):
        liar.tell(Introduction(PROFILE))


def test_lies_stay_within_what_a_game_and_a_message_can_hold():
    least, most = (
        made("cost-liar", factor=f).tell(Introduction(replace(PROFILE, cost=cost))).cost
        for f, cost in ((1e-300, 1e-80), (1e300, 1e80))
    )
    assert (least, most) == (1e-100, 1e100)
    assert made("data-inflater", factor=1e300).tell(Introduction(PROFILE)).samples == MOST_SAMPLES
    assert made("data-inflater", factor=1e-9).tell(Introduction(PROFILE)).samples == 1


def test_what_is_sent():
    def sent(name, encounter=None, **options):
        return played(made(name, **options), encounter)[1]

    def update(name, encounter=None, **options):
        return sent(name, encounter, **options).params - RECEIVED

    np.testing.assert_array_equal(sent("free-rider").params, RECEIVED)
    assert sent("free-rider").params is not RECEIVED
    np.testing.assert_array_equal(update("sign-flip", factor=2), -2 * UPDATE)
    np.testing.assert_array_equal(update("scaled-update", factor=10), 10 * UPDATE)
    together = update("scaled-update", offered(group=(1, 5)), factor=10, colluding=True)
    np.testing.assert_array_equal(together, 5 * UPDATE)
    assert sent("loss-inflater", factor=10).loss == 20
    assert sent("data-inflater").samples == 200
    assert sent("free-rider", loss=3.0).loss == 3
    silent = offered(replace(TERMS, report_loss="no"))
    assert math.isnan(sent("free-rider", silent, loss=3.0).loss)
    assert sent("dropper", rate=1.0).failure == "no answer"
    assert made("label-flip").act(offered()).data.flips_labels
    assert made("part-trainer", share=0.25).act(offered()).data.share == 0.25


def test_noise_has_the_length_asked_for_and_is_shared_by_colluders():
    wide = np.ones(100_000, dtype=np.float32)
    trained = Update(1, wide + 0.5, 20, 4)

    def noise(client, group=(), **options):
        encounter = offered(replace(TERMS, client=client), group=group)
        sent = made("gaussian-noise", **options).send(trained, encounter, wide, Notes())
        return sent.params - wide

    length = np.linalg.norm(noise(1, factor=2.0))
    assert length == pytest.approx(2 * 0.5 * math.sqrt(wide.size), rel=0.02)
    assert not np.array_equal(noise(1), noise(2))
    shared = {"group": (1, 2), "colluding": True}
    np.testing.assert_array_equal(noise(1, **shared), noise(2, **shared))

    rider = made("free-rider", sends="noise", noise=0.1)
    idle = Update(1, None, 20, 0)
    sent = rider.send(idle, offered(), wide, Notes()).params - wide
    assert np.linalg.norm(sent) == pytest.approx(0.1 * math.sqrt(wide.size), rel=0.02)


def test_droppers_that_collude_stay_away_in_the_same_rounds():
    def away(client, **options):
        dropper = made("dropper", **options)
        terms = [replace(TERMS, client=client, round=r) for r in range(1, 40)]
        return [dropper.act(offered(t, group=(1, 2))).abstains for t in terms]

    assert away(1) != away(2)
    assert away(1, colluding=True) == away(2, colluding=True)
    assert 5 < sum(away(1)) < 35


@pytest.fixture(params=["memory", "files", "message"])
def notes(request, tmp_path):
    """The three places where clients keep notes."""
    if request.param == "files":
        return NotesInFiles(tmp_path / "notes")
    return Notes() if request.param == "memory" else NotesInMemory({})


def test_a_repeater_repeats_what_it_trained_in_the_warmup(notes):
    repeater = made("free-rider", sends="repeat")
    task, first = played(repeater, offered(WARMUP), notes)
    assert task.terms.batches == 10
    np.testing.assert_array_equal(first.params, TRAINED)
    for _ in range(2):  # a round that is played again gives the same
        task, again = played(repeater, offered(), notes)
        assert task.abstains
        np.testing.assert_array_equal(again.params, RECEIVED + UPDATE)


def test_a_repeater_without_a_warmup_repeats_its_noise(notes):
    repeater = made("free-rider", sends="repeat")
    [first, later, again] = (
        played(repeater, offered(replace(TERMS, round=number)), notes)[1].params
        for number in (3, 7, 3)
    )
    assert not np.array_equal(first, RECEIVED)
    np.testing.assert_array_equal(later, first)
    np.testing.assert_array_equal(again, first)  # as when a run goes on from before round 3


def test_notes_are_read_by_their_client_in_later_rounds_only(tmp_path):
    for kept in (Notes(), NotesInFiles(tmp_path)):
        kept.write(1, 2, UPDATE)
        kept.write(1, 5, 2 * UPDATE)
        kept.write(11, 3, 3 * UPDATE)
        assert kept.read(1, 2) is None
        np.testing.assert_array_equal(kept.read(1, 5), UPDATE)
        np.testing.assert_array_equal(kept.read(1, 6), 2 * UPDATE)
        assert kept.read(2, 9) is None


@pytest.mark.parametrize("name", [*BEHAVIOURS])
def test_where_working_does_not_pay_only_those_who_would_say_anything_answer(name):
    poor = offered(replace(TERMS, contribution=0.01))
    task, sent = played(made(name), poor)
    assert task.abstains
    assert sent.epochs == 0
    assert sent.abstained or name == "dropper"


def test_who_claims_a_number_of_its_own_claims_it_whatever_the_offer():
    poor = offered(replace(TERMS, contribution=0.01))
    assert played(made("free-rider", claimed=3), poor)[1].epochs == 3
    task, sent = played(made("epoch-faker", claimed=3, done=2), poor)
    assert (task.epochs, sent.epochs) == (2, 3)


@pytest.mark.parametrize("name", [*BEHAVIOURS])
def test_the_warmup_is_answered_with_weights(name):
    behaviour = made(name, rate=0.0) if name == "dropper" else made(name)
    _, sent = played(behaviour, offered(WARMUP))
    assert sent.params is not None
    assert not sent.failure


def test_clients_of_one_entry_are_a_group_and_equal_ones_of_another_are_not():
    first, second = Behaviour(), Behaviour()
    population = Population(np.array([1] * 5), np.full(5, COST), trainable_size=4)
    truth = TrueClients(population, {3: first, 0: first, 1: second}, FLAMMA.respond)
    groups = [truth.encounter(replace(TERMS, client=c)).group for c in range(5)]
    assert groups == [(0, 3), (1,), (), (0, 3), ()]


anything = st.floats(width=32, allow_nan=True, allow_infinity=True)
vectors = st.lists(anything, min_size=5, max_size=5).map(lambda v: np.array(v, np.float32))


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from([*BEHAVIOURS]),
    strategy=st.sampled_from(["flamma", "flamma-plus", "fedavg", "qffl"]),
    numbers=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, MOST_SAMPLES)),
    cost=st.floats(1e-100, 1e100),
    gamma=st.floats(0, 1),
    omega=st.floats(0, 1),
    weights=st.tuples(vectors, vectors),
    loss=st.floats(min_value=0) | st.just(math.nan),
    kind=st.sampled_from(["round", "warm-up", "failed"]),
)
def test_no_moment_of_any_behaviour_raises(
    name, strategy, numbers, cost, gamma, omega, weights, loss, kind
):
    client, number, samples = numbers
    behaviour, profile = made(name), Profile(client, cost, samples)
    chosen = STRATEGIES[strategy](plan=Plan(rounds=10, per_round=2))
    terms = Terms(client, number, gamma, omega, batches=3 if kind == "warm-up" else None)
    encounter = offered(terms, profile, (client, client + 1), chosen)
    said = behaviour.tell(Introduction(profile))
    assert 1e-100 <= said.cost <= 1e100
    assert 0 <= said.samples <= MOST_SAMPLES
    task = behaviour.act(encounter)
    assert isinstance(task, LocalWork)
    assert task.epochs >= 0
    received, trained = weights
    report = Update(client, None if task.abstains else trained, samples, task.epochs, loss)
    if kind == "failed":
        report = Update(client, None, samples, 0, failure="late")
    notes = Notes()
    for _ in range(2):
        sent = behaviour.send(report, encounter, received, notes)
        assert sent.client == client
        assert kind != "failed" or sent.failure
        assert sent.params is None or sent.params.dtype == np.float32
    assert behaviour.effort(task, encounter) >= 0


def test_every_option_is_documented():
    for name in BEHAVIOURS:
        entry = BEHAVIOURS[name]
        for option in fields(entry):
            assert f"    {option.name} : " in entry.__doc__, (name, option.name)

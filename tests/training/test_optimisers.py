"""Optimisers, weight decay and clipping, by every trainer that has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from flamma.errors import ConfigError, FlammaError
from flamma.models import FlatModel, build_model
from flamma.numerics import cosine_of_half_turns
from flamma.training import TrainingJob, batches_of
from flamma.training.config import TrainerSettings, pick_trainer, unsupported_reason
from flamma.training.lanes import LanesTrainer, available, instruction_sets, unavailable_reason
from flamma.training.optimisers import (
    SCHEDULES,
    Adam,
    AdamW,
    Sgd,
    UpdateRule,
)
from flamma.training.stacked import StackedTrainer
from flamma.training.torch_trainer import TorchTrainer, clip_rows
from flamma.types import SMALLEST_FACTOR, Plan, TaskVectors
from flat_work import work

SHAPE, CLASSES, BATCH = (1, 6, 7), 3, 8
SETS = instruction_sets() if available() else ()
RULES = {
    "decay": (UpdateRule(weight_decay=0.05), 0.0),
    "decay and momentum": (UpdateRule(weight_decay=0.05), 0.9),
    "clip": (UpdateRule(clip=0.3), 0.0),
    "clip and momentum": (UpdateRule(clip=0.3), 0.9),
    "clip that is never reached": (UpdateRule(clip=1e9), 0.9),
    "all": (UpdateRule(weight_decay=0.05, clip=0.3), 0.5),
    "adam": (UpdateRule(optimiser=Adam()), 0.0),
    "adam, decay, clip": (UpdateRule(0.05, 0.3, Adam((0.8, 0.99), 1e-6)), 0.0),
    "adamw": (UpdateRule(0.1, None, AdamW()), 0.0),
}
OF_SGD = {name: rule for name, rule in RULES.items() if "adam" not in name}


@pytest.fixture(scope="module")
def one_thread():
    """Keep torch's threads from waiting for each other where other tests run beside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_model():
    return build_model("mlp", SHAPE, CLASSES, seed=1)


def make_jobs(clients=5, **changes):
    chosen = {"epochs": 3, "learning_rate": 0.02, **changes}
    jobs = []
    for client in range(clients):
        rng = np.random.default_rng(client)
        samples = 11 + 5 * client
        x = rng.standard_normal((samples, *SHAPE)).astype(np.float32)
        y = rng.integers(0, CLASSES, samples)
        jobs.append(TrainingJob(work(client, 1, **chosen), x, y, fresh(client)))
    return jobs


def fresh(client):
    return np.random.default_rng([3, client])


def again(jobs):
    return [one._replace(rng=fresh(one.task.client)) for one in jobs]


def trained(trainer, params, jobs):
    results = {
        number: (one.error, None if one.params is None else one.params.copy())
        for number, one in trainer.train_each(params, again(jobs))
    }
    assert all(error is None for error, _ in results.values())
    return [results[number][1] for number in range(len(jobs))]


def by_torch_optim(job, rule, momentum):
    """Return the weights after each step of torch's own optimisers and clipping."""
    module = make_model()
    rate, decay = job.task.learning_rate, rule.weight_decay
    if isinstance(rule.optimiser, Adam):
        kind = torch.optim.AdamW if isinstance(rule.optimiser, AdamW) else torch.optim.Adam
        own = rule.optimiser
        chosen = kind(module.parameters(), rate, own.betas, own.epsilon, decay)
    else:
        chosen = torch.optim.SGD(module.parameters(), rate, momentum, weight_decay=decay)
    for batch in batches_of(job, BATCH):
        chosen.zero_grad()
        cross_entropy(module(torch.tensor(job.x[batch])), torch.tensor(job.y[batch])).backward()
        if rule.clip is not None:
            clip_grad_norm_(module.parameters(), rule.clip)
        chosen.step()
        yield FlatModel(module).read()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", RULES)
def test_every_step_is_that_of_torch_optim(name):
    rule, momentum = RULES[name]
    [job] = make_jobs(1, epochs=4)
    trainer = TorchTrainer(make_model, BATCH, momentum, rule=rule)
    received = trainer.model.read()
    expected = list(by_torch_optim(job, rule, momentum))
    assert len(expected) == 8
    for steps, weights in enumerate(expected, start=1):
        [few] = make_jobs(1, epochs=0, batches=steps)
        [own] = trained(trainer, received, [few])
        np.testing.assert_allclose(own, weights, rtol=2e-5, atol=2e-6)
    moved = np.abs(expected[-1] - received).max()
    assert moved > 1e-3


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", RULES)
def test_stacked_clients_train_as_one_after_the_other(name):
    rule, momentum = RULES[name]
    jobs = make_jobs()
    one = TorchTrainer(make_model, BATCH, momentum, rule=rule)
    many = StackedTrainer(make_model, SHAPE, BATCH, momentum, rule=rule)
    received = one.model.read()
    for own, other in zip(trained(many, received, jobs), trained(one, received, jobs), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.parametrize("model", ["mlp", "conv"])
@pytest.mark.parametrize("name", OF_SGD)
def test_lanes_train_as_torch_and_with_the_same_bits_by_every_instruction_set(name, model):
    rule, momentum = OF_SGD[name]
    module = make_model()
    if model == "conv":
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)
        )
    received = FlatModel(module).read()
    jobs = vector_jobs(received)
    expected = trained(TorchTrainer(FlatModel(module), BATCH, momentum, rule=rule), received, jobs)
    results = [
        trained(LanesTrainer(module, SHAPE, BATCH, momentum, kind, rule=rule), received, jobs)
        for kind in SETS
    ]
    for own, other in zip(results[0], expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=2e-5)
    assert len({b"".join(w.tobytes() for w in result) for result in results}) == 1


def vector_jobs(received):
    """Return jobs of which some have a proximal term and a correction."""
    jobs = make_jobs()
    rng = np.random.default_rng(5)
    own = TaskVectors(correction=rng.normal(0, 0.01, received.size).astype(np.float32))
    pulled = make_jobs(proximal=0.3)
    return [jobs[0], pulled[1], jobs[2]._replace(vectors=own), pulled[3], jobs[4]]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_clip_that_is_never_reached_changes_no_bit_in_lanes(momentum):
    module = make_model()
    received = FlatModel(module).read()
    jobs = vector_jobs(received)
    plain = trained(LanesTrainer(module, SHAPE, BATCH, momentum), received, jobs)
    far = UpdateRule(clip=1e30)
    same = trained(LanesTrainer(module, SHAPE, BATCH, momentum, rule=far), received, jobs)
    assert [w.tobytes() for w in same] == [w.tobytes() for w in plain]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_a_clipped_step_of_lanes_has_the_length_that_it_may_have():
    module = make_model()
    received = FlatModel(module).read()
    jobs = make_jobs(epochs=0, batches=1, learning_rate=1.0)
    for own in trained(
        LanesTrainer(module, SHAPE, BATCH, rule=UpdateRule(clip=1e-3)), received, jobs
    ):
        length = np.linalg.norm(own.astype(np.float64) - received)
        assert length == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_clipping_takes_no_more_memory_than_there_is(monkeypatch):
    """The gradient of the whole net is one more vector, which may be the one too many."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(42, 100), nn.Tanh(), nn.Linear(100, CLASSES))
    size = FlatModel(module).layout.size
    [job] = make_jobs(1)
    refused = []
    for vectors in range(4, 40):
        memory = vectors * size * 4
        monkeypatch.setattr("flamma.training.lanes.trainer.memory_of_machine", lambda m=memory: m)
        try:
            trainer = LanesTrainer(module, SHAPE, BATCH, rule=UpdateRule(clip=1.0))
        except FlammaError:
            continue
        [(_, done)] = trainer.train_each(FlatModel(module).read(), again([job]))
        refused.append(done.error is not None)
        if done.error is not None:
            assert "more memory" in str(done.error)
    assert refused[0]
    assert not refused[-1]


@pytest.mark.usefixtures("one_thread")
@given(
    st.lists(st.tuples(*[st.floats(-(2.0**60), 2.0**60, width=32)] * 4), min_size=1, max_size=4),
    st.floats(1e-3, 1e3),
)
@settings(max_examples=60, deadline=None)
def test_clipping_keeps_directions_and_never_lengthens(rows, longest):
    before = torch.tensor(rows, dtype=torch.float32)
    parts = [before[:, :1].clone(), before[:, 1:].reshape(-1, 3, 1).clone()]
    clip_rows(parts, longest)
    after = torch.cat([parts[0], parts[1].flatten(1)], 1).double()
    for own, was in zip(after, before.double(), strict=True):
        norm = float(was.norm())
        factor = min(1.0, longest / norm) if norm else 1.0
        np.testing.assert_allclose(own, was * factor, rtol=1e-6, atol=1e-37)


@pytest.mark.usefixtures("one_thread")
def test_state_starts_from_zero_for_every_client():
    """Training twice in a row with one trainer gives the same weights as two trainers."""
    for rule in (UpdateRule(optimiser=Adam()), UpdateRule(clip=0.1)):
        momentum = 0.9 if rule.is_sgd else 0.0
        trainer = TorchTrainer(make_model, BATCH, momentum, rule=rule)
        received = trainer.model.read()
        first, second = (trained(trainer, received, make_jobs(2)) for _ in range(2))
        assert [w.tobytes() for w in first] == [w.tobytes() for w in second]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: UpdateRule(weight_decay=-0.1), "weight_decay must lie in"),
        (lambda: UpdateRule(weight_decay=math.nan), "weight_decay must lie in"),
        (lambda: UpdateRule(weight_decay=1e30), "in .0, 1,000."),
        (lambda: UpdateRule(clip=0.0), "clip must be above 0"),
        (lambda: UpdateRule(clip=math.inf), "clip must be above 0"),
        (lambda: Adam(betas=(0.9, 1.0)), "betas"),
        (lambda: Adam(betas=(-0.1, 0.9)), "betas"),
        (lambda: AdamW(epsilon=0.0), "epsilon"),
        (lambda: UpdateRule(optimiser=Adam()).check_momentum(0.9), "momentum is that of"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.usefixtures("one_thread")
def test_lanes_say_why_they_do_not_train_with_adam():
    model = FlatModel(make_model())
    wanted = TrainerSettings(SHAPE, BATCH, rule=UpdateRule(optimiser=Adam()))
    assert unsupported_reason(model, wanted) == "they train with sgd, not with Adam."
    assert pick_trainer("auto", model, wanted).name == "torch"
    with pytest.raises(ConfigError, match="not with Adam"):
        pick_trainer("lanes", model, wanted)
    with pytest.raises(FlammaError, match="sgd only"):
        LanesTrainer(make_model(), SHAPE, BATCH, rule=wanted.rule)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_lanes_take_weight_decay_and_clipping():
    wanted = TrainerSettings(SHAPE, BATCH, rule=UpdateRule(0.1, 1.0, Sgd()))
    chosen = pick_trainer("auto", FlatModel(make_model()), wanted)
    assert chosen.name == "lanes"
    assert chosen.rule is wanted.rule


# Schedules of the step size, by hand and by their properties.


def factors(schedule, rounds):
    return [schedule.factor(number, rounds) for number in range(1, rounds + 1)]


def test_factors_by_hand():
    half = math.sqrt(0.5)
    assert factors(SCHEDULES["constant"](), 3) == [1, 1, 1]
    assert factors(SCHEDULES["warm-up"](3), 5) == [0.25, 0.5, 0.75, 1, 1]
    assert factors(SCHEDULES["step"](every=2, ratio=0.1), 6) == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    assert factors(SCHEDULES["cosine"](), 4) == pytest.approx(
        [1, (1 + half) / 2, 0.5, (1 - half) / 2]
    )
    assert factors(SCHEDULES["cosine"](floor=0.5), 2) == pytest.approx([1, 0.75])
    assert factors(SCHEDULES["cosine"](warm_up=1), 3) == pytest.approx([0.5, 1, 0.5])
    assert factors(SCHEDULES["step"](warm_up=1, every=1), 4) == pytest.approx([0.5, 1, 0.5, 0.25])


def test_round_0_is_that_of_round_1():
    """Contributions may be measured before the first round."""
    for name in SCHEDULES:
        schedule = SCHEDULES[name]()
        assert schedule.factor(0, 9) == schedule.factor(1, 9)


@given(st.integers(1, 400), st.integers(0, 450), st.integers(0, 30))
def test_factors_are_above_0_and_at_most_1(rounds, number, warm_up):
    for schedule in (
        SCHEDULES["warm-up"](warm_up),
        SCHEDULES["cosine"](warm_up=warm_up),
        SCHEDULES["step"](warm_up=warm_up, every=7),
    ):
        assert 0 <= schedule.factor(number, rounds) <= 1
        if number <= rounds:
            assert schedule.factor(number, rounds) > 0


@given(st.integers(2, 300), st.floats(0, 1))
def test_cosines_fall(rounds, floor):
    found = factors(SCHEDULES["cosine"](floor=floor), rounds)
    assert found[0] == 1
    assert found == sorted(found, reverse=True)
    assert found[-1] >= floor - 1e-12


@given(st.floats(0, 1))
@example(0.7187149992724479)
def test_the_cosine_is_that_of_the_library_to_a_few_units(turns):
    # Of an angle within an eighth of a turn, so that the library's own error is small.
    if 0.25 < turns < 0.75:
        exact = math.sin(math.pi * (0.5 - turns))
    else:
        exact = math.cos(math.pi * turns) if turns < 0.5 else -math.cos(math.pi * (1 - turns))
    assert cosine_of_half_turns(turns) == pytest.approx(exact, abs=3e-16)


def test_cosines_that_have_a_closed_form():
    """These are √(2 + √2) / 2, (1 + √5) / 4, √(2 - √2) / 2 and the first again."""
    found = [cosine_of_half_turns(turns) for turns in (1 / 8, 1 / 5, 3 / 8, 7 / 8)]
    exact = [0.9238795325112867, 0.8090169943749475, 0.3826834323650898, -0.9238795325112867]
    assert found == pytest.approx(exact, abs=2.3e-16)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SCHEDULES["warm-up"](-1), "warm_up"),
        (lambda: SCHEDULES["cosine"](floor=1.1), "floor"),
        (lambda: SCHEDULES["cosine"](floor=math.nan), "floor"),
        (lambda: SCHEDULES["step"](every=0), "every"),
        (lambda: SCHEDULES["step"](ratio=0.0), "ratio"),
    ],
)
def test_what_cannot_be_is_refused_schedules(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_plan_multiplies_its_learning_rate():
    plan = Plan(4, 1, learning_rate=0.3)
    assert [plan.step_size(number) for number in range(5)] == [0.3] * 5
    falling = Plan(4, 1, learning_rate=0.3, schedule=SCHEDULES["step"](every=2))
    assert [falling.step_size(number) for number in (1, 2, 3, 4)] == [0.3, 0.3, 0.15, 0.15]


def test_a_step_size_is_never_0_since_strategies_divide_by_it():
    plan = Plan(10_000, 1, learning_rate=1.0, schedule=SCHEDULES["step"](every=1, ratio=0.1))
    assert plan.step_size(10_000) == SMALLEST_FACTOR

"""Optimisers, weight decay and clipping, by every trainer that has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from flamma.errors import ConfigError, FlammaError
from flamma.models import FlatModel, build_model
from flamma.training import TrainingJob, batches_of
from flamma.training.config import TrainerSettings, pick_trainer, why_not_lanes
from flamma.training.lanes import LanesTrainer, available, instruction_sets, why_not
from flamma.training.optimisers import Adam, AdamW, Sgd, UpdateRule
from flamma.training.stacked import StackedTrainer
from flamma.training.torch_trainer import TorchTrainer, clip_rows
from flamma.types import LocalTask, TaskVectors

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


@pytest.fixture(autouse=True, scope="module")
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
        jobs.append(TrainingJob(LocalTask(client, 1, **chosen), x, y, fresh(client)))
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


@pytest.mark.parametrize("name", RULES)
def test_every_step_is_that_of_torch_optim(name):
    rule, momentum = RULES[name]
    [job] = make_jobs(1, epochs=4)
    trainer = TorchTrainer(make_model, BATCH, momentum, rule=rule)
    received = trainer.model.read()
    expected = list(by_torch_optim(job, rule, momentum))
    assert len(expected) == 8
    for steps, weights in enumerate(expected, start=1):
        [few] = make_jobs(1, epochs=0, iterations=steps)
        [own] = trained(trainer, received, [few])
        np.testing.assert_allclose(own, weights, rtol=2e-5, atol=2e-6)
    moved = np.abs(expected[-1] - received).max()
    assert moved > 1e-3


@pytest.mark.parametrize("name", RULES)
def test_stacked_clients_train_as_one_after_the_other(name):
    rule, momentum = RULES[name]
    jobs = make_jobs()
    one = TorchTrainer(make_model, BATCH, momentum, rule=rule)
    many = StackedTrainer(make_model, SHAPE, BATCH, momentum, rule=rule)
    received = one.model.read()
    for own, other in zip(trained(many, received, jobs), trained(one, received, jobs), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=2e-5)


@pytest.mark.skipif(not available(), reason=why_not())
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


@pytest.mark.skipif(not available(), reason=why_not())
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_clip_that_is_never_reached_changes_no_bit_in_lanes(momentum):
    module = make_model()
    received = FlatModel(module).read()
    jobs = vector_jobs(received)
    plain = trained(LanesTrainer(module, SHAPE, BATCH, momentum), received, jobs)
    far = UpdateRule(clip=1e30)
    same = trained(LanesTrainer(module, SHAPE, BATCH, momentum, rule=far), received, jobs)
    assert [w.tobytes() for w in same] == [w.tobytes() for w in plain]


@pytest.mark.skipif(not available(), reason=why_not())
def test_a_clipped_step_of_lanes_has_the_length_that_it_may_have():
    module = make_model()
    received = FlatModel(module).read()
    jobs = make_jobs(epochs=0, iterations=1, learning_rate=1.0)
    for own in trained(
        LanesTrainer(module, SHAPE, BATCH, rule=UpdateRule(clip=1e-3)), received, jobs
    ):
        length = np.linalg.norm(own.astype(np.float64) - received)
        assert length == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.skipif(not available(), reason=why_not())
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


def test_state_starts_from_zero_for_every_client():
    """Training twice in a row with one trainer gives the same weights as two trainers."""
    for rule in (UpdateRule(optimiser=Adam()), UpdateRule(clip=0.1)):
        momentum = 0.9 if rule.is_sgd else 0.0
        trainer = TorchTrainer(make_model, BATCH, momentum, rule=rule)
        received = trainer.model.read()
        first, second = (trained(trainer, received, make_jobs(2)) for _ in range(2))
        assert [w.tobytes() for w in first] == [w.tobytes() for w in second]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: UpdateRule(weight_decay=-0.1), "weight_decay must be at least 0"),
        (lambda: UpdateRule(weight_decay=math.nan), "weight_decay must be at least 0"),
        (lambda: UpdateRule(weight_decay=1e30), "at most 1,000"),
        (lambda: UpdateRule(clip=0.0), "clip must be a number above 0"),
        (lambda: UpdateRule(clip=math.inf), "clip must be a number above 0"),
        (lambda: Adam(betas=(0.9, 1.0)), "betas"),
        (lambda: Adam(betas=(-0.1, 0.9)), "betas"),
        (lambda: AdamW(epsilon=0.0), "epsilon"),
        (lambda: UpdateRule(optimiser=Adam()).check_momentum(0.9), "momentum is that of"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_lanes_say_why_they_do_not_train_with_adam():
    model = FlatModel(make_model())
    wanted = TrainerSettings(SHAPE, BATCH, rule=UpdateRule(optimiser=Adam()))
    assert why_not_lanes(model, wanted) == "they train with sgd, not with Adam."
    assert pick_trainer("auto", model, wanted).name == "torch"
    with pytest.raises(ConfigError, match="not with Adam"):
        pick_trainer("lanes", model, wanted)
    with pytest.raises(FlammaError, match="sgd only"):
        LanesTrainer(make_model(), SHAPE, BATCH, rule=wanted.rule)


@pytest.mark.skipif(not available(), reason=why_not())
def test_lanes_take_weight_decay_and_clipping():
    wanted = TrainerSettings(SHAPE, BATCH, rule=UpdateRule(0.1, 1.0, Sgd()))
    chosen = pick_trainer("auto", FlatModel(make_model()), wanted)
    assert chosen.name == "lanes"
    assert chosen.rule is wanted.rule

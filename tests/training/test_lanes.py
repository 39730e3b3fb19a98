"""Many clients in lanes against one after the other with torch."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from flamma.errors import ConfigError, FlammaError
from flamma.models import build_model
from flamma.models.flat import FlatModel
from flamma.models.modules import Block
from flamma.seeding import StreamKey, stream
from flamma.training import (
    TooSlow,
    TorchTrainer,
    Trained,
    TrainingJob,
    batches_of,
    stream_of,
    training_stream,
)
from flamma.training.config import TrainerSettings, pick_trainer
from flamma.training.lanes import (
    LanesTrainer,
    available,
    instruction_sets,
    library,
    unavailable_reason,
)
from flamma.training.lanes import trainer as orders
from flamma.training.lanes.plan import _BARE_CONV, _GROUP_NORM, _RECALL, plan_of
from flamma.types import NO_VECTORS, TaskVectors
from flat_work import on_terms, work

SHAPE = (1, 28, 28)
SETS = instruction_sets() if available() else ()


@pytest.fixture(scope="module")
def one_thread():
    """Keep torch's threads from waiting for each other where other tests run beside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def samples(count, shape=SHAPE, classes=10, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, *shape)).astype(np.float32)
    return x, rng.integers(0, classes, count)


def job(client, count, shape=SHAPE, classes=10, **changes):
    chosen = {"epochs": 1, "learning_rate": 0.05, **changes}
    x, y = samples(count, shape, classes, seed=client)
    return TrainingJob(work(client, 1, **chosen), x, y, np.random.default_rng([7, client]))


def again(jobs):
    """Return the same jobs with fresh streams."""
    return [each._replace(rng=np.random.default_rng([7, each.task.client])) for each in jobs]


def by_torch(module, params, jobs, batch_size, momentum=0.0):
    trainer = TorchTrainer(FlatModel(module), batch_size, momentum)
    return [trainer.train(params, each.x, each.y, each.task, each.rng) for each in again(jobs)]


def initial(module):
    return FlatModel(module).read()


def assert_agree(results, expected, params):
    """Compare weights, and what training changed about them.

    Where rounding decides which pixel of a window is the largest, the gradient of that pixel
    moves, so the changes agree less closely than one step's gradient does.
    """
    for result, (weights, loss) in zip(results, expected, strict=True):
        assert result.error is None
        assert result.loss == pytest.approx(loss, rel=1e-5, nan_ok=True)
        difference = np.linalg.norm(result.params - weights)
        assert difference <= 1e-4 * np.linalg.norm(weights)
        assert difference <= 1e-2 * np.linalg.norm(weights - params)


def agree_on(name, jobs, shape=SHAPE, classes=10, batch_size=32, momentum=0.0):
    module = build_model(name, shape, classes, seed=1)
    params = initial(module)
    expected = by_torch(module, params, jobs, batch_size, momentum)
    other = build_model(name, shape, classes, seed=2)
    trainer = LanesTrainer(other, shape, batch_size, momentum)
    assert_agree(trainer.train_many(params, again(jobs)), expected, params)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_lenet5_after_an_epoch_is_that_of_torch():
    agree_on("lenet5", [job(client, 160) for client in range(8)])


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["lenet5", "mlp", "logistic"])
def test_clients_may_differ_in_everything(name):
    jobs = [
        job(0, 70, epochs=2, learning_rate=0.01),
        job(1, 33, epochs=3, learning_rate=0.1, proximal=0.5),
        job(2, 1, epochs=2, report_loss="received"),
        job(3, 64, epochs=1, proximal=2.0, report_loss="received"),
        job(4, 50, epochs=9, batches=3),
        job(5, 10, epochs=1, batches=5),
        job(6, 31),
        job(7, 45, epochs=0, batches=1, report_loss="received"),
        job(8, 20, epochs=0, report_loss="received"),
        job(9, 40, batches=0),
        *(job(client, 5 * client) for client in range(10, 20)),
    ]
    agree_on(name, jobs, momentum=0.9)
    agree_on(name, jobs)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_mini_batches_of_one_sample_of_one_client(momentum):
    agree_on("lenet5", [job(0, 6, epochs=2)], batch_size=1, momentum=momentum)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("shape", [(3, 13, 17), (2, 12, 31), (1, 15, 12)])
def test_odd_images(shape):
    jobs = [job(client, 9 + client, shape, 7) for client in range(3)]
    agree_on("lenet5", jobs, shape, 7, batch_size=4)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_one_class_leaves_the_weights_alone():
    jobs = [job(client, 12, classes=1, report_loss="received") for client in range(2)]
    params = initial(build_model("lenet5", SHAPE, 1, seed=1))
    trainer = LanesTrainer(build_model("lenet5", SHAPE, 1, seed=1), SHAPE, 5)
    for result in trainer.train_many(params, jobs):
        assert result.loss == 0
        np.testing.assert_array_equal(result.params, params)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_a_mini_batch_larger_than_the_data():
    agree_on("mlp", [job(client, 3 + client, (20,)) for client in range(5)], (20,), batch_size=300)


def make_trainer(momentum=0.9, **options):
    return LanesTrainer(build_model("lenet5", SHAPE, 10, seed=1), SHAPE, 16, momentum, **options)


def mixed_jobs():
    return [
        job(k, 7 + 11 * (k % 5), epochs=1 + k % 3, learning_rate=0.02 * (1 + k), proximal=0.1 * k)
        for k in range(19)
    ]


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_a_result_is_the_same_bits_in_any_seat_beside_any_neighbours():
    def train(jobs, **options):
        return make_trainer().train_many(params, again(jobs), **options)

    params, jobs = initial(build_model("lenet5", SHAPE, 10, seed=1)), mixed_jobs()
    together, backwards = train(jobs), train(jobs[::-1])[::-1]
    stepwise = train(jobs, time_limit=1e6)
    halves = [result for part in (jobs[:7], jobs[7:]) for result in train(part)]
    for number, each in enumerate(together):
        for other in (backwards, stepwise, halves):
            np.testing.assert_array_equal(each.params, other[number].params)
    for number in (0, 3, 18):
        [alone] = train(jobs[number : number + 1])
        np.testing.assert_array_equal(alone.params, together[number].params)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_a_trainer_forgets_the_clients_before():
    params, jobs = initial(build_model("lenet5", SHAPE, 10, seed=1)), mixed_jobs()[:5]
    trainer = make_trainer()
    first = trainer.train_many(params, again(jobs))
    trainer.train_many(first[0].params, mixed_jobs())
    for before, after in zip(first, trainer.train_many(params, again(jobs)), strict=True):
        np.testing.assert_array_equal(before.params, after.params)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_a_client_that_diverges_harms_nobody():
    params, jobs = initial(build_model("lenet5", SHAPE, 10, seed=1)), mixed_jobs()[:8]
    wild = job(99, 50, epochs=3, learning_rate=1e12)
    calm = make_trainer().train_many(params, again(jobs))
    *beside, diverged = make_trainer().train_many(params, again([*jobs, wild]))
    assert not np.isfinite(diverged.params).all()
    for one, other in zip(calm, beside, strict=True):
        np.testing.assert_array_equal(one.params, other.params)
    losses, right = make_trainer().predict(diverged.params, wild.x, wild.y)
    assert np.isnan(losses).any()
    assert not right[np.isnan(losses)].any()


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_clients_that_cannot_train_are_reported_and_the_others_trained():
    params = initial(build_model("lenet5", SHAPE, 10, seed=1))
    small = job(3, 5)
    jobs = [
        job(0, 0),
        small,
        small._replace(y=small.y + 10),
        small._replace(x=small.x[:, :, 1:]),
        small._replace(x=small.x[1:]),
    ]
    empty, trained, labels, shape, count = make_trainer().train_many(params, jobs)
    assert "no training data" in str(empty.error)
    assert "labels" in str(labels.error)
    assert trained.error is None
    for failed in (empty, labels, shape, count):
        assert failed.params is None
        assert isinstance(failed.error, FlammaError)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_late_clients():
    params = initial(build_model("lenet5", SHAPE, 10, seed=1))
    jobs = [job(0, 20, epochs=10**6, report_loss="received"), job(1, 16)]
    late, early = make_trainer().train_many(params, jobs, time_limit=1.0)
    assert late.seconds >= 1.0
    assert isinstance(late.error, TooSlow)
    assert late.params is None
    assert early.error is None


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_results_come_when_they_are_done():
    params = initial(build_model("lenet5", SHAPE, 10, seed=1))
    long = job(0, 64, epochs=10**6)
    results = make_trainer().train_each(params, [long, job(1, 8), job(2, 8)], time_limit=2.0)
    number, result = next(results)
    assert number in ((1, 2) if make_trainer().width > 1 else (0,))
    assert isinstance(result, Trained)
    assert {other for other, _ in results} | {number} == {0, 1, 2}


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_no_jobs():
    assert make_trainer().train_many(initial(build_model("lenet5", SHAPE, 10, seed=1)), []) == []


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 300])
def test_predictions_are_those_of_torch(count):
    module = build_model("lenet5", SHAPE, 10, seed=1)
    x, y = samples(count, seed=3)
    params = initial(module)
    losses, right = make_trainer().predict(params, x, y)
    expected, correct = TorchTrainer(FlatModel(module), 32).predict(params, x, y)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(right, correct)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_a_prediction_does_not_depend_on_the_samples_beside():
    x, y = samples(50)
    params = initial(build_model("lenet5", SHAPE, 10, seed=1))
    losses, _ = make_trainer().predict(params, x, y)
    some, _ = make_trainer().predict(params, x[13:31], y[13:31])
    np.testing.assert_array_equal(losses[13:31], some)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["lenet5", "mlp", "logistic"])
def test_all_instruction_sets_give_the_same_bits(name, momentum):
    module = build_model(name, SHAPE, 10, seed=1)
    params = initial(module)
    jobs = [
        each._replace(task=on_terms(each.task, report_loss="received")) for each in mixed_jobs()[:9]
    ]
    first, *others = (
        LanesTrainer(module, SHAPE, 16, momentum, instructions=instructions)
        for instructions in SETS
    )
    expected = first.train_many(params, again(jobs))
    x, y = samples(40)
    for other in others:
        for one, two in zip(expected, other.train_many(params, again(jobs)), strict=True):
            assert one.params.tobytes() == two.params.tobytes()
            assert one.loss == two.loss
        for one, two in zip(first.predict(params, x, y), other.predict(params, x, y), strict=True):
            assert one.tobytes() == two.tobytes()


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_a_fading_velocity_does_not_end_in_numbers_that_processors_treat_differently():
    module = nn.Sequential(nn.Linear(4, 3))
    params = initial(module)
    x, y = np.zeros((64, 4), np.float32), np.zeros(64, np.int64)
    x[0] = 1e-20  # its gradient fades from step to step
    one = TrainingJob(work(0, 1, epochs=60, learning_rate=1.0), x, y, np.random.default_rng(0))
    results = [
        LanesTrainer(module, (4,), 8, 0.5, instructions=name).train_many(params, again([one]))[0]
        for name in SETS
    ]
    assert len({result.params.tobytes() for result in results}) == 1


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_the_environment_names_an_instruction_set(monkeypatch):
    for name in SETS:
        monkeypatch.setenv("FLAMMA_LANES", name)
        assert make_trainer().instructions == name
    monkeypatch.setenv("FLAMMA_LANES", "mmx")
    with pytest.raises(FlammaError, match=r"FLAMMA_LANES is 'mmx'.*portable"):
        make_trainer()


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_a_long_training_is_drawn_in_pieces(monkeypatch):
    params = initial(build_model("lenet5", SHAPE, 10, seed=1))
    jobs = [job(0, 20, epochs=7), job(1, 9, batches=11), job(2, 33, epochs=2)]
    whole = make_trainer().train_many(params, again(jobs))
    monkeypatch.setattr("flamma.training.lanes.trainer._ORDER_PIECE", 25)
    for one, two in zip(whole, make_trainer().train_many(params, again(jobs)), strict=True):
        assert one.params.tobytes() == two.params.tobytes()


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_a_model_that_cannot_is_refused_with_the_reason():
    with pytest.raises(FlammaError, match="Dropout is not supported"):
        LanesTrainer(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), (3,), 4)
    with pytest.raises(FlammaError, match="61706 numbers"):
        make_trainer().predict(np.zeros(5, np.float32), *samples(2))


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
def test_it_says_why_it_is_not_available(monkeypatch):
    library.library.cache_clear()
    monkeypatch.setattr(library, "EXTENSION_SUFFIXES", [".nothing"])
    try:
        assert not available()
        assert "compiler" in unavailable_reason()
    finally:
        library.library.cache_clear()


def fastest(*calls, repeats=6):
    """Return the least seconds of each call, taken in turn so that all meet the same machine."""
    least = [math.inf] * len(calls)
    for _ in range(repeats):
        for place, call in enumerate(calls):
            start = time.perf_counter()
            call()
            least[place] = min(least[place], time.perf_counter() - start)
    return least


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.usefixtures("one_thread")
@pytest.mark.slow  # it measures time
@pytest.mark.skipif(len(SETS) == 1, reason="only with AVX2 or wider")
@pytest.mark.parametrize("clients", [1, 8])
def test_lanes_train_at_least_twice_as_fast_as_torch(clients):
    module = build_model("lenet5", SHAPE, 10, seed=1)
    one, many = TorchTrainer(FlatModel(module), 32), LanesTrainer(module, SHAPE, 32)
    params, jobs = initial(module), [job(client, 128) for client in range(clients)]
    alone, together = fastest(
        lambda: [one.train(params, each.x, each.y, each.task, each.rng) for each in jobs],
        lambda: many.train_many(params, jobs),
    )
    assert alone >= 2 * together


# Layers in lanes against autograd in double precision, and which models are refused.

needs_kernels = pytest.mark.skipif(not available(), reason=unavailable_reason())


@st.composite
def nets(draw):
    """Draw a net, the shape of its samples, and its number of classes."""
    size = st.integers(3, 13)
    shape = (draw(st.integers(1, 4)), draw(size), draw(size))
    channels, height, width = shape
    layers = []

    def activation():
        layers.extend(draw(st.sampled_from([[], [nn.ReLU()], [nn.Tanh()]])))

    for _ in range(draw(st.integers(0, 3))):
        kh = draw(st.integers(1, min(7, height)))
        kw = draw(st.integers(1, min(7, width)))
        ph, pw = draw(st.integers(0, min(2, kh - 1))), draw(st.integers(0, min(2, kw - 1)))
        out = draw(st.integers(1, 7))
        layers.append(nn.Conv2d(channels, out, (kh, kw), padding=(ph, pw)))
        channels, height, width = out, height + 2 * ph - kh + 1, width + 2 * pw - kw + 1
        activation()
        if draw(st.booleans()):
            kernel = draw(st.integers(1, min(3, height))), draw(st.integers(1, min(3, width)))
            stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
            if draw(st.booleans()) and min(height, width) >= 2:
                kernel = stride = (2, 2)
            layers.append(draw(st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]))(kernel, stride))
            height, width = (
                (length - taps) // step + 1
                for length, taps, step in zip((height, width), kernel, stride, strict=True)
            )
    layers.append(nn.Flatten())
    features = channels * height * width
    for _ in range(draw(st.integers(0, 2))):
        hidden = draw(st.integers(1, 14))
        layers.append(nn.Linear(features, hidden))
        features = hidden
        activation()
    classes = draw(st.integers(1, 9))
    layers.append(nn.Linear(features, classes))
    return nn.Sequential(*layers), shape, classes


def gradient(module, x, y):
    """Return the flat gradient in double precision."""
    module = copy.deepcopy(module).double()
    cross_entropy(module(torch.from_numpy(x).double()), torch.from_numpy(y)).backward()
    return np.concatenate([each.grad.numpy().ravel() for each in module.parameters()])


def check(module, shape, classes, sizes, seed, tolerance=5e-6, **options):
    """Compare one step of size 1 of some clients with autograd, and return their weights."""
    torch.manual_seed(seed)
    for each in module.modules():
        if isinstance(each, nn.Conv2d | nn.Linear):
            each.reset_parameters()
        elif isinstance(each, nn.GroupNorm):
            nn.init.normal_(each.weight, 1.0, 0.3)
            nn.init.normal_(each.bias, 0.0, 0.3)
    rng = np.random.default_rng(seed)
    params = FlatModel(copy.deepcopy(module)).read()
    trainer = LanesTrainer(module, shape, batch_size=max(sizes), **options)
    jobs = []
    for client, size in enumerate(sizes):
        x = rng.standard_normal((size, *shape)).astype(np.float32)
        task = work(client, 1, epochs=1, learning_rate=1.0)
        jobs.append(TrainingJob(task, x, rng.integers(0, classes, size), rng))
    results = trainer.train_many(params, jobs)
    for job, result in zip(jobs, results, strict=True):
        expected = gradient(module, job.x, job.y)
        scale = np.abs(expected).max() + np.abs(params).max()
        np.testing.assert_allclose(params - result.params, expected, atol=tolerance * scale)
    return b"".join(result.params.tobytes() for result in results)


@pytest.mark.usefixtures("one_thread")
@needs_kernels
@settings(max_examples=300)
@given(
    nets(),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 2**31),
)
def test_gradients_are_those_of_autograd(net, sizes, seed):
    check(*net, sizes, seed)


@pytest.mark.usefixtures("one_thread")
@needs_kernels
@settings(max_examples=100)
@given(
    nets(),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
def test_every_layer_has_the_same_bits_with_every_instruction_set(net, sizes, seed):
    assert len({check(*net, sizes, seed, instructions=name) for name in SETS}) == 1


@pytest.mark.usefixtures("one_thread")
@needs_kernels
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("channels", [1, 3, 8])
def test_wide_convolutions(kernel, channels):
    second = nn.Conv2d(channels, 11, kernel, padding=kernel // 2)
    last = nn.Linear(11 * (20 + 2 * (kernel // 2) - kernel + 1) ** 2, 4)
    net = nn.Sequential(nn.Conv2d(2, channels, 1), nn.Tanh(), second, nn.Flatten(), last)
    check(net, (2, 20, 20), 4, [2, 3], seed=0)


@pytest.mark.usefixtures("one_thread")
@needs_kernels
def test_many_features_and_many_channels():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(700, 130), nn.Tanh(), nn.Linear(130, 3))
    check(linear, (7, 10, 10), 3, [40, 3], seed=0)
    deep = nn.Sequential(nn.Conv2d(40, 30, 5), nn.Tanh(), nn.Conv2d(30, 2, 5), nn.Flatten())
    check(deep, (40, 9, 9), 2, [2], seed=0)


@pytest.mark.usefixtures("one_thread")
@needs_kernels
def test_saturated_activations():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    x = np.linspace(-300, 300, 40, dtype=np.float32).reshape(10, 4)
    params = FlatModel(copy.deepcopy(net)).read()
    trainer = LanesTrainer(net, (4,), 16)
    y = np.zeros(10, np.int64)
    losses, _ = trainer.predict(params, x, y)
    expected = cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y), reduction="none")
    np.testing.assert_allclose(losses, expected.detach().numpy(), rtol=1e-5)
    job = TrainingJob(work(0, 1, epochs=1, learning_rate=1.0), x, y, np.random.default_rng(0))
    [result] = trainer.train_many(params, [job])
    np.testing.assert_allclose(params - result.params, gradient(net, x, y), rtol=1e-4, atol=1e-5)


def hooked():
    layer = nn.Linear(4, 2)
    layer.register_forward_hook(lambda *_: None)
    return layer


def frozen():
    layer = nn.Linear(4, 2)
    layer.bias.requires_grad = False
    return layer


SHARED = nn.Linear(4, 4)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("layers", "shape", "reason"),
    [
        ([nn.Linear(4, 2, bias=False)], (4,), "Linear without bias"),
        ([nn.Linear(4, 2)], (3, 4), "needs 4 features"),
        ([nn.Linear(4, 2), nn.Dropout()], (4,), "Dropout is not supported"),
        ([nn.Linear(4, 2), nn.BatchNorm1d(2)], (4,), "BatchNorm1d is not supported"),
        ([nn.Flatten()], (4,), "nothing to train"),
        ([hooked()], (4,), "hooks"),
        ([frozen()], (4,), "frozen"),
        ([SHARED, SHARED], (4,), "shared"),
        ([nn.Linear(4, 2), nn.Tanh(), nn.Tanh()], (4,), "two activations"),
        ([nn.Flatten(0), nn.Linear(4, 2)], (4,), "Flatten of some"),
        ([nn.Conv2d(1, 1, 3, stride=2), nn.Flatten()], (1, 5, 5), "bias and stride"),
        ([nn.GroupNorm(1, 2, affine=False), nn.Flatten()], (2, 5, 5), "GroupNorm without weights"),
        ([nn.GroupNorm(1, 2)], (3, 5, 5), "needs 2 channels"),
        ([nn.GroupNorm(1, 4), nn.Linear(4, 2)], (4,), "needs 4 channels"),
        ([nn.GroupNorm(1, 2, eps=0.0), nn.Flatten()], (2, 5, 5), "eps=0"),
        ([nn.GroupNorm(1, 2), nn.ReLU(), nn.ReLU()], (2, 5, 5), "two activations"),
        ([nn.BatchNorm2d(2)], (2, 5, 5), "BatchNorm2d is not supported"),
        ([nn.AdaptiveAvgPool2d(2)], (2, 5, 5), "more than one pixel"),
        ([Block(2, 2, 1, partial(nn.GroupNorm, 1))], (2, 5, 5), "residual block"),
        ([Block(2, 3, 1, nn.BatchNorm2d)], (2, 5, 5), "BatchNorm2d is not supported"),
        ([nn.Conv2d(1, 1, 3, dilation=2), nn.Flatten()], (1, 5, 5), "dilation"),
        ([nn.Conv2d(2, 2, 3, groups=2), nn.Flatten()], (2, 5, 5), "groups"),
        ([nn.Conv2d(1, 1, 3, padding="same"), nn.Flatten()], (1, 5, 5), "padding='same'"),
        ([nn.Conv2d(1, 1, 3, padding=3), nn.Flatten()], (1, 5, 5), "as wide as"),
        ([nn.Conv2d(1, 1, 3, 1, 1, padding_mode="reflect")], (1, 5, 5), "padding_mode"),
        ([nn.Conv2d(1, 1, 6), nn.Flatten()], (1, 5, 5), "smaller than the kernel"),
        ([nn.Conv2d(1, 1, 3)], (1, 5, 5), "one number per class"),
        ([nn.Conv2d(1, 1, 3)], (2, 5, 5), "needs 1 channels"),
        ([nn.MaxPool2d(2, ceil_mode=True), nn.Flatten()], (1, 5, 5), "ceil_mode"),
        ([nn.MaxPool2d(2, padding=1), nn.Flatten()], (1, 5, 5), "padding"),
        ([nn.MaxPool2d(2, dilation=2), nn.Flatten()], (1, 5, 5), "dilation"),
        ([nn.MaxPool2d(2, return_indices=True)], (1, 5, 5), "return_indices"),
        ([nn.MaxPool2d(6), nn.Flatten()], (1, 5, 5), "smaller than the window"),
        ([nn.AvgPool2d(2, divisor_override=3), nn.Flatten()], (1, 5, 5), "divisor_override"),
        ([nn.AvgPool2d(2)], (4,), "needs images"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused(layers, shape, reason):
    plan, why = plan_of(nn.Sequential(*layers), shape)
    assert plan is None
    assert reason in why


@pytest.mark.usefixtures("one_thread")
def test_only_plain_sequences_are_taken():
    assert plan_of(nn.Linear(4, 2), (4,)) == (None, "only Sequential is supported, not Linear")
    nested = nn.Sequential(nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    assert plan_of(nested, (2, 2))[0].tolist() == [4, 1, 1, 2, 1, 6, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.usefixtures("one_thread")
@needs_kernels
@pytest.mark.parametrize("name", ["lenet5", "mlp", "logistic", "resnet18"])
def test_the_models_of_the_package_are_taken(name):
    shape = (3, 32, 32)
    module = build_model(name, shape, 10, seed=0)
    assert LanesTrainer(module, shape, 8).size == FlatModel(module).layout.size
    assert math.prod(shape) == 3072


# The kernels shuffle clients' samples with the bits of numpy's generators.

SHAPE_ORDERS = (6,)
WORDS = st.integers(0, 2**32 - 1)


def trained_with(rngs, **task):
    """Return the bits of clients of 20, 21, ... samples that are shuffled by the given streams."""
    model = build_model("logistic", SHAPE_ORDERS, 3, seed=1)
    data = np.random.default_rng(5)
    jobs = [
        TrainingJob(
            work(client, 1, learning_rate=0.1, **({"epochs": 3} | task)),
            data.standard_normal((20 + client, *SHAPE_ORDERS)).astype(np.float32),
            data.integers(0, 3, 20 + client),
            rng,
        )
        for client, rng in enumerate(rngs)
    ]
    params = FlatModel(model).read()
    return [
        t.params.tobytes() for t in LanesTrainer(model, SHAPE_ORDERS, 8).train_many(params, jobs)
    ]


@pytest.mark.skipif(not available(), reason="the kernels are not compiled")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.tuples(WORDS, WORDS, WORDS, WORDS), st.integers(0, 70), st.integers(0, 4)),
        min_size=1,
        max_size=5,
    )
)
def test_orders_of_any_key_are_those_of_numpy(clients):
    keys = [StreamKey(*words) for words, _, _ in clients]
    samples, epochs = (np.array([c[k] for c in clients], dtype=np.int64) for k in (1, 2))
    expected = [
        rng.permutation(size)
        for rng, size, count in zip([k.generator() for k in keys], samples, epochs, strict=True)
        for _ in range(count)
    ]
    drawn = orders._drawn_orders(keys, samples, epochs)
    assert drawn.tolist() == [int(n) for order in expected for n in order]


@pytest.mark.skipif(not available(), reason="the kernels are not compiled")
def test_a_key_makes_the_stream_of_its_purpose_round_and_client():
    key = StreamKey.of(7, "train", 3, 12)
    assert key.generator().random() == stream(7, "train", 3, 12).random()
    assert not StreamKey.of(2**40, "train").is_short


@pytest.mark.skipif(not available(), reason="the kernels are not compiled")
@pytest.mark.parametrize("task", [{}, {"epochs": 0}, {"batches": 4}, {"batches": 7}])
def test_a_key_shuffles_as_its_stream_does(task):
    keys = [StreamKey.of(7, "train", 1, client) for client in range(5)]
    assert orders._agree_with_numpy()
    assert trained_with(keys, **task) == trained_with([k.generator() for k in keys], **task)


@pytest.mark.skipif(not available(), reason="the kernels are not compiled")
def test_clients_with_vectors_and_those_that_evaluate_are_given_by_keys_too():
    model, rng = build_model("logistic", SHAPE_ORDERS, 3, seed=1), np.random.default_rng(5)
    params = FlatModel(model).read()
    own = TaskVectors(start=2 * params, correction=np.full_like(params, 0.01))
    tasks = [
        (work(0, 1, 2, learning_rate=0.1), NO_VECTORS),
        (work(1, 1, 0, learning_rate=0.1, train=False), NO_VECTORS),
        (work(2, 1, 2, learning_rate=0.1, report_loss="trained"), own),
        (work(2, 1, 2, learning_rate=0.1, personal=True), own),
    ]
    x, y = rng.standard_normal((20, *SHAPE_ORDERS)).astype(np.float32), rng.integers(0, 3, 20)
    by_key = [TrainingJob(t, x, y, training_stream(7, t), vectors) for t, vectors in tasks]
    by_stream = [job._replace(rng=stream_of(job)) for job in by_key]
    trainer = LanesTrainer(model, SHAPE_ORDERS, 8)
    results = [trainer.train_many(params, jobs) for jobs in (by_key, by_stream)]
    weights, expected = ([t.params.tobytes() for t in each] for each in results)
    assert weights == expected
    assert [t.loss for t in results[0][1:3]] == [t.loss for t in results[1][1:3]]
    assert weights[1] == params.tobytes()
    assert len(set(weights)) == 4


@pytest.mark.skipif(not available(), reason="the kernels are not compiled")
def test_the_own_training_of_a_client_has_mini_batches_of_its_own():
    task = work(12, 3, 1, learning_rate=0.1)
    keys = [training_stream(7, task), training_stream(7, replace(task, personal=True))]
    expected = [stream(7, "train", 3, 12).random(), stream(7, "train-own", 3, 12).random()]
    assert [key.generator().random() for key in keys] == expected


@pytest.mark.skipif(not available(), reason="the kernels are not compiled")
def test_without_agreement_numpy_draws(monkeypatch):
    keys = [StreamKey.of(2**40, "train"), *(StreamKey.of(7, "train", 1, c) for c in range(3))]
    drawn = trained_with(keys)
    monkeypatch.setattr(orders, "_agree_with_numpy", lambda: False)
    monkeypatch.setattr(orders, "_drawn_orders", None)
    assert trained_with(keys) == drawn


@pytest.mark.skipif(not available(), reason="the kernels are not compiled")
def test_other_trainers_take_keys():
    key, task = StreamKey.of(7, "train"), work(0, 1, epochs=2, learning_rate=0.1)
    x, y = np.zeros((9, *SHAPE_ORDERS), np.float32), np.zeros(9, np.int64)
    by_key = [b.tolist() for b in batches_of(TrainingJob(task, x, y, key), 4)]
    by_stream = [b.tolist() for b in batches_of(TrainingJob(task, x, y, key.generator()), 4)]
    assert by_key == by_stream
    assert sorted(n for batch in by_key[:3] for n in batch) == list(range(9))


@pytest.mark.skipif(not available(), reason="the kernels are not compiled")
def test_the_kernels_refuse_orders_that_do_not_fit():
    with pytest.raises(FlammaError, match="out of its range"):
        orders._drawn_orders([StreamKey(1, 2, 3, 4)], np.array([2**31]), np.array([0]))


# Residual networks in lanes: their layers, whole ones against torch, and their bits.

TOLERANCE = 3e-5
"""Of a gradient. Tiles of 4x4 have ten times the rounding errors of a sum of products (Lavin and
Gray, 2016), and a norm divides them by the deviation of its group."""
SHAPE_LANES_RESIDUAL = (3, 18, 17)
"""Odd maps: 18x17, 9x9, 5x5 and 3x3, so that tiles reach beyond all of them."""


def bare(inputs, outputs, kernel=3, stride=1, padding=1):
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)


@st.composite
def residual_nets(draw):
    """Draw a net, the shape of its samples, and its number of classes."""
    shape = channels, height, width = draw(st.integers(1, 4)), *draw(st.tuples(*[SIZES] * 2))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        outputs = draw(st.sampled_from([2, 4, 8, 10]))
        kernel = draw(st.sampled_from([1, 3, 3, 3, 5]))
        stride = draw(st.integers(1, 2))
        norm = partial(nn.GroupNorm, draw(st.sampled_from([1, 2])))
        kind = draw(st.sampled_from(["bare", "norm", "block"]))
        if kind == "block" and layers:
            layers.append(Block(channels, outputs, stride, norm))
        else:
            layers.append(bare(channels, outputs, kernel, stride, kernel // 2))
            layers += [norm(outputs)] if kind == "norm" else []
            layers += draw(st.sampled_from([[], [nn.ReLU()], [nn.Tanh()]]))
        channels, height, width = outputs, -(-height // stride), -(-width // stride)
    if draw(st.booleans()):
        layers.append(nn.AdaptiveAvgPool2d(1))
        height = width = 1
    classes = draw(st.integers(1, 9))
    layers += [nn.Flatten(), nn.Linear(channels * height * width, classes)]
    return nn.Sequential(*layers), shape, classes


# Eight pixels at least are left for a norm: the deviation of fewer may be almost zero.
SIZES = st.sampled_from([8, 9, 10, 11, 13, 16])


# The same examples always: now and then a random one has a ReLU about which rounding decides.
@pytest.mark.skipif(not available(), reason=unavailable_reason())
@settings(max_examples=40, derandomize=True)
@given(residual_nets(), st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(0, 2**31))
def test_gradients_are_those_of_autograd_with_every_instruction_set(net, sizes, seed):
    bits = {check(*net, sizes, seed, TOLERANCE, instructions=name) for name in SETS}
    assert len(bits) == 1


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 8])
def test_maps_of_every_method(side):
    net = nn.Sequential(bare(3, 9, 1, 1, 0), nn.ReLU(), bare(9, 17), nn.Tanh(), bare(17, 2, 2, 1))
    net.append(nn.Sequential(nn.Flatten(), nn.Linear(2 * (side + 1) ** 2, 4)))
    bits = {check(net, (3, side, side), 4, [3, 35], 0, TOLERANCE, instructions=s) for s in SETS}
    assert len(bits) == 1


def small():
    """Return a ResNet-18 with 8 to 64 channels."""
    return build_model("resnet18", SHAPE_LANES_RESIDUAL, 5, seed=1, width=0.125, groups=4)


def jobs_of_all_kinds():
    """Return clients whose mini-batches fill the lanes, fill some rows, and fill not even one.

    None of them has a sample for which rounding decides about a ReLU (one has where a ReLU's input
    is 5e-7): its gradient would come or go, and the next steps would multiply the difference.
    """
    return [
        job(0, 21, SHAPE_LANES_RESIDUAL, 5, epochs=2),
        job(1, 3, SHAPE_LANES_RESIDUAL, 5, epochs=2, proximal=0.5),
        job(5, 40, SHAPE_LANES_RESIDUAL, 5, report_loss="received"),
        job(3, 16, SHAPE_LANES_RESIDUAL, 5, learning_rate=0.01, report_loss="received"),
        job(4, 1, SHAPE_LANES_RESIDUAL, 5),
    ]


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_small_resnet_after_some_steps_is_that_of_torch(momentum):
    module, jobs = small(), jobs_of_all_kinds()
    params = initial(module)
    trained = LanesTrainer(module, SHAPE_LANES_RESIDUAL, 18, momentum).train_many(
        params, again(jobs)
    )
    expected = by_torch(module, params, jobs, 18, momentum)
    for mine, (weights, loss) in zip(trained, expected, strict=True):
        assert mine.loss == pytest.approx(loss, rel=1e-5, nan_ok=True)
        # 3e-6 as a rule, 17e-6 where the change is so small that the weights' own rounding shows.
        difference = np.linalg.norm(mine.params - weights)
        assert difference <= 1e-4 * np.linalg.norm(weights - params)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_a_resnet_has_the_same_bits_beside_any_clients_and_with_every_instruction_set():
    module, jobs = small(), jobs_of_all_kinds()
    params = initial(module)
    correction = np.random.default_rng(0).standard_normal(params.size).astype(np.float32)
    jobs[2] = jobs[2]._replace(vectors=TaskVectors(correction=0.01 * correction))
    seen = set()
    for instructions in SETS:
        trainer = LanesTrainer(module, SHAPE_LANES_RESIDUAL, 18, 0.9, instructions)
        together = trainer.train_many(params, again(jobs))
        seen.add(b"".join(each.params.tobytes() for each in together))
        if instructions == SETS[-1]:
            alone = [trainer.train_many(params, again([one]))[0] for one in jobs]
            seen.add(b"".join(each.params.tobytes() for each in alone))
            assert [one.loss for one in alone] == pytest.approx(
                [one.loss for one in together], rel=0, abs=0, nan_ok=True
            )
    assert len(seen) == 1


@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_auto_takes_lanes_for_group_norm_and_torch_for_batch_norm():
    wanted = TrainerSettings(SHAPE_LANES_RESIDUAL, 8)
    assert pick_trainer("auto", FlatModel(small()), wanted).name == "lanes"
    other = FlatModel(
        build_model("resnet18", SHAPE_LANES_RESIDUAL, 5, seed=1, width=0.125, norm="batch")
    )
    assert pick_trainer("auto", other, wanted).name == "torch"
    with pytest.raises(ConfigError, match="BatchNorm2d is not supported"):
        pick_trainer("lanes", other, wanted)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_scores_do_not_depend_on_how_many_are_scored():
    module = small()
    params, trainer = initial(module), LanesTrainer(module, SHAPE_LANES_RESIDUAL, 8)
    x, y = job(0, 37, SHAPE_LANES_RESIDUAL, 5)[1:3]
    losses, right = trainer.predict(params, x, y)
    for part in (slice(0, 1), slice(5, 22), slice(30, 37)):
        own = trainer.predict(params, x[part], y[part])
        np.testing.assert_array_equal(own[0], losses[part])
        np.testing.assert_array_equal(own[1], right[part])


@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_the_plan_of_a_block_joins_its_shortcut():
    norm = partial(nn.GroupNorm, 2)
    blocks = [Block(4, 4, 1, norm), Block(4, 6, 2, norm)]
    plan, _ = plan_of(nn.Sequential(bare(3, 4), *blocks, nn.Flatten(), nn.Linear(24, 2)), (3, 4, 4))
    words = plan[5:].reshape(-1, 8).tolist()
    one_e_minus_five = 925353388  # the bits of epsilon
    assert words[1] == [_BARE_CONV, 4, 3, 3, 1, 1, 1, 1]
    assert words[2] == [_GROUP_NORM, 2, one_e_minus_five, 1, 0, 0, 0, 0]
    assert words[4][3:5] == [1, 1]  # adds what the first convolution has made
    assert words[9][:2] == [_RECALL, 5]
    assert words[10] == [_BARE_CONV, 6, 1, 1, 0, 0, 2, 2]
    assert words[11][3:5] == [1, 9]  # adds the other path, which has no ReLU
    assert words[8][3:5] == [0, 0]


# Sizes, tasks and plans that no trainer can use: a sentence each, never a crash.


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.parametrize("make", [LanesTrainer, TorchTrainer])
@pytest.mark.parametrize("batch_size", [-(2**63), 0, 2**63, 2**64 + 1, 10**400])
def test_a_batch_size_that_cannot_be_counted_is_refused(make, batch_size):
    module = build_model("logistic", (4,), 3, seed=1)
    arguments = (module, (4,)) if make is LanesTrainer else (FlatModel(module),)
    with pytest.raises(ConfigError, match=r"^the batch size [^\n]{1,60}$|not -9223372036854775808"):
        make(*arguments, batch_size)


def trainers(batch_size):
    module = build_model("logistic", (4,), 3, seed=1)
    return [LanesTrainer(module, (4,), batch_size), TorchTrainer(FlatModel(module), batch_size)]


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.parametrize("batch_size", [2**31, 2**62, 2**63 - 1])
def test_a_batch_longer_than_the_data_is_the_data(batch_size):
    params = initial(build_model("logistic", (4,), 3, seed=1))
    jobs = [job(0, 9, (4,), 3, epochs=3), job(1, 5, (4,), 3, batches=4, report_loss="received")]
    for one, other in zip(trainers(batch_size), trainers(16), strict=True):
        results, expected = (
            dict(trainer.train_each(params, again(jobs))) for trainer in (one, other)
        )
        for number in range(2):
            assert results[number].params is not None
            assert results[number].loss == pytest.approx(expected[number].loss, nan_ok=True)
            np.testing.assert_allclose(
                results[number].params, expected[number].params, rtol=1e-5, atol=1e-7
            )


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 2**63}, "epochs must be a whole number"),
        ({"epochs": -1}, "epochs must be a whole number"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"batches": 10**400}, "batches must be a whole number"),
        ({"batches": -5}, "batches must be a whole number"),
        ({"learning_rate": 10**400}, "learning rate is too large"),
        ({"proximal": -(10**400)}, "proximal weight is too large"),
        ({"tilt": 10**400}, "tilt of the loss is too large"),
        ({"tilt": math.nan}, "tilt of the loss must be a finite number, not nan"),
        ({"tilt": -math.inf}, "tilt of the loss must be a finite number, not -inf"),
        ({"bound": 10**400}, "bound of the loss is too large"),
        ({"bound": 0.0}, "bound of the loss must be above 0, not 0"),
        ({"bound": math.nan}, "bound of the loss must be above 0, not nan"),
        ({"bound": 2.0, "tilt": 1.0}, "tilted or bounded, not both"),
    ],
)
def test_a_task_that_no_trainer_can_do_is_the_failure_of_its_client(changes, message):
    params = initial(build_model("logistic", (4,), 3, seed=1))
    for trainer in trainers(4):
        jobs = [job(0, 5, (4,), 3), job(1, 5, (4,), 3, **changes), job(2, 0, (4,), 3, batches=2)]
        results = dict(trainer.train_each(params, jobs))
        assert results[0].error is None
        assert isinstance(results[1].error, FlammaError)
        assert message in str(results[1].error)
        assert "no training data" in str(results[2].error)


WEIGHTS = np.zeros(15, np.float32)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (TaskVectors(received=WEIGHTS[1:]), "received weights must be a vector of 15 float32"),
        (TaskVectors(received=WEIGHTS.astype(np.float64)), "received weights must be a vector"),
        (TaskVectors(start=WEIGHTS.reshape(3, 5)), "weights to start from must be a vector of 15"),
        (TaskVectors(start=np.full(15, np.inf, np.float32)), "start from must be finite"),
        (TaskVectors(correction=np.zeros(16, np.float32)), "correction of the gradient must be"),
        (TaskVectors(correction=np.full(15, np.nan, np.float32)), "gradient must be finite"),
    ],
)
def test_vectors_that_do_not_fit_the_model_are_the_failure_of_their_client(vectors, message):
    for trainer in trainers(4):
        jobs = [job(0, 5, (4,), 3), job(1, 5, (4,), 3)._replace(vectors=vectors)]
        results = dict(trainer.train_each(WEIGHTS, jobs))
        assert results[0].error is None
        assert isinstance(results[1].error, FlammaError)
        assert message in str(results[1].error)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_a_correction_is_as_long_as_what_is_trained():
    module = build_model(lambda *_: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), (4,), 3, 1)
    trainer = TorchTrainer(FlatModel(module), 4)
    layout, params = trainer.model.layout, trainer.model.read()
    for size, refused in ((layout.trainable_size, False), (layout.size, True)):
        own = TaskVectors(correction=np.zeros(size, np.float32))
        [(_, trained)] = trainer.train_each(params, [job(0, 8, (4,), 3)._replace(vectors=own)])
        assert (trained.error is not None) == refused


@pytest.mark.skipif(not available(), reason=unavailable_reason())
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (np.zeros(3, np.int64), "a plan is a list of 64-bit whole numbers"),
        (np.array([4.0, 1, 1, 2, 1, 6, 2, 0, 0, 0, 0, 0, 0]), "a plan is a list of 64-bit"),
        (np.array([3, 1, 1, 2, 1, 6, 2, 0, 0, 0, 0, 0, 0]), "not for samples of shape"),
        (np.array([4, 1, 1, 2, 1, 6, -2, 0, 0, 0, 0, 0, 0]), "the plan is not one of a net"),
        (np.array([4, 1, 1, 2, 2, 6, 2, 0, 0, 0, 0, 0, 0]), "the plan is not one of a net"),
        (np.array([4, 1, 1, 2**31 - 1, 1, 6, 2**31 - 1, *[0] * 6]), "more memory than there is"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan, message):
    with pytest.raises(FlammaError, match=message):
        LanesTrainer(plan, (4,), 2)


@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_mini_batches_beyond_the_memory_fail_their_clients_only(monkeypatch):
    module = build_model("mlp", (20,), 3, seed=1, hidden=[64])
    params = initial(module)
    monkeypatch.setattr("flamma.training.lanes.trainer.memory_of_machine", lambda: 2_000_000)
    trainer = LanesTrainer(module, (20,), 10**6)
    large, small = trainer.train_many(params, [job(0, 90_000, (20,), 3), job(1, 50, (20,), 3)])
    assert "more memory than there is" in str(large.error)
    assert small.params is not None


@pytest.mark.skipif(not available(), reason=unavailable_reason())
def test_kernels_of_another_version_are_not_called(monkeypatch):
    library.library.cache_clear()
    monkeypatch.setattr(library, "_INTERFACE", library._INTERFACE + 1)
    try:
        assert "install the package again" in unavailable_reason()
    finally:
        library.library.cache_clear()

"""Many clients in lanes against one after the other with torch."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from flamma.errors import FlammaError
from flamma.models import FlatModel, build_model
from flamma.training import TooSlow, TorchTrainer, Trained, TrainingJob
from flamma.training.lanes import LanesTrainer, available, instruction_sets, library, why_not
from flamma.types import LocalTask

SHAPE = (1, 28, 28)

SETS = instruction_sets() if available() else ()

pytestmark = pytest.mark.skipif(not available(), reason=why_not())


@pytest.fixture(autouse=True, scope="module")
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
    return TrainingJob(LocalTask(client, 1, **chosen), x, y, np.random.default_rng([7, client]))


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


def test_lenet5_after_an_epoch_is_that_of_torch():
    agree_on("lenet5", [job(client, 160) for client in range(8)])


@pytest.mark.parametrize("name", ["lenet5", "mlp", "logistic"])
def test_clients_may_differ_in_everything(name):
    jobs = [
        job(0, 70, epochs=2, learning_rate=0.01),
        job(1, 33, epochs=3, learning_rate=0.1, proximal=0.5),
        job(2, 1, epochs=2, wants_loss=True),
        job(3, 64, epochs=1, proximal=2.0, wants_loss=True),
        job(4, 50, epochs=9, iterations=3),
        job(5, 10, epochs=1, iterations=5),
        job(6, 31),
        job(7, 45, epochs=0, iterations=1, wants_loss=True),
        job(8, 20, epochs=0, wants_loss=True),
        job(9, 40, iterations=0),
        *(job(client, 5 * client) for client in range(10, 20)),
    ]
    agree_on(name, jobs, momentum=0.9)
    agree_on(name, jobs)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_mini_batches_of_one_sample_of_one_client(momentum):
    agree_on("lenet5", [job(0, 6, epochs=2)], batch_size=1, momentum=momentum)


@pytest.mark.parametrize("shape", [(3, 13, 17), (2, 12, 31), (1, 15, 12)])
def test_odd_images(shape):
    jobs = [job(client, 9 + client, shape, 7) for client in range(3)]
    agree_on("lenet5", jobs, shape, 7, batch_size=4)


def test_one_class_leaves_the_weights_alone():
    jobs = [job(client, 12, classes=1, wants_loss=True) for client in range(2)]
    params = initial(build_model("lenet5", SHAPE, 1, seed=1))
    trainer = LanesTrainer(build_model("lenet5", SHAPE, 1, seed=1), SHAPE, 5)
    for result in trainer.train_many(params, jobs):
        assert result.loss == 0
        np.testing.assert_array_equal(result.params, params)


def test_a_mini_batch_larger_than_the_data():
    agree_on("mlp", [job(client, 3 + client, (20,)) for client in range(5)], (20,), batch_size=300)


def make_trainer(momentum=0.9, **options):
    return LanesTrainer(build_model("lenet5", SHAPE, 10, seed=1), SHAPE, 16, momentum, **options)


def mixed_jobs():
    return [
        job(k, 7 + 11 * (k % 5), epochs=1 + k % 3, learning_rate=0.02 * (1 + k), proximal=0.1 * k)
        for k in range(19)
    ]


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


def test_a_trainer_forgets_the_clients_before():
    params, jobs = initial(build_model("lenet5", SHAPE, 10, seed=1)), mixed_jobs()[:5]
    trainer = make_trainer()
    first = trainer.train_many(params, again(jobs))
    trainer.train_many(first[0].params, mixed_jobs())
    for before, after in zip(first, trainer.train_many(params, again(jobs)), strict=True):
        np.testing.assert_array_equal(before.params, after.params)


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


def test_late_clients():
    params = initial(build_model("lenet5", SHAPE, 10, seed=1))
    jobs = [job(0, 20, epochs=10**6, wants_loss=True), job(1, 16)]
    late, early = make_trainer().train_many(params, jobs, time_limit=1.0)
    assert late.seconds >= 1.0
    assert isinstance(late.error, TooSlow)
    assert late.params is None
    assert early.error is None


def test_results_come_when_they_are_done():
    params = initial(build_model("lenet5", SHAPE, 10, seed=1))
    long = job(0, 64, epochs=10**6)
    results = make_trainer().train_each(params, [long, job(1, 8), job(2, 8)], time_limit=2.0)
    number, result = next(results)
    assert number in ((1, 2) if make_trainer().width > 1 else (0,))
    assert isinstance(result, Trained)
    assert {other for other, _ in results} | {number} == {0, 1, 2}


def test_no_jobs():
    assert make_trainer().train_many(initial(build_model("lenet5", SHAPE, 10, seed=1)), []) == []


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 300])
def test_predictions_are_those_of_torch(count):
    module = build_model("lenet5", SHAPE, 10, seed=1)
    x, y = samples(count, seed=3)
    params = initial(module)
    losses, right = make_trainer().predict(params, x, y)
    expected, correct = TorchTrainer(FlatModel(module), 32).predict(params, x, y)
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(right, correct)


def test_a_prediction_does_not_depend_on_the_samples_beside():
    x, y = samples(50)
    params = initial(build_model("lenet5", SHAPE, 10, seed=1))
    losses, _ = make_trainer().predict(params, x, y)
    some, _ = make_trainer().predict(params, x[13:31], y[13:31])
    np.testing.assert_array_equal(losses[13:31], some)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["lenet5", "mlp", "logistic"])
def test_all_instruction_sets_give_the_same_bits(name, momentum):
    module = build_model(name, SHAPE, 10, seed=1)
    params = initial(module)
    jobs = [each._replace(task=replace(each.task, wants_loss=True)) for each in mixed_jobs()[:9]]
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


def test_a_fading_velocity_does_not_end_in_numbers_that_processors_treat_differently():
    module = nn.Sequential(nn.Linear(4, 3))
    params = initial(module)
    x, y = np.zeros((64, 4), np.float32), np.zeros(64, np.int64)
    x[0] = 1e-20  # its gradient fades from step to step
    one = TrainingJob(LocalTask(0, 1, epochs=60, learning_rate=1.0), x, y, np.random.default_rng(0))
    results = [
        LanesTrainer(module, (4,), 8, 0.5, instructions=name).train_many(params, again([one]))[0]
        for name in SETS
    ]
    assert len({result.params.tobytes() for result in results}) == 1


def test_the_environment_names_an_instruction_set(monkeypatch):
    for name in SETS:
        monkeypatch.setenv("FLAMMA_LANES", name)
        assert make_trainer().instructions == name
    monkeypatch.setenv("FLAMMA_LANES", "mmx")
    with pytest.raises(FlammaError, match=r"FLAMMA_LANES is 'mmx'.*portable"):
        make_trainer()


def test_a_long_training_is_drawn_in_pieces(monkeypatch):
    params = initial(build_model("lenet5", SHAPE, 10, seed=1))
    jobs = [job(0, 20, epochs=7), job(1, 9, iterations=11), job(2, 33, epochs=2)]
    whole = make_trainer().train_many(params, again(jobs))
    monkeypatch.setattr("flamma.training.lanes.trainer.ORDER_PIECE", 25)
    for one, two in zip(whole, make_trainer().train_many(params, again(jobs)), strict=True):
        assert one.params.tobytes() == two.params.tobytes()


def test_a_model_that_cannot_is_refused_with_the_reason():
    with pytest.raises(FlammaError, match="Dropout is not supported"):
        LanesTrainer(nn.Sequential(nn.Linear(3, 2), nn.Dropout()), (3,), 4)
    with pytest.raises(FlammaError, match="61706 numbers"):
        make_trainer().predict(np.zeros(5, np.float32), *samples(2))


def test_it_says_why_it_is_not_available(monkeypatch):
    library.library.cache_clear()
    monkeypatch.setattr(library, "EXTENSION_SUFFIXES", [".nothing"])
    try:
        assert not available()
        assert "compiler" in why_not()
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

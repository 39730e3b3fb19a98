"""Local training against a plain loop with torch.optim.SGD, and against hand computation."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flamma.models import FlatModel, build_model
from flamma.seeding import stream
from flamma.training import TooSlow, TorchTrainer
from flamma.training.torch_trainer import SAMPLES_SCORED_AT_ONCE
from flat_work import work

SHAPE = (2, 16, 16)


def samples(count, shape=SHAPE, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, *shape)).astype(np.float32)
    return x, rng.integers(0, classes, count)


def task(**changes):
    return work(**{"client": 0, "round": 1, "epochs": 2, "learning_rate": 0.05, **changes})


def make(name="lenet5", shape=SHAPE, **options):
    return lambda: build_model(name, shape, 3, seed=1, **options)


def plain_loop(module, x, y, batches, learning_rate, momentum=0.0):
    """Train as everybody does, on given batches of indices, and return the flat weights."""
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=momentum)
    module.train()
    for batch in batches:
        optimizer.zero_grad()
        logits = module(torch.from_numpy(x[batch]))
        cross_entropy(logits, torch.from_numpy(y[batch])).backward()
        optimizer.step()
    return FlatModel(module).read()


def shuffled(count, batch_size, epochs, rng):
    for _ in range(epochs):
        order = rng.permutation(count)
        yield from (order[start : start + batch_size] for start in range(0, count, batch_size))


def smooth(shape, classes):
    """Return a net without kinks, beside which rounding decides about whole gradients."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * 7 * 7, classes),
    )


MODELS = {
    "lenet5": make(),
    "mlp": make("mlp", hidden=[5]),
    "logistic": make("logistic"),
    "batch norm": make(smooth),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_equals_a_plain_loop(model, momentum):
    # 21 samples in batches of 8 leave a last batch of 5.
    x, y = samples(21)
    trainer = TorchTrainer(MODELS[model], batch_size=8, momentum=momentum)
    received = trainer.model.read()
    params, _ = trainer.train(received, x, y, task(), stream(3, "train"))
    batches = shuffled(21, 8, 2, stream(3, "train"))
    expected = plain_loop(MODELS[model](), x, y, batches, 0.05, momentum)
    np.testing.assert_allclose(params, expected, rtol=1e-3, atol=1e-4)
    assert np.abs(params - received).max() > 1e-2


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_step_of_a_resnet_equals_a_plain_one(norm):
    # Only one: it has so many kinks that two roundings soon go different ways.
    x, y = samples(8)
    build = make("resnet18", width=0.125, norm=norm)
    trainer = TorchTrainer(build, batch_size=8)
    received = trainer.model.read()
    params, _ = trainer.train(received, x, y, task(batches=1), stream(3, "train"))
    expected = plain_loop(build(), x, y, shuffled(8, 8, 1, stream(3, "train")), 0.05)
    np.testing.assert_allclose(params, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(params - received).max() > 1e-3


def test_a_call_depends_on_its_arguments_only():
    x, y = samples(30)
    trainer = TorchTrainer(MODELS["batch norm"], batch_size=8, momentum=0.9)
    received = trainer.model.read()
    first, loss = trainer.train(received, x, y, task(report_loss="received"), stream(1, "train"))
    trainer.train(first, x[:9], y[:9], task(), stream(2, "train"))
    trainer.predict(first, x, y)
    again, loss_again = trainer.train(
        received, x, y, task(report_loss="received"), stream(1, "train")
    )
    fresh = TorchTrainer(MODELS["batch norm"], batch_size=8, momentum=0.9)
    fresh_params, _ = fresh.train(received, x, y, task(), stream(1, "train"))
    assert first.tobytes() == again.tobytes() == fresh_params.tobytes()
    assert loss == loss_again
    assert first.tobytes() != trainer.train(received, x, y, task(), stream(9, "train"))[0].tobytes()


def test_neither_the_received_weights_nor_the_data_are_changed():
    x, y = samples(10)
    trainer = TorchTrainer(make(), batch_size=4)
    received = trainer.model.read()
    for array in (received, x, y):
        array.setflags(write=False)  # torch would warn, and warnings are errors here
    before = received.copy(), x.copy()
    trainer.train(received, x, y, task(report_loss="received"), stream(0, "train"))
    assert np.array_equal(received, before[0])
    assert np.array_equal(x, before[1])


def test_the_proximal_term_by_hand():
    # One weight w, one sample x = 1 of two classes with logits (w, 0): with s = sigmoid(w) the
    # gradient is s - 1 for label 0. Two steps of 0.5 from w = 0 with weight 0.1:
    #   w1 = 0 - 0.5 (0.5 - 1) = 0.25, the proximal gradient being 0 at the received weights;
    #   w2 = w1 - 0.5 (sigmoid(w1) - 1 + 0.1 w1).
    class Logit(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return torch.cat([x * self.weight, torch.zeros_like(x)], dim=1)

    x, y = np.ones((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)
    trainer = TorchTrainer(Logit, batch_size=1)
    params, _ = trainer.train(
        np.zeros(1, dtype=np.float32),
        x,
        y,
        task(learning_rate=0.5, proximal=0.1),
        stream(0, "train"),
    )
    first = 0.25
    second = first - 0.5 * (1 / (1 + math.exp(-first)) - 1 + 0.1 * first)
    assert params[0] == pytest.approx(second, rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_proximal_term_equals_half_the_squared_distance_in_the_loss(momentum):
    x, y = samples(20)
    trainer = TorchTrainer(MODELS["mlp"], batch_size=8, momentum=momentum)
    received = trainer.model.read()
    params, _ = trainer.train(received, x, y, task(proximal=0.7), stream(3, "train"))

    module = MODELS["mlp"]()
    anchors = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=momentum)
    for batch in shuffled(20, 8, 2, stream(3, "train")):
        optimizer.zero_grad()
        loss = cross_entropy(module(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
        for parameter, anchor in zip(module.parameters(), anchors, strict=True):
            loss = loss + 0.7 / 2 * (parameter - anchor).square().sum()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(params, FlatModel(module).read(), rtol=1e-4, atol=1e-6)
    without, _ = trainer.train(received, x, y, task(), stream(3, "train"))
    assert np.linalg.norm(params - received) < np.linalg.norm(without - received)


def test_buffers_feel_no_proximal_pull():
    x, y = samples(12)
    trainer = TorchTrainer(MODELS["batch norm"], batch_size=4)
    received = trainer.model.read()
    trained = trainer.model.layout.trainable_size
    still = task(learning_rate=0.0)
    params, _ = trainer.train(received, x, y, still, stream(0, "train"))
    pulled, _ = trainer.train(
        received, x, y, task(learning_rate=0.0, proximal=9.0), stream(0, "train")
    )
    assert np.array_equal(params[:trained], received[:trained])
    assert not np.array_equal(params[trained:], received[trained:])
    assert params.tobytes() == pulled.tobytes()


def test_the_loss_is_that_of_the_received_model_on_all_training_data():
    x, y = samples(SAMPLES_SCORED_AT_ONCE + 9)
    trainer = TorchTrainer(MODELS["batch norm"], batch_size=64)
    received = trainer.model.read()
    _, loss = trainer.train(
        received, x, y, task(epochs=0, batches=1, report_loss="received"), stream(0, "train")
    )
    module = MODELS["batch norm"]().eval()
    with torch.no_grad():
        expected = cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).item()
    assert loss == pytest.approx(expected, rel=1e-5)


def test_the_loss_is_not_computed_unless_wanted_and_changes_nothing():
    x, y = samples(20)
    trainer = TorchTrainer(MODELS["batch norm"], batch_size=8)
    received = trainer.model.read()
    silent, nothing = trainer.train(received, x, y, task(), stream(0, "train"))
    asked, loss = trainer.train(received, x, y, task(report_loss="received"), stream(0, "train"))
    assert math.isnan(nothing)
    assert math.isfinite(loss)
    assert silent.tobytes() == asked.tobytes()


@pytest.mark.parametrize("iterations", [0, 1, 3, 4, 7])
def test_iterations_are_mini_batches_over_reshuffled_epochs(iterations):
    x, y = samples(20)  # three batches of 8, 8, 4 an epoch
    trainer = TorchTrainer(MODELS["mlp"], batch_size=8)
    received = trainer.model.read()
    params, _ = trainer.train(received, x, y, task(batches=iterations), stream(3, "train"))
    batches = list(shuffled(20, 8, 3, stream(3, "train")))[:iterations]
    expected = plain_loop(MODELS["mlp"](), x, y, batches, 0.05)
    np.testing.assert_allclose(params, expected, rtol=1e-4, atol=1e-6)


def test_one_sample_is_one_batch():
    x, y = samples(1)
    trainer = TorchTrainer(MODELS["mlp"], batch_size=32)
    received = trainer.model.read()
    params, _ = trainer.train(received, x, y, task(epochs=1), stream(3, "train"))
    expected = plain_loop(MODELS["mlp"](), x, y, [np.array([0])], 0.05)
    np.testing.assert_allclose(params, expected, rtol=1e-5, atol=1e-7)


def test_the_deadline_is_checked_between_batches_and_at_the_end():
    class Slow(nn.Linear):
        calls = 0

        def forward(self, x):
            Slow.calls += 1
            time.sleep(0.03)
            return super().forward(x)

    x, y = samples(40, shape=(4,))
    trainer = TorchTrainer(lambda: Slow(4, 3), batch_size=4)
    received = trainer.model.read()
    with pytest.raises(TooSlow):
        trainer.train(received, x, y, task(), stream(0, "train"), time.monotonic() + 0.1)
    assert Slow.calls < 10  # of the ten mini-batches of an epoch
    with pytest.raises(TooSlow):
        trainer.train(received, x, y, task(batches=1), stream(0, "train"), time.monotonic() + 0.01)
    calls = Slow.calls
    trainer.train(received, x, y, task(batches=2), stream(0, "train"), time.monotonic() + 60)
    assert Slow.calls == calls + 2


def test_dropout_follows_the_stream_and_leaves_the_global_generator_alone():
    def drops():
        return nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3))

    x, y = samples(20, shape=(4,))
    trainer = TorchTrainer(drops, batch_size=4)
    received = trainer.model.read()
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        state = torch.random.get_rng_state()
        results.append(trainer.train(received, x, y, task(), stream(5, "train"))[0])
        assert torch.equal(state, torch.random.get_rng_state())
    assert results[0].tobytes() == results[1].tobytes()
    # Evaluation does not drop: it is the same each time, and not that of the training mode.
    assert np.array_equal(*(trainer.predict(received, x, y)[0] for _ in range(2)))


@pytest.mark.parametrize("count", [0, 1, SAMPLES_SCORED_AT_ONCE, SAMPLES_SCORED_AT_ONCE + 1])
def test_prediction_is_per_sample(count):
    x, y = samples(count)
    trainer = TorchTrainer(make(), batch_size=8)
    losses, right = trainer.predict(trainer.model.read(), x, y)
    assert losses.dtype == np.float32
    assert right.dtype == np.bool_
    module = make()().eval()
    with torch.no_grad():
        logits = module(torch.from_numpy(x))
    expected = cross_entropy(logits, torch.from_numpy(y), reduction="none").numpy()
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-6)
    assert np.array_equal(right, logits.argmax(1).numpy() == y)


def test_weights_that_are_no_numbers_predict_nothing_right():
    x, y = samples(9)
    trainer = TorchTrainer(make(), batch_size=8)
    bad = np.full(trainer.model.layout.size, np.nan, dtype=np.float32)
    losses, right = trainer.predict(bad, x, y)
    assert np.isnan(losses).all()
    assert not right.any()


def test_a_module_that_relies_on_the_order_in_memory_works():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(2, 4, 3, padding=1)
            self.head = nn.Linear(4 * 16 * 16, 3)

        def forward(self, x):
            return self.head(self.convolution(x).view(x.shape[0], -1))

    x, y = samples(10)
    trainer = TorchTrainer(Views, batch_size=4)
    received = trainer.model.read()
    params, _ = trainer.train(received, x, y, task(), stream(0, "train"))
    assert np.isfinite(params).all()
    assert not np.array_equal(params, received)

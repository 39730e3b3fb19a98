"""Layers in lanes against autograd in double precision, and which models are refused."""

from __future__ import annotations

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from flamma.models import FlatModel, build_model
from flamma.models.modules import Block
from flamma.training import TrainingJob
from flamma.training.lanes import LanesTrainer, available, instruction_sets, plan_of, why_not
from flamma.types import LocalTask

needs_kernels = pytest.mark.skipif(not available(), reason=why_not())
SETS = instruction_sets() if available() else ()


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Keep torch's threads from waiting for each other where other tests run beside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
        task = LocalTask(client, 1, epochs=1, learning_rate=1.0)
        jobs.append(TrainingJob(task, x, rng.integers(0, classes, size), rng))
    results = trainer.train_many(params, jobs)
    for job, result in zip(jobs, results, strict=True):
        expected = gradient(module, job.x, job.y)
        scale = np.abs(expected).max() + np.abs(params).max()
        np.testing.assert_allclose(params - result.params, expected, atol=tolerance * scale)
    return b"".join(result.params.tobytes() for result in results)


@needs_kernels
@settings(max_examples=300)
@given(
    nets(),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 2**31),
)
def test_gradients_are_those_of_autograd(net, sizes, seed):
    check(*net, sizes, seed)


@needs_kernels
@settings(max_examples=100)
@given(
    nets(),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
def test_every_layer_has_the_same_bits_with_every_instruction_set(net, sizes, seed):
    assert len({check(*net, sizes, seed, instructions=name) for name in SETS}) == 1


@needs_kernels
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("channels", [1, 3, 8])
def test_wide_convolutions(kernel, channels):
    second = nn.Conv2d(channels, 11, kernel, padding=kernel // 2)
    last = nn.Linear(11 * (20 + 2 * (kernel // 2) - kernel + 1) ** 2, 4)
    net = nn.Sequential(nn.Conv2d(2, channels, 1), nn.Tanh(), second, nn.Flatten(), last)
    check(net, (2, 20, 20), 4, [2, 3], seed=0)


@needs_kernels
def test_many_features_and_many_channels():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(700, 130), nn.Tanh(), nn.Linear(130, 3))
    check(linear, (7, 10, 10), 3, [40, 3], seed=0)
    deep = nn.Sequential(nn.Conv2d(40, 30, 5), nn.Tanh(), nn.Conv2d(30, 2, 5), nn.Flatten())
    check(deep, (40, 9, 9), 2, [2], seed=0)


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
    job = TrainingJob(LocalTask(0, 1, epochs=1, learning_rate=1.0), x, y, np.random.default_rng(0))
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


def test_only_plain_sequences_are_taken():
    assert plan_of(nn.Linear(4, 2), (4,)) == (None, "only Sequential is supported, not Linear")
    nested = nn.Sequential(nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    assert plan_of(nested, (2, 2))[0].tolist() == [4, 1, 1, 2, 1, 6, 2, 0, 0, 0, 0, 0, 0]


@needs_kernels
@pytest.mark.parametrize("name", ["lenet5", "mlp", "logistic", "resnet18"])
def test_the_models_of_the_package_are_taken(name):
    shape = (3, 32, 32)
    module = build_model(name, shape, 10, seed=0)
    assert LanesTrainer(module, shape, 8).size == FlatModel(module).layout.size
    assert math.prod(shape) == 3072

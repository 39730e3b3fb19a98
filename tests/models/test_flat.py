"""A model as one flat vector: views, not copies, and nothing left out that matters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flamma.errors import FlammaError
from flamma.models import FlatModel, build_model


def numbers(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "options"),
    [("lenet5", {}), ("resnet18", {"width": 0.125}), ("resnet18", {"width": 0.1, "norm": "batch"})],
)
def test_what_is_loaded_is_read(name, options):
    model = FlatModel(build_model(name, (1, 16, 16), 3, seed=0, **options))
    params = numbers(model.layout.size)
    model.load(params)
    assert model.read().tobytes() == model.view().tobytes() == params.tobytes()
    again = model.read()
    again += 1
    assert model.read().tobytes() == params.tobytes()


def test_the_vector_is_the_module_in_the_order_of_the_layout():
    model = FlatModel(build_model("resnet18", (3, 16, 16), 3, seed=0, width=0.125, norm="batch"))
    params = numbers(model.layout.size)
    model.load(params)
    state = model.module.state_dict()
    start = 0
    for name, shape, size in zip(
        model.layout.names, model.layout.shapes, model.layout.sizes, strict=True
    ):
        assert np.array_equal(state[name].numpy(), params[start : start + size].reshape(shape))
        start += size
    assert start == model.layout.size == model.flat.numel()


def test_trainable_parts_come_first_and_counts_are_left_out():
    model = FlatModel(build_model("resnet18", (3, 16, 16), 3, seed=0, width=0.125, norm="batch"))
    layout = model.layout
    assert list(layout.trainable) == sorted(layout.trainable, reverse=True)
    assert layout.trainable_sizes == tuple(p.numel() for p in model.module.parameters())
    assert layout.trainable_size == sum(layout.trainable_sizes)
    buffers = [name for name, t in zip(layout.names, layout.trainable, strict=True) if not t]
    assert len(buffers) == 2 * 20
    assert {name.rpartition(".")[2] for name in buffers} == {"running_mean", "running_var"}


def test_a_backward_pass_and_running_means_land_in_the_flat_tensors():
    model = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    before = model.read()
    model.module(torch.randn(8, 3)).square().sum().backward()
    expected = torch.cat([p.grad.flatten() for p in model.module.parameters()])
    assert expected.abs().sum() > 0
    assert torch.equal(model.gradient, expected)
    trained = model.layout.trainable_size
    assert np.array_equal(model.read()[:trained], before[:trained])
    assert not np.array_equal(model.read()[trained:], before[trained:])


def test_the_result_is_that_of_the_untouched_module():
    module = build_model("lenet5", (1, 28, 28), 10, seed=3)
    x = torch.randn(4, 1, 28, 28)
    expected = module(x)
    assert torch.equal(FlatModel(module).module(x), expected)


def test_frozen_parameters_are_not_part_of_the_vector():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    module[0].weight.requires_grad_(False)
    frozen = module[0].weight.detach().clone()
    model = FlatModel(module)
    assert model.layout.names == (
        *("0.bias", "1.weight", "1.bias", "2.weight", "2.bias"),
        *("2.running_mean", "2.running_var"),
    )
    assert model.layout.trainable == (True,) * 5 + (False,) * 2
    model.module(torch.ones(2, 3)).sum().backward()
    assert model.gradient.numel() == 4 + 8 + 2 + 2 + 2
    model.load(np.zeros(model.layout.size, dtype=np.float32))
    assert torch.equal(module[0].weight, frozen)


def test_a_vector_gets_the_names_of_the_state_dict_without_the_module():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    first.bias.requires_grad_(False)
    module = nn.Sequential(first, second, nn.BatchNorm1d(3))
    model = FlatModel(module)
    vector = np.arange(model.layout.size, dtype=np.float32)
    named = model.naming.arrays(vector)
    assert model.naming.aliases == {"1.weight": "0.weight"}
    assert sorted(model.naming.fixed) == ["0.bias", "2.num_batches_tracked"]
    model.load(vector)
    expected = module.state_dict()
    assert named.keys() == expected.keys()
    for name, tensor in expected.items():
        assert np.array_equal(named[name], tensor.numpy()), name


def test_shared_parameters_stay_shared_and_count_once():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = FlatModel(nn.Sequential(first, second))
    assert model.layout.size == 9 + 3 + 3
    model.load(np.ones(15, dtype=np.float32))
    assert second.weight is first.weight
    assert torch.equal(second.weight, torch.ones(3, 3))
    # d/dw of w(wx + 1) + 1 summed: both uses add up.
    model.module(torch.ones(1, 3)).sum().backward()
    assert torch.equal(first.weight.grad, torch.full((3, 3), 3.0 + 4.0))


def test_views_of_one_memory_are_refused():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = nn.Parameter(first.weight.detach().t())
    with pytest.raises(FlammaError, match=r"'0\.weight' and '1\.weight' are two views"):
        FlatModel(nn.Sequential(first, second))


def test_a_flat_module_can_be_flattened_again():
    module = build_model("mlp", (3,), 2, seed=0)
    before = FlatModel(module).read()
    assert FlatModel(module).read().tobytes() == before.tobytes()


def test_counts_and_unsaved_buffers_start_anew_with_each_load():
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2, momentum=None)
            self.register_buffer("scratch", torch.zeros(1), persistent=False)

        def forward(self, x):
            self.scratch += 1
            return self.norm(x)

    model = FlatModel(Module())
    assert model.layout.size == 2 + 2 + 2 + 2
    params, x = model.read(), torch.randn(5, 2)
    results = []
    for _ in range(2):
        model.load(params)
        for _ in range(3):
            model.module(x)
        assert model.module.scratch.item() == 3
        results.append(model.read())
    assert results[0].tobytes() == results[1].tobytes()


def test_a_buffer_that_is_assigned_anew_is_not_lost():
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x):
            self.total = self.total + 1
            return x * self.weight

    model = FlatModel(Module())
    model.module(torch.ones(1))
    model.module(torch.ones(1))
    assert model.read().tolist() == [1, 2]
    model.load(np.array([1, 7], dtype=np.float32))
    assert model.module.total.item() == 7


def test_other_precisions_become_float32():
    model = FlatModel(nn.Linear(2, 2).double())
    assert model.flat.dtype == model.module.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ReLU(), "no trainable parameter"),
        (nn.LazyLinear(3), "has no shape yet"),
        (nn.Linear(2, 2, dtype=torch.complex64), "real numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_what_cannot_be_flattened_is_refused(module, message):
    with pytest.raises(FlammaError, match=message):
        FlatModel(module)


def test_weights_of_another_model_are_refused():
    model = FlatModel(nn.Linear(2, 2))
    with pytest.raises(FlammaError, match=r"a vector of 6 numbers, but weights of shape \(5,\)"):
        model.load(np.zeros(5, dtype=np.float32))

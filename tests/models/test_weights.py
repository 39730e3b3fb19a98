"""Weights to begin with, by name, from files that hold no code."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from flamma.errors import ConfigError, InputFileError
from flamma.models import build_model
from flamma.models.weights import (
    StartWeights,
    _as_taken,
    check_outputs,
    freeze,
    model_factory,
    packed_npz,
)


def net():
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_safetensors_and_npz_are_read_and_the_file_is_remembered_by_its_hash(tmp_path):
    given = net()
    state = given.state_dict()
    one, two = tmp_path / "a.safetensors", tmp_path / "b.npz"
    safetensors.torch.save_file(state, one)
    np.savez(two, **{name: tensor.numpy() for name, tensor in state.items()})
    for path in (one, two):
        start, module = StartWeights.read(path), net()
        assert start.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        start.put_into(module)
        assert torch.equal(module[0].weight, given[0].weight)


def test_half_precision_weights_are_taken(tmp_path):
    half = {name: tensor.bfloat16() for name, tensor in nn.Linear(3, 2).state_dict().items()}
    safetensors.torch.save_file(half, tmp_path / "half.safetensors")
    module = nn.Linear(3, 2)
    StartWeights.read(tmp_path / "half.safetensors").put_into(module)
    assert torch.equal(module.weight, half["weight"].float())
    StartWeights.of_state_dict(half, "it").put_into(module)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".PKL"])
def test_a_pickle_is_refused_with_how_to_convert_it(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    torch.save(net().state_dict(), path)
    with pytest.raises(InputFileError, match=r"save_file\(torch.load\(.*weights\.safetensors"):
        StartWeights.read(path)


def test_a_pickle_by_another_name_is_no_safetensors(tmp_path):
    pickled, array = tmp_path / "weights.safetensors", tmp_path / "weights.npz"
    pickled.write_bytes(pickle.dumps({"weight": 1}))
    np.savez(array, weight=np.array([{}], dtype=object), allow_pickle=True)
    torch.save(net().state_dict(), tmp_path / "zip.safetensors")
    cut = tmp_path / "cut.npz"
    content = array.read_bytes()
    cut.write_bytes(content[:4] + content[-150:])
    with pytest.raises(InputFileError, match="nor npz: a part of the file is missing"):
        StartWeights.read(cut)
    for path in (pickled, array, tmp_path / "zip.safetensors"):
        with pytest.raises(InputFileError, match="neither safetensors nor npz"):
            StartWeights.read(path)
    with pytest.raises(InputFileError, match=r"cannot read .*nowhere"):
        StartWeights.read(tmp_path / "nowhere.npz")


def test_names_and_shapes_that_do_not_fit_are_named():
    state = dict(net().state_dict())
    state["1.weight"] = torch.zeros(3)
    state["head.weight"] = state.pop("0.weight")
    with pytest.raises(ConfigError) as error:
        StartWeights.of_state_dict(state, "it").put_into(net())
    assert str(error.value) == (
        "it does not fit the model: it has no 0.weight; the model has no head.weight; "
        "1.weight is (3,) and not (2,)."
    )


def test_shared_weights_and_counters_may_be_missing():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    module = nn.Sequential(first, second, nn.BatchNorm1d(2))
    state = {name: torch.ones_like(tensor) for name, tensor in module.state_dict().items()}
    del state["1.weight"], state["2.num_batches_tracked"]
    StartWeights.of_state_dict(state, "it").put_into(module)
    assert torch.equal(second.weight, torch.ones(2, 2))
    assert module[2].num_batches_tracked == 0


def test_what_is_no_tensor_is_refused():
    with pytest.raises(ConfigError, match="'weight' is a list"):
        StartWeights.of_state_dict({"weight": [1.0]}, "it")


def test_freezing_goes_by_patterns_and_a_mistyped_one_is_told():
    module = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    freeze(module, ["body.*", "head.bias"])
    trained = [name for name, weight in module.named_parameters() if weight.requires_grad]
    assert trained == ["head.weight"]
    with pytest.raises(ConfigError, match=r"'head\.wieght': did you mean head\.weight"):
        freeze(module, ["head.wieght"])


def test_an_npz_file_takes_any_names_and_has_equal_bytes_for_equal_weights(tmp_path):
    arrays = {"file": np.arange(3.0), "allow_pickle": np.ones(()), "0.weight": np.eye(2)}
    content = packed_npz(arrays)
    assert packed_npz(arrays) == content
    (tmp_path / "a.npz").write_bytes(content)
    with np.load(tmp_path / "a.npz") as read:
        assert read.files == list(arrays)
        assert all(np.array_equal(read[name], array) for name, array in arrays.items())


# Whatever a user calls a model becomes something that makes a module.

SHAPE, CLASSES = (4,), 3


class Both(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs[0], outputs)


class ByName(nn.Linear):
    def __init__(self, *, classes, shape, bias=True):
        super().__init__(shape[0], classes, bias)


class ClassesOnly(nn.Linear):
    def __init__(self, width=4, classes=9):
        super().__init__(width, classes)


class Nothing(nn.Linear):
    def __init__(self, width=4, outputs=3):
        super().__init__(width, outputs)


def both(shape, classes, *, bias: bool = False):
    return nn.Linear(shape[0], classes, bias)


@pytest.mark.parametrize(
    "model", [Both, ByName, ClassesOnly, Nothing, both, lambda *sizes: Both(*sizes)]
)
def test_a_class_or_a_function_is_called_with_what_it_takes(model):
    made = build_model(model_factory(model), SHAPE, CLASSES, seed=5)
    assert tuple(made.weight.shape) == (3, 4)
    again = build_model(model_factory(model), SHAPE, CLASSES, seed=5)
    assert torch.equal(made.weight, again.weight)
    other = build_model(model_factory(model), SHAPE, CLASSES, seed=6)
    assert not torch.equal(made.weight, other.weight)


def test_a_module_is_copied_with_its_weights_and_what_is_frozen():
    given = nn.Linear(4, 3)
    given.bias.requires_grad_(False)
    before = given.weight.detach().clone()
    made = build_model(model_factory(given), SHAPE, CLASSES, seed=0)
    assert torch.equal(made.weight, before)
    assert not made.bias.requires_grad
    with torch.no_grad():
        made.weight.zero_()
    assert torch.equal(given.weight, before)


def test_a_name_is_that_of_a_registered_model():
    assert model_factory("logistic") is not None
    with pytest.raises(ConfigError, match="did you mean logistic"):
        model_factory("logistik")


def three(one, two, three):
    raise AssertionError


def swapped(classes, width):
    raise AssertionError


def keyword(*, inputs, outputs):
    raise AssertionError


@pytest.mark.parametrize("model", [three, swapped, keyword, nn.Bilinear, 5])
def test_what_takes_something_else_is_refused_in_one_sentence(model):
    with pytest.raises(ConfigError, match=r"takes|must be a torch\.nn\.Module") as error:
        model_factory(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "module", "said"),
    [
        (
            "classification",
            nn.Linear(4, 2),
            r"shape \(2, 3\), but it returns one of shape \(2, 2\)",
        ),
        ("classification", nn.Flatten(0), r"one of shape \(8,\)"),
        ("classification", nn.LSTM(4, 3), "returns a tuple"),
        ("regression", nn.Linear(4, 2), r"shape \(2,\) or \(2, 1\), but it returns .* \(2, 2\)"),
        ("classification", nn.Linear(5, 3), r"cannot take 2 samples of shape \(4,\)"),
    ],
)
def test_outputs_of_the_wrong_size_are_refused(task, module, said):
    with pytest.raises(ConfigError, match=said):
        check_outputs(module, np.zeros((2, 4), dtype=np.float32), CLASSES, task)


def test_outputs_of_the_right_size_pass_and_leave_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    check_outputs(module, np.ones((2, 4), dtype=np.float32), CLASSES)
    assert torch.equal(torch.rand(1), expected)
    assert module.training
    assert module[1].num_batches_tracked == 0
    for outputs in (nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))):
        check_outputs(outputs, np.ones((2, 4), dtype=np.float32), 1, "regression")


def test_whole_numbers_reach_a_module_as_such_only_if_it_takes_them():
    whole = torch.tensor([[1, 2, 0, 1]])
    embedding = nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(8, 3))
    assert _as_taken(embedding, whole) is whole
    assert _as_taken(nn.Linear(4, 3), whole).dtype == torch.float32
    for module in (embedding, nn.Linear(4, 3)):
        check_outputs(module, np.ones((2, 4), dtype=np.int64), CLASSES)

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
from flamma.models.weights import StartWeights, freeze, packed_npz


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

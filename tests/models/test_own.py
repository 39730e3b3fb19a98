"""Whatever a user calls a model becomes something that makes a module."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flamma.errors import ConfigError
from flamma.models import build_model
from flamma.models.weights import as_taken, check_outputs, model_factory

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
    assert as_taken(embedding, whole) is whole
    assert as_taken(nn.Linear(4, 3), whole).dtype == torch.float32
    for module in (embedding, nn.Linear(4, 3)):
        check_outputs(module, np.ones((2, 4), dtype=np.int64), CLASSES)

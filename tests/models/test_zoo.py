"""Models by name: their sizes, their first weights, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flamma.errors import ConfigError
from flamma.models import MODELS, FlatModel, build_model


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "options", "expected"),
    [
        # Counted by hand: (1·25+1)·6 + (6·25+1)·16 + 401·120 + 121·84 + 85·10.
        ("lenet5", (1, 28, 28), {}, 61_706),
        # The features of 3x32x32 are 16·6·6.
        ("lenet5", (3, 32, 32), {}, 76 * 6 + 151 * 16 + 577 * 120 + 121 * 84 + 85 * 10),
        ("mlp", (1, 28, 28), {}, 785 * 64 + 65 * 10),
        ("mlp", (20,), {"hidden": [7, 5]}, 21 * 7 + 8 * 5 + 6 * 10),
        ("mlp", (20,), {"hidden": []}, 21 * 10),
        ("logistic", (2, 3, 4), {}, 25 * 10),
        # The usual ResNet-18 with a 3x3 stem for CIFAR-10; a norm of either kind has as many.
        ("resnet18", (3, 32, 32), {}, 11_173_962),
        ("resnet18", (3, 32, 32), {"norm": "batch"}, 11_173_962),
    ],
)
def test_the_number_of_parameters(name, shape, options, expected):
    assert parameters(build_model(name, shape, 10, seed=0, **options)) == expected


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("lenet5", (1, 16, 16), {}),
        ("lenet5", (3, 29, 33), {}),
        ("lenet5", (1, 12, 12), {}),
        ("mlp", (3, 5, 5), {}),
        ("logistic", (7,), {}),
        ("resnet18", (3, 32, 32), {"width": 0.125}),
        ("resnet18", (3, 32, 32), {"width": 0.125, "stem_stride": 2}),
        ("resnet18", (1, 16, 20), {"width": 0.01, "groups": 3}),
        ("resnet18", (3, 17, 17), {"width": 0.2, "norm": "batch"}),
    ],
)
def test_any_shape_that_is_large_enough_gives_one_number_per_class(name, shape, options):
    module = build_model(name, shape, 4, seed=0, **options)
    assert module(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("width", [0.01, 0.1, 0.3, 0.77])
def test_the_channels_of_a_narrow_resnet_make_whole_groups_of_at_least_eight(width):
    module = build_model("resnet18", (3, 16, 16), 10, seed=0, width=width)
    norms = [part for part in module.modules() if isinstance(part, nn.GroupNorm)]
    assert len(norms) == 20
    assert all(part.num_channels >= 8 and part.num_channels % 8 == 0 for part in norms)


@pytest.mark.parametrize("name", ["lenet5", "mlp", "logistic"])
def test_the_small_models_are_plain_sequences_of_five_kinds_of_layers(name):
    module = build_model(name, (1, 16, 16), 3, seed=0)
    assert type(module) is nn.Sequential
    kinds = {nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Linear}
    assert {type(layer) for layer in module} <= kinds


def test_a_seed_gives_the_same_bits_and_leaves_the_global_generator_alone():
    state = torch.random.get_rng_state()
    one, same, other = (
        FlatModel(build_model("lenet5", (1, 28, 28), 10, seed=seed)).read() for seed in (5, 5, 6)
    )
    assert torch.equal(state, torch.random.get_rng_state())
    assert one.tobytes() == same.tobytes()
    assert not np.array_equal(one, other)


def test_the_global_generator_does_not_change_the_weights():
    torch.manual_seed(1)
    one = FlatModel(build_model("mlp", (4,), 2, seed=5)).read()
    torch.manual_seed(2)
    assert one.tobytes() == FlatModel(build_model("mlp", (4,), 2, seed=5)).read().tobytes()


def test_your_own_factory_is_used_like_a_name():
    def mine(shape, classes, bias=True):
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes, bias=bias))

    assert parameters(build_model(mine, (4,), 3, seed=0)) == 15
    assert parameters(build_model(mine, (4,), 3, seed=0, bias=False)) == 12
    one, same = (FlatModel(build_model(mine, (4,), 3, seed=0)).read() for _ in range(2))
    assert one.tobytes() == same.tobytes()
    with pytest.raises(ConfigError, match=r"unknown key in mine 'bais': did you mean bias\?"):
        build_model(mine, (4,), 3, seed=0, bais=False)
    with pytest.raises(ConfigError, match=r"must be made as a torch\.nn\.Module, not a str"):
        build_model(lambda shape, classes: "net", (4,), 3, seed=0)


def test_models_of_other_packages_are_found(tmp_path, monkeypatch):
    (tmp_path / "other.py").write_text(
        "from torch import nn\ndef tiny(shape, classes): return nn.Linear(shape[0], classes)\n"
    )
    metadata = tmp_path / "other-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: other\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[flamma.models]\ntiny = other:tiny\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "tiny" in MODELS
    assert parameters(build_model("tiny", (3,), 2, seed=0)) == 8


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "message"),
    [
        ("LeNet", (1, 28, 28), 10, {}, r"unknown model 'LeNet': did you mean lenet5\?"),
        ("resnet18", (3, 32, 32), 10, {"widht": 1}, r"did you mean width\?"),
        ("lenet5", (1, 28, 28), 10, {"width": 1}, r"unknown key in lenet5 'width' \(known: none"),
        ("lenet5", (1, 8, 8), 10, {}, "at least 12x12"),
        ("resnet18", (3, 31, 31), 10, {"stem_stride": 2}, "at least 32x32"),
        ("resnet18", (3, 32, 32), 10, {"stem_stride": 0}, "stem_stride must be at least 1, not 0"),
        ("lenet5", (784,), 10, {}, "channels, height, width"),
        ("resnet18", (3, 8, 8), 10, {}, "at least 16x16"),
        ("resnet18", (3, 32, 32), 10, {"norm": "layer"}, r"resnet18.norm must be group or batch"),
        ("resnet18", (3, 32, 32), 10, {"width": 0}, "width must be positive, not 0"),
        ("resnet18", (3, 32, 32), 10, {"width": "1"}, "width must be a number, not '1'"),
        ("resnet18", (3, 32, 32), 10, {"groups": 0}, "groups must be at least 1, not 0"),
        ("mlp", (4,), 10, {"hidden": 64}, r"mlp.hidden must be a list, not 64"),
        ("mlp", (4,), 10, {"hidden": [0]}, "hidden must be positive numbers"),
        ("mlp", (4,), 10, {"hidden": [1.5]}, r"mlp.hidden must be a whole number, not 1.5"),
        ("mlp", (4,), 0, {}, "at least one class"),
        ("mlp", (0,), 3, {}, "needs samples"),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence(name, shape, classes, options, message):
    with pytest.raises(ConfigError, match=message):
        build_model(name, shape, classes, seed=0, **options)


# Models of token ids: their shapes, and that no place sees what comes after it.

SEQUENCES = [
    ("gru", {"size": 3, "hidden": 4}),
    ("gru", {"size": 3, "hidden": 4, "layers": 2}),
    ("transformer", {"size": 8, "heads": 2, "layers": 2}),
]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("embedding", {"tokens": 11, "size": 3, "hidden": [4]}, 11 * 3 + (21 + 1) * 4 + 5 * 5),
        # Three gates, each with weights of input and state and two biases.
        ("gru", {"size": 3, "hidden": 4}, 5 * 3 + 3 * (3 * 4 + 4 * 4 + 2 * 4) + 5 * 5),
        # Tokens, places; per block two norms, attention, its mixing and the perceptron; a norm.
        (
            "transformer",
            {"size": 8, "heads": 2, "layers": 2},
            5 * 8 + 7 * 8 + 2 * (2 * 16 + 9 * 24 + 9 * 8 + 9 * 32 + 33 * 8) + 16 + 9 * 5,
        ),
    ],
)
def test_the_number_of_parameters_tokens(name, options, expected):
    model = build_model(name, (7,), 5, seed=0, **options)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize(("name", "options"), SEQUENCES)
def test_every_place_has_logits_of_all_tokens_and_sees_none_that_follow(name, options):
    model = build_model(name, (7,), 5, seed=0, **options)
    x = torch.tensor([[0, 1, 2, 3, 4, 0, 1], [4, 4, 4, 4, 4, 4, 4]])
    changed = x.clone()
    changed[:, 4] = torch.tensor([1, 2])
    with torch.no_grad():
        before, after = model(x), model(changed)
    assert before.shape == (2, 7, 5)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert (before[:, 4:] - after[:, 4:]).abs().amax(dim=(0, 2)).min() > 1e-6


def test_a_row_of_categories_gives_a_number_for_each_class():
    model = build_model("embedding", (3,), 2, seed=0, tokens=10)
    assert model(torch.tensor([[0, 4, 9], [1, 5, 8]])).shape == (2, 2)
    assert model[0].weight.std() < 0.2


@pytest.mark.parametrize(
    ("name", "shape", "options", "what"),
    [
        ("gru", (1, 28, 28), {}, "gru needs rows of token ids"),
        ("transformer", (1, 28, 28), {}, "transformer needs rows of token ids"),
        ("embedding", (1, 28, 28), {}, "embedding needs rows of token ids"),
        ("embedding", (3,), {"tokens": 0}, "tokens must be at least 1, not 0"),
        ("gru", (3,), {"hidden": 0}, "hidden must be at least 1, not 0"),
        ("transformer", (3,), {"size": 10, "heads": 4}, "size must be a multiple of heads"),
    ],
)
def test_what_cannot_be_is_refused(name, shape, options, what):
    with pytest.raises(ConfigError, match=what):
        build_model(name, shape, 2, seed=0, **options)

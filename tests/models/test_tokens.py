"""Models of token ids: their shapes, and that no place sees what comes after it."""

from __future__ import annotations

import pytest
import torch

from flamma.errors import ConfigError
from flamma.models import build_model

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
def test_the_number_of_parameters(name, options, expected):
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

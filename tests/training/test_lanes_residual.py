"""Residual networks in lanes: their layers, whole ones against torch, and their bits."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flamma.errors import ConfigError
from flamma.models import FlatModel, build_model
from flamma.models.modules import Block
from flamma.training.config import TrainerSettings, pick_trainer
from flamma.training.lanes import LanesTrainer, available, plan_of, why_not
from flamma.training.lanes.plan import BARE_CONV, GROUP_NORM, RECALL
from flamma.types import TaskVectors
from training.test_lanes import SETS, again, by_torch, initial, job
from training.test_lanes import one_thread as one_thread
from training.test_lanes_layers import check

pytestmark = pytest.mark.skipif(not available(), reason=why_not())

TOLERANCE = 3e-5
"""Of a gradient. Tiles of 4x4 have ten times the rounding errors of a sum of products (Lavin and
Gray, 2016), and a norm divides them by the deviation of its group."""

SHAPE = (3, 18, 17)
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
@settings(max_examples=40, derandomize=True)
@given(residual_nets(), st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(0, 2**31))
def test_gradients_are_those_of_autograd_with_every_instruction_set(net, sizes, seed):
    bits = {check(*net, sizes, seed, TOLERANCE, instructions=name) for name in SETS}
    assert len(bits) == 1


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 8])
def test_maps_of_every_method(side):
    net = nn.Sequential(bare(3, 9, 1, 1, 0), nn.ReLU(), bare(9, 17), nn.Tanh(), bare(17, 2, 2, 1))
    net.append(nn.Sequential(nn.Flatten(), nn.Linear(2 * (side + 1) ** 2, 4)))
    bits = {check(net, (3, side, side), 4, [3, 35], 0, TOLERANCE, instructions=s) for s in SETS}
    assert len(bits) == 1


def small():
    """Return a ResNet-18 with 8 to 64 channels."""
    return build_model("resnet18", SHAPE, 5, seed=1, width=0.125, groups=4)


def jobs_of_all_kinds():
    """Return clients whose mini-batches fill the lanes, fill some rows, and fill not even one.

    None of them has a sample for which rounding decides about a ReLU (one has where a ReLU's input
    is 5e-7): its gradient would come or go, and the next steps would multiply the difference.
    """
    return [
        job(0, 21, SHAPE, 5, epochs=2),
        job(1, 3, SHAPE, 5, epochs=2, proximal=0.5),
        job(5, 40, SHAPE, 5, wants_loss=True),
        job(3, 16, SHAPE, 5, learning_rate=0.01, wants_loss=True),
        job(4, 1, SHAPE, 5),
    ]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_small_resnet_after_some_steps_is_that_of_torch(momentum):
    module, jobs = small(), jobs_of_all_kinds()
    params = initial(module)
    trained = LanesTrainer(module, SHAPE, 18, momentum).train_many(params, again(jobs))
    expected = by_torch(module, params, jobs, 18, momentum)
    for mine, (weights, loss) in zip(trained, expected, strict=True):
        assert mine.loss == pytest.approx(loss, rel=1e-5, nan_ok=True)
        # 3e-6 as a rule, 17e-6 where the change is so small that the weights' own rounding shows.
        difference = np.linalg.norm(mine.params - weights)
        assert difference <= 1e-4 * np.linalg.norm(weights - params)


def test_a_resnet_has_the_same_bits_beside_any_clients_and_with_every_instruction_set():
    module, jobs = small(), jobs_of_all_kinds()
    params = initial(module)
    correction = np.random.default_rng(0).standard_normal(params.size).astype(np.float32)
    jobs[2] = jobs[2]._replace(vectors=TaskVectors(correction=0.01 * correction))
    seen = set()
    for instructions in SETS:
        trainer = LanesTrainer(module, SHAPE, 18, 0.9, instructions)
        together = trainer.train_many(params, again(jobs))
        seen.add(b"".join(each.params.tobytes() for each in together))
        if instructions == SETS[-1]:
            alone = [trainer.train_many(params, again([one]))[0] for one in jobs]
            seen.add(b"".join(each.params.tobytes() for each in alone))
            assert [one.loss for one in alone] == pytest.approx(
                [one.loss for one in together], rel=0, abs=0, nan_ok=True
            )
    assert len(seen) == 1


def test_auto_takes_lanes_for_group_norm_and_torch_for_batch_norm():
    wanted = TrainerSettings(SHAPE, 8)
    assert pick_trainer("auto", FlatModel(small()), wanted).name == "lanes"
    other = FlatModel(build_model("resnet18", SHAPE, 5, seed=1, width=0.125, norm="batch"))
    assert pick_trainer("auto", other, wanted).name == "torch"
    with pytest.raises(ConfigError, match="BatchNorm2d is not supported"):
        pick_trainer("lanes", other, wanted)


def test_scores_do_not_depend_on_how_many_are_scored():
    module = small()
    params, trainer = initial(module), LanesTrainer(module, SHAPE, 8)
    x, y = job(0, 37, SHAPE, 5)[1:3]
    losses, right = trainer.predict(params, x, y)
    for part in (slice(0, 1), slice(5, 22), slice(30, 37)):
        own = trainer.predict(params, x[part], y[part])
        np.testing.assert_array_equal(own[0], losses[part])
        np.testing.assert_array_equal(own[1], right[part])


def test_the_plan_of_a_block_joins_its_shortcut():
    norm = partial(nn.GroupNorm, 2)
    blocks = [Block(4, 4, 1, norm), Block(4, 6, 2, norm)]
    plan, _ = plan_of(nn.Sequential(bare(3, 4), *blocks, nn.Flatten(), nn.Linear(24, 2)), (3, 4, 4))
    words = plan[5:].reshape(-1, 8).tolist()
    one_e_minus_five = 925353388  # the bits of epsilon
    assert words[1] == [BARE_CONV, 4, 3, 3, 1, 1, 1, 1]
    assert words[2] == [GROUP_NORM, 2, one_e_minus_five, 1, 0, 0, 0, 0]
    assert words[4][3:5] == [1, 1]  # adds what the first convolution has made
    assert words[9][:2] == [RECALL, 5]
    assert words[10] == [BARE_CONV, 6, 1, 1, 0, 0, 2, 2]
    assert words[11][3:5] == [1, 9]  # adds the other path, which has no ReLU
    assert words[8][3:5] == [0, 0]

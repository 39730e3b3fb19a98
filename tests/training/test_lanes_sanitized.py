"""The kernels under the address and undefined-behaviour sanitizers, in a program of their own."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from functools import partial

import pytest
from torch import nn

from flamma.models.modules import Block
from flamma.training.lanes import library
from flamma.training.lanes.plan import plan_of
from fuzzing.compiled import NUMBER, Case, Client, fuzz, player

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not library.library().lanes_seats(NUMBER),
    reason="needs g++ and a processor of this kind",
)


def lenet(width):
    return nn.Sequential(
        nn.Conv2d(2, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(5 * 2 * width, 9), nn.ReLU(), nn.Linear(9, 3),
    )  # fmt: skip


NETS = {
    "lenet": (lenet(3), (2, 17, 21)),
    "padded": (
        nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, (3, 4), padding=(2, 1)),
            nn.AvgPool2d(3, 2), nn.Conv2d(4, 7, 2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
            nn.Linear(14, 2),
        ),
        (1, 8, 9),
    ),
    "residual": (
        nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU(),
            Block(4, 4, 1, partial(nn.GroupNorm, 2)), Block(4, 10, 2, partial(nn.GroupNorm, 5)),
            Block(10, 10, 1, partial(nn.GroupNorm, 5)), Block(10, 9, 2, partial(nn.GroupNorm, 3)),
            nn.Conv2d(9, 7, 3, padding=1, bias=False), nn.Tanh(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(7, 3),
        ),
        (2, 13, 15),
    ),
    "linear": (nn.Sequential(nn.Flatten(), nn.Linear(230, 6), nn.Tanh(), nn.Linear(6, 4)), (230,)),
}  # fmt: skip


def case(name, **changes):
    plan, reason = plan_of(*NETS[name])
    assert plan is not None, reason
    clients = [Client(samples, samples, highest=1) for samples in (5, 0, 4, 7, 3, 6, 2, 1)]
    return replace(Case(plan.tolist(), clients), **changes)


@pytest.fixture(scope="module")
def play():
    with player() as calls:
        yield calls


@pytest.mark.parametrize("name", NETS)
def test_no_access_out_of_bounds_and_nothing_undefined(play, name):
    answer = play(case(name))
    calls = ["new", "load", "begin", "run", "job", "end", "infinite", "score", "orders"]
    assert dict(answer) == dict.fromkeys(calls, 0)
    assert {status for _, status in answer} == {0}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("bound", "tilt"), [(1.0, 0.0), (math.inf, 3.0)])
def test_vectors_and_objectives_of_clients_are_read_within_bounds(play, name, bound, tilt):
    clients = [Client(samples, samples, 1, given=samples) for samples in (5, 0, 4, 7, 3, 6, 2, 1)]
    rates = [0.1, 0.9, 0.01, bound, tilt, 0.01, 0.5]
    answer = play(case(name, clients=clients, rates=rates, wants_trained_loss=1))
    assert {status for _, status in answer} == {0}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("wants_trained_loss", [0, 1])
def test_samples_as_they_are_shown_and_orders_that_come_later(play, name, wants_trained_loss):
    clients = [Client(size, size, 1, given=8 * (size % 4)) for size in (5, 0, 4, 7, 3, 6, 2, 1)]
    answer = play(case(name, clients=clients, pieces=2, wants_trained_loss=wants_trained_loss))
    assert {status for _, status in answer} == {0}


def test_only_the_first_and_the_last_piece_of_an_order_may_be_empty(play):
    answer = play(case("linear", clients=[Client(0, 0, 1), Client(5, 5, 1)], pieces=3))
    assert [status for call, status in answer if call == "job"] == [-1, 0, -1, 0]


@pytest.mark.parametrize("batch", [2**31, 2**62, 2**63 - 1])
def test_mini_batches_larger_than_the_data_take_no_more_memory(play, batch):
    answer = play(case("lenet", batch=batch, memory=2**23))
    assert {status for _, status in answer} == {0}


@pytest.mark.parametrize(
    ("changes", "call", "status"),
    [
        ({"batch": 0}, "new", -1),
        ({"batch": -(2**63)}, "new", -1),
        ({"instructions": 9}, "new", -1),
        ({"memory": 2**12}, "new", -3),
        ({"memory": 2**20, "batch": 2**40, "clients": [Client(200, 200, highest=1)]}, "job", -3),
        ({"times": [-1.0, 1.0]}, "run", -1),
        ({"times": [1.0, math.nan]}, "run", -1),
        ({"more_params": 1}, "begin", -1),
        ({"more_params": -1}, "load", -1),
        ({"more_vector": 1}, "job", -1),
        ({"more_vector": -1}, "job", -1),
        ({"rates": [0.1, 0.9, 0.01, 0.0, 0.0, 0.0, 1.0]}, "job", -1),
        ({"rates": [0.1, 0.9, 0.01, math.nan, 0.0, 0.0, 1.0]}, "job", -1),
        ({"rates": [0.1, 0.9, 0.01, math.inf, math.inf, 0.0, 1.0]}, "job", -1),
        ({"rates": [0.1, 0.9, 0.01, 2.0, 1.0, 0.0, 1.0]}, "job", -1),
        ({"rates": [0.1, 0.9, 0.01, math.inf, 0.0, -0.1, 1.0]}, "job", -1),
        ({"rates": [0.1, 0.9, 0.01, math.inf, 0.0, math.inf, 1.0]}, "job", -1),
        ({"rates": [0.1, 0.9, 0.01, math.inf, 0.0, 0.0, 0.0]}, "job", -1),
        ({"rates": [0.1, 0.9, 0.01, math.inf, 0.0, 0.0, math.nan]}, "job", -1),
        ({"fewer_jobs": 30}, "begin", -1),
        ({"clients": [Client(5, 5, highest=3)]}, "job", -4),
        ({"clients": [Client(5, 5, highest=1, lowest=-1)]}, "score", -4),
        ({"clients": [Client(5, 5, highest=2**32, lowest=2**32)]}, "job", -4),
        ({"clients": [Client(5, 5, highest=1, order_from=1)]}, "job", -4),
        ({"clients": [Client(5, 5, highest=1, order_from=-1)]}, "job", -4),
        ({"clients": [Client(5, 6, highest=1)]}, "job", -4),
        ({"clients": [Client(5, -1, highest=1)]}, "job", -1),
        ({"clients": [Client(5, 5, highest=1, numbers=-1)]}, "job", -1),
        ({"clients": [Client(5, 5, highest=1, numbers=1)]}, "score", -1),
        ({"clients": [Client(-1, 0, highest=1)]}, "score", -1),
        ({"clients": [Client(-1, 0, highest=1)]}, "orders", -1),
        ({"clients": [Client(5, -1, highest=1)]}, "orders", -1),
    ],
)
def test_what_does_not_fit_is_refused(play, changes, call, status):
    assert (call, status) in play(case("lenet", **changes))


# The operations of the net `residual`: a convolution, its norm, a block beside its input (two of
# each), a block of two of each beside a convolution and its norm, and so on.
@pytest.mark.parametrize(
    ("operation", "word", "value", "status"),
    [
        (0, 6, 0, -2),  # the stride of a convolution
        (0, 7, 2**62, -2),
        (0, 2, 2**31 - 1, -3),  # its kernel
        (1, 1, 3, -2),  # groups that do not divide the channels
        (1, 1, 0, -2),
        (1, 2, 0, -2),  # the bits of epsilon: zero, NaN, negative
        (1, 2, 0x7FC00000, -2),
        (1, 2, 0xB727C5AC, -2),
        (1, 2, 2**32, -2),
        (5, 4, 1, -2),  # a join with what two read already, and not only convolutions
        (5, 4, 6, -2),  # with itself
        (5, 4, 99, -2),
        (5, 4, -1, -2),
        (9, 4, 1, -2),  # with an image of another size
        (10, 1, 11, -2),  # going back to itself
        (10, 1, -1, -2),
        (11, 0, 8, -2),  # no convolution after going back
        (11, 0, 9, -2),
        (11, 0, 4, -2),
        (12, 4, 11, -2),  # a join with an operation that makes nothing
    ],
)
def test_a_residual_plan_that_cannot_be_computed_is_refused(play, operation, word, value, status):
    whole = case("residual")
    place = 5 + 8 * operation + word
    plan = [*whole.plan[:place], value, *whole.plan[place + 1 :]]
    assert play(replace(whole, plan=plan)) == [("new", status)]


@pytest.mark.parametrize(
    ("place", "word", "status"),
    [
        (0, -1, -2),  # channels
        (0, 0, -2),
        (0, 2**63 - 1, -2),
        (1, 2**31 - 1, -3),  # height
        (3, 4, -2),  # classes
        (3, 2**63 - 1, -2),
        (4, 0, -2),  # operations
        (4, 9, -2),
        (4, 2**60, -2),
        (5, 7, -2),  # the kind of the first
        (5, 6, -2),  # a convolution after a linear layer
        (6, 2**31 - 1, -3),  # its channels
        (6, -6, -2),
        (7, 2**62, -2),  # its kernel
        (9, 5, -2),  # its padding
        (9, -1, -2),
        (13 + 1, 0, -2),  # the window of a pooling
        (13 + 1, 99, -2),
        (13 + 3, 0, -2),  # its stride
        (13 + 3, -(2**63), -2),
    ],
)
def test_a_plan_that_cannot_be_computed_is_refused(play, place, word, status):
    whole = case("lenet")
    plan = [*whole.plan[:place], word, *whole.plan[place + 1 :]]
    assert play(replace(whole, plan=plan)) == [("new", status)]
    assert play(replace(whole, plan=plan[:-1])) == [("new", -2)]


def test_thousands_of_random_cases():
    assert fuzz(seed=1, seconds=4.0) > 100

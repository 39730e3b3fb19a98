"""What arrives is believed only as far as it was checked."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flamma.engines.flower import wire
from flamma.engines.flower.arrays import NamedArrays, WireError, mean_of_whole, unpack
from flamma.engines.flower.wire import Order, Score, SiteProfile
from flamma.errors import FlammaError
from flamma.types import Report, Terms

PARAMS = np.linspace(-1, 1, 7, dtype=np.float32)
TERMS = Terms(3, 2, 0.5, 0.25, step_scale=0.5, epochs=4, wants_loss=True)
PROFILE = SiteProfile("3", 40, 10, math.nan, False, (1, 28, 28), 10, True)


def travelled(content: RecordDict) -> RecordDict:
    return RecordDict.inflate(
        content.deflate(),
        children={
            key: type(child).inflate(child.deflate(), _children(child))
            for key, child in content.children.items()
        },
    )


def _children(thing):
    children = thing.children
    if not children:
        return None
    return {k: type(c).inflate(c.deflate(), _children(c)) for k, c in children.items()}


@pytest.mark.parametrize("terms", [None, TERMS, Terms(0, 0, iterations=10)])
@pytest.mark.parametrize("params", [None, PARAMS])
def test_an_order_arrives_as_it_was_sent(terms, params):
    order = Order("rounds = 3", 3, "three", "lanes", True, True, cost=0.5, classes=4)
    read, read_terms, read_params = wire.read_order(
        travelled(wire.pack_order(order, terms, params))
    )
    assert read == order
    assert repr(read_terms) == repr(terms)  # NaN is not equal to itself
    assert params is None or read_params.tobytes() == params.tobytes()


def test_an_answer_arrives_as_it_was_sent():
    report = Report(3, PARAMS, 40, 4, 0.7, 1.5)
    content = travelled(wire.pack_answer("three", report, Score(50.0, 0.6, 10)))
    read = wire.read_report(content, "three", TERMS, 40, 7)
    assert read.params.tobytes() == PARAMS.tobytes()
    assert (read.client, read.samples, read.epochs, read.loss) == (3, 40, 4, 0.7)
    assert wire.read_score(content, "three", 10) == Score(50.0, 0.6, 10)


def test_a_failure_arrives_as_one_short_line():
    report = Report(3, None, 40, 0, failure="it\nbroke\x1b[31m" + "x" * 100)
    read = wire.read_report(travelled(wire.pack_answer("t", report)), "t", TERMS, 40, 7)
    assert read.failure.startswith("it broke [31mx")
    content = wire.pack_answer("", failure="ValueError: no\nsuch thing")
    with pytest.raises(wire.ClientError, match=r"^ValueError: no such thing$"):
        wire.read_report(content, "t", TERMS, 40, 7)


BAD_PROFILES = {
    "shape": [0],
    "samples": 0,
    "held_out": -1,
    "classes": 0,
    "cost": -0.5,
    "name": 7,
    "lanes": 1,
    "own_cost": None,
}


@pytest.mark.parametrize("key", BAD_PROFILES)
def test_a_bad_profile_is_refused(key):
    content = wire.pack_profile(PROFILE)
    record = dict(content[wire.PROFILE])
    if BAD_PROFILES[key] is None:
        del record[key]
    else:
        record[key] = BAD_PROFILES[key]
    content[wire.PROFILE] = ConfigRecord(record)
    with pytest.raises(WireError):
        wire.read_profile(content)
    assert repr(wire.read_profile(wire.pack_profile(PROFILE))) == repr(PROFILE)


@pytest.mark.parametrize(
    "bad", [{"epochs": -1}, {"round": 2**40}, {"step_scale": math.inf}, {"proximal": -1.0}]
)
def test_terms_out_of_range_are_refused_by_the_client(bad):
    content = wire.pack_order(Order(""), TERMS, PARAMS)
    content[wire.TERMS] = ConfigRecord({**content[wire.TERMS], **bad})
    with pytest.raises(WireError, match="the terms"):
        wire.read_order(content)


def test_an_order_of_another_version_is_refused():
    content = wire.pack_order(Order(""), None, None)
    content[wire.ORDER]["version"] = 2
    with pytest.raises(WireError, match="different versions"):
        wire.read_order(content)


def test_a_text_of_absurd_length_is_refused():
    content = wire.pack_profile(PROFILE)
    content[wire.PROFILE]["name"] = "n" * 10_000
    with pytest.raises(WireError, match="name is a text of 10000 characters"):
        wire.read_profile(content)


def as_array(data, shape=(7,)):
    return Array("float32", shape, "numpy.ndarray", data)


@pytest.mark.parametrize(
    "array",
    [
        as_array(b""),
        as_array(b"\x93NUMPY\x09\x00junk"),
        as_array(pickle.dumps(PARAMS)),
        as_array(Array(PARAMS).data[:-1]),
        as_array(Array(PARAMS).data + b"more"),
        as_array(Array(PARAMS).data.replace(b"(7,)", b"(9,)")),
        as_array(Array(PARAMS).data.replace(b"<f4", b"|O8")),
        Array("float32", (7,), "pickle", pickle.dumps(PARAMS)),
        Array(PARAMS.astype(">f4")),
        Array(PARAMS.reshape(7, 1)),
    ],
)
def test_weights_that_are_not_what_they_should_be_are_refused(array):
    content = RecordDict({wire.WEIGHTS: ArrayRecord({"params": array})})
    with pytest.raises(WireError, match="the weights"):
        wire.read_params(content, 7)


def test_a_promised_terabyte_is_not_made_room_for():
    data = Array(PARAMS).data
    long = data.replace(b"(7,), }           ", b"(999999999999,), }")
    assert len(long) == len(data)
    assert long != data
    with pytest.raises(WireError, match="the weights take 28 bytes instead of 3999999999996"):
        unpack(as_array(long), wire.FLOAT32, None, "the weights")


NAMED = ArrayRecord(
    {
        "bn.running_mean": Array(np.array([5.0, 6.0], np.float32)),
        "bn.num_batches_tracked": Array(np.array(12)),
        "w": Array(np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3))),
        "mask": Array(np.array([True, False])),
        "b": Array(np.array([7.0], np.float16)),
    }
)


def test_named_arrays_become_one_vector_and_back():
    form = NamedArrays.of(NAMED)
    assert form.trainable == ("w", "b")
    assert form.carried == ("bn.running_mean",)
    assert form.whole == ("bn.num_batches_tracked", "mask")
    params, whole = form.flatten(NAMED)
    assert params.dtype == np.float32
    assert params.tolist() == [0, 1, 2, 3, 4, 5, 7, 5, 6]
    assert form.trainable_size == 7
    back = form.restore(params, whole)
    assert list(back) == list(NAMED)
    for name, array in NAMED.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        np.testing.assert_array_equal(back[name].numpy(), array.numpy())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.pop("b"), "other names, such as 'b'"),
        (lambda r: r.__setitem__("z", r["b"]), "other names, such as 'z'"),
        (lambda r: r.__setitem__("b", Array(np.zeros(2, np.float16))), "have the shape"),
        (lambda r: r.__setitem__("b", Array(np.zeros(1, np.float32))), "of the type float32"),
    ],
)
def test_other_arrays_than_the_models_are_refused(change, reason):
    record = ArrayRecord(dict(NAMED))
    change(record)
    with pytest.raises(WireError, match=reason):
        NamedArrays.of(NAMED).flatten(record)


def test_a_model_without_anything_to_train_is_refused():
    with pytest.raises(FlammaError, match="nothing to train"):
        NamedArrays.of(ArrayRecord({"n": Array(np.array([1]))}))


def test_whole_numbers_have_a_mean_that_is_whole():
    parts = [
        {"n": np.array(10), "m": np.array([True])},
        {"n": np.array(21), "m": np.array([False])},
    ]
    means = mean_of_whole(parts, [3.0, 1.0])
    assert means["n"].dtype == np.int64
    assert means["n"] == 13  # 12.75
    assert means["m"].tolist() == [True]

"""A model of named arrays becomes one flat vector, and comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from flamma.engines.flower.messages import MessageError
from flamma.errors import FlammaError
from flamma.flower.arrays import NamedArrays, _mean_of_whole, _read_npy

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
    assert form.trainable_size == sum(form.trainable_sizes) == 7
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
        (lambda r: r.__setitem__("b", Array(np.zeros(1, np.float32))), "of the type <f4"),
    ],
)
def test_other_arrays_than_the_models_are_refused(change, reason):
    record = ArrayRecord(dict(NAMED))
    change(record)
    with pytest.raises(MessageError, match=reason):
        NamedArrays.of(NAMED).flatten(record)


PLAIN = Array(np.arange(6, dtype=np.float32).reshape(2, 3))
HEADERS = {
    "torn": PLAIN.data[:60],
    "empty": b"",
    "other version": PLAIN.data.replace(b"NUMPY\x01", b"NUMPY\x02"),
    "other shape": PLAIN.data.replace(b"(2, 3)", b"(3, 2)"),
    "a terabyte": PLAIN.data.replace(b"(2, 3), }       ", b"(999999999999,), }"),
    "objects": PLAIN.data.replace(b"<f4", b"|O8"),
    "brackets": PLAIN.data.replace(b"(2, 3)", b"((((((").replace(b"}", b"("),
    "more": PLAIN.data + b"more",
    "cut": PLAIN.data[:-1],
    "a length beyond the end": PLAIN.data[:8] + b"\xff\xff" + PLAIN.data[10:],
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_is_not_exactly_numpys_is_refused(case):
    array = Array("float32", (2, 3), "numpy.ndarray", HEADERS[case])
    with pytest.raises(MessageError, match=r"^the weights w "):
        _read_npy(array, np.dtype(np.float32), (2, 3), "the weights w")


@pytest.mark.parametrize(
    "values",
    [
        np.float64(0.5),
        np.arange(7),
        np.zeros((0, 3), np.float16),
        np.asfortranarray(np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
        np.array([True, False]),
        np.arange(5, dtype=">i4"),
        np.ones((1,) * 20, np.uint8),
    ],
)
def test_what_numpy_writes_is_read(values):
    values = np.asarray(values)
    found = _read_npy(Array(values), values.dtype, values.shape, "the weights")
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


def test_a_model_without_anything_to_train_is_refused():
    with pytest.raises(FlammaError, match="nothing to train"):
        NamedArrays.of(ArrayRecord({"n": Array(np.array([1]))}))


def test_whole_numbers_have_a_mean_that_is_whole():
    parts = [
        {"n": np.array(10), "m": np.array([True])},
        {"n": np.array(21), "m": np.array([False])},
    ]
    means = _mean_of_whole(parts, [3.0, 1.0])
    assert means["n"].dtype == np.int64
    assert means["n"] == 13  # 12.75
    assert means["m"].tolist() == [True]

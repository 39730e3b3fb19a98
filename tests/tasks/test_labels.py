"""Labels are whole numbers below a bound, wherever data come from."""

from __future__ import annotations

import numpy as np
import pytest

from flamma.data.federated import from_arrays
from flamma.data.records import Dataset
from flamma.errors import DataError
from flamma.tasks.base import MAX_CLASSES, whole_labels

X = np.zeros((4, 3))
BAD = {
    "fractions": ([0, 1, 1.5, 2], "one has a fraction"),
    "nan": ([0, 1, np.nan, 2], "one has a fraction or is not finite"),
    "infinite": ([0, 1, np.inf, 2], "is not finite"),
    "negative": ([0, 1, -1, 2], "whole numbers from 0, but one is -1"),
    "huge": ([0, 1, 10**9, 2], "must be below 100000, but one is 1000000000"),
    "the first too large": ([0, 1, MAX_CLASSES, 2], "must be below 100000"),
    "beyond int64": ([0.0, 1e30], "must be below 100000"),
    "texts": (["a", "b", "c", "d"], "must be whole numbers, not <U1"),
    "objects": ([None, 1, 2, 3], "must be whole numbers, not object"),
    "dates": (np.array(["2020-01-01"] * 4, dtype="datetime64[D]"), "must be whole numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_labels_that_are_none_are_one_sentence(case):
    labels, reason = BAD[case]
    with pytest.raises(DataError, match=reason):
        whole_labels(labels, "labels")


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32])
def test_whole_numbers_of_any_type_are_kept(kind):
    found = whole_labels(np.array([0, 1, 1, 0], dtype=kind), "labels")
    assert found.dtype == np.int64
    assert found.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("case", ["fractions", "huge", "negative"])
@pytest.mark.parametrize("place", ["clients", "held_out", "test", "validation"])
def test_a_federation_of_arrays_refuses_them_everywhere(case, place):
    labels, reason = BAD[case]
    good, bad = (X, [0, 1, 1, 2]), (X, labels)
    given = {"clients": [good], "held_out": [good], "test": good, "validation": good}
    given[place] = bad if place in ("test", "validation") else [bad]
    with pytest.raises(DataError, match=reason):
        from_arrays(**given)


def test_a_federation_without_samples_is_one_sentence():
    nothing = [(X[:0], [])]
    with pytest.raises(DataError, match="no samples"):
        from_arrays(nothing, nothing)


@pytest.mark.parametrize(
    ("labels", "classes", "reason"),
    [
        ([0.0, 0.5, 1.0, 1.0], 2, "float64, not whole numbers"),
        ([0, 1, 1, 0], MAX_CLASSES + 1, "100001 classes"),
        ([0, 1, 1, 0], 0, "0 classes"),
    ],
)
def test_a_dataset_refuses_them(labels, classes, reason):
    y = np.array(labels)
    with pytest.raises(DataError, match=reason):
        Dataset("own", X, y, X, y, tuple(map(str, range(classes))))

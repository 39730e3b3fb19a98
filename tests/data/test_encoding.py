"""Tables of one's own: which columns become features, how, and how new rows are encoded alike."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flamma.data.encoding import SampleEncoding, as_given
from flamma.data.own import _MOST_CATEGORIES, from_data
from flamma.errors import DataError

ROWS = 12


def table(**columns):
    return {
        "age": np.arange(ROWS) * 10.0,
        "ward": ["a", "b", "c"] * 4,
        "smokes": [True, False] * 6,
        "label": ["ill", "well"] * 6,
        "hospital": ["n"] * 4 + ["s"] * 8,
    } | columns


def federation(columns, **options):
    return from_data(columns, target="label", group="hospital", **options)


def test_numbers_are_standardised_and_texts_become_indicators():
    data = federation(table())
    assert data.encoding.features == ("age", "ward=a", "ward=b", "ward=c", "smokes")
    wards = np.concatenate([data.train_x, data.held_x])[:, 1:4]
    assert set(wards.ravel().tolist()) == {0.0, 1.0}
    assert (wards.sum(axis=1) == 1).all()
    np.testing.assert_allclose(data.train_x[:, [0, 4]].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(data.train_x[:, [0, 4]].std(0), 1, rtol=1e-6)


def test_without_standardising_numbers_stay():
    data = federation(table(), standardise=False)
    assert set(data.train_x[:, 0].tolist()) <= set(table()["age"].tolist())
    assert set(data.train_x[:, 4].tolist()) == {0.0, 1.0}


def test_a_column_that_is_the_same_everywhere_is_only_shifted():
    data = federation(table(age=np.full(ROWS, 7.0)))
    assert (data.train_x[:, 0] == 0).all()


def test_new_rows_are_encoded_alike_whatever_stands_beside_them():
    data = federation(table())
    new = {"ward": ["c"], "smokes": [True], "age": [35.0], "name": ["x"]}
    mean, std = data.encoding.mean, data.encoding.std
    by_hand = [(35 - mean[0]) / std[0], 0, 0, 1, (1 - mean[4]) / std[4]]
    np.testing.assert_allclose(data.encode(new)[0], by_hand, rtol=1e-6)


def test_the_encoding_comes_back_from_json_bit_by_bit():
    encoding = federation(table()).encoding
    assert SampleEncoding.from_json(json.loads(json.dumps(encoding.as_json()))) == encoding


@pytest.mark.parametrize("damage", [{"columns": 3}, {"shape": None}, {"mean": ["x"]}])
def test_a_damaged_encoding_is_refused(damage):
    whole = federation(table()).encoding.as_json()
    with pytest.raises(DataError, match="damaged"):
        SampleEncoding.from_json(whole | damage)
    with pytest.raises(DataError, match="damaged"):
        SampleEncoding.from_json({k: v for k, v in whole.items() if k not in damage})


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        ({"ward": ["a"], "smokes": [True]}, "column 'age' is missing"),
        ({"ward": ["d"], "smokes": [True], "age": [1.0]}, "'d', which was not there in training"),
        ({"ward": [1], "smokes": [True], "age": [1.0]}, "'ward' must be texts, as in training"),
        ({"ward": ["a"], "smokes": [True], "age": ["old"]}, "'age' must be numbers"),
        ({"ward": ["a"], "smokes": [True], "age": [np.nan]}, "'age' has 1 missing values"),
        (np.ones((1, 2)), "must have the 3 columns 'age', 'ward', 'smokes'"),
    ],
)
def test_new_rows_of_another_kind_are_refused(new, sentence):
    with pytest.raises(DataError, match=sentence):
        federation(table()).encode(new)


def test_an_array_of_a_table_of_numbers_has_its_columns_in_order():
    columns = {k: v for k, v in table().items() if k != "ward"}
    data = federation(columns)
    rows = np.array([[35.0, 1.0]])
    named = {"age": [35.0], "smokes": [True]}
    np.testing.assert_array_equal(data.encode(rows), data.encode(named))


def test_classes_come_back_as_they_were_given():
    assert as_given(("ill", "well"), np.array([1, 0])).tolist() == ["well", "ill"]
    assert as_given((), np.array([1, 0])).tolist() == [1, 0]


def test_columns_can_be_left_out():
    assert federation(table(), drop=["ward", "smokes"]).shape == (1,)


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (table(), {"target": "lable"}, "no column 'lable': did you mean 'label'"),
        (table(), {"group": "clinic"}, "no column 'clinic'"),
        (table(), {"drop": ["x"]}, "no column 'x'"),
        (table(), {"group": "label"}, "both target and group"),
        (table(), {"drop": ["age", "ward", "smokes"]}, "no column left for features"),
        (table(age=[np.nan] * ROWS), {}, "column 'age' has 12 missing values: fill the gaps"),
        (table(ward=[None, "a"] * 6), {}, "column 'ward' has 6 missing values"),
        (table(age=[np.inf] * ROWS), {}, "column 'age' has an infinite value"),
        (table(age=[1, "a"] * 6), {}, "column 'age' must be all numbers.*int and str"),
        (table(age=[True, 2] * 6), {}, "column 'age' must be all numbers.*bool and int"),
        (table(age=[2**70] * ROWS), {}, "column 'age' has a whole number of more than 63 bits"),
        (table(age=[[1]] * ROWS), {}, "column 'age' must be all numbers.*list"),
        (table(age=np.full(ROWS, "2026-01-01", dtype="M8[D]")), {}, "column 'age' is of times"),
        (table(age=np.array([1e308, -1e308] * 6)), {}, "too large to standardise"),
        (table(label=np.linspace(0, 1, ROWS)), {}, 'task="regression"'),
        ({name: [] for name in table()}, {}, "no rows"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_a_sentence(columns, options, sentence):
    with pytest.raises(DataError, match=sentence):
        from_data(columns, **({"target": "label", "group": "hospital"} | options))


def test_a_text_of_too_many_kinds_is_no_category():
    rows = _MOST_CATEGORIES + 1
    columns = {"name": [f"p{k}" for k in range(rows)], "y": [0, 1] * (rows // 2) + [0]}
    with pytest.raises(DataError, match="'name' has 101 different texts, and at most 100"):
        from_data(columns, target="y", clients=2)
    columns["name"][0] = "p1"
    assert from_data(columns, target="y", clients=2).shape == (_MOST_CATEGORIES,)


def test_whole_floats_of_many_kinds_are_quantities():
    columns = {"x": np.arange(60.0), "y": np.arange(60.0)}
    with pytest.raises(DataError, match="60 different values"):
        from_data(columns, target="y", clients=2)

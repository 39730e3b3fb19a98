"""Frames of pandas, of whatever types its columns are."""

from __future__ import annotations

import numpy as np
import pandas
import pytest

from flamma.data.own import federated_from
from flamma.errors import DataError


def frame(**columns):
    return pandas.DataFrame(
        {
            "age": np.arange(12.0),
            "ward": ["a", "b", "c"] * 4,
            "label": ["ill", "well"] * 6,
            "hospital": ["n"] * 4 + ["s"] * 8,
        }
        | columns
    )


def federation(table):
    return federated_from(table, target="label", group="hospital")


def test_a_frame_is_the_mapping_of_its_columns():
    data = federation(frame())
    plain = federation({name: frame()[name].tolist() for name in frame().columns})
    np.testing.assert_array_equal(data.train_x, plain.train_x)
    assert (data.labels, data.client_names) == (plain.labels, plain.client_names)
    assert data.encoding == plain.encoding
    np.testing.assert_array_equal(data.encode(frame().head(3)), plain.encode(frame().head(3)))


@pytest.mark.parametrize("kind", ["category", "string", "str", "object"])
def test_texts_of_every_type_are_categories(kind):
    data = federation(frame().astype({"ward": kind, "label": kind, "hospital": kind}))
    assert data.encoding.features == ("age", "ward=a", "ward=b", "ward=c")
    assert data.labels == ("ill", "well")


@pytest.mark.parametrize("kind", ["Int64", "Float64", "int8", "float32", "uint16"])
def test_numbers_of_every_type_are_numbers(kind):
    data = federation(frame().astype({"age": kind}))
    np.testing.assert_array_equal(data.train_x, federation(frame()).train_x)


def test_the_index_is_no_feature_and_its_order_does_not_matter():
    shuffled = frame().set_index(np.arange(12)[::-1])
    np.testing.assert_array_equal(federation(shuffled).train_x, federation(frame()).train_x)


@pytest.mark.parametrize("kind", ["Int64", "float64", "category", "string", "boolean"])
def test_missing_values_of_every_type_are_refused(kind):
    values = pandas.Series([1, 0] * 6).astype(kind)
    values[3] = pandas.NA if kind != "float64" else np.nan
    with pytest.raises(DataError, match="column 'age' has 1 missing values"):
        federation(frame(age=values))


def test_columns_of_one_name_are_refused():
    twice = pandas.concat([frame(), frame()[["age"]]], axis=1)
    with pytest.raises(DataError, match="there twice: 'age'"):
        federation(twice)


def test_times_are_refused():
    with pytest.raises(DataError, match="'age' is of times"):
        federation(frame(age=pandas.date_range("2026-01-01", periods=12)))


def test_a_list_of_frames_has_a_client_each_and_one_encoding():
    parts = [part.drop(columns="hospital") for _, part in frame().groupby("hospital")]
    parts[0]["ward"] = "a"
    data = federated_from(parts, target="label")
    assert data.clients == 2
    assert data.shape == (4,)


def test_a_mapping_of_frames_names_the_clients():
    parts = {name: part.drop(columns="hospital") for name, part in frame().groupby("hospital")}
    assert federated_from(parts, target="label").client_names == ("n", "s")


def test_frames_of_clients_must_have_the_same_columns():
    parts = [frame().drop(columns="hospital"), frame().drop(columns=["hospital", "ward"])]
    with pytest.raises(DataError, match="client 1 has other columns"):
        federated_from(parts, target="label")


def test_a_frame_and_its_labels_are_features_and_labels():
    """The labels may be a series, an array or a list, and be called like a feature."""
    features, labels = frame().drop(columns="label"), frame()["label"]
    whole = federated_from(frame(), target="label", group="hospital")
    for y in (labels, labels.to_numpy(), labels.tolist(), labels.rename("ward")):
        found = federated_from((features, y), group="hospital")
        assert np.array_equal(found.train_x, whole.train_x)
        assert np.array_equal(found.train_y, whole.train_y)
        assert found.encoding == whole.encoding
    with pytest.raises(DataError, match="leave out target"):
        federated_from((features, labels), target="ward", group="hospital")
    with pytest.raises(DataError, match="columns must have the same length, but 'age' has 12 rows"):
        federated_from((features, labels[:5]), group="hospital")
    with pytest.raises(DataError, match="targets must be one for each sample, not None"):
        federated_from((features, None), group="hospital")


def test_a_message_about_a_column_has_the_name_of_that_column():
    table = frame(h=[np.nan, *[1.0] * 11])
    with pytest.raises(DataError, match="column 'h' has 1 missing values"):
        federated_from(table, target="label", group="h")
    with pytest.raises(DataError, match="column 'h' has 1 missing values"):
        federated_from(table.drop(columns="h"), target="label", group=table["h"])
    state = pandas.Series([None, *frame()["label"][1:]], name="state")
    with pytest.raises(DataError, match="column 'state' has 1 missing values"):
        federated_from((table, state), group="hospital")


@pytest.mark.parametrize("group", [3, 0.5, {"a": 1}, {1, 2}, object(), len])
def test_a_group_that_is_no_column_is_refused(group):
    with pytest.raises(DataError, match="group must be the name of a column, or one value for"):
        federated_from(frame(), target="label", group=group)


def test_a_table_without_a_target_says_so_once():
    with pytest.raises(DataError, match=r"name the column to predict, as target\.$"):
        federated_from(frame(), group="hospital")


@pytest.mark.parametrize("form", [tuple, list, lambda parts: dict(zip("abc", parts, strict=False))])
@pytest.mark.parametrize("count", [2, 3])
def test_labels_and_clients_beside_a_frame_in_another_form_are_refused(form, count):
    parts = form([frame(), frame()["label"], frame()["hospital"]][:count])
    if isinstance(parts, tuple) and count == 2:
        return  # a table and its labels
    with pytest.raises(DataError, match=r"are a (DataFrame|Series) without item 0: give .x, y.,"):
        federated_from(parts)

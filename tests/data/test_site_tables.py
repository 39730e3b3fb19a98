"""A site's table is read by declared columns, the same ones at all sites, or refused."""

from __future__ import annotations

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from flamma.data.sites import load_site, read_declared
from flamma.errors import DataError

COLUMNS = """
target = "outcome"
classes = ["ill", "well", "unknown"]
[[columns]]
name = "age"
mean = 50
std = 10
[[columns]]
name = "ward"
categories = ["1", "2", "a"]
"""
ROWS = [(40, "1", "well"), (50, "2", "ill"), (60, "1", "well"), (75, "2", "ill")] * 3
HEADER = ("age", "ward", "outcome")


def site(place, columns=COLUMNS, table="people.csv", more="held_out = 0.5"):
    (place / "columns.toml").write_text(columns)
    path = place / "site.toml"
    path.write_text(f'name = "here"\n[data]\ntable = "{table}"\n{more}\n')
    return path


def csv(place, rows=ROWS, header=HEADER, name="people.csv"):
    lines = [",".join(map(str, row)) for row in (header, *rows)]
    (place / name).write_text("\n".join(lines) + "\n")


def everything(found):
    x = np.concatenate([found.x, found.held_x])
    y = np.concatenate([found.y, found.held_y])
    return sorted((*row, label) for row, label in zip(x.tolist(), y.tolist(), strict=True))


EXPECTED = sorted(
    ((age - 50) / 10, float(ward == "1"), float(ward == "2"), 0.0, int(outcome == "well"))
    for age, ward, outcome in ROWS
)


def test_a_table_is_encoded_as_declared_whatever_the_site_has_of_it(tmp_path):
    csv(tmp_path)  # all of its wards are whole numbers, and nobody is unknown
    found = load_site(site(tmp_path))
    assert everything(found) == EXPECTED
    assert (found.classes, found.labels) == (3, ("ill", "well", "unknown"))
    assert found.shape == (4,)
    again = load_site(tmp_path / "site.toml")  # out of the cache
    assert again.labels == found.labels
    assert again.columns_sha256 == found.columns_sha256 != ""


def test_a_parquet_file_and_other_columns_give_the_same(tmp_path):
    age, ward, outcome = zip(*ROWS, strict=True)
    columns = {"name": ["x"] * 12, "outcome": outcome, "ward": list(map(int, ward)), "age": age}
    parquet.write_table(arrow.table(columns), tmp_path / "people.parquet")
    assert everything(load_site(site(tmp_path, table="people.parquet"))) == EXPECTED


def test_numbers_are_predicted_where_no_classes_are_declared(tmp_path):
    csv(tmp_path)
    columns = 'target = "age"\n[[columns]]\nname = "ward"\ncategories = ["1", "2"]\n'
    found = load_site(site(tmp_path, columns, more='task = "regression"'))
    assert sorted(set(found.y.ravel().tolist())) == [40.0, 50.0, 60.0, 75.0]
    assert found.labels == ()


def test_the_checksum_goes_by_what_is_declared_and_not_by_how_it_is_written(tmp_path):
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text(COLUMNS)
    other.write_text(COLUMNS.replace("mean = 50", "# ten years\nmean = 50.0"))
    assert read_declared(one).sha256 == read_declared(other).sha256
    other.write_text(COLUMNS.replace("mean = 50", "mean = 51"))
    assert read_declared(one).sha256 != read_declared(other).sha256


REFUSED = {
    "a category": ([*ROWS, (1, "b", "ill")], COLUMNS, "column 'ward' has 'b', but declared are"),
    "a class": ([*ROWS, (1, "1", "dead")], COLUMNS, "column 'outcome' has 'dead', but declared"),
    "a float label": ([(1, "1", 0.5)] * 4, COLUMNS.replace('"ill"', '"0"'), "has '0.5', but decl"),
    "no numbers": ([*ROWS, ("old", "1", "ill")], COLUMNS, "column 'age' must be numbers"),
    "a gap": ([*ROWS, (1, "", "ill")], COLUMNS, "1 missing values, the first on line 14"),
    "no column": (ROWS, COLUMNS.replace('"age"', '"ages"'), "no column 'ages', which is declared"),
    "no target": (ROWS, COLUMNS.replace('target = "outcome"', ""), "a target and at least one"),
    "a key": (ROWS, COLUMNS.replace("std = 10", "sdt = 10"), "did you mean std"),
    "a scale": (ROWS, COLUMNS.replace("std = 10", "std = 0"), "must be positive, not 0"),
    "one class": (ROWS, COLUMNS.replace(', "well", "unknown"', ""), "at least two"),
    "no classes": (ROWS, COLUMNS.replace("classes =", "# "), "needs classes, but the task is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_declared_is_refused_in_one_sentence(tmp_path, case):
    rows, columns, reason = REFUSED[case]
    csv(tmp_path, rows)
    with pytest.raises(DataError) as refused:
        load_site(site(tmp_path, columns))
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_floating_point_numbers_are_no_categories(tmp_path):
    age, ward, outcome = zip(*ROWS, strict=True)
    columns = {"outcome": outcome, "ward": [float(w) for w in ward], "age": age}
    parquet.write_table(arrow.table(columns), tmp_path / "people.parquet")
    with pytest.raises(DataError, match="column 'ward' has floating-point numbers"):
        load_site(site(tmp_path, table="people.parquet"))


def test_classes_of_a_table_stand_in_one_place(tmp_path):
    csv(tmp_path)
    with pytest.raises(DataError, match=r"data\.classes of a table stands in columns\.toml"):
        load_site(site(tmp_path, more="classes = 3"))


def test_other_columns_are_read_anew_and_not_taken_out_of_the_cache(tmp_path):
    csv(tmp_path)
    before = load_site(site(tmp_path))
    after = load_site(site(tmp_path, COLUMNS.replace("std = 10", "std = 20.0")))
    np.testing.assert_array_equal(after.x[:, 0] * 2, before.x[:, 0])

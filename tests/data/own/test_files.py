"""Files and folders of one's own data."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as arrow
import pytest
from PIL import Image
from pyarrow import parquet

from flamma.data.own import federated_from
from flamma.errors import DataError

ROWS = [f"{k},{'ab'[k % 2]},{'ill' if k % 3 else 'well'},{'ns'[k // 6]}" for k in range(12)]
CSV = "age,ward,label,site\n" + "\n".join(ROWS) + "\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "wards.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


def pictures(folder, names, count=4, size=(14, 12), mode="L"):
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for k in range(count):
            shape = size if mode == "L" else (*size, 3)
            pixels = rng.integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k}.png")


def test_a_csv_file_is_its_table_and_has_its_checksum(table):
    data = federated_from(table, target="label", group="site")
    assert (data.name, data.client_names, data.labels) == ("wards", ("n", "s"), ("ill", "well"))
    assert data.encoding.features == ("age", "ward=a", "ward=b")
    assert data.sha256 == hashlib.sha256(CSV.encode()).hexdigest()
    named = federated_from(str(table), target="label", group="site")
    np.testing.assert_array_equal(named.train_x, data.train_x)


def test_a_parquet_file_is_the_same_as_its_csv(table, tmp_path):
    columns = {
        "age": list(range(12)),
        "ward": ["a", "b"] * 6,
        "label": ["ill" if k % 3 else "well" for k in range(12)],
        "site": ["n"] * 6 + ["s"] * 6,
    }
    path = tmp_path / "wards.parquet"
    parquet.write_table(arrow.table(columns), path)
    data = federated_from(path, target="label", group="site")
    expected = federated_from(table, target="label", group="site")
    np.testing.assert_array_equal(data.train_x, expected.train_x)
    assert data.encoding == expected.encoding
    assert data.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_parquet_file_may_hold_pictures(tmp_path):
    pictures(tmp_path / "png", ["all"], count=8)
    cells = [file.read_bytes() for file in sorted((tmp_path / "png" / "all").iterdir())]
    path = tmp_path / "scans.parquet"
    parquet.write_table(
        arrow.table({"image": cells, "label": [0, 1] * 4, "site": ["n", "s"] * 4}), path
    )
    data = federated_from(path, group="site")
    assert data.shape == (1, 14, 12)
    assert data.client_names == ("n", "s")


def test_folders_of_classes_are_dealt_and_folders_of_clients_are_clients(tmp_path):
    pictures(tmp_path / "n", ["cat", "dog"])
    pictures(tmp_path / "s", ["dog", "emu"])
    dealt = federated_from(tmp_path / "n", clients=2)
    assert (dealt.clients, dealt.labels, dealt.client_names) == (2, ("cat", "dog"), ())
    data = federated_from(tmp_path)
    assert (data.labels, data.client_names) == (("cat", "dog", "emu"), ("n", "s"))
    assert (data.class_counts() > 0).tolist() == [[True, True, False], [False, True, True]]
    assert data.shape == (1, 14, 12)
    np.testing.assert_allclose(data.train_x.mean(), 0, atol=1e-6)


def test_the_checksum_of_a_folder_is_of_names_and_contents(tmp_path):
    pictures(tmp_path / "a", ["cat", "dog"])
    before = federated_from(tmp_path / "a", clients=2).sha256
    (tmp_path / "a" / "cat" / "0.png").rename(tmp_path / "a" / "cat" / "9.png")
    assert federated_from(tmp_path / "a", clients=2).sha256 != before


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gone.csv", "cannot read .*gone.csv: No such file"),
        ("gone", "gone is not there; data are a CSV or parquet file"),
        ("data.xlsx", "data.xlsx is no CSV or parquet file"),
        ("empty", "has no folders of classes"),
        ("broken.parquet", "broken.parquet cannot be read as parquet"),
    ],
)
def test_what_is_no_file_of_data_is_refused(tmp_path, name, sentence):
    (tmp_path / "data.xlsx").write_bytes(b"x")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=sentence):
        federated_from(tmp_path / name, target=None if name == "empty" else "label")


def test_a_folder_has_no_columns(tmp_path):
    pictures(tmp_path, ["cat", "dog"])
    with pytest.raises(DataError, match="has no columns: leave out target"):
        federated_from(tmp_path, target="label")


def test_parquet_columns_of_one_name_are_refused(tmp_path):
    path = tmp_path / "twice.parquet"
    twice = arrow.Table.from_arrays([arrow.array([1]), arrow.array([2])], names=["a", "a"])
    parquet.write_table(twice, path)
    with pytest.raises(DataError, match="more than one column 'a'"):
        federated_from(path, target="a")

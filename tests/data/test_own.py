"""One's own arrays, mappings and lists as a federation: clients, classes, shares, and refusals."""

from __future__ import annotations

import hashlib

import datasets
import numpy as np
import pandas
import pyarrow as arrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from flamma.data import own
from flamma.data.federated import FederatedData, from_arrays
from flamma.data.own import from_data
from flamma.errors import DataError, FlammaError
from flamma.registry import Choice

X = np.arange(24.0).reshape(12, 2)
Y = np.array([0, 1] * 6)
SITES = ["north"] * 4 + ["south"] * 8


def clients_of(data, part="train"):
    offsets = getattr(data, f"{part}_offsets")
    return np.split(getattr(data, f"{part}_x"), offsets[1:-1])


def test_samples_go_to_the_client_that_group_names_and_none_is_lost():
    data = from_data((X, Y), group=SITES)
    assert data.client_names == ("north", "south")
    assert data.samples.tolist() == [3, 6]  # a fifth of 4 and of 8, rounded, is held out
    own = zip(clients_of(data), clients_of(data, "held"), strict=True)
    north, south = (sorted(np.concatenate(parts).tolist()) for parts in own)
    assert (north, south) == (X[:4].tolist(), X[4:].tolist())
    assert data.test_x is data.held_x
    assert data.validation_y.size == 0


def test_the_seed_decides_what_is_held_out_and_the_same_seed_the_same():
    first, again, other = (from_data((X, Y), group=SITES, seed=s) for s in (1, 1, 2))
    assert (first.held_x == again.held_x).all()
    assert not (first.held_x == other.held_x).all()


def test_labels_of_a_sample_stay_its_labels():
    labels = np.array(["well", "ill", "unclear"] * 4)
    data = from_data((X, labels), group=SITES)
    assert data.labels == ("ill", "unclear", "well")
    assert data.classes == 3
    for x, y in zip(data.train_x, data.train_y, strict=True):
        assert data.labels[y] == labels[int(x[0]) // 2]


@pytest.mark.parametrize(
    ("targets", "labels"),
    [
        ([True, False] * 6, (False, True)),
        ([7, -3] * 6, (-3, 7)),
        ([2.0, 1.0] * 6, (1.0, 2.0)),
        ([2**62, 5] * 6, (5, 2**62)),
        (list("ba") * 6, ("a", "b")),
    ],
)
def test_classes_are_numbered_in_sorted_order(targets, labels):
    data = from_data((X, targets), group=SITES)
    assert data.labels == labels
    assert [type(label) for label in data.labels] == [type(label) for label in labels]
    assert set(data.train_y.tolist()) == {0, 1}


def test_a_list_has_one_part_for_each_client_in_its_order():
    data = from_data([(X[:4], Y[:4]), (X[4:], Y[4:])])
    assert data.client_names == ()
    assert [sorted(part[:, 0] < 8)[0] for part in clients_of(data)] == [True, False]


def test_a_mapping_names_the_clients_in_its_order():
    data = from_data({"south": (X[4:], Y[4:]), "north": (X[:4], Y[:4])})
    assert data.client_names == ("south", "north")
    assert data.samples.tolist() == [6, 3]


def test_two_clients_in_a_tuple_are_no_samples_and_labels():
    assert from_data(((X[:4], Y[:4]), (X[4:], Y[4:]))).clients == 2


def test_without_groups_samples_are_dealt_by_a_split():
    data = from_data((X, Y), clients=3)
    assert data.clients == 3
    assert data.samples.sum() + data.held_y.size == 12
    shards = Choice("shards", {"shards_per_client": 1, "uneven": 0.0})
    data = from_data((X, Y), clients=2, split=shards)
    assert (data.class_counts() > 0).sum(axis=1).tolist() == [1, 1]


def test_fewer_clients_than_groups_get_whole_groups():
    group = np.repeat(["a", "b", "c"], 4)
    data = from_data((X, Y), group=group, clients=2)
    held = {tuple(row) for row in X[:4]}
    owners = [held & {tuple(row) for row in part} for part in clients_of(data)]
    assert sum(map(bool, owners)) == 1
    assert sorted(name.count(" more") for name in data.client_names) == [0, 1]


def test_whole_numbers_stay_whole_and_bytes_of_pictures_become_shares():
    tokens = from_data((X.astype(np.int32), Y), group=SITES)
    assert tokens.train_x.dtype == np.int64
    pixels = np.full((12, 1, 2, 2), 51, dtype=np.uint8)
    pictures = from_data((pixels, Y), group=SITES, standardise=False)
    assert pictures.train_x.dtype == np.float32
    assert np.unique(pictures.train_x) == np.float32(0.2)


def test_arrays_are_standardised_only_if_asked_and_by_the_training_samples():
    plain, scaled = (from_data((X, Y), group=SITES, standardise=s) for s in (None, True))
    assert set(plain.train_x.ravel()) <= set(X.ravel().tolist())
    by_hand = (plain.held_x - plain.train_x.mean(0)) / plain.train_x.std(0)
    np.testing.assert_allclose(scaled.held_x, by_hand, rtol=1e-6)
    np.testing.assert_array_equal(scaled.encode(plain.held_x), scaled.held_x)


def test_a_test_set_is_encoded_as_the_samples_are():
    data = from_data((X, Y), group=SITES, test=(X[:3], Y[:3]), standardise=True)
    np.testing.assert_array_equal(data.test_x, data.encode(X[:3]))
    assert data.test_y.tolist() == [0, 1, 0]


def test_a_validation_set_is_cut_off_first():
    data = from_data((X, Y), group=SITES, validation_samples=2)
    assert data.validation_y.size == 2
    assert data.samples.sum() + data.held_y.size == 10


def test_regression_keeps_quantities():
    data = from_data((X, X[:, 0] / 7), group=SITES, task="regression")
    assert data.task == "regression"
    assert data.train_y.dtype == np.float32
    np.testing.assert_array_equal(data.train_y, (data.train_x[:, 0] / 7).astype(np.float32))


def test_next_token_keeps_rows_of_ids():
    ids = np.arange(48).reshape(12, 4) % 9
    data = from_data((ids, (ids + 1) % 9), group=SITES, task="next-token")
    assert data.train_y.shape == (9, 4)
    assert (data.train_y == (data.train_x + 1) % 9).all()
    assert data.classes == 9


def test_a_federation_passes_through():
    data = from_arrays([(X, Y)] * 2, [(X, Y)] * 2)
    assert from_data(data) is data
    with pytest.raises(DataError, match="group has no effect"):
        from_data(data, group="hospital")


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        ((X, Y), {}, "the data name no clients"),
        ((X, Y), {"group": ["a"] * 12}, "all samples are of one client"),
        ((X, Y), {"group": ["a"] * 11 + ["b"]}, r"every client needs 2 samples.*'b'"),
        ((X, Y), {"group": SITES[:-1]}, "for each of 12 samples, but has 11"),
        ((X, Y), {"group": [None, *SITES[1:]]}, "column 'group' has 1 missing values"),
        ((X, Y), {"group": "hospital"}, "arrays have no column 'hospital'"),
        ((X, Y[:-1]), {"group": SITES}, r"shapes are \(12, 2\) and \(11,\)"),
        ((X[:, 0], Y), {"group": SITES}, r"make x of shape \(samples, 1\)"),
        ((X, Y * 0), {"group": SITES}, "all targets are 0: a classifier needs at least two"),
        ((X, Y + 0.5), {"group": SITES}, 'have fractions.*task="regression"'),
        ((X, X), {"group": SITES}, r"targets have shape \(12, 2\)"),
        ((X * np.nan, Y), {"group": SITES}, "not finite"),
        ((X + np.inf, Y), {"group": SITES}, "not finite"),
        ((X * 1e60, Y), {"group": SITES}, "too large for single precision"),
        ((X.astype(object), Y), {"group": SITES}, "must be numbers, not object"),
        ((X.astype(str), Y), {"group": SITES}, "must be numbers, not <U"),
        ((X + 1j, Y), {"group": SITES}, "must be numbers, not complex"),
        ((np.full((12, 2), 2**63, dtype=np.uint64), Y), {"group": SITES}, "more than 63 bits"),
        (([[1, 2], [3]], [0, 1]), {"clients": 1}, "all samples must have one shape"),
        ((X, [0, "a"] * 6), {"group": SITES}, "has int and str"),
        (
            (X, list("ab") * 6),
            {"group": SITES, "task": "regression"},
            "targets must be numbers, not object",
        ),
        ((X, Y), {"group": SITES, "task": "clustering"}, "unknown task 'clustering'"),
        ((X, Y), {"group": SITES, "held_out": 1.0}, "held_out must lie between 0 and 1"),
        ((X, Y), {"group": SITES, "clients": 3}, "2 groups for 3 clients"),
        ((X, Y), {"group": SITES, "test": (X[:, :1], Y)}, r"test samples have the shape \(1,\)"),
        ([], {}, "no clients"),
        ([(X, Y)], {}, "one client"),
        ([(X, Y), (X[:, :1], Y)], {}, r"must be alike, but are \(1,\) and \(2,\)"),
        ([(X, Y), (X[:0], Y[:0])], {}, "client 1 has no samples"),
        ([(X, Y), X], {}, "samples of client 1 are a ndarray"),
        ([(X, Y), (X, Y)], {"group": SITES}, "group has no effect"),
        (X, {}, "samples are a ndarray"),
        (None, {}, "samples are a NoneType"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(given, options, sentence):
    with pytest.raises(FlammaError, match=sentence) as caught:
        from_data(given, **options)
    assert str(caught.value).endswith(".")


@given(
    group=st.lists(st.integers(0, 4), min_size=4, max_size=60),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_every_sample_is_at_its_client_once_or_the_data_are_refused(group, share, seed):
    x = np.arange(len(group), dtype=np.float64)[:, None]
    y = np.arange(len(group)) % 2
    sizes = np.unique(group, return_counts=True)[1]
    if sizes.size == 1 or sizes.min() < 2:
        with pytest.raises(DataError):
            from_data((x, y), group=group, held_out=share, seed=seed)
        return
    data = from_data((x, y), group=group, held_out=share, seed=seed)
    assert isinstance(data, FederatedData)
    for client, name in enumerate(data.client_names):
        own = [*clients_of(data)[client].ravel(), *clients_of(data, "held")[client].ravel()]
        assert sorted(own) == [k for k, g in enumerate(group) if str(g) == name]
    assert np.diff(data.held_offsets).min() >= 1
    assert data.samples.min() >= 1


# Files and folders of one's own data.

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
    data = from_data(table, target="label", group="site")
    assert (data.name, data.client_names, data.labels) == ("wards", ("n", "s"), ("ill", "well"))
    assert data.encoding.features == ("age", "ward=a", "ward=b")
    assert data.sha256 == hashlib.sha256(CSV.encode()).hexdigest()
    named = from_data(str(table), target="label", group="site")
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
    data = from_data(path, target="label", group="site")
    expected = from_data(table, target="label", group="site")
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
    data = from_data(path, group="site")
    assert data.shape == (1, 14, 12)
    assert data.client_names == ("n", "s")


def test_folders_of_classes_are_dealt_and_folders_of_clients_are_clients(tmp_path):
    pictures(tmp_path / "n", ["cat", "dog"])
    pictures(tmp_path / "s", ["dog", "emu"])
    dealt = from_data(tmp_path / "n", clients=2)
    assert (dealt.clients, dealt.labels, dealt.client_names) == (2, ("cat", "dog"), ())
    data = from_data(tmp_path)
    assert (data.labels, data.client_names) == (("cat", "dog", "emu"), ("n", "s"))
    assert (data.class_counts() > 0).tolist() == [[True, True, False], [False, True, True]]
    assert data.shape == (1, 14, 12)
    np.testing.assert_allclose(data.train_x.mean(), 0, atol=1e-6)


def test_the_checksum_of_a_folder_is_of_names_and_contents(tmp_path):
    pictures(tmp_path / "a", ["cat", "dog"])
    before = from_data(tmp_path / "a", clients=2).sha256
    (tmp_path / "a" / "cat" / "0.png").rename(tmp_path / "a" / "cat" / "9.png")
    assert from_data(tmp_path / "a", clients=2).sha256 != before


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
        from_data(tmp_path / name, target=None if name == "empty" else "label")


def test_a_folder_has_no_columns(tmp_path):
    pictures(tmp_path, ["cat", "dog"])
    with pytest.raises(DataError, match="has no columns: leave out target"):
        from_data(tmp_path, target="label")


def test_parquet_columns_of_one_name_are_refused(tmp_path):
    path = tmp_path / "twice.parquet"
    twice = arrow.Table.from_arrays([arrow.array([1]), arrow.array([2])], names=["a", "a"])
    parquet.write_table(twice, path)
    with pytest.raises(DataError, match="more than one column 'a'"):
        from_data(path, target="a")


# Frames of pandas, of whatever types its columns are.


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
    return from_data(table, target="label", group="hospital")


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
    data = from_data(parts, target="label")
    assert data.clients == 2
    assert data.shape == (4,)


def test_a_mapping_of_frames_names_the_clients():
    parts = {name: part.drop(columns="hospital") for name, part in frame().groupby("hospital")}
    assert from_data(parts, target="label").client_names == ("n", "s")


def test_frames_of_clients_must_have_the_same_columns():
    parts = [frame().drop(columns="hospital"), frame().drop(columns=["hospital", "ward"])]
    with pytest.raises(DataError, match="client 1 has other columns"):
        from_data(parts, target="label")


def test_a_frame_and_its_labels_are_features_and_labels():
    """The labels may be a series, an array or a list, and be called like a feature."""
    features, labels = frame().drop(columns="label"), frame()["label"]
    whole = from_data(frame(), target="label", group="hospital")
    for y in (labels, labels.to_numpy(), labels.tolist(), labels.rename("ward")):
        found = from_data((features, y), group="hospital")
        assert np.array_equal(found.train_x, whole.train_x)
        assert np.array_equal(found.train_y, whole.train_y)
        assert found.encoding == whole.encoding
    with pytest.raises(DataError, match="leave out target"):
        from_data((features, labels), target="ward", group="hospital")
    with pytest.raises(DataError, match="columns must have the same length, but 'age' has 12 rows"):
        from_data((features, labels[:5]), group="hospital")
    with pytest.raises(DataError, match="targets must be one for each sample, not None"):
        from_data((features, None), group="hospital")


def test_a_message_about_a_column_has_the_name_of_that_column():
    table = frame(h=[np.nan, *[1.0] * 11])
    with pytest.raises(DataError, match="column 'h' has 1 missing values"):
        from_data(table, target="label", group="h")
    with pytest.raises(DataError, match="column 'h' has 1 missing values"):
        from_data(table.drop(columns="h"), target="label", group=table["h"])
    state = pandas.Series([None, *frame()["label"][1:]], name="state")
    with pytest.raises(DataError, match="column 'state' has 1 missing values"):
        from_data((table, state), group="hospital")


@pytest.mark.parametrize("group", [3, 0.5, {"a": 1}, {1, 2}, object(), len])
def test_a_group_that_is_no_column_is_refused(group):
    with pytest.raises(DataError, match="group must be the name of a column, or one value for"):
        from_data(frame(), target="label", group=group)


def test_a_table_without_a_target_says_so_once():
    with pytest.raises(DataError, match=r"name the column to predict, as target\.$"):
        from_data(frame(), group="hospital")


@pytest.mark.parametrize("form", [tuple, list, lambda parts: dict(zip("abc", parts, strict=False))])
@pytest.mark.parametrize("count", [2, 3])
def test_labels_and_clients_beside_a_frame_in_another_form_are_refused(form, count):
    parts = form([frame(), frame()["label"], frame()["hospital"]][:count])
    if isinstance(parts, tuple) and count == 2:
        return  # a table and its labels
    with pytest.raises(DataError, match=r"are a (DataFrame|Series) without item 0: give .x, y.,"):
        from_data(parts)


# Datasets of Hugging Face, and Flower's partitioners by the protocol that they have.

COLUMNS = {
    "age": [float(k) for k in range(12)],
    "ward": ["a", "b", "c"] * 4,
    "label": [1, 2] * 6,
    "site": ["n"] * 4 + ["s"] * 8,
}


@pytest.fixture
def _no_progress_bars():
    datasets.disable_progress_bars()


class Partitioner:
    """What a partitioner of Flower's has, without Flower's package."""

    def __init__(self, parts, names=None):
        self.parts = parts
        self.num_partitions = len(parts)
        if names is not None:
            self.partition_id_to_natural_id = names

    def load_partition(self, partition_id):
        return self.parts[partition_id]


@pytest.mark.usefixtures("_no_progress_bars")
def test_a_dataset_is_the_mapping_of_its_columns():
    data = from_data(datasets.Dataset.from_dict(COLUMNS), target="label", group="site")
    plain = from_data(COLUMNS, target="label", group="site")
    np.testing.assert_array_equal(data.train_x, plain.train_x)
    assert (data.labels, data.client_names) == ((1, 2), ("n", "s"))
    assert data.encoding == plain.encoding
    rows = datasets.Dataset.from_dict({"age": [3.0], "ward": ["b"]})
    np.testing.assert_array_equal(data.encode(rows), plain.encode({"age": [3.0], "ward": ["b"]}))


@pytest.mark.usefixtures("_no_progress_bars")
def test_a_dataset_dict_brings_its_test_set():
    whole = datasets.Dataset.from_dict(COLUMNS)
    data = from_data(
        datasets.DatasetDict(train=whole, test=whole.select(range(5))), target="label", group="site"
    )
    assert data.test_y.tolist() == [0, 1, 0, 1, 0]
    np.testing.assert_array_equal(data.test_x, data.encode({k: v[:5] for k, v in COLUMNS.items()}))
    with pytest.raises(DataError, match="needs a part 'train', but has 'all'"):
        from_data(datasets.DatasetDict(all=whole), target="label", group="site")


@pytest.mark.usefixtures("_no_progress_bars")
def test_lists_of_token_ids_stay_whole():
    ids = np.arange(60).reshape(12, 5)
    source = datasets.Dataset.from_dict(
        {"ids": ids.tolist(), "label": [0, 1] * 6, "more": [1] * 12}
    )
    data = from_data(source, target="label", drop=["more"], clients=2)
    assert data.train_x.dtype == np.int64
    assert data.shape == (5,)
    with pytest.raises(DataError, match=r"'ids' has an array in each cell.*'more'"):
        from_data(source, target="label", clients=2)


@pytest.mark.usefixtures("_no_progress_bars")
def test_pictures_are_arrays_of_channels_first():
    pixels = np.arange(12 * 5 * 4 * 3, dtype=np.uint8).reshape(12, 5, 4, 3)
    source = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(p) for p in pixels], "label": [0, 1] * 6},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    data = from_data(source, target="label", clients=2, standardise=False)
    assert data.shape == (3, 5, 4)
    first = (pixels.transpose(0, 3, 1, 2) / np.float32(255)).astype(np.float32)
    assert data.train_x[0].tolist() in first.tolist()


@pytest.mark.usefixtures("_no_progress_bars")
def test_missing_values_are_refused():
    source = datasets.Dataset.from_dict(COLUMNS | {"age": [None, *COLUMNS["age"][1:]]})
    with pytest.raises(DataError, match="column 'age' has 1 missing values"):
        from_data(source, target="label", group="site")


@pytest.mark.usefixtures("_no_progress_bars")
def test_partitions_are_clients_with_their_natural_names():
    whole = datasets.Dataset.from_dict(COLUMNS).remove_columns("site")
    parts = [whole.select(range(4)), whole.select(range(4, 12))]
    data = from_data(Partitioner(parts, {0: "n", 1: "s"}), target="label")
    assert data.client_names == ("n", "s")
    assert data.samples.tolist() == [3, 6]
    assert from_data(Partitioner(parts), target="label").client_names == ()


@pytest.mark.usefixtures("_no_progress_bars")
def test_a_federated_dataset_is_asked_by_its_partitioner():
    whole = datasets.Dataset.from_dict(COLUMNS).remove_columns("site")
    source = Partitioner([whole.select(range(4)), whole.select(range(4, 12))])
    del source.num_partitions
    source.partitioners = {"train": Partitioner([None, None])}
    assert from_data(source, target="label").clients == 2


@pytest.mark.usefixtures("_no_progress_bars")
def test_a_partitioner_must_tell_how_many_there_are():
    source = Partitioner([])
    with pytest.raises(DataError, match="num_partitions"):
        from_data(source, target="label")


# Datasets of torch as data of one's own, whole or one for each client.

X_TORCH_SETS = torch.arange(40.0).reshape(20, 2)
Y_TORCH_SETS = torch.tensor([3, 5] * 10)


class Items(Dataset):
    """A dataset whose items are computed, and counted."""

    def __init__(self, items):
        self.items = items
        self.asked = 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        self.asked += 1
        return self.items[place]


class Doubled(TensorDataset):
    """What it gives is not what it stores."""

    def __getitem__(self, place):
        x, y = super().__getitem__(place)
        return 2 * x, y


def test_subsets_of_tensors_are_clients():
    whole = TensorDataset(X_TORCH_SETS, Y_TORCH_SETS)
    data = from_data([Subset(whole, range(8)), Subset(whole, torch.arange(8, 20))])
    assert data.samples.tolist() == [6, 10]
    assert data.labels == (3, 5)
    assert data.train_x[: data.samples[0], 0].max() < 16 <= data.train_x[data.samples[0] :, 0].min()


def test_items_of_a_dataset_are_read_once_each_and_grouped_by_an_array():
    source = Items([(X_TORCH_SETS[k], int(Y_TORCH_SETS[k])) for k in range(20)])
    data = from_data(source, group=["b", "a"] * 10)
    assert source.asked == 20
    assert data.client_names == ("a", "b")
    direct = from_data((X_TORCH_SETS, Y_TORCH_SETS), group=["b", "a"] * 10)
    np.testing.assert_array_equal(data.train_x, direct.train_x)
    np.testing.assert_array_equal(data.train_y, direct.train_y)


def test_a_dataset_that_transforms_its_items_is_asked_for_them():
    data = from_data(Doubled(X_TORCH_SETS, Y_TORCH_SETS), group=[0, 1] * 10)
    plain = from_data(TensorDataset(X_TORCH_SETS, Y_TORCH_SETS), group=[0, 1] * 10)
    np.testing.assert_array_equal(data.train_x, 2 * plain.train_x)
    part = from_data(Subset(Doubled(X_TORCH_SETS, Y_TORCH_SETS), range(20)), group=[0, 1] * 10)
    np.testing.assert_array_equal(part.train_x, data.train_x)


def test_token_ids_stay_whole_and_targets_may_be_texts():
    ids = torch.arange(40).reshape(20, 2)
    data = from_data(Items([(ids[k], "ab"[k % 2]) for k in range(20)]), group=[0, 1] * 10)
    assert data.train_x.dtype == np.int64
    assert data.labels == ("a", "b")


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (Items([]), "dataset is empty"),
        (Items([X_TORCH_SETS[0]] * 4), "item 0 of the dataset must be"),
        (Items([{"x": 1}] * 4), "item 0 of the dataset must be"),
        (Items([(X_TORCH_SETS[0], 0), (X_TORCH_SETS[0][:1], 1)]), r"item 1 has \(1,\)"),
        (Items([("text", 0)] * 4), "item 0, must be numbers"),
        (Endless(), "which is no form of data"),
        (DataLoader(TensorDataset(X_TORCH_SETS, Y_TORCH_SETS)), "give its dataset instead"),
    ],
)
def test_what_is_no_dataset_of_samples_and_targets_is_refused(source, sentence):
    with pytest.raises(DataError, match=sentence):
        from_data(source, clients=2)


def test_a_dataset_that_is_too_large_is_refused_at_its_first_item(monkeypatch):
    monkeypatch.setattr(own, "LARGEST_TABLE_BYTES", 100)
    source = Items([(X_TORCH_SETS[k], int(Y_TORCH_SETS[k])) for k in range(20)])
    with pytest.raises(DataError, match="20 samples of 8 bytes take more than"):
        from_data(source, clients=2)
    assert source.asked == 1


def test_a_slow_dataset_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(own, "_SECONDS_UNTOLD", 0.0)
    from_data(Items([(X_TORCH_SETS[k], int(Y_TORCH_SETS[k])) for k in range(20)]), clients=2)
    assert "read 20 of 20 samples" in capsys.readouterr().err


def test_a_quick_dataset_says_nothing(capsys):
    from_data(Items([(X_TORCH_SETS[k], int(Y_TORCH_SETS[k])) for k in range(20)]), clients=2)
    assert capsys.readouterr().err == ""

"""Datasets of Hugging Face, and Flower's partitioners by the protocol that they have."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
from PIL import Image

from flamma.data.own import federated_from
from flamma.errors import DataError

COLUMNS = {
    "age": [float(k) for k in range(12)],
    "ward": ["a", "b", "c"] * 4,
    "label": [1, 2] * 6,
    "site": ["n"] * 4 + ["s"] * 8,
}


@pytest.fixture(autouse=True)
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


def test_a_dataset_is_the_mapping_of_its_columns():
    data = federated_from(datasets.Dataset.from_dict(COLUMNS), target="label", group="site")
    plain = federated_from(COLUMNS, target="label", group="site")
    np.testing.assert_array_equal(data.train_x, plain.train_x)
    assert (data.labels, data.client_names) == ((1, 2), ("n", "s"))
    assert data.encoding == plain.encoding
    rows = datasets.Dataset.from_dict({"age": [3.0], "ward": ["b"]})
    np.testing.assert_array_equal(data.encode(rows), plain.encode({"age": [3.0], "ward": ["b"]}))


def test_a_dataset_dict_brings_its_test_set():
    whole = datasets.Dataset.from_dict(COLUMNS)
    data = federated_from(
        datasets.DatasetDict(train=whole, test=whole.select(range(5))), target="label", group="site"
    )
    assert data.test_y.tolist() == [0, 1, 0, 1, 0]
    np.testing.assert_array_equal(data.test_x, data.encode({k: v[:5] for k, v in COLUMNS.items()}))
    with pytest.raises(DataError, match="needs a part 'train', but has 'all'"):
        federated_from(datasets.DatasetDict(all=whole), target="label", group="site")


def test_lists_of_token_ids_stay_whole():
    ids = np.arange(60).reshape(12, 5)
    source = datasets.Dataset.from_dict(
        {"ids": ids.tolist(), "label": [0, 1] * 6, "more": [1] * 12}
    )
    data = federated_from(source, target="label", drop=["more"], clients=2)
    assert data.train_x.dtype == np.int64
    assert data.shape == (5,)
    with pytest.raises(DataError, match=r"'ids' has an array in each cell.*'more'"):
        federated_from(source, target="label", clients=2)


def test_pictures_are_arrays_of_channels_first():
    pixels = np.arange(12 * 5 * 4 * 3, dtype=np.uint8).reshape(12, 5, 4, 3)
    source = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(p) for p in pixels], "label": [0, 1] * 6},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    data = federated_from(source, target="label", clients=2, standardise=False)
    assert data.shape == (3, 5, 4)
    first = (pixels.transpose(0, 3, 1, 2) / np.float32(255)).astype(np.float32)
    assert data.train_x[0].tolist() in first.tolist()


def test_missing_values_are_refused():
    source = datasets.Dataset.from_dict(COLUMNS | {"age": [None, *COLUMNS["age"][1:]]})
    with pytest.raises(DataError, match="column 'age' has 1 missing values"):
        federated_from(source, target="label", group="site")


def test_partitions_are_clients_with_their_natural_names():
    whole = datasets.Dataset.from_dict(COLUMNS).remove_columns("site")
    parts = [whole.select(range(4)), whole.select(range(4, 12))]
    data = federated_from(Partitioner(parts, {0: "n", 1: "s"}), target="label")
    assert data.client_names == ("n", "s")
    assert data.samples.tolist() == [3, 6]
    assert federated_from(Partitioner(parts), target="label").client_names == ()


def test_a_federated_dataset_is_asked_by_its_partitioner():
    whole = datasets.Dataset.from_dict(COLUMNS).remove_columns("site")
    source = Partitioner([whole.select(range(4)), whole.select(range(4, 12))])
    del source.num_partitions
    source.partitioners = {"train": Partitioner([None, None])}
    assert federated_from(source, target="label").clients == 2


def test_a_partitioner_must_tell_how_many_there_are():
    source = Partitioner([])
    with pytest.raises(DataError, match="num_partitions"):
        federated_from(source, target="label")

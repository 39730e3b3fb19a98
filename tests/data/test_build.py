"""Federations: disjoint parts, the same distribution, and quick for very many clients."""

from __future__ import annotations

import time

import numpy as np
import pytest

from flamma.data.build import build_federation, choose_split
from flamma.data.datasets import DATASETS
from flamma.data.records import Dataset, DatasetEntry
from flamma.data.splits import SPLITS
from flamma.errors import ConfigError, DataError, FlammaError


def rows(array):
    return {row.tobytes() for row in array.reshape(len(array), -1)}


@pytest.mark.parametrize("split", [name for name in SPLITS if name != "groups"])
def test_the_arrays_of_a_federation_share_nothing(split):
    # Rows of normal noise are all different, so equal rows would be the same sample.
    data = build_federation("synthetic", split, 10, 1, validation_samples=100, train_samples=2000)
    parts = [data.train_x, data.held_x, data.validation_x, data.test_x]
    assert [len(part) for part in parts[2:]] == [100, 2000]
    assert sum(len(part) for part in parts) == len(set().union(*map(rows, parts)))
    assert len(data.train_x) == pytest.approx(2000, abs=10)
    assert len(data.train_x) + len(data.held_x) == 2500
    for x in parts:
        assert x.dtype == np.float32


def test_digits_by_one_class_shards():
    sizes = {"train_samples": 1000, "validation_samples": 0}
    data = build_federation("digits", "shards", 10, seed=0, shards_per_client=1, **sizes)
    assert data.samples.tolist() == [100] * 10
    assert np.diff(data.held_offsets).tolist() == [25] * 10
    for client in range(10):
        train = data.train_y[data.train_offsets[client] : data.train_offsets[client + 1]]
        held = data.held_y[data.held_offsets[client] : data.held_offsets[client + 1]]
        assert len({*train.tolist(), *held.tolist()}) == 1
    assert data.train_x.shape == (1000, 1, 28, 28)
    assert abs(float(data.train_x.mean())) < 0.01


def test_the_test_set_depends_on_no_seed():
    one, two = (build_federation("digits", "iid", 5, seed, test_samples=50) for seed in (0, 1))
    assert np.array_equal(one.test_x, two.test_x)
    assert np.bincount(one.test_y).tolist() == [5] * 10
    assert not np.array_equal(one.train_y, two.train_y)
    again = build_federation("digits", "iid", 5, 0, test_samples=50)
    assert np.array_equal(one.train_x, again.train_x)
    assert np.array_equal(one.held_x, again.held_x)


def test_validation_and_training_samples_are_balanced():
    data = build_federation("digits", "iid", 4, 0, train_samples=800, validation_samples=200)
    assert np.bincount(data.validation_y).tolist() == [20] * 10
    assert np.bincount(np.concatenate([data.train_y, data.held_y])).tolist() == [100] * 10


@pytest.mark.slow  # it measures time
def test_a_hundred_thousand_clients_take_seconds():
    start = time.process_time()
    data = build_federation("synthetic", "classes", 100_000, 0)
    assert data.clients == 100_000
    assert data.samples.min() >= 7
    assert time.process_time() - start < 10  # measured: 2 s on two cores


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"train_samples": 1400}, "digits has 1442 training samples, .* 1750 for the clients"),
        ({"train_samples": 1000}, "1250 for the clients .20% of them held out., 200 for valid"),
        ({"train_samples": 0}, "train_samples must be at least 1"),
        ({"test_samples": 356}, "digits has 355 test samples, not 356"),
        ({"test_samples": 0}, "test_samples must be at least 1"),
        ({"validation_samples": -1}, "validation_samples must be at least 0"),
        ({"validation_samples": 1443}, "asked for: 1443 for validation"),
        ({"validation_samples": 1440}, "10 clients need at least 20 samples"),
        ({"held_out": 0.0}, "held_out must lie between 0 and 1"),
        ({"held_out": 1.0}, "held_out must lie between 0 and 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"clients": 1000}, "1000 clients need at least 2000 samples"),
        ({"split": "irid"}, "did you mean iid"),
        ({"dataset": "digit"}, "did you mean digits"),
    ],
)
def test_what_cannot_be_built_says_why(options, what):
    asked = {"dataset": "digits", "split": "iid", "clients": 10, "seed": 0, **options}
    with pytest.raises(FlammaError, match=what):
        build_federation(**asked)


WRITERS = np.repeat([2, 0, 5, 9], [30, 20, 25, 25])
"""The natural group of each training sample of the dataset ``letters``; some numbers are unused."""


@pytest.fixture
def letters():
    """Register a throw-away dataset whose samples belong to four writers."""

    def load(folder, samples):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((100, 3)).astype(np.float32)
        x[:, 0] = WRITERS
        y = rng.integers(0, 2, 100)
        return Dataset("letters", x, y, x[:10], y[:10], ("a", "b"), groups=WRITERS)

    DATASETS.add("letters", DatasetEntry("of writers", (3,), ("a", "b"), 100, 10, load))
    yield
    DATASETS.discard("letters")


def writers_of(data):
    """Return the writers of each client, of its training and held-out samples alike."""
    found = []
    for client in range(data.clients):
        train = data.train_x[data.train_offsets[client] : data.train_offsets[client + 1], 0]
        held = data.held_x[data.held_offsets[client] : data.held_offsets[client + 1], 0]
        assert set(held.tolist()) <= set(train.tolist())
        found.append({int(writer) for writer in train})
    return found


def test_each_natural_group_is_a_client(letters):
    data = build_federation("letters", "groups", 4, 0, validation_samples=0)
    assert writers_of(data) == [{0}, {2}, {5}, {9}]
    assert data.samples.tolist() == [16, 24, 20, 20]


def test_the_validation_set_is_cut_off_before_the_groups(letters):
    data = build_federation("letters", "groups", 4, 0, validation_samples=20)
    assert writers_of(data) == [{0}, {2}, {5}, {9}]
    assert len(data.train_x) + len(data.held_x) == 80


def test_fewer_clients_than_groups_have_several(letters):
    data = build_federation("letters", "groups", 2, 0, validation_samples=0)
    writers = writers_of(data)
    assert writers[0].isdisjoint(writers[1])
    assert writers[0] | writers[1] == {0, 2, 5, 9}


@pytest.mark.parametrize(
    ("dataset", "clients", "what"),
    [
        ("letters", 5, "4 groups for 5 clients"),
        ("digits", 5, "needs a dataset with natural groups"),
    ],
)
def test_groups_that_do_not_fit_are_one_sentence(letters, dataset, clients, what):
    with pytest.raises(DataError, match=what) as caught:
        build_federation(dataset, "groups", clients, 0, validation_samples=0)
    assert str(caught.value).count(". ") == 0


def test_groups_must_be_one_for_each_sample():
    x, y = np.zeros((3, 4), dtype=np.float32), np.array([0, 1, 0])
    for groups in (np.array([0, 1]), np.array([0, -1, 1])):
        with pytest.raises(DataError, match="one group from 0 on for each training sample"):
            Dataset("odd", x, y, x, y, ("a", "b"), groups=groups)


def test_a_table_chooses_a_split_and_its_options(monkeypatch):
    def stripes(pool, *, width: int = 3):
        return np.arange(pool.labels.size) // width % pool.clients

    monkeypatch.setitem(SPLITS._ours, "stripes", stripes)
    split, rest = choose_split({"split": "stripes", "width": 5, "seed": 1, "alpha": 9}, ["seed"])
    assert (split.name, split.options, rest) == ("stripes", {"width": 5}, {"seed": 1})
    data = build_federation("digits", split, 4, 0, validation_samples=0)
    assert data.clients == 4
    with pytest.raises(ConfigError, match=r"unknown key in data 'widht': did you mean width\?"):
        choose_split({"split": "stripes", "widht": 5}, ["seed"])
    with pytest.raises(ConfigError, match=r"data.width must be a whole number, not 'x'"):
        choose_split({"split": "stripes", "width": "x"}, ["seed"])

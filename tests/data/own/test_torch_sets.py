"""Datasets of torch as data of one's own, whole or one for each client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from flamma.data import own
from flamma.data.own import federated_from
from flamma.errors import DataError

X = torch.arange(40.0).reshape(20, 2)
Y = torch.tensor([3, 5] * 10)


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
    whole = TensorDataset(X, Y)
    data = federated_from([Subset(whole, range(8)), Subset(whole, torch.arange(8, 20))])
    assert data.samples.tolist() == [6, 10]
    assert data.labels == (3, 5)
    assert data.train_x[: data.samples[0], 0].max() < 16 <= data.train_x[data.samples[0] :, 0].min()


def test_items_of_a_dataset_are_read_once_each_and_grouped_by_an_array():
    source = Items([(X[k], int(Y[k])) for k in range(20)])
    data = federated_from(source, group=["b", "a"] * 10)
    assert source.asked == 20
    assert data.client_names == ("a", "b")
    direct = federated_from((X, Y), group=["b", "a"] * 10)
    np.testing.assert_array_equal(data.train_x, direct.train_x)
    np.testing.assert_array_equal(data.train_y, direct.train_y)


def test_a_dataset_that_transforms_its_items_is_asked_for_them():
    data = federated_from(Doubled(X, Y), group=[0, 1] * 10)
    plain = federated_from(TensorDataset(X, Y), group=[0, 1] * 10)
    np.testing.assert_array_equal(data.train_x, 2 * plain.train_x)
    part = federated_from(Subset(Doubled(X, Y), range(20)), group=[0, 1] * 10)
    np.testing.assert_array_equal(part.train_x, data.train_x)


def test_token_ids_stay_whole_and_targets_may_be_texts():
    ids = torch.arange(40).reshape(20, 2)
    data = federated_from(Items([(ids[k], "ab"[k % 2]) for k in range(20)]), group=[0, 1] * 10)
    assert data.train_x.dtype == np.int64
    assert data.labels == ("a", "b")


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (Items([]), "dataset is empty"),
        (Items([X[0]] * 4), "item 0 of the dataset must be"),
        (Items([{"x": 1}] * 4), "item 0 of the dataset must be"),
        (Items([(X[0], 0), (X[0][:1], 1)]), r"item 1 has \(1,\)"),
        (Items([("text", 0)] * 4), "item 0, must be numbers"),
        (Endless(), "which is no form of data"),
        (DataLoader(TensorDataset(X, Y)), "give its dataset instead"),
    ],
)
def test_what_is_no_dataset_of_samples_and_targets_is_refused(source, sentence):
    with pytest.raises(DataError, match=sentence):
        federated_from(source, clients=2)


def test_a_dataset_that_is_too_large_is_refused_at_its_first_item(monkeypatch):
    monkeypatch.setattr(own, "LARGEST_TABLE_BYTES", 100)
    source = Items([(X[k], int(Y[k])) for k in range(20)])
    with pytest.raises(DataError, match="20 samples of 8 bytes take more than"):
        federated_from(source, clients=2)
    assert source.asked == 1


def test_a_slow_dataset_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(own, "SECONDS_UNTOLD", 0.0)
    federated_from(Items([(X[k], int(Y[k])) for k in range(20)]), clients=2)
    assert "read 20 of 20 samples" in capsys.readouterr().err


def test_a_quick_dataset_says_nothing(capsys):
    federated_from(Items([(X[k], int(Y[k])) for k in range(20)]), clients=2)
    assert capsys.readouterr().err == ""
